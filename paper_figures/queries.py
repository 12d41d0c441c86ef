"""Queries of ``claims.toml``: from stored results to the numbers of a sentence.

Each returns what its claim names in braces. ``so`` is the share of the cases in which the claim holds, or
None where the results do not tell.
"""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import t as student

from otmd.study.estimate import Estimate, estimate
from paper_figures.acceptance import RIVALS, largest_optimum, misstated, read_quality
from paper_figures.common import PAIR, PAIRS, means, read, read_positions, side_by_side

ROUNDING = 1e-9
MUCH = 5.0
"""Points that are much more."""
# Half a 95% interval, in standard errors.
ERRORS = 1.96
LEVEL = 0.05
SURE = "skip:27,28,29"
"""The overconfident draft."""
PAIRS_AND_ALL = {draft: label for draft, (label, _) in PAIRS.items()} | {"all": "all pairs"}
Numbers = dict[str, Any]

positions = cache(read_positions)
acceptance = partial(read, "spectr_acceptance")
choices = cache(partial(read, "draft_laws"))


def pair() -> pl.DataFrame:
    """Rows of positions of the README's pair."""
    return positions().filter(draft=PAIR)


def wide(names: Sequence[str], num_drafts: int, **at: float) -> pl.DataFrame:
    """Choices side by side at positions of the README's pair."""
    return side_by_side(pair().filter(**at), names, num_drafts)


def interval(row: Numbers, unit: float = 100.0) -> str:
    """A mean and its interval in words, in per cent (or points) by default."""
    value, low, high = (unit * row[name] for name in ("value", "low", "high"))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def by_name(table: pl.DataFrame, of: dict[str, pl.Expr] | Sequence[str]) -> dict[str, Numbers]:
    """Means over all rows, by name."""
    return {row["name"]: row for row in means(table, [], of).iter_rows(named=True)}


def leads(names: Sequence[str], base: str) -> dict[str, pl.Expr]:
    """A choice minus others, by the name of the other."""
    return {name: pl.col(base) - pl.col(name) for name in names}


def listed(values: Iterable[float]) -> str:
    """The numbers in a row, or "none"."""
    return ", ".join(f"{value:g}" for value in values) or "none"


def share_above(cells: pl.DataFrame, threshold: float = 0.0) -> float | None:
    """Share of means above a threshold by their intervals; None if no interval excludes it."""
    above = cells.filter(pl.col("low") > threshold).height
    below = cells.filter(pl.col("high") < threshold).height
    return above / cells.height if above + below else None


# Synthetic distributions.


def k_seq_floor() -> Numbers:
    """SpecTr's guarantee on the grid of distributions."""
    table = acceptance()
    so = (table["k_sequential"] >= table["floor_n"] - ROUNDING).all()
    least = (table["k_sequential"] / table["optimal"]).min()
    return {"so": so, "pairs": table["task"].n_unique(), "least": least}


def k_seq_tightness() -> Numbers:
    """Distance of the searches to the guarantee."""
    table = read("spectr_floor")
    least = table.group_by("num_drafts").agg(pl.col("ratio", "floor").min()).sort("num_drafts")
    words = (f"n = {n}: {ratio:.4f}, floor {floor:.4f}" for n, ratio, floor in least.iter_rows())
    nearest = (least["ratio"] - least["floor"]).to_numpy().min()
    so = True if nearest < ROUNDING else None
    return {"so": so, "searches": table.height, "nearest": nearest, "ratios": "; ".join(words)}


def upper_bound() -> Numbers:
    """Distance of the bound of Lemma 3 to the optimum."""
    excess = (acceptance()["bound"] - acceptance()["optimal"]).to_numpy()
    numbers = {"equal": 100 * (excess < ROUNDING).mean(), "most": 100 * excess.max()}
    return {"so": (excess >= -ROUNDING).all(), "cases": excess.size, **numbers}


