"""Figure: hub drafts against two other drafts, from ``spechub_toy.py`` and ``real_positions.py``.

    python paper_figures/spechub.py
    python paper_figures/spechub.py runs/mine.parquet figures/mine.svg

Positions of real models are read from ``real_positions.parquet`` beside the table that is named.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from figure_files import grid, headline, read, write
from position_rates import PAIR, means, read_positions, side_by_side

from otmd.study.style import INK, MARKS, QUIET, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/spechub_toy.parquet")
FIGURES = (Path("docs/images/spechub.svg"), Path("runs/figures/spechub.pdf"))
RULES = {
    "SpecHub": ("hub", MARKS["SpecHub"]),
    "RRS": ("recursive_with", MARKS["RecursiveRejection"]),
    "RRSw": ("recursive_without", ("#CC79A7", "^")),
    "α*, with": ("optimal_with", (INK, "P")),
    "α*, without": ("optimal_without", ("#56B4E9", "X")),
}
LIKENESS, DRAFTS = 0.7, 2


def toy(path: Path) -> pl.DataFrame:
    """Mean rates by temperature."""
    columns = [column for column, _ in RULES.values()]
    table = read(path, "experiments/claims/spechub_toy.py", ["likeness", "top_draft", *columns])
    rows = table.filter(likeness=LIKENESS).group_by("temperature")
    return rows.agg(pl.col(columns).mean()).sort("temperature")


def real(path: Path) -> pl.DataFrame:
    """The choices side by side at the positions of the pair."""
    return side_by_side(read_positions(path).filter(draft=PAIR), list(RULES), DRAFTS)


def draw(results: Path) -> "Figure":
    """Toy vocabularies, real positions, and the hub's lead by the likeliest draft's probability."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 2.75))
    panels = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.085, right=0.985, top=0.9, bottom=0.3, wspace=0.36)
    headline(figure, "Hub drafts win where one token has half of the draft's mass")
    rows = toy(results)
    for name, (column, (colour, marker)) in RULES.items():
        panels[0].plot(rows["temperature"], rows[column], color=colour, marker=marker, label=name)
    panels[0].set_title("random pairs, V = 5 to 50", loc="left")
    wide = real(results.with_name("real_positions.parquet"))
    table = means(wide, ["temperature"], {name: pl.col(name) for name in RULES})
    for name, (_, (colour, marker)) in RULES.items():
        part = table.filter(name=name).sort("temperature")
        around = [part["value"] - part["low"], part["high"] - part["value"]]
        panels[1].errorbar(
            part["temperature"], part["value"], around, color=colour, marker=marker, elinewidth=0.6
        )
    panels[1].set_title("real positions", loc="left")
    for axes in panels[:2]:
        axes.set_xlabel("temperature")
        axes.set_ylabel("acceptance rate, n = 2")
        grid(axes)
    _lead(panels[2], wide)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, ncols=5, loc="lower center", fontsize=7)
    return figure


def _lead(axes: "Axes", wide: pl.DataFrame) -> None:
    lead = 100 * (wide["SpecHub"] - wide["α*, with"])
    axes.axhline(0.0, color=QUIET, lw=0.6)
    axes.axvline(0.5, color=QUIET, lw=0.6, ls=(0, (4, 2)))
    colour = MARKS["SpecHub"].colour
    axes.plot(
        wide["top_draft"],
        lead,
        ls="none",
        marker=".",
        ms=2,
        color=colour,
        alpha=0.5,
        rasterized=True,
    )
    axes.set_xlabel("likeliest draft's chance q(a)")
    axes.set_ylabel("SpecHub − α* with (pp)")
    axes.set_title("all temperatures", loc="left")
    grid(axes)


if __name__ == "__main__":
    write("paper_figures/spechub.py", draw, (RESULTS, FIGURES), sys.argv[1:])
