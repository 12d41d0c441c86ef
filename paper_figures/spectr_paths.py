"""Figure: tokens a step with K independent paths, from ``experiments/sequences/spectr_paths.py``.

    python paper_figures/spectr_paths.py
    python paper_figures/spectr_paths.py runs/mine.parquet figures/mine.pdf

The figure's metadata name this script and the result file.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from figure_files import grid, headline, read, write
from sequence_figures import PUBLISHED, line

from otmd.study.style import ONE_COLUMN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/spectr_paths.parquet")
FIGURES = (Path("docs/images/spectr_paths.svg"), Path("runs/figures/spectr_paths.pdf"))
COLUMNS = ("paths", "depth", "rule", "value", "error")
RULES = ("optimal", "K-SEQ", "RRS", "block verification")
SPECTR = {4: ((1, 8), (2.4, 3.1)), 8: ((1, 8), (2.9, 4.0))}
"""Of each depth, paths and block efficiencies in SpecTr's table: K-SEQ, PaLM-2, LM1B."""


def draw(path: Path) -> "Figure":
    """A panel for each depth L: tokens per call against the number of paths K, a line for each rule."""
    from matplotlib.figure import Figure

    table = read(path, "experiments/sequences/spectr_paths.py", COLUMNS)
    depths = sorted(set(table["depth"]))
    figure = Figure(figsize=(ONE_COLUMN, 2.6), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    headline(figure, "The more paths, the more the rule matters")
    for axes, depth in zip(panels, depths, strict=True):
        _panel(axes, table.filter(depth=depth).sort("paths"), depth)
    panels[0].set_ylabel("tokens per call of the target")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, handlelength=1.5, fontsize=7
    )
    return figure


def _panel(axes: "Axes", rows: pl.DataFrame, depth: int) -> None:
    grid(axes)
    axes.set_title(f"L = {depth}", loc="left")
    axes.set_xscale("log", base=2)
    paths = sorted(set(rows["paths"]))
    axes.set_xticks(paths, labels=[str(count) for count in paths])
    axes.set_xticks([], minor=True)
    axes.margins(x=0.12)
    axes.set_xlabel("paths K")
    for rule in RULES:
        own = rows.filter(rule=rule)
        if not own.is_empty():
            line(axes, own["paths"].to_list(), own, rule)
    if depth in SPECTR:
        axes.plot(*SPECTR[depth], label="K-SEQ in SpecTr (PaLM-2)", **PUBLISHED)


if __name__ == "__main__":
    write("paper_figures/spectr_paths.py", draw, (RESULTS, FIGURES), sys.argv[1:])