def quality() -> Numbers:
    """α* with four drafts at equal total variation, and whether its range is kept."""
    rows = read_quality().filter(law="WithReplacement", verifier="RecursiveRejection")
    distance = rows["total_variation"].to_numpy()
    optimal = rows["optimal"].to_numpy()
    most = largest_optimum(distance, 4) + ROUNDING
    kept = ((optimal >= 1 - distance - ROUNDING) & (optimal <= most)).all()
    even = rows.filter(quality=0.5)
    missing, surplus = (even.filter(family=f)["optimal"].mean() for f in ("missing", "surplus"))
    words = {"kept": "kept" if kept else "broken", "pairs": rows.height}
    return {"so": missing == surplus, "missing": missing, "surplus": surplus, **words}


def vocabulary() -> Numbers:
    """Rates from ten thousand tokens to a quarter of a million, and the slope of α* with its interval."""
    noise = read_quality().filter(family="noise", quality=1.0, law="WithReplacement")
    table = noise.filter(verifier="KSequential")
    groups = table.group_by("vocab_size").agg(pl.col("optimal", "rate").mean())
    sizes = np.log10(table["vocab_size"].to_numpy())
    (slope, _), covariance = np.polyfit(sizes, table["optimal"].to_numpy(), 1, cov=True)
    margin = student.ppf(0.975, table.height - 2) * np.sqrt(covariance[0, 0])
    low, high = 100 * (slope - margin), 100 * (slope + margin)
    unseen = low < 0 < high
    words = {"so": None if unseen else True, "trend": "no trend seen" if unseen else "a trend"}
    ranges = {name: f"{groups[name].min():.3f} to {groups[name].max():.3f}" for name in groups.columns}
    return {**words, "low": low, "high": high, **ranges}


def hopeless() -> Numbers:
    """Poor drafts keep the guarantee; a draft of disjoint support is never accepted."""
    table = read_quality().filter(law="WithReplacement", verifier="KSequential", quality=0.0)
    floor = 1 - (1 - 1 / 4) ** 4
    kept = (table["rate"] >= floor * table["optimal"] - ROUNDING).all()
    by_family = {row["family"]: row for row in table.iter_rows(named=True)}
    ends = np.isclose(by_family["equal"]["rate"], 1) & np.isclose(by_family["disjoint"]["optimal"], 0)
    texts = (f"{name} {row['rate']:.3f}/{row['optimal']:.3f}" for name, row in by_family.items())
    return {"so": kept and ends, "floor": floor, "rates": "; ".join(texts)}


def toy_hub_theorem() -> Numbers:
    """SpecHub's theorem on toy vocabularies."""
    table = read("spechub_toy").filter(pl.col("top_draft") >= 0.5)
    least = (table["hub"] - table["optimal_with"]).to_numpy().min()
    return {"so": least >= -ROUNDING, "pairs": table.height, "least": 100 * least}


def toy_hub() -> Numbers:
    """The hub against recursive rejection, and how often it wins where q(a) < 1/2."""
    table = read("spechub_toy")
    below = table.filter(pl.col("top_draft") < 0.5)
    rivals = ("optimal_with", "recursive_without")
    wins = {name: 100 * (below["hub"] > below[name]).to_numpy().mean() for name in rivals}
    hub, *others = table.select(pl.col("hub", "recursive_with", "recursive_without").mean()).row(0)
    rates = f"{hub:.3f}, {others[0]:.3f} and {others[1]:.3f}"
    least = table.select(pl.col("hub") - pl.max_horizontal("recursive_with", "recursive_without"))
    cases = {"on average": hub > max(others), "at each pair": least.to_numpy().min() > 0}
    ahead = ", ".join(words if so else f"not {words}" for words, so in cases.items())
    so = np.mean(list(cases.values()))
    return {"so": so, "ahead": ahead, "pairs": table.height, "rates": rates, **wins}


# Positions of real models.


