"""A summary of what ``draft_laws.py`` measured: fitted parameters, differences, and what is left to gain.

    python experiments/claims/law_choice.py
    python experiments/claims/law_choice.py --rows runs/two_sizes_positions.parquet

Prompts are cut in two halves. A parameter is fitted on one half and its rate is reported on the other, both
ways, so that every prompt is reported on. Intervals are 95%, by a bootstrap over prompts within domains;
differences are of the same positions. Stores a row for each draft, temperature, number of drafts and choice;
what is stored of other drafts stays.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from draft_laws import COUNTS, ROWS, TEMPERATURES
from law_ceiling import ceilings

from otmd.probabilities import BoolArray, FloatArray
from otmd.storage.parquet import write_parquet

RESULTS = Path("paper_figures/results/draft_laws.parquet")
KEYS = ("domain", "prompt_id", "draft", "temperature", "position")
NAME = ("law", "rule", "sharpness", "falling", "top")
RESAMPLES = 2000
BINS = 4

PLAIN = {
    "certain": ("certain", "target only"),
    "greedy": ("greedy", "greedy coupling"),
    "with, recursive": ("with replacement", "recursive rejection"),
    "with, K-SEQ": ("with replacement", "K-SEQ"),
    "with, preference": ("with replacement", "preference"),
    "with, optimum": ("with replacement", "optimum"),
    "without, recursive": ("without replacement", "recursive rejection"),
    "without, optimum": ("without replacement", "optimum"),
    "stratified": ("stratified", "preference"),
    "stratified, ratio order": ("stratified", "preference, ratio order"),
    "stratified, peeled": ("stratified", "preference, peeled"),
    "stratified, optimum": ("stratified", "optimum"),
    "Poisson, optimum": ("conditional Poisson", "optimum"),
}
"""Law and rule, all parameters at their defaults."""

FITTED = {
    "without, sharpened, recursive": ("without replacement", "recursive rejection", "sharpness"),
    "without, sharpened, optimum": ("without replacement", "optimum", "sharpness"),
    "Poisson, sharpened, optimum": ("conditional Poisson", "optimum", "sharpness"),
    "top, then with, preference": ("top, then with", "preference", "top"),
    "top, then with, optimum": ("top, then with", "optimum", "top"),
    "top, then without, optimum": ("top, then without", "optimum", "top"),
    "stratified, sharpened, optimum": ("stratified", "optimum", "sharpness"),
    "stratified, β": ("stratified", "preference", "sharpness"),
    "stratified, shares": ("stratified", "preference", "falling"),
    "stratified, m": ("stratified", "preference", "top"),
    "stratified, fitted": ("stratified", "preference", "sharpness falling top"),
}
"""Law and rule, and the parameters that are fitted; the others stay at their defaults."""

BASES = {"greedy": "greedy", "stratified": "stratified", "k_sequential": "with, K-SEQ"}
"""Choices that all others are compared with, by the name of the columns."""

DEFAULTS = {"sharpness": 1.0, "falling": 1.0, "top": 0.0}


class Measured(NamedTuple):
    """All rates with one number of drafts.

    ``about`` has a row a position and draft, ``variants`` a row for each law, rule and parameters, and
    ``rates`` (positions, variants) is NaN where nothing was measured.
    """

    about: pl.DataFrame
    variants: pl.DataFrame
    rates: FloatArray


class Chosen(NamedTuple):
    """A choice's rates, (positions,), and its parameters in words for each draft and temperature."""

    rates: FloatArray
    parameters: dict[tuple[str, float], str]


def measured(table: pl.DataFrame, num_drafts: int) -> Measured:
    """Put the rates of each position side by side, and give each prompt its half."""
    rows = table.filter(num_drafts=num_drafts)
    about = rows.select(*KEYS, "entropy", "top_draft").unique(KEYS).sort(KEYS)
    ids = about.select("domain", "prompt_id").unique().sort("domain", "prompt_id")
    half = ids.with_columns(half=pl.int_range(pl.len()).over("domain") % 2)
    about = about.join(half, on=["domain", "prompt_id"], maintain_order="left").with_row_index(
        "row"
    )
    variants = rows.select(NAME).unique().sort(NAME).with_row_index("variant")
    places = rows.join(about.select(*KEYS, "row"), on=KEYS).join(variants, on=NAME)
    rates = np.full((about.height, variants.height), np.nan)
    rates[places["row"].to_numpy(), places["variant"].to_numpy()] = places["rate"].to_numpy()
    return Measured(about, variants, rates)


