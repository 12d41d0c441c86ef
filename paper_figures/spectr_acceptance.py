"""Figure: K-SEQ between its floors and the optimum, from ``spectr_acceptance.py`` and ``spectr_floor.py``.

    python paper_figures/spectr_acceptance.py
    python paper_figures/spectr_acceptance.py runs/mine.parquet figures/mine.svg

The table of the searches is read from ``spectr_floor.parquet`` beside the one that is named.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from figure_files import grid, headline, read, write

from otmd.study.style import INK, MARKS, QUIET, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/spectr_acceptance.parquet")
FIGURES = (Path("docs/images/spectr_acceptance.svg"), Path("runs/figures/spectr_acceptance.pdf"))
SHOWN = (("Bernoulli", 0.25, 0.05), ("Zipf", 1.2, 0.8))
TITLES = {
    "Bernoulli": "Bernoulli {} (p), {} (q)",
    "Zipf": "Zipf {} (p), {} (q)",
}
LINES = {
    "bound": ("upper bound", {"color": QUIET, "ls": (0, (4, 2))}),
    "optimal": ("α*", {"color": INK, "marker": "P"}),
    "k_sequential": ("K-SEQ", {"color": MARKS["KSequential"].colour, "marker": "s"}),
    "recursive_rejection": ("RRS", {"color": MARKS["RecursiveRejection"].colour, "marker": "o"}),
    "floor_n": ("(1 − (1 − 1/n)ⁿ) α*", {"color": "#009E73", "ls": "-."}),
    "floor": ("(1 − 1/e) α*", {"color": "#009E73", "ls": ":"}),
}
TICKS = (1, 2, 4, 8, 16)


def curves(path: Path) -> list[pl.DataFrame]:
    """Rates by number of drafts of the pairs that are shown."""
    table = read(path, "experiments/claims/spectr_acceptance.py", ["num_drafts", *LINES])
    rows = [table.filter(family=f, target=t, draft=d).sort("num_drafts") for f, t, d in SHOWN]
    if any(part.is_empty() for part in rows):
        raise ValueError(f"results: {path} lacks one of {SHOWN}, expected all that are shown")
    return rows


def searches(path: Path) -> pl.DataFrame:
    """The smallest K-SEQ/α* of all searches, and the floor, by number of drafts."""
    table = read(path, "experiments/claims/spectr_floor.py", ["num_drafts", "ratio", "floor"])
    least = table.group_by("num_drafts").agg(pl.col("ratio", "floor").min())
    return least.sort("num_drafts")


def draw(results: Path) -> "Figure":
    """Two pairs, and the worst cases found."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 2.75))
    panels = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.89, bottom=0.29, wspace=0.3)
    headline(figure, "K-SEQ stays far above what is guaranteed, and below the optimum")
    for axes, (family, target, draft), rows in zip(panels, SHOWN, curves(results), strict=False):
        axes.set_title(TITLES[family].format(target, draft), loc="left", fontsize=7)
        for column, (label, look) in LINES.items():
            axes.plot(rows["num_drafts"], rows[column], label=label, markersize=3, **look)
        axes.set_ylabel("acceptance rate")
        _axes(axes)
    least = searches(results.with_name("spectr_floor.parquet"))
    axes = panels[2]
    axes.set_title("smallest K-SEQ/α* found", loc="left", fontsize=7)
    axes.plot(least["num_drafts"], least["ratio"], **LINES["k_sequential"][1])
    axes.plot(least["num_drafts"], least["floor"], **LINES["floor_n"][1])
    last = least.row(-1, named=True)
    axes.text(last["num_drafts"], last["ratio"] + 0.02, "found", ha="right", fontsize=7)
    axes.text(
        last["num_drafts"], last["floor"] - 0.012, "guaranteed", ha="right", va="top", fontsize=7
    )
    axes.set_ylabel("K-SEQ / α*")
    axes.set_ylim(0.55, 1.0)
    _axes(axes)
    figure.legend(*panels[0].get_legend_handles_labels(), ncols=6, loc="lower center", fontsize=7)
    return figure


def _axes(axes: "Axes") -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(TICKS, labels=[str(tick) for tick in TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("number of drafts n")
    grid(axes)


if __name__ == "__main__":
    write("paper_figures/spectr_acceptance.py", draw, (RESULTS, FIGURES), sys.argv[1:])
