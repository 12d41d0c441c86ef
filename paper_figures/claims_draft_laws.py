"""Rows and table of the study of draft laws."""

from pathlib import Path
from statistics import NormalDist
from typing import Any

import polars as pl
from claims_words import command, holds, listed
from law_choices import PAIRS, read_choices

FROM = command("law_choice")
SHOWN = ("certain", "with, K-SEQ", "without, recursive", "greedy", "stratified")
HEAD = (
    *("pair", "T", "n", *SHOWN, "stratified − greedy", "fitted − stratified"),
    *("without, optimum", "ceiling"),
)
LEVEL = 0.05
SURE = "skip:27,28,29"
ORDERS = Path("paper_figures/results/law_orders.parquet")


def rows() -> list[list[str]]:
    """Claim, source, what was measured, script and verdict."""
    table = read_choices()
    return [
        over_greedy(table),
        over_certain(table),
        rule(table),
        gap(table),
        fitting(table),
        ceiling(table),
    ]


def of(table: pl.DataFrame, choice: str, base: str) -> pl.DataFrame:
    """Differences of a choice from a base in points, a row for each cell, with p-values of a normal test."""
    found = table.filter(choice=choice).select(
        *("draft", "temperature", "num_drafts"),
        value=100 * pl.col(f"value_over_{base}"),
        error=100 * pl.col(f"error_over_{base}"),
    )
    normal = NormalDist()
    score = (found["value"].abs() / found["error"].clip(lower_bound=1e-9)).to_list()
    return found.with_columns(p=pl.Series([2 * (1 - normal.cdf(z)) for z in score]))


def verdicts(cells: pl.DataFrame) -> str:
    """How many differences are certain, alone and after Holm's correction for their number."""
    ordered = cells.sort("p").with_row_index("rank")
    limit = LEVEL / (cells.height - pl.col("rank").cast(pl.Float64))
    kept = ordered.with_columns(holm=(pl.col("p") <= limit).cast(pl.Int8).cum_min() == 1)
    words = []
    for name, sign in (("ahead", 1), ("behind", -1)):
        own = kept.filter(pl.col("value") * sign > 0)
        alone, certain = own.filter(pl.col("p") <= LEVEL).height, own.filter("holm").height
        words.append(
            f"{name} in {own.height} of {cells.height} cells ({alone} at the 5% level, {certain} by Holm)"
        )
    return ", ".join(words)


def span(cells: pl.DataFrame) -> str:
    """Mean, least and largest difference."""
    value = cells["value"]
    return f"mean {value.mean():+.1f} pp, {value.min():+.1f} to {value.max():+.1f}"


def by_temperature(cells: pl.DataFrame) -> str:
    """The differences at each temperature."""
    return "; ".join(
        f"T = {t:g}: {span(cells.filter(temperature=t))}"
        for t in cells["temperature"].unique().sort().to_list()
    )


def over_greedy(table: pl.DataFrame) -> list[str]:
    """Strata against greedy drafts."""
    cells = of(table, "stratified", "greedy")
    least = cells.group_by("temperature").agg(pl.col("value").min()).sort("temperature")
    ahead = least.filter(pl.col("value") > 0)["temperature"].to_list()
    return [
        "One draft from each of n strata accepts more than greedy drafts, both by their closed-form rules",
        "asked here",
        f"{len(PAIRS)} pairs, 5 temperatures, n = 2, 3, 4, 8: {verdicts(cells)}. {by_temperature(cells)}",
        FROM,
        f"in the mean of every cell at T = {listed(ahead)}; not of every one at other temperatures",
    ]


def over_certain(table: pl.DataFrame) -> list[str]:
    """Certain tokens, which engines' trees draft, against strata."""
    cells = of(table, "certain", "stratified").with_columns(value=-pl.col("value"))
    return [
        "Certain top n, which trees in engines draft, accepts as much",
        "asked here",
        f"stratified less certain: {by_temperature(cells)}",
        FROM,
        holds(cells.filter(pl.col("value") > 0).is_empty()),
    ]


def rule(table: pl.DataFrame) -> list[str]:
    """The preference rule on drafts with replacement."""
    cells = of(table, "with, preference", "k_sequential")
    return [
        "With replacement, the preference rule accepts more than K-SEQ",
        "asked here",
        f"{verdicts(cells)}; {span(cells)}",
        FROM,
        holds(
            cells.filter(pl.col("value") <= 0).is_empty(),
            " in the mean over positions of each cell",
        ),
    ]


