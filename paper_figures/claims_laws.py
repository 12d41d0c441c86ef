"""Rows of the table of claims on laws of drafts, on drafts, and on Global Resolution."""

from pathlib import Path

import polars as pl
from choice import PANELS, winners
from claims_words import ROUNDING, command, holds, interval, theorem
from laws import misstated
from position_rates import PAIR, RESULTS, means, side_by_side

GRID = Path("paper_figures/results/resolution_grid.parquet")
FROM = command("real_positions")
# Thomas & Pal, in per cent of tokens.
PUBLISHED_SUCCESS = (15.0, 98.0)


def rows(table: pl.DataFrame) -> list[list[str]]:
    """Claim, source, what was measured, script and verdict."""
    found = [laws_order(table)]
    if table["draft"].n_unique() > 1:
        found.append(ladder(table))
    return [*found, resolution(), poisson(), top_then(table.filter(draft=PAIR)), best_choice()]


def laws_order(table: pl.DataFrame) -> list[str]:
    """α* without replacement against α* with."""
    least, count = 1.0, 0
    for n in (2, 3, 4):
        wide = side_by_side(table, ["α*, without", "α*, with"], n)
        least = min(least, (wide["α*, without"] - wide["α*, with"]).to_numpy().min())
        count += wide.height
    return [
        "α* without replacement is at least α* with",
        "Hu et al.; a theorem here",
        f"{count} positions and numbers of drafts: difference at least {least:g}",
        FROM,
        theorem(least >= -ROUNDING),
    ]


def ladder(table: pl.DataFrame) -> list[str]:
    """α* of drafts with more and fewer layers left out."""
    wide = side_by_side(table.filter(temperature=1.0), ["α*, with", "α*, without"], 3)
    parts = wide.group_by("draft").agg(pl.col("total_variation", "α*, with", "α*, without").mean())
    words = "; ".join(
        f"{draft}: {distance:.2f}, {100 * with_:.1f}, {100 * without:.1f}"
        for draft, distance, with_, without in parts.sort("total_variation").iter_rows()
    )
    order = parts.sort("total_variation")["α*, with"].is_sorted(descending=True)
    return [
        "A better draft is accepted more, at real positions",
        "asked here",
        f"n = 3, T = 1: mean total variation, α* with and without in %: {words}",
        FROM,
        holds(order, " in the mean over positions"),
    ]


def resolution() -> list[str]:
    """Global Resolution's success and time."""
    table = pl.read_parquet(GRID)
    by = table.group_by("kept", "num_drafts").agg(
        converged=100 * pl.col("converged").mean(),
        distance=pl.col("distance").median(),
        ratio=(pl.col("seconds") / pl.col("optimal_seconds")).median(),
    )
    ends = {name: (by[name].min(), by[name].max()) for name in ("converged", "distance", "ratio")}
    gap = (table["optimal"] - table["attained"]).to_numpy()
    close = f"{(gap < 1e-10).sum()} of {table.height} (at most {gap.max():.0e} off)"
    low, high = ({name: pair[i] for name, pair in ends.items()} for i in (0, 1))
    published = by["converged"].is_between(*PUBLISHED_SUCCESS).sum()
    return [
        "An optimal verifier in 5 to 95 ms a token, succeeding at 15 to 98% of tokens",
        "Thomas & Pal (Global Resolution)",
        "reimplementation, k = 10 to 1000, n = 2 to 4: converged at "
        f"{low['converged']:.0f} to {high['converged']:.0f}% of positions, median TV of the output "
        f"{low['distance']:.0e} to {high['distance']:.0e}, median time {low['ratio']:.1f} to "
        f"{high['ratio']:.0f} times that of `otmd.Optimal`, which comes within 1e-10 of α* at {close}",
        command("resolution_grid"),
        f"success in that range at {published} of {by.height} sizes; times are those of a "
        "NumPy reimplementation that samples tuples beyond 20,000",
    ]


def poisson() -> list[str]:
    """The error of taking the conditional Poisson law for drafts without replacement."""
    errors = misstated(RESULTS)
    mean = errors.sort("value").row(0, named=True)
    most = errors.sort("largest").row(-1, named=True)
    return [
        "A formula for one law without replacement does for the other",
        "asked here; both laws are called so",
        f"α* of the conditional Poisson law less that of sequential draws: mean down to {interval(mean)} pp "
        f"(T = {mean['temperature']:g}, n = {mean['num_drafts']}), "
        f"up to {100 * most['largest']:.1f} pp at a position",
        FROM,
        holds(most["largest"] < 0.001),
    ]


def top_then(pair: pl.DataFrame) -> list[str]:
    """How many of the likeliest tokens should be certain."""
    tops = ["α*, without", "α*, 1 then without", "α*, 2 then without", "greedy"]
    wide = side_by_side(pair, tops, 4)
    of = {name: pl.col(name) - pl.col("greedy") for name in tops}
    lead = means(wide, ["temperature"], of).sort("value")
    best = lead.group_by("temperature").last().sort("temperature")
    words = "; ".join(
        f"T = {row['temperature']:g}: m = {tops.index(row['name'])}, {interval(row)}"
        for row in best.iter_rows(named=True)
    )
    return [
        "Greedy (m = n − 1) is the best of the m likeliest tokens and the rest without replacement",
        "asked here",
        f"n = 4, best m and its α* less greedy's in pp: {words}",
        FROM,
        holds((best["name"] == "greedy").all()),
    ]


def best_choice() -> list[str]:
    """The chart in a sentence."""
    parts = []
    for title, looks in PANELS.items():
        cells = winners(RESULTS, list(looks))
        counts = cells["best"].value_counts(sort=True)
        words = ", ".join(f"{looks[name][0]} {count}" for name, count in counts.iter_rows())
        parts.append(f"{title.partition(':')[0]}: {words} of {cells.height} cells")
    return [
        "Which law and verifier accept most",
        "asked here",
        "n = 4, by temperature and largest draft probability. " + "; ".join(parts),
        FROM,
        "[chart](how_to_choose.md#the-chart)",
    ]
