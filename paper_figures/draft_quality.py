"""Figure: what total variation and the vocabulary's size say about acceptance, from ``draft_quality.py``.

    python paper_figures/draft_quality.py
    python paper_figures/draft_quality.py runs/mine.parquet figures/mine.svg

Positions of real models are read from ``real_positions.parquet`` beside the table that is named.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from figure_files import grid, headline, read, write
from optimum_range import largest_optimum
from position_rates import CHOICES, read_positions, side_by_side

from otmd.study.style import FAINT, INK, MARKS, QUIET, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/draft_quality.parquet")
FIGURES = (Path("docs/images/draft_quality.svg"), Path("runs/figures/draft_quality.pdf"))
DRAFTS, TEMPERATURE, NOISE = 4, 1.0, 1.0
FAMILIES = {
    "surplus": ("draft's own tokens", "#009E73", "^"),
    "missing": ("target's own tokens", "#D55E00", "v"),
    "noise": ("noise", "#0072B2", "o"),
}
RULES = {
    "α*, without": ("#56B4E9", "X"),
    "α*, with": (INK, "P"),
    "K-SEQ": MARKS["KSequential"],
    "RRS": MARKS["RecursiveRejection"],
    "greedy": MARKS["GreedyCoupling"],
}


def synthetic(path: Path) -> pl.DataFrame:
    """Rates with four drafts, a row for each pair, law and verifier."""
    columns = ["family", "quality", "vocab_size", "total_variation", "law", "verifier", "rate_low"]
    table = read(path, "experiments/claims/draft_quality.py", columns)
    middle = (pl.col("rate_low") + pl.col("rate_high")) / 2
    return table.filter(pl.col("num_drafts") == DRAFTS).with_columns(rate=middle)


def by_size(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Mean and standard error over the draws, by the vocabulary's size."""
    law, verifier = CHOICES[name]
    rows = table.filter(pl.col("law") == law, family="noise", quality=NOISE)
    rows = rows.filter(pl.col("verifier") == (verifier or rows["verifier"][0]))
    value = pl.col("rate" if verifier else "optimal")
    error = value.std() / pl.len().sqrt()
    return rows.group_by("vocab_size").agg(value=value.mean(), error=error).sort("vocab_size")


def draw(results: Path) -> "Figure":
    """α* against total variation at the left, rates against the vocabulary's size at the right."""
    from matplotlib.figure import Figure

    table = synthetic(results)
    figure = Figure(figsize=(TWO_COLUMNS, 2.9))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.92, bottom=0.3, wspace=0.2)
    headline(figure, "Total variation bounds the optimum; the vocabulary's size hardly matters")
    _scatter(left, table, read_positions(results.with_name("real_positions.parquet")))
    left.set_title(f"{DRAFTS} drafts with replacement", loc="left")
    for name, (colour, marker) in RULES.items():
        rows = by_size(table, name)
        error = 1.96 * rows["error"]
        right.errorbar(
            rows["vocab_size"], rows["value"], error, label=name, color=colour, marker=marker
        )
    right.set_xscale("log")
    sizes = sorted(by_size(table, "RRS")["vocab_size"])
    right.set_xticks(sizes, labels=[f"{size // 1000}k" for size in sizes])
    right.set_xticks([], minor=True)
    right.set_xlabel("vocabulary V")
    right.set_ylabel("acceptance rate")
    right.set_title(f"Zipf target, noise {NOISE:g}, {DRAFTS} drafts", loc="left")
    grid(right)
    for axes in (left, right):
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "fontsize": 7}
        axes.legend(ncols=3, columnspacing=1.0, handletextpad=0.4, **below)
    return figure


def _scatter(axes: "Axes", table: pl.DataFrame, real: pl.DataFrame) -> None:
    distance = np.linspace(0.0, 1.0, 201)
    most = largest_optimum(distance, DRAFTS)
    axes.fill_between(
        distance, 1.0 - distance, most, color=FAINT, alpha=0.6, label="possible", lw=0
    )
    wide = side_by_side(real.filter(temperature=TEMPERATURE), ["α*, with"], DRAFTS)
    points = wide["total_variation"], wide["α*, with"]
    axes.plot(
        *points,
        ls="none",
        marker=".",
        ms=2,
        color=QUIET,
        label="real positions",
        alpha=0.6,
        rasterized=True,
    )
    for family, (label, colour, marker) in FAMILIES.items():
        rows = table.filter(law="WithReplacement", verifier="KSequential", family=family)
        look = {"marker": marker, "color": colour, "markeredgecolor": "white", "mew": 0.3}
        axes.plot(rows["total_variation"], rows["optimal"], ls="none", label=label, **look)
    axes.set_xlabel("total variation between target and draft")
    axes.set_ylabel("α*")
    grid(axes)


if __name__ == "__main__":
    write("paper_figures/draft_quality.py", draw, (RESULTS, FIGURES), sys.argv[1:])
