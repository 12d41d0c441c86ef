"""Figure: time and memory of otmd and its peers, from ``experiments/performance/peers.py``.

    python paper_figures/peers.py
    python paper_figures/peers.py runs/mine.parquet figures/mine.svg

The figure's metadata name this script and the result file.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from figure_files import headline, write
from figure_labels import LABEL_HEIGHT, THREAD, spread

from otmd.study.style import FAINT, INK, QUIET, TWO_COLUMNS, Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/peers.parquet")
FIGURES = (Path("docs/images/peers.svg"),)

LOOKS = {
    "otmd": Mark("#0072B2", "o"),
    "min(p, q).sum()": Mark("#5a5a5a", "d"),
    "argsort(p/q)": Mark("#8a6d00", "v"),
    "sort-and-scan": Mark("#009E73", "s"),
    "HiGHS, compact LP": Mark("#D55E00", "P"),
    "networkx max-flow": Mark("#CC79A7", "^"),
    "POT emd, full": Mark("#56B4E9", "X"),
    "Global Resolution": Mark("#E69F00", "D"),
    "torch chain": Mark("#D55E00", "s"),
    "torch, ONE verification": Mark("#E69F00", "D"),
}
WORDS = {
    "HiGHS, compact LP": "HiGHS",
    "networkx max-flow": "networkx",
    "POT emd, full": "POT",
    "Global Resolution": "Global Resolution,\nV is the top k",
    "torch chain": "torch, RRS",
    "torch, ONE verification": "torch, one RRSw",
}
MILLISECOND, MEGABYTE = 1e-3, 1e6
TICKS = (10, 100, 1000)
VOCABULARIES = {49_152: "right", 151_936: "left"}
FONT: dict[str, Any] = {"fontsize": 6.5, "linespacing": 1.0}
FLOORS = [("α*", 1, "min(p, q).sum()"), ("sort", 1, "argsort(p/q)")]
PROGRAMS = ("otmd", "sort-and-scan", "HiGHS, compact LP", "networkx max-flow", "POT emd, full")
OPTIMA = {n: [("α*", n, name) for name in (*PROGRAMS, "Global Resolution")] for n in (2, 4)}
REJECTION = [(task, 2, "otmd") for task in ("RRS", "RRSw")]
TORCH = [("RRS", 2, "torch chain"), ("RRSw", 2, "torch, ONE verification")]
PANELS = (
    ("α*, n = 2: time (ms)", "seconds", [*OPTIMA[2], *FLOORS]),
    ("α*, n = 4: time (ms)", "seconds", [*OPTIMA[4], *FLOORS]),
    ("recursive rejection, n = 2: time (ms)", "seconds", [*REJECTION, *TORCH, *FLOORS]),
    ("α*, n = 2: arrays in memory (MB), at least", "bytes", OPTIMA[2][:-1]),
)
"""Title, column, and task, number of drafts and name of each line."""


class Line(NamedTuple):
    """A competitor's sizes and values, what it is called, and where it stopped, if it did."""

    name: str
    label: str
    sizes: np.ndarray
    values: np.ndarray
    end: tuple[float, float] | None


def read_results(path: Path) -> pl.DataFrame:
    """Rows of times in growing order, with the bytes known of each."""
    table = pl.read_parquet(path)
    if "known_bytes" not in table.columns:
        raise ValueError(f"results: {path} has no column 'known_bytes', expected rows of peers.py")
    rows = table.filter(pl.col("status").is_not_null()).sort("size")
    return rows.with_columns(bytes=pl.max_horizontal("known_bytes", "traced_bytes"))


def line_of(rows: pl.DataFrame, key: tuple[str, int, str], column: str, limit: float) -> Line:
    """The line of one competitor at one task. Times end at the limit, memory at what the next size needs."""
    task, num_drafts, name = key
    law = "without" if task == "RRSw" else "with"
    rows = rows.filter(task=task, law=law, num_drafts=num_drafts, name=name)
    solved = rows.filter(pl.col("status") == "solved", pl.col(column).is_not_null())
    failed = rows.filter(pl.col("status") != "solved").to_dicts()
    unit = MILLISECOND if column == "seconds" else MEGABYTE
    sizes, values, end = solved["size"].to_numpy(), solved[column].to_numpy() / unit, None
    if failed and sizes.size:
        needed = max((failed[0]["bytes"] or 0.0) / unit, float(values.max()))
        end = (failed[0]["size"], limit / unit if column == "seconds" else needed)
    label = f"otmd, {task}" if (name, task[0]) == ("otmd", "R") else WORDS.get(name, name)
    return Line(name, label, sizes, values, end)