def hub_theorem() -> Numbers:
    """SpecHub's theorem at real positions."""
    rows = wide(["SpecHub", "α*, with"], 2).filter(pl.col("top_draft") >= 0.5)
    lead = (rows["SpecHub"] - rows["α*, with"]).to_numpy()
    ends = {"least": 100 * lead.min(), "most": 100 * lead.max()}
    return {"so": lead.min() >= -ROUNDING, "positions": rows.height, **ends}


def hub_below() -> Numbers:
    """Share of positions at which the hub wins where the theorem is silent."""
    rows = wide(["SpecHub", "α*, with"], 2).filter(pl.col("top_draft") < 0.5)
    ahead = (pl.col("SpecHub") > pl.col("α*, with")).cast(pl.Float64)
    share = by_name(rows, {"share": ahead})["share"]
    size = "a majority" if share["low"] > 0.5 else "a minority" if share["high"] < 0.5 else "half"
    numbers = {"positions": rows.height, "share": interval(share), "size": size}
    return {"so": share["value"] > 0, **numbers}


def hub_rules() -> Numbers:
    """The hub against recursive rejection by temperature."""
    rows = wide(["SpecHub", "RRS", "RRSw"], 2)
    lead = means(rows, ["temperature"], leads(["RRSw"], "SpecHub")).sort("temperature")
    words = (f"T = {row['temperature']:g}: {interval(row)}" for row in lead.iter_rows(named=True))
    ahead, behind = (
        listed(lead.filter(sign)["temperature"]) for sign in (pl.col("low") > 0, pl.col("high") < 0)
    )
    so = share_above(lead)
    return {"so": so, "leads": "; ".join(words), "ahead": ahead, "behind": behind}


def below_optimum(optimum: str, rules: Sequence[str]) -> Numbers:
    """α*, and how far verifiers stay below it, where Hu et al.'s Table 1 has them."""
    rows = wide([optimum, *rules], 3, temperature=0.7)
    rate = by_name(rows, [optimum])[optimum]
    gaps = by_name(rows, leads(rules, optimum))
    texts = {name.replace("-", ""): interval(gap) for name, gap in gaps.items()}
    return {"so": all(g["low"] > 0 for g in gaps.values()), "optimum": interval(rate), **texts}


def greedy_ahead() -> Numbers:
    """Greedy drafts against recursive rejection, as Hu et al. compare them."""
    rivals = ("RRS", "RRSw", "α*, with")
    lead = by_name(wide(["greedy", *rivals], 3, temperature=0.7), leads(rivals, "greedy"))
    words = ", ".join(f"{name} {interval(lead[name])} pp" for name in rivals)
    return {"so": lead["RRS"]["low"] > 0, "leads": words}


def greedy_behind() -> Numbers:
    """Temperatures at which greedy drafts are worse than drafts without replacement."""
    rivals = ("α*, without", "RRSw")
    rows = wide(["greedy", *rivals], 3)
    lead = means(rows, ["temperature"], leads(rivals, "greedy")).filter(pl.col("high") < 0)
    optimum, rejection = (lead.filter(name=name)["temperature"].sort() for name in rivals)
    so = not rejection.is_empty()
    return {"so": so, "optimum": listed(optimum), "rejection": listed(rejection)}


def without_above() -> Numbers:
    """α* without replacement against α* with."""
    names = ("α*, without", "α*, with")
    tables = [side_by_side(positions(), names, n) for n in (2, 3, 4)]
    least = min((of[names[0]] - of[names[1]]).to_numpy().min() for of in tables)
    return {
        "so": least >= -ROUNDING,
        "count": sum(of.height for of in tables),
        "least": min(least, 1),
    }


def ladder() -> Numbers:
    """α* of drafts with more and fewer layers left out."""
    names = ["α*, with", "α*, without"]
    table = side_by_side(positions().filter(temperature=1.0), names, 3)
    parts = table.group_by("draft").agg(pl.col("total_variation", *names).mean())
    parts = parts.sort("total_variation")
    words = (f"{d}: {tv:.2f}, {100 * a:.1f}, {100 * b:.1f}" for d, tv, a, b in parts.iter_rows())
    return {"so": parts["α*, with"].is_sorted(descending=True), "drafts": "; ".join(words)}


