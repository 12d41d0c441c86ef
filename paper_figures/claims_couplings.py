"""Rows of the table of claims on couplings by shared random numbers and on lossy rules."""

from pathlib import Path

import polars as pl
from claims_words import ROUNDING, command, holds, interval, listed, theorem

from otmd.study import summarise

COUPLINGS = Path("paper_figures/results/invariance.parquet")
LOSSY = Path("paper_figures/results/lossy_rules.parquet")
TEXTS = Path("paper_figures/results/lossy_texts.parquet")
MIDDLES = ("gumbel_top", "recursive_without", "poisson", "gumbel_list")
COUNTS = (1, 2, 4)
MOST = 4
TEMPERATURES = (0.6, 1.0)


def rows() -> list[list[str]]:
    """Claim, source, what was measured, script and verdict."""
    couplings = pl.read_parquet(COUPLINGS).with_columns(
        ((pl.col(f"{name}_low") + pl.col(f"{name}_high")) / 2).alias(name) for name in MIDDLES
    )
    rules = pl.read_parquet(LOSSY).filter(temperature=1.0)
    return [
        one_floor(couplings),
        list_floor(couplings),
        against_rejection(couplings),
        price(couplings),
        lossy(rules.filter(drafts="sampled")),
        lossy_siblings(rules.filter(drafts="certain", num_drafts=MOST)),
        lossy_texts(pl.read_parquet(TEXTS)),
    ]


def mean(table: pl.DataFrame, value: pl.Expr) -> dict[str, float]:
    """A mean over positions with its 95% interval over prompts."""
    measured = ("optimal", "rate", "rate_low", "rate_high", "gap", "gap_low", "gap_high")
    alone = table.select(
        pl.lit("all").alias("domain"),
        pl.col("prompt").cast(pl.String).alias("prompt_id"),
        *(value.alias(name) for name in measured),
    )
    found = summarise(alone, by=["domain"]).row(0, named=True)
    return {"value": found["rate"], "low": found["rate_low"], "high": found["rate_high"]}


def one_floor(table: pl.DataFrame) -> list[str]:
    """One draft by shared Gumbel noise."""
    claim = "Shared Gumbel noise accepts one draft with at least (1 − TV)/(1 + TV)"
    one = table.filter(num_drafts=1)
    return floor([claim, "Daliri et al. 2024"], one, one, "floor_one", "positions", "T = 1")


def list_floor(table: pl.DataFrame) -> list[str]:
    """The list matching lemma."""
    claim = "The list matching lemma bounds the Gumbel list from below"
    four, counted = table.filter(num_drafts=MOST), "positions and numbers of drafts"
    at = f"n = {MOST}, T = 1"
    return floor([claim, "Rowan et al. 2025"], table, four, "floor_list", counted, at)


def floor(
    claim: list[str], table: pl.DataFrame, some: pl.DataFrame, column: str, counted: str, at: str
) -> list[str]:
    """How far the Gumbel list stays above a published floor: the least, and the mean of ``some`` at T = 1."""
    least = table.select((pl.col("gumbel_list_high") - pl.col(column)).min()).item()
    above = mean(some.filter(temperature=1.0), pl.col("gumbel_list") - pl.col(column))
    return [
        *claim,
        f"{table.height} {counted}: at least {100 * least:.2g} pp above; "
        f"{at}: {interval(above)} pp on average",
        command("invariance"),
        theorem(least >= -ROUNDING),
    ]


def against_rejection(table: pl.DataFrame) -> list[str]:
    """The Gumbel top n, without verification, against recursive rejection."""
    leads = {
        (n, t): mean(
            table.filter(num_drafts=n, temperature=t),
            pl.col("gumbel_top") - pl.col("recursive_without"),
        )
        for n in COUNTS
        for t in TEMPERATURES
    }
    words = "; ".join(f"n = {n}, T = {t:g}: {interval(lead)}" for (n, t), lead in leads.items())
    ahead, behind = (
        [n for n in COUNTS if all(sign * leads[n, t][end] > 0 for t in TEMPERATURES)]
        for sign, end in ((1, "low"), (-1, "high"))
    )
    return [
        "The Gumbel top n, which verifies nothing, agrees more often than recursive rejection accepts",
        "asked here",
        f"same drafts without replacement, top n less RRSw in pp: {words}",
        command("invariance"),
        f"on this pair: holds at n = {listed(ahead)}, the other way round at n = {listed(behind)}",
    ]