def draw(rows: pl.DataFrame) -> "Figure":
    """Three panels of time, and one of memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 5.0))
    panels = figure.subplots(2, 2).flat
    figure.subplots_adjust(left=0.07, right=0.865, top=0.955, bottom=0.1, wspace=0.6, hspace=0.3)
    headline(figure, "otmd takes 150,000 tokens in a millisecond; programs end at hundreds")
    for axes, (title, column, keys) in zip(panels, PANELS, strict=True):
        limit = rows["time_limit" if column == "seconds" else "memory_limit"][0]
        lines = [x for key in keys if (x := line_of(rows, key, column, limit)).sizes.size]
        axes.set_title(title, loc="left")
        _draw_lines(axes, lines)
        if any(line.end for line in lines):
            _mark_limit(axes, column, limit)
        _label_ends(axes, lines)
        _label_stops(axes, lines, above=column == "seconds")
    figure.supxlabel("vocabulary V", fontsize=8)
    return figure


def _draw_lines(axes: "Axes", lines: list[Line]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_xticks(TICKS, labels=[f"{tick:,}" for tick in TICKS], fontsize=6.5)
    axes.set_xticks(list(VOCABULARIES), labels=[""] * 2, minor=True)
    for size, side in VOCABULARIES.items():
        axes.axvline(size, color=FAINT, linewidth=0.5, zorder=0)
        style = {"ha": side, "va": "top", "transform": axes.get_xaxis_transform()}
        axes.text(size, -0.035, f"{size:,}", fontsize=5.5, **style)
    for line in lines:
        look = LOOKS[line.name]
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.4, "markersize": 3.5}
        axes.plot(line.sizes, line.values, color=look.colour, marker=look.marker, **edge)
        if line.end:
            path = zip((line.sizes[-1], line.values[-1]), line.end, strict=True)
            axes.plot(*path, color=look.colour, linestyle=":", linewidth=0.8)
            axes.plot(*line.end, marker="x", color=INK, markersize=5, markeredgewidth=1.0)


def _mark_limit(axes: "Axes", column: str, limit: float) -> None:
    """Draw the limit, and leave room above it for the names of competitors that reached it."""
    time = column == "seconds"
    height = limit / (MILLISECOND if time else MEGABYTE)
    axes.axhline(height, color=QUIET, linewidth=0.8, linestyle=(0, (4, 2)))
    words = f"time limit, {limit:g} s" if time else f"limit, {limit / 2**30:g} GiB"
    style = {"color": QUIET, "va": "center", "transform": axes.get_yaxis_transform()}
    axes.text(1.02, height, words, **FONT, **style)
    axes.set_ylim(top=height * (200.0 if time else 5.0))


def _label_ends(axes: "Axes", lines: list[Line]) -> None:
    """Name the lines that reach the largest V at their ends, apart from each other, each tied to its end."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    low, high = np.log10(axes.get_ylim())
    last = max(line.sizes[-1] for line in lines)
    lines = sorted((x for x in lines if x.sizes[-1] == last), key=lambda line: line.values[-1])
    wanted = [(np.log10(line.values[-1]) - low) / (high - low) * height for line in lines]
    for line, place in zip(lines, spread(wanted, LABEL_HEIGHT, height), strict=True):
        at = {"xytext": (1.06, place / height), "textcoords": "axes fraction", "va": "center"}
        how = {**at, **FONT, "color": LOOKS[line.name].colour, "arrowprops": _thread(line)}
        axes.annotate(line.label, (last, line.values[-1]), **how)


def _label_stops(axes: "Axes", lines: list[Line], above: bool) -> None:
    """Name the other lines above their crosses, the rightmost lowest, or beside them where there is room."""
    last, level = max(line.sizes[-1] for line in lines), 0
    for line in sorted(lines, key=lambda line: -(line.end or (0.0,))[0]):
        how: dict[str, Any] = {"xytext": (6, 0), "va": "top", "textcoords": "offset points"}
        if line.name == "networkx max-flow":
            how |= {"xytext": (-5, 12), "ha": "right"}
        if line.end and above:
            level += 1
            away = (9, LABEL_HEIGHT * (level + 0.8))
            how |= {"xytext": away, "ha": "left", "arrowprops": _thread(line)}
        if line.end or line.sizes[-1] < last:
            end = line.end or (line.sizes[-1], line.values[-1])
            axes.annotate(line.label, end, color=LOOKS[line.name].colour, **how, **FONT)


def _thread(line: Line) -> dict[str, Any]:
    """From a name to its line, in the line's colour."""
    return {"color": LOOKS[line.name].colour, **THREAD}


if __name__ == "__main__":
    script, defaults = "paper_figures/peers.py", (RESULTS, FIGURES)
    write(script, lambda results: draw(read_results(results)), defaults, sys.argv[1:])