def resolution() -> Numbers:
    """Global Resolution's success and time; Thomas & Pal have 15 to 98% of tokens."""
    table = read("resolution_grid")
    by = table.group_by("kept", "num_drafts").agg(
        converged=100 * pl.col("converged").mean(),
        distance=pl.col("distance").median(),
        ratio=(pl.col("seconds") / pl.col("optimal_seconds")).median(),
    )
    ends = {f"{name}_{end}": getattr(by[name], end)() for name in by.columns for end in ("min", "max")}
    gap = (table["optimal"] - table["attained"]).to_numpy()
    counts = {"close": (gap < 1e-10).sum(), "positions": table.height, "sizes": by.height}
    published = by["converged"].is_between(15.0, 98.0).sum()
    so = published / by.height
    return {"so": so, "published": published, "gap": gap.max(), **counts, **ends}


def poisson() -> Numbers:
    """The error of taking the conditional Poisson law for drafts without replacement."""
    errors = misstated(positions())
    mean = errors.sort("value").row(0, named=True)
    most = errors["largest"].to_numpy().max()
    at = {"temperature": mean["temperature"], "n": mean["num_drafts"], "mean": interval(mean)}
    return {"so": most < 0.001, "most": 100 * most, **at}


def top_then() -> Numbers:
    """Best number of deterministic top tokens, by temperature."""
    tops = ["α*, without", "α*, 1 then without", "α*, 2 then without", "greedy"]
    of = {name: pl.col(name) - pl.col("greedy") for name in tops}
    lead = means(wide(tops, 4), ["temperature"], of).sort("value")
    best = lead.group_by("temperature").last().sort("temperature")
    words = (
        f"T = {row['temperature']:g}: m = {tops.index(row['name'])}, {interval(row)}"
        for row in best.iter_rows(named=True)
    )
    return {"so": (best["name"] == "greedy").all(), "best": "; ".join(words)}


def best_choice() -> Numbers:
    """Count where each law and rule in closed form accepts most, over pairs and temperatures."""
    names = {"stratified": "strata, preference rule"} | {k: v for k, (v, _) in RIVALS.items()}
    cells = choices().filter(pl.col("choice").is_in([*names]), num_drafts=4).sort("value")
    best = cells.group_by("draft", "temperature").last()
    counts = best["choice"].value_counts(sort=True)
    words = "; ".join(f"{names[name]}: {count}" for name, count in counts.iter_rows())
    return {"so": counts.height == 1, "chart": words, "settings": best.height}


# The study of draft laws.


def differences(choice: str, base: str) -> pl.DataFrame:
    """Differences of a choice from a base in points, a row for each cell, with p-values of a normal test."""
    cells = choices().filter(choice=choice).select(
        *("draft", "temperature", "num_drafts"),
        value=100 * pl.col(f"value_over_{base}"),
        error=100 * pl.col(f"error_over_{base}"),
    )  # fmt: skip
    normal = NormalDist()
    score = (cells["value"].abs() / cells["error"].clip(lower_bound=1e-9)).to_list()
    return cells.with_columns(p=pl.Series([2 * (1 - normal.cdf(z)) for z in score]))


def significant(cells: pl.DataFrame) -> str:
    """Number of differences that are significant, alone and after Holm's correction for their number."""
    ordered = cells.sort("p").with_row_index("rank")
    limit = LEVEL / (cells.height - pl.col("rank").cast(pl.Float64))
    kept = ordered.with_columns(holm=(pl.col("p") <= limit).cast(pl.Int8).cum_min() == 1)
    words = []
    for name, sign in (("ahead", 1), ("behind", -1)):
        side = kept.filter(pl.col("value") * sign > 0)
        alone = side.filter(pl.col("p") <= LEVEL).height
        corrected = side.filter("holm").height
        counted = f"{alone} significantly, {corrected} after Holm's correction"
        words.append(f"{name} in {side.height} ({counted if alone else 'none significantly'})")
    return f"of {cells.height} settings {', '.join(words)}"