def gap(table: pl.DataFrame) -> list[str]:
    """How far the rule stays below the optimum of strata, in its own order and in the better of two."""
    without = of(table, "without, optimum", "stratified")
    rows = pl.read_parquet(ORDERS)
    cells = rows.group_by("draft", "temperature", "num_drafts").agg(
        own=100 * (pl.col("optimum") - pl.col("own_order")).mean(),
        better=100 * (pl.col("optimum") - pl.col("default")).mean(),
    )
    parts = [
        f"T = {t:g}: {own['own'].mean():.1f} (up to {own['own'].max():.1f}), "
        f"by the better of two orders {own['better'].mean():.1f} (up to {own['better'].max():.1f})"
        for t in cells["temperature"].unique().sort().to_list()
        for own in [cells.filter(temperature=t)]
    ]
    return [
        "The rule all but attains the optimum of stratified drafts",
        "asked here",
        f"α* less the rule's rate in pp, {'; '.join(parts)}. α* of drafts without replacement less the "
        f"rule's rate on strata: {span(without)}",
        command("law_orders"),
        "with the better of two orders at each position; at high temperature not in its own order",
    ]


def by_pair(table: pl.DataFrame, name: str) -> str:
    """Mean difference from plain strata, of all other pairs and of the overconfident draft."""
    cells = of(table, name, "stratified")
    value = [
        cells.filter((pl.col("draft") == SURE) == sure)["value"].mean() for sure in (False, True)
    ]
    return "{:+.1f} and {:+.1f}".format(*value)


def fitting(table: pl.DataFrame) -> list[str]:
    """What fitted parameters gain, on the same pair and elsewhere."""
    names = {
        "stratified, fitted": "on the same pair and temperature",
        "stratified, of other pairs": "on other pairs of the same target",
        "stratified, of other temperatures": "at other temperatures",
        "stratified, of all": "on all pooled",
        "stratified, by entropy": "on all, by the draft's entropy",
    }
    parts = [f"{words} {by_pair(table, name)}" for name, words in names.items()]
    cells = of(table, "stratified, fitted", "stratified")
    return [
        "Fitted β, shares and certain tokens improve on β = 1 and equal strata",
        "asked here",
        f"mean gain in pp on the other half of the prompts, {len(PAIRS) - 1} pairs and the draft without "
        f"its last layers: fitted {'; '.join(parts)}. The first: {verdicts(cells)}",
        FROM,
        "for a draft that is too sure of itself",
    ]


def ceiling(table: pl.DataFrame) -> list[str]:
    """How much more any law that sees q alone could accept."""
    names = {
        "ceiling, π ∝ q": "π ∝ q",
        "ceiling, fitted": "π fitted on other prompts",
        "ceiling, fitted on itself": "on the same prompts",
        "ceiling, dynamic n": "π ∝ q, n by the draft's entropy with the same mean",
    }
    parts = [
        f"T = {t:g}: "
        + ", ".join(
            f"{words} {by_pair(table.filter(temperature=t), name)}" for name, words in names.items()
        )
        for t in (0.6, 1.0, 1.5)
    ]
    return [
        "Another law would accept much more",
        "asked here",
        "mean of Σ min(p, π) less the rate of strata by the rule in its own order, in pp, "
        f"{len(PAIRS) - 1} pairs and the draft without its last layers. {'; '.join(parts)}",
        FROM,
        "not with a fixed n, but for a draft that is too sure of itself",
    ]


def lines() -> list[list[str]]:
    """Rates in per cent at two temperatures, a line for each pair and number of drafts."""
    choices, found = read_choices(), []
    for draft, (label, _, _) in PAIRS.items():
        for temperature in (0.6, 1.0):
            for n in (2, 4, 8):
                own = choices.filter(draft=draft, temperature=temperature, num_drafts=n)
                by = {row["choice"]: row for row in own.iter_rows(named=True)}
                found.append([label, f"{temperature:g}", str(n), *_cells(by)])
    return found


def _cells(by: dict[str, dict[str, Any]]) -> list[str]:
    """The cells of a line, with a dash for a choice that was not measured at all positions."""
    positions = by["stratified"]["positions"]

    def rate(name: str) -> str:
        return f"{100 * by[name]['value']:.1f}" if by[name]["positions"] == positions else "–"

    def lead(name: str, base: str) -> str:
        value, low, high = (
            100 * by[name][f"{end}_over_{base}"] for end in ("value", "low", "high")
        )
        return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"

    leads = [lead("stratified", "greedy"), lead("stratified, fitted", "stratified")]
    return [*map(rate, SHOWN), *leads, *map(rate, ("without, optimum", "ceiling, π ∝ q"))]
