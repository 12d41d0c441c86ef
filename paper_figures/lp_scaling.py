"""Figure: how far each form and solver goes, from the results of ``experiments/lp_scaling.py``.

    python paper_figures/lp_scaling.py
    python paper_figures/lp_scaling.py runs/mine.parquet figures/mine.svg

The figure's metadata name this script and the result file.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from figure_files import headline, write
from figure_labels import LABEL_HEIGHT, THREAD, spread

from otmd.study.style import FAINT, INK, TWO_COLUMNS, Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/lp_scaling.parquet")
FIGURES = (Path("docs/images/lp_scaling.svg"),)

FORM_NAMES = {
    "full": "full coupling",
    "compact": "compact",
    "dual": "dual",
    "max_flow": "maximum flow",
}
NAMES = {
    "HiGHS simplex": "simplex",
    "HiGHS ipm": "ipm",
    "cvxpy Clarabel": "Clarabel",
    "cvxpy HiGHS": "cvxpy",
    "scipy linprog": "linprog",
    "networkx": "networkx",
    "Dinic": "Dinic",
}
"""The name beside a backend's line."""

LOOKS = {
    "HiGHS simplex": Mark("#0072B2", "o"),
    "HiGHS ipm": Mark("#D55E00", "s"),
    "cvxpy Clarabel": Mark("#CC79A7", "D"),
    "cvxpy HiGHS": Mark("#E69F00", "P"),
    "scipy linprog": Mark("#56B4E9", "v"),
    "networkx": Mark("#8a6d00", "^"),
    "Dinic": Mark("#009E73", "X"),
}
DRAFTS = 2
UNITS = {"solve_seconds": 1e-3, "peak_bytes": 2.0**20}
# Values below these are drawn at them: the system counts a process's memory in coarser steps.
LEAST = {"solve_seconds": 0.0, "peak_bytes": 0.3}
TICKS = (4, 10, 100, 1000)


class Line(NamedTuple):
    """One form and backend: where it solved, and where it gave up."""

    form: str
    backend: str
    solved: pl.DataFrame
    failed: pl.DataFrame


def read_lines(path: Path) -> list[Line]:
    """The lines of the merged synthetic problems with two drafts."""
    table = pl.read_parquet(path)
    if "status" not in table.columns:
        raise ValueError(f"results: {path} has no column 'status', expected rows of lp_scaling.py")
    rows = table.filter(
        pl.col("source") == "synthetic", pl.col("num_drafts") == DRAFTS, pl.col("merge")
    ).sort("vocab_size")
    lines = []
    for (form, backend), part in rows.group_by("form", "backend", maintain_order=True):
        solved, stopped = pl.col("status") == "optimal", pl.col("status") != "not certified"
        failed = part.filter(~solved & stopped)
        lines.append(Line(str(form), str(backend), part.filter(solved), failed))
    if not lines:
        raise ValueError(f"results: {path} has no synthetic problem with {DRAFTS} drafts")
    return lines


def draw(lines: list[Line]) -> "Figure":
    """Solve time above peak memory, both against V, with a column of panels for each form."""
    from matplotlib.figure import Figure

    forms = [name for name in FORM_NAMES if name in {line.form for line in lines}]
    figure = Figure(figsize=(TWO_COLUMNS, 4.1))
    panels = figure.subplots(2, len(forms), sharex=True, sharey="row", squeeze=False)
    figure.subplots_adjust(
        left=0.075, right=0.925, top=0.935, bottom=0.105, wspace=0.6, hspace=0.12
    )
    headline(figure, "Programs take seconds at a thousand tokens; Dinic's flow is quickest")
    for axes, form in zip(panels.T, forms, strict=True):
        axes[0].set_title(FORM_NAMES[form], loc="left")
        here = [line for line in lines if line.form == form and line.solved.height]
        for panel, column in zip(axes, UNITS, strict=True):
            _panel(panel, here, column)
    panels[0, 0].set_ylabel("solve time (ms)")
    panels[1, 0].set_ylabel("peak memory (MB)")
    figure.supxlabel(f"vocabulary V, with n = {DRAFTS} drafts", fontsize=8)
    figure.canvas.draw()
    for axes, form in zip(panels.T, forms, strict=True):
        for panel, column in zip(axes, UNITS, strict=True):
            _label_ends(panel, [line for line in lines if line.form == form], column)
    return figure


def _panel(axes: "Axes", lines: list[Line], column: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xticks(TICKS, labels=[f"{tick:,}" for tick in TICKS], fontsize=6.5)
    axes.set_xticks([], minor=True)
    for line in lines:
        look = LOOKS[line.backend]
        sizes, values = _points(line, column)
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.4}
        axes.plot(sizes, values, color=look.colour, marker=look.marker, **edge)
        if line.failed.height:
            end = _giving_up(line, column)
            axes.plot([sizes[-1], end[0]], [values[-1], end[1]], color=look.colour, ls=":", lw=0.8)
            axes.plot(*end, marker="x", color=INK, markersize=5, markeredgewidth=1.0)


def _points(line: Line, column: str) -> tuple[np.ndarray, np.ndarray]:
    values = np.maximum(line.solved[column].to_numpy() / UNITS[column], LEAST[column])
    return line.solved["vocab_size"].to_numpy(), values


def _giving_up(line: Line, column: str) -> tuple[float, float]:
    """Where the cross stands: at the time limit, or at the last solve's memory, as its own is unknown."""
    size, limit = line.failed.select("vocab_size", "time_limit").row(0)
    if column == "solve_seconds":
        return size, limit / UNITS[column]
    return size, _points(line, column)[1][-1]


def _label_ends(axes: "Axes", lines: list[Line], column: str) -> None:
    """Write the backends' names at the right, apart from each other, each with a line to its end."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    low, high = np.log10(axes.get_ylim())
    ends = []
    for line in lines:
        if line.solved.height:
            sizes, values = _points(line, column)
            end = _giving_up(line, column) if line.failed.height else (sizes[-1], values[-1])
            # Among lines that end at one height, the one that got further stands higher.
            ends.append((end[1], -values[-1], *end, line.backend))
    ends.sort()
    wanted = [(np.log10(end[0]) - low) / (high - low) * height for end in ends]
    places = spread(wanted, LABEL_HEIGHT, height)
    for (_, _, x, y, backend), place in zip(ends, places, strict=True):
        axes.annotate(
            NAMES[backend],
            (x, y),
            xytext=(1.06, place / height),
            textcoords="axes fraction",
            fontsize=6.5,
            color=LOOKS[backend].colour,
            va="center",
            annotation_clip=False,
            arrowprops={"color": LOOKS[backend].colour, **THREAD, "shrinkB": 3},
        )


if __name__ == "__main__":
    script, defaults = "paper_figures/lp_scaling.py", (RESULTS, FIGURES)
    write(script, lambda results: draw(read_lines(results)), defaults, sys.argv[1:])