def span(cells: pl.DataFrame) -> str:
    """Mean, least and largest difference."""
    value = cells["value"]
    return f"mean {value.mean():+.1f} pp, {value.min():+.1f} to {value.max():+.1f}"


def by_temperature(cells: pl.DataFrame) -> str:
    """The differences at each temperature."""
    temperatures = cells["temperature"].unique().sort().to_list()
    return "; ".join(f"T = {t:g}: {span(cells.filter(temperature=t))}" for t in temperatures)


def by_pair(name: str, **at: float) -> tuple[float, float]:
    """Mean difference from plain strata, of all other pairs and of the overconfident draft."""
    cells = differences(name, "stratified").filter(**at)
    sure = pl.col("draft") == SURE
    others, overconfident = (cells.filter(c).select(pl.mean("value")).item() for c in (~sure, sure))
    return others, overconfident


def both(values: tuple[float, float]) -> str:
    """The two means in words."""
    return "{:+.1f} and {:+.1f}".format(*values)


def strata_over_greedy() -> Numbers:
    """Strata against greedy drafts."""
    cells = differences("stratified", "greedy")
    least = cells.group_by("temperature").agg(pl.col("value").min()).sort("temperature")
    ahead = least.filter(pl.col("value") > 0)["temperature"]
    so = len(ahead) / least.height
    parts = {"cells": significant(cells), "by_temperature": by_temperature(cells)}
    return {"so": so, "ahead": listed(ahead), "pairs": len(PAIRS), **parts}


def strata_over_certain() -> Numbers:
    """Strata against deterministic tokens, which engines' trees draft."""
    cells = differences("certain", "stratified").with_columns(value=-pl.col("value"))
    so = cells.filter(pl.col("value") > 0).is_empty()
    return {"so": so, "by_temperature": by_temperature(cells)}


def preference_over_k_seq() -> Numbers:
    """The preference rule on drafts with replacement."""
    cells = differences("with, preference", "k_sequential")
    so = cells.filter(pl.col("value") <= 0).is_empty()
    return {"so": so, "cells": significant(cells), "span": span(cells)}


def ceiling() -> Numbers:
    """Lead of the bounds on laws that see q alone."""
    names = {
        "ceiling, π ∝ q": "π ∝ q",
        "ceiling, fitted": "π fitted on other prompts",
        "ceiling, fitted on itself": "on the same prompts",
    }
    parts = []
    temperatures = (0.6, 1.0, 1.5)
    for t in temperatures:
        words = (f"{text} {both(by_pair(name, temperature=t))}" for name, text in names.items())
        parts.append(f"T = {t:g}: {', '.join(words)}")
    fitted = [by_pair("ceiling, fitted", temperature=t) for t in temperatures]
    others, sure = (max(means) for means in zip(*fitted, strict=True))
    says = {"so": np.mean([others > MUCH, sure > MUCH]), "others": others, "sure": sure}
    return {"pairs": len(PAIRS) - 1, "bounds": "; ".join(parts), **says}


# Couplings and lossy rules.


def over_floor() -> Numbers:
    """Distance of the Poisson coupling to the floor of one draft: the least, and the mean at T = 1."""
    rows = read("invariance").filter(num_drafts=1)
    above = over_prompts(rows.filter(temperature=1.0), pl.col("poisson") - pl.col("floor"))
    least = (rows["poisson"] - rows["floor"]).to_numpy().min()
    numbers = {"count": rows.height, "least": 100 * least, "above": interval(above)}
    return {"so": least >= -ROUNDING, **numbers}