def price(table: pl.DataFrame) -> list[str]:
    """What the output's independence of the draft costs."""
    lost = pl.col("optimal_without") - pl.col("gumbel_top")
    prices = {
        f"n = {n}, T = {t:g}": mean(table.filter(num_drafts=n, temperature=t), lost)
        for t in TEMPERATURES
        for n in (1, MOST)
    }
    words = "; ".join(f"{at}: {interval(each)}" for at, each in prices.items())
    return [
        "An output that does not depend on the draft model costs acceptance",
        "asked here",
        f"α* without replacement less the Gumbel top n in pp: {words}",
        command("invariance"),
        holds(all(each["low"] > 0 for each in prices.values())),
    ]


def lossy(table: pl.DataFrame) -> list[str]:
    """How much less lossy rules accept than the same total variation allows."""
    wasted = pl.col("rate_within_total_variation") - pl.col("rate")
    parts = [
        f"{rule}: {interval(mean(part, wasted))}"
        for (rule,), part in table.group_by("rule", maintain_order=True)
    ]
    mixtures = table.filter(pl.col("rule").str.starts_with("mixture"))
    others = table.filter(~pl.col("rule").str.starts_with("mixture"))
    least = others.group_by("rule").agg(wasted.mean())["rate_within_total_variation"].min()
    exact = mixtures.select(wasted.abs().max()).item()
    return [
        "Lossy rules accept as much as their divergence allows",
        "asked here",
        "one draft, T = 1, rate that the same total variation buys less the rule's, in pp: "
        + "; ".join(parts),
        command("lossy_rules"),
        holds(isinstance(least, float) and least < 0.005)
        + f" but for mixtures (at most {100 * exact:.1g} pp away)",
    ]


def lossy_siblings(table: pl.DataFrame) -> list[str]:
    """Lossy rules on certain drafts against a lossless rule on as many drafts from strata."""
    by_rule = dict(table.group_by("rule", maintain_order=True))
    leads = {
        rule: mean(part, pl.col("rate") - pl.col("strata")) for (rule,), part in by_rule.items()
    }
    apart = {rule: part["total_variation"].mean() for (rule,), part in by_rule.items()}
    ahead, behind = (
        [rule for rule, lead in leads.items() if sign * lead[end] > 0]
        for sign, end in ((1, "low"), (-1, "high"))
    )
    words = (f"{rule}: {interval(lead)}, {apart[rule]:.2f}" for rule, lead in leads.items())
    return [
        "Lossy rules on four certain drafts accept more than a lossless rule on four from strata",
        "asked here",
        "T = 1, rate less that of the preference rule on strata in pp, and total variation: "
        + "; ".join(words),
        command("lossy_rules"),
        f"holds for {len(ahead)} of {len(leads)}, the other way round for {len(behind)}",
    ]


def lossy_texts(table: pl.DataFrame) -> list[str]:
    """How far lossy rules diverge over a text, against the least divergence at their rates."""
    words, all_waste = [], []
    for (rule, count), part in table.group_by("rule", "num_drafts", maintain_order=True):
        wasted = mean(part, pl.col("kl") - pl.col("least_kl"))
        all_waste.append(wasted["low"] > 0)
        name = rule if count == 1 else f"{rule}, n = {count}"
        words.append(f"{name}: {part['kl'].mean():.1f}, {interval(wasted, 1.0)}")
    prompts, tokens = table["prompt"].n_unique(), table["tokens"].max()
    return [
        "Over a text, a lossy rule diverges no more than its rates cost",
        "asked here",
        f"KL in nats of texts of {tokens} tokens, one a prompt of {prompts}, and by how much it is above "
        "the least at the same rates: " + "; ".join(words),
        command("lossy_texts"),
        holds(not any(all_waste), f" for {sum(all_waste)} of {len(all_waste)} rules"),
    ]