def drafts_of(of: Measured) -> list[str]:
    """The drafts that were measured."""
    return of.about["draft"].unique().sort().to_list()


def family(of: Measured, law: str, rule: str, free: str = "") -> list[int]:
    """The variants of a law and rule that differ in the free parameters alone."""
    rows = of.variants.filter(law=law, rule=rule)
    for name, default in DEFAULTS.items():
        if name not in free.split():
            rows = rows.filter(pl.col(name) == default)
    return rows["variant"].to_list()


def fitted(
    of: Measured, variants: list[int], like: Callable[[str, float], pl.Expr], bins: bool = False
) -> Chosen:
    """Take for each half of the positions the variant that is best on the other half.

    ``like(draft, temperature)`` selects the positions to fit on. With ``bins`` a variant is chosen for each
    range of the draft's entropy.
    """
    rates, words = np.full(of.about.height, np.nan), {}
    half, entropy = of.about["half"].to_numpy(), of.about["entropy"].to_numpy()
    for draft in drafts_of(of):
        for temperature in TEMPERATURES:
            own = _where(of, (pl.col("draft") == draft) & (pl.col("temperature") == temperature))
            fit = _where(of, like(draft, temperature))
            said = []
            for side in (0, 1):
                fit_rows, own_rows = fit & (half != side), own & (half == side)
                edges = (
                    np.quantile(entropy[fit_rows], np.linspace(0, 1, BINS + 1)[1:-1])
                    if bins
                    else []
                )
                fit_bin, own_bin = np.digitize(entropy, edges), np.digitize(entropy, edges)
                for at in range(len(edges) + 1):
                    best = _best(of.rates[fit_rows & (fit_bin == at)], variants)
                    taken = own_rows & (own_bin == at)
                    rates[taken] = of.rates[taken, best]
                    said.append(_words(of, best))
            words[draft, temperature] = "; ".join(said)
    return Chosen(rates, words)


def _where(of: Measured, which: pl.Expr) -> BoolArray:
    return of.about.select(which.alias("which"))["which"].to_numpy()


def _best(rates: FloatArray, variants: list[int]) -> int:
    own = rates[:, variants]
    own = own[~np.isnan(own).any(axis=1)]
    if own.size == 0:
        return variants[0]
    # Rounding must not decide between variants of equal rates.
    return variants[int(np.argmax(own.mean(axis=0).round(9)))]


def _words(of: Measured, variant: int) -> str:
    row = of.variants.row(variant, named=True)
    return f"β {row['sharpness']:g}, shares {row['falling']:g}, m {row['top']:g}"


def same(draft: str, temperature: float) -> pl.Expr:
    """The pair and temperature themselves."""
    return (pl.col("draft") == draft) & (pl.col("temperature") == temperature)


OTHER_PAIRS = "stratified, of other pairs"
TRANSFER: dict[str, tuple[Callable[[str, float], pl.Expr], bool]] = {
    OTHER_PAIRS: (
        lambda draft, t: (pl.col("draft") != draft) & (pl.col("temperature") == t),
        False,
    ),
    "stratified, of other temperatures": (
        lambda draft, t: (pl.col("draft") == draft) & (pl.col("temperature") != t),
        False,
    ),
    "stratified, of all": (lambda draft, t: pl.col("draft").is_not_null(), False),
    "stratified, by entropy": (lambda draft, t: pl.col("draft").is_not_null(), True),
}
"""Where the parameters of strata are fitted instead, and whether by the draft's entropy."""