def price() -> Numbers:
    """The cost of the output's independence of the draft."""
    lost = pl.col("optimal") - pl.col("poisson")
    cells = {
        f"n = {n}, T = {t:g}": over_prompts(read("invariance").filter(num_drafts=n, temperature=t), lost)
        for t in (0.6, 1.0)
        for n in (1, 4)
    }
    words = "; ".join(f"{at}: {interval(cell)}" for at, cell in cells.items())
    return {"so": all(cell["low"] > 0 for cell in cells.values()), "prices": words}


def over_prompts(table: pl.DataFrame, value: pl.Expr) -> Numbers:
    """A mean over positions with its 95% interval over prompts."""
    about = table.with_columns(domain=pl.lit("all"), prompt_id=pl.col("prompt").cast(pl.String))
    return by_name(about, {"mean": value})["mean"]


def by_rule(table: pl.DataFrame, value: pl.Expr) -> dict[str, Numbers]:
    """Means over positions of each rule, in their order, and its mean total variation."""
    return {
        str(rule): over_prompts(part, value) | {"distance": part["total_variation"].mean()}
        for (rule,), part in table.group_by("rule", maintain_order=True)
    }


def lossy_waste() -> Numbers:
    """Acceptance of lossy rules below the highest at their total variation."""
    table = read("lossy_rules").filter(temperature=1.0, drafts="sampled")
    wasted = pl.col("rate_within_total_variation") - pl.col("rate")
    cells = by_rule(table, wasted)
    mixed = pl.col("rule").str.starts_with("mixture")
    exact = table.filter(mixed).select(wasted.abs().max()).item()
    attaining = [rule for rule, cell in cells.items() if cell["value"] < 0.005]
    words = "; ".join(f"{rule}: {interval(cell)}" for rule, cell in cells.items())
    says = {"so": len(attaining) / len(cells), "attaining": " and ".join(attaining) or "none"}
    return {"wasted": words, "exact": 100 * exact, **says}


def lossy_over_strata() -> Numbers:
    """Lossy rules on deterministic drafts against a lossless rule on as many drafts from strata."""
    table = read("lossy_rules").filter(temperature=1.0, drafts="certain", num_drafts=4)
    cells = by_rule(table, pl.col("rate") - pl.col("strata"))
    words = (f"{rule}: {interval(cell)}, {cell['distance']:.2f}" for rule, cell in cells.items())
    ahead = sum(cell["low"] > 0 for cell in cells.values())
    behind = sum(cell["high"] < 0 for cell in cells.values())
    numbers = {"ahead": ahead, "behind": behind, "rules": len(cells)}
    return {"so": ahead / len(cells), "leads": "; ".join(words), **numbers}


def lossy_texts() -> Numbers:
    """Divergence of lossy rules over a text, against the least divergence at their rates."""
    table = read("lossy_texts")
    words = []
    significant_waste = []
    for (rule, count), part in table.group_by("rule", "num_drafts", maintain_order=True):
        wasted = over_prompts(part, pl.col("kl") - pl.col("least_kl"))
        significant_waste.append(wasted["low"] > 0)
        name = rule if count == 1 else f"{rule}, n = {count}"
        words.append(f"{name}: {part['kl'].mean():.1f}, {interval(wasted, 1.0)}")
    sizes = {"tokens": table["tokens"].max(), "prompts": table["prompt"].n_unique()}
    counts = {"wasteful": sum(significant_waste), "rules": len(words)}
    so = 1 - np.mean(significant_waste)
    return {"so": so, "divergences": "; ".join(words), **sizes, **counts}


def cactus_budget() -> Numbers:
    """Divergence of Cactus' output from the target, against its parameter δ."""
    table = read("lossy_rules").filter(temperature=1.0, drafts="sampled")
    words = []
    within = []
    for rule, part in table.group_by("rule", maintain_order=True):
        if str(rule[0]).startswith("Cactus"):
            budget = float(str(rule[0]).rpartition(" ")[2])
            within.append(part.filter(pl.col("kl") <= budget).height / part.height)
            most = part["kl"].max()
            words.append(f"{rule[0]}: mean {part['kl'].mean():.3f}, at most {most:.3f}")
    count = table.filter(pl.col("rule") == table["rule"][0]).height
    so = sum(within) / len(within)
    return {"so": so, "share": 100 * so, "divergences": "; ".join(words), "positions": count}


