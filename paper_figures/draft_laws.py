"""Figure: which law to draft from, from ``law_choice.py``.

python paper_figures/draft_laws.py
python paper_figures/draft_laws.py runs/mine.parquet figures/mine.svg
"""

import sys
from pathlib import Path
from re import sub
from typing import TYPE_CHECKING

import polars as pl
from figure_files import grid, headline, write
from law_choices import PAIRS, RESULTS, read_choices

from otmd.study.style import INK, MARKS, QUIET, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = (Path("docs/images/draft_laws.svg"), Path("runs/figures/draft_laws.pdf"))
DRAFTS, TEMPERATURE = 4, 1.0
LOOKS = {
    "certain": ("certain top n", MARKS["TargetOnly"]),
    "with, K-SEQ": ("with replacement, K-SEQ", MARKS["KSequential"]),
    "without, recursive": ("without, recursive rejection", MARKS["RecursiveRejection"]),
    "greedy": ("greedy", MARKS["GreedyCoupling"]),
    "stratified": ("stratified, preference rule", MARKS["Preference"]),
    "without, optimum": ("without, optimum", MARKS["Optimal"]),
}
"""Choices that are measured at all positions."""


def draw(results: Path) -> "Figure":
    """Rates by pair at the left, the lead of strata over greedy drafts by temperature at the right."""
    from matplotlib.figure import Figure

    table = read_choices(results)
    figure = Figure(figsize=(TWO_COLUMNS, 2.8))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.91, bottom=0.31, wspace=0.2)
    headline(figure, "Stratified drafts overtake greedy ones as the sampling grows hotter")
    _rates(left, table.filter(temperature=TEMPERATURE, num_drafts=DRAFTS))
    _lead(right, table.filter(num_drafts=DRAFTS, choice="stratified"))
    for axes in (left, right):
        grid(axes)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.19), "fontsize": 7}
        axes.legend(ncols=2, columnspacing=1.2, **below)
    return figure


def _rates(axes: "Axes", table: pl.DataFrame) -> None:
    apart = 0.11
    for number, (choice, (label, mark)) in enumerate(LOOKS.items()):
        rows = [table.filter(choice=choice, draft=draft).row(0, named=True) for draft in PAIRS]
        x = [i + apart * (number - (len(LOOKS) - 1) / 2) for i in range(len(PAIRS))]
        y = [100 * row["value"] for row in rows]
        around = [
            [100 * (row["value"] - row["low"]) for row in rows],
            [100 * (row["high"] - row["value"]) for row in rows],
        ]
        # A pale mark needs an edge.
        edge = {"markeredgecolor": INK, "markeredgewidth": 0.3, "ecolor": QUIET}
        look = {"color": mark.colour, "marker": mark.marker, "label": label, "ls": "", **edge}
        axes.errorbar(x, y, around, elinewidth=0.6, **look)
    names = [sub(" (left|by)", r"\n\1", label) for label, _, _ in PAIRS.values()]
    axes.set_xticks(range(len(PAIRS)), names, fontsize=7)
    axes.set_ylabel("acceptance rate (%)")
    axes.set_title(f"{DRAFTS} drafts, T = {TEMPERATURE:g}", loc="left")


def _lead(axes: "Axes", table: pl.DataFrame) -> None:
    for draft, (label, colour, marker) in PAIRS.items():
        rows = table.filter(draft=draft).sort("temperature")
        value, low, high = (100 * rows[f"{name}_over_greedy"] for name in ("value", "low", "high"))
        look = {"color": colour, "marker": marker, "label": label, "elinewidth": 0.6}
        axes.errorbar(rows["temperature"], value, [value - low, high - value], **look)
    axes.axhline(0.0, color=QUIET, lw=0.6)
    axes.set_xticks(table["temperature"].unique().sort().to_list())
    axes.set_xlabel("temperature")
    axes.set_ylabel("stratified − greedy (pp)")
    axes.set_title(f"{DRAFTS} drafts, both by their closed-form rules", loc="left")


if __name__ == "__main__":
    write("paper_figures/draft_laws.py", draw, (RESULTS, FIGURES), sys.argv[1:])