def choices(of: Measured) -> dict[str, Chosen]:
    """All choices that were measured with one number of drafts."""
    found = {}
    for name, (law, rule) in PLAIN.items():
        if own := family(of, law, rule):
            found[name] = Chosen(of.rates[:, own[0]], {})
    for name, given in FITTED.items():
        if own := family(of, *given):
            found[name] = fitted(of, own, same)
    strata = family(of, *FITTED["stratified, fitted"])
    others = len(drafts_of(of)) > 1
    for name, (like, bins) in TRANSFER.items():
        if name == OTHER_PAIRS and not others:
            continue
        found[name] = fitted(of, strata, like, bins)
    if "stratified, ratio order" in found:
        two = [found[name].rates for name in ("stratified", "stratified, ratio order")]
        found["stratified, better order"] = Chosen(np.maximum(*two), {})
    return found


def resampled(prompts: pl.DataFrame) -> FloatArray:
    """How often each prompt is drawn in each resample (RESAMPLES, prompts), within domains."""
    rng, domains = np.random.default_rng(0), prompts["domain"].to_numpy()
    drawn = np.zeros((RESAMPLES, prompts.height))
    for domain in np.unique(domains):
        own = np.flatnonzero(domains == domain)
        # One draw fewer than prompts, else intervals of few prompts are too short (Rao & Wu 1988).
        counts = rng.multinomial(own.size - 1, np.full(own.size, 1 / own.size), size=RESAMPLES)
        drawn[:, own] = counts * own.size / (own.size - 1)
    return drawn


def summary(of: Measured, found: dict[str, Chosen], num_drafts: int) -> Iterator[dict[str, Any]]:
    """Mean rates, and their differences to other choices at the same positions, with intervals."""
    prompts = of.about.select("domain", "prompt_id").unique().sort("domain", "prompt_id")
    prompts = prompts.with_row_index("prompt")
    drawn = resampled(prompts)
    number = of.about.join(prompts, on=["domain", "prompt_id"], maintain_order="left")[
        "prompt"
    ].to_numpy()
    for draft in drafts_of(of):
        for temperature in TEMPERATURES:
            own = _where(of, same(draft, temperature))
            for name, chosen in found.items():
                there = own & ~np.isnan(chosen.rates)
                if not there.any():
                    continue
                row = {
                    "draft": draft,
                    "temperature": temperature,
                    "num_drafts": num_drafts,
                    "choice": name,
                    "positions": int(there.sum()),
                    "parameters": chosen.parameters.get((draft, temperature)),
                }
                values = {"": chosen.rates}
                for base, other in BASES.items():
                    values[f"_over_{base}"] = chosen.rates - found[other].rates
                for suffix, value in values.items():
                    mean, low, high, error = interval(value[there], number[there], drawn)
                    row |= {f"value{suffix}": mean, f"low{suffix}": low, f"high{suffix}": high}
                    row[f"error{suffix}"] = error
                yield row


def interval(
    values: FloatArray, prompt: FloatArray, drawn: FloatArray
) -> tuple[float, float, float, float]:
    """The mean of the values, its interval and its standard error, by resampled prompts."""
    sums = np.bincount(prompt, values, drawn.shape[1])
    counts = np.bincount(prompt, minlength=drawn.shape[1])
    means = (drawn @ sums) / (drawn @ counts)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high), float(means.std(ddof=1))


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Read the rows, choose, store the summary, and print it at temperature 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    table = pl.read_parquet(chosen.rows)
    rows: list[dict[str, Any]] = []
    bounds = None
    for num_drafts in COUNTS:
        of = measured(table, num_drafts)
        # The positions are the same for every number of drafts.
        bounds = ceilings(of.about) if bounds is None else bounds
        above = {name: Chosen(rates, {}) for name, rates in bounds[num_drafts].items()}
        rows += summary(of, choices(of) | above, num_drafts)
    result = pl.DataFrame(rows, infer_schema_length=None)
    kept = [result]
    if chosen.output.exists():
        before = pl.read_parquet(chosen.output)
        kept.insert(0, before.filter(~pl.col("draft").is_in(result["draft"].unique().to_list())))
    write_parquet(chosen.output, pl.concat(kept))
    keys = ("draft", "num_drafts", "choice")
    at = result.filter(temperature=1.0).select(*keys, "value", "value_over_stratified", "positions")
    with pl.Config(tbl_rows=-1, float_precision=4, fmt_str_lengths=40, tbl_width_chars=120):
        print(at.sort(keys))
    return result


if __name__ == "__main__":
    main()