# Tokens per step.


def over_rejection(row: Numbers) -> str:
    """The lead over recursive rejection with its interval."""
    value = row["difference"]
    around = ERRORS * row["difference_error"]
    return f"{value:+.2f} ({value - around:+.2f} to {value + around:+.2f})"


def eight_paths() -> Numbers:
    """K-SEQ on several paths."""
    rows = read("spectr_paths").filter(paths=8, rule="K-SEQ").sort("depth").to_dicts()
    words = (f"L = {r['depth']}: {r['value']:.2f}, over RRS {over_rejection(r)}" for r in rows)
    so = all(row["difference"] > ERRORS * row["difference_error"] for row in rows)
    return {"so": so, "paths": "; ".join(words)}


def hub_trees(temperature: float) -> Numbers:
    """Rules on binary trees of depth 4."""
    table = read("spechub_depths").filter(temperature=temperature, depth=4)
    rows = {row["rule"]: row for row in table.to_dicts()}
    rrs, rrsw, hub = (rows[name]["value"] for name in ("RRS", "RRSw", "SpecHub"))
    values = f"{hub:.2f}, {rrsw:.2f}, {rrs:.2f}"
    so = rrs <= rrsw <= hub
    ahead = rows["SpecHub"]["difference"] > 0
    return {"so": so and ahead, "values": values, "lead": over_rejection(rows["SpecHub"])}


def one_path() -> Numbers:
    """Block verification against the sequence-level optimum."""
    table = read("sequence_optimum").filter(law="one path", rule="block verification")
    gap = table["largest_gap"].to_numpy().max()
    return {"so": gap < 1e-6, "problems": table["steps"].sum(), "gap": gap}


def token_level() -> Numbers:
    """Loss of the best choice at each token with two drafts or more."""
    table = read("sequence_optimum")
    table = table.filter(pl.col("law") != "one path", rule="optimal at each token")
    short = -table["difference"].to_numpy()
    return {"so": short.max() < 1e-6, "laws": table.height, "low": short.min(), "high": short.max()}


# Whole trees.

WARM = (0.6, 1.0)
COLD = 0.1
LAYER = "strata, layer"
HOPELESS = "ngram:3+context"
whole_trees = cache(partial(read, "whole_trees"))


def signed(rows: Iterable[Numbers]) -> str:
    """Leads in per cent with their intervals."""
    words = ("{value:+.1f} ({low:+.1f} to {high:+.1f})".format(**row) for row in rows)
    return " and ".join(words)


def tree_leads(over: str, name: str = LAYER) -> pl.DataFrame:
    """Leads of a rule over another, a row for each pair and temperature, and for the mean over pairs."""
    table = whole_trees().filter(name=name, over=over).sort("temperature")
    return table.with_columns(label=pl.col("draft").replace_strict(PAIRS_AND_ALL))


def counts(cells: pl.DataFrame, least: float = 0.0) -> Numbers:
    """Number of cells, and of those that are significant, or at least so large."""
    ahead, behind, reached = (
        cells.filter(sign).height
        for sign in (pl.col("low") > 0, pl.col("high") < 0, pl.col("value") >= least)
    )
    return {"cells": cells.height, "ahead": ahead, "behind": behind, "reached": reached}


def outcome(overall: pl.DataFrame) -> str:
    """At which temperatures a lead is above 0, below it and neither, by its interval."""
    signs = {"more": pl.col("low") > 0, "fewer": pl.col("high") < 0}
    signs["not significant"] = ~(signs["more"] | signs["fewer"])
    sides = {word: overall.filter(sign) for word, sign in signs.items()}
    return ", ".join(
        f"{word} at T = {listed(rows['temperature'])}" for word, rows in sides.items() if rows.height
    )


