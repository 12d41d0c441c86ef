"""Figure: tokens a step with binary trees, from ``experiments/sequences/spechub_depths.py``.

    python paper_figures/spechub_depths.py
    python paper_figures/spechub_depths.py runs/mine.parquet figures/mine.pdf

The figure's metadata name this script and the result file.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from figure_files import grid, headline, read, write
from sequence_figures import PUBLISHED, line

from otmd.study.style import ONE_COLUMN, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/spechub_depths.parquet")
FIGURES = (Path("docs/images/spechub_depths.svg"), Path("runs/figures/spechub_depths.pdf"))
COLUMNS = ("temperature", "depth", "rule", "value", "error", "difference", "difference_error")
RULES = ("optimal, without", "SpecHub", "RRSw", "optimal, with replacement", "RRS")
DASHED = {"optimal, with replacement", "RRS"}
SPECHUB = ((1, 4), (1.616, 2.403))
"""Depths, and SpecHub's tokens a step in its paper: JackFram-68m for Llama-2-7b-chat, CNN, T = 0.6."""
TEMPERATURE, DEPTH = 0.6, 4


def draw(path: Path) -> "Figure":
    """By depth at one temperature, and by temperature at one depth."""
    from matplotlib.figure import Figure

    table = read(path, "experiments/sequences/spechub_depths.py", COLUMNS)
    temperatures = sorted(set(table["temperature"]))
    temperature = TEMPERATURE if TEMPERATURE in temperatures else temperatures[0]
    depth = min(DEPTH, max(table["depth"]))
    figure = Figure(figsize=(ONE_COLUMN, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    headline(figure, "Hub trees gain when cold, lose when hot")
    _by_depth(upper, table.filter(temperature=temperature).sort("depth"))
    upper.set_title(f"T = {temperature:g}", loc="left")
    _gains(lower, table.filter(depth=depth).sort("temperature"))
    lower.set_title(f"depth {depth}: gain over RRS", loc="left")
    handles, labels = upper.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, handlelength=1.8, fontsize=7
    )
    return figure


def _by_depth(axes: "Axes", rows: pl.DataFrame) -> None:
    grid(axes)
    for rule in RULES:
        own = rows.filter(rule=rule)
        line(axes, own["depth"].to_list(), own, rule, ls="--" if rule in DASHED else "-")
    axes.plot(*SPECHUB, label="SpecHub in its paper", **PUBLISHED)
    axes.set_xticks(sorted(set(rows["depth"])))
    axes.set_xlabel("depth of the binary tree")
    axes.set_ylabel("tokens per call of the target")


def _gains(axes: "Axes", rows: pl.DataFrame) -> None:
    grid(axes)
    axes.axhline(0.0, color=QUIET, linewidth=0.6)
    for rule in RULES[:-1]:
        own = rows.filter(rule=rule)
        gains = own.select(value="difference", error="difference_error")
        line(axes, own["temperature"].to_list(), gains, rule, ls="--" if rule in DASHED else "-")
    axes.set_xticks(sorted(set(rows["temperature"])))
    axes.set_xlabel("temperature")
    axes.set_ylabel("tokens per call, gained")


if __name__ == "__main__":
    write("paper_figures/spechub_depths.py", draw, (RESULTS, FIGURES), sys.argv[1:])