def tree_lead(over: str, name: str = LAYER, published: float = 0.0) -> Numbers:
    """The lead of a rule over another on each pair, and what the means over pairs say."""
    table = tree_leads(over, name).filter(pl.col("temperature").is_in(WARM))
    overall = table.filter(draft="all")
    words = (f"{label}: {signed(table.filter(label=label).to_dicts())}" for label in PAIRS_AND_ALL.values())
    says = {"so": share_above(overall, published), "more": outcome(overall)}
    pairs = table.filter(pl.col("draft") != "all")
    return {"leads": "; ".join(words), **says, **counts(pairs, published)}


def layer_over_others(rivals: Sequence[str]) -> Numbers:
    """The layer rule's lead over other lossless rules in the mean over pairs, and where it is ahead."""
    tables = {rival: tree_leads(rival).filter(pl.col("temperature").is_in(WARM)) for rival in rivals}
    overall = {rival: table.filter(draft="all") for rival, table in tables.items()}
    words = (f"{rival}: {signed(table.to_dicts())}" for rival, table in overall.items())
    means = pl.concat(overall.values())
    leading = {t: counts(means.filter(temperature=t))["ahead"] for t in WARM}
    trailing = counts(means)["behind"]
    of_pairs = pl.concat([table.filter(pl.col("draft") != "all") for table in tables.values()])
    says = ", ".join(f"{count} at T = {t:g}" for t, count in leading.items())
    numbers = {"so": share_above(means), "leads": "; ".join(words)}
    numbers |= {"leading": says, "trailing": trailing}
    return {"rules": len(rivals), "pairs": len(PAIRS), **numbers, **counts(of_pairs)}


def layer_at_its_limits(rivals: Sequence[str]) -> Numbers:
    """The layer rule near temperature 0, and with poor drafts."""
    words = []
    cells = []
    for rival in rivals:
        table = tree_leads(rival)
        rows = [
            table.filter(draft=PAIR, temperature=COLD),
            table.filter(draft=HOPELESS, temperature=1.0),
        ]
        words.append(f"Over {rival}: {signed(row.to_dicts()[0] for row in rows)}")
        cells += rows
    of_cells = pl.concat(cells)
    return {"so": share_above(of_cells), "leads": "; ".join(words), **counts(of_cells)}


# EAGLE-4's trees.


def drawn_tree_lead(name: str, over: str = "cut as a whole, position by position") -> Numbers:
    """The lead of a law and rule over another: at each number of drafts, and over all."""
    by = ["temperature", "drafts", "draft", "law", "rule"]
    rows = estimate(read("eagle4_trees").sort(by), by, ["tokens"], "steps")
    tokens = {tuple(group.values()): values["tokens"] for group, values in rows}
    first, second = (tuple(way.split(", ")) for way in (name, over))
    settings = list(dict.fromkeys(way[:3] for way in tokens))
    leads = {at: 100.0 * (tokens[at + first] / tokens[at + second] - 1.0) for at in settings}

    def mean(*at: Any) -> Numbers:
        of = [lead for setting, lead in leads.items() if setting[: len(at)] == at]
        return Estimate.of(np.mean(of, axis=0)).columns("value")

    sizes = dict.fromkeys(setting[:2] for setting in settings)
    words = [f"T = {t:g}, {drafts} drafts: {signed([mean(t, drafts)])}" for t, drafts in sizes]
    overall = pl.DataFrame([{"temperature": t} | mean(t) for t in dict.fromkeys(t for t, *_ in settings)])
    words += [f"T = {row['temperature']:g}, mean: {signed([row])}" for row in overall.to_dicts()]
    says = {"so": share_above(overall), "more": outcome(overall), "leads": "; ".join(words)}
    size = {"pairs": len({pair for *_, pair in settings}), "prompts": leads[settings[0]].size - 1}
    return says | size | counts(pl.DataFrame([mean(*setting) for setting in settings]))
