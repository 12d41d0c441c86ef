"""Figures of time and memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otmd.study.style import FAINT, INK, QUIET, TWO_COLUMNS, Mark
from paper_figures.common import LABEL_HEIGHT, headline, read, spread, thread

FONT: dict[str, Any] = {"fontsize": 6.75}
TIGHT: dict[str, Any] = {**FONT, "linespacing": 1.0}


class Line(NamedTuple):
    """Sizes and values of one line, its label and look, and its last point: where it ended or gave up."""

    label: str
    mark: Mark
    sizes: np.ndarray
    values: np.ndarray
    end: tuple[float, float]
    gave_up: bool


def draw_lines(axes: Axes, lines: list[Line], size: float | None = None) -> None:
    """Draw the lines on two log scales, with a cross where one gave up."""
    for line in lines:
        colour = line.mark.colour
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.4, "markersize": size}
        axes.plot(line.sizes, line.values, color=colour, marker=line.mark.marker, **edge)
        if line.gave_up:
            last = zip((line.sizes[-1], line.values[-1]), line.end, strict=True)
            axes.plot(*last, color=colour, linestyle=":", linewidth=0.8)
            axes.plot(*line.end, marker="x", color=INK, markersize=5, markeredgewidth=1.0)


def label_ends(axes: Axes, lines: list[Line], key: Callable[[Line], Any], **style: Any) -> None:
    """Name the lines at the right, apart from each other, each name tied to the end of its line."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    low, high = np.log10(axes.get_ylim())
    lines = sorted(lines, key=key)
    heights = [(np.log10(line.end[1]) - low) / (high - low) * height for line in lines]
    for line, y in zip(lines, spread(heights, LABEL_HEIGHT, height), strict=True):
        colour = line.mark.colour
        at = {"xytext": (1.06, y / height), "textcoords": "axes fraction", "va": "center"}
        arrow = thread(colour) | style.get("arrowprops", {})
        how = {**at, **FONT, "color": colour, **style, "arrowprops": arrow}
        axes.annotate(line.label, line.end, **how)


MARKS = {
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
UNITS = {"seconds": 1e-3, "bytes": 1e6}
VOCABULARIES = {49_152: "right", 151_936: "left"}
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


def peer_line(table: pl.DataFrame, key: tuple[str, int, str], column: str, limit: float) -> Line | None:
    """The line of one competitor at one task. Times end at the limit, memory at what the next size needs."""
    task, num_drafts, name = key
    law = "without" if task == "RRSw" else "with"
    rows = table.filter(task=task, law=law, num_drafts=num_drafts, name=name)
    solved = rows.filter(pl.col("status") == "solved", pl.col(column).is_not_null())
    failed = rows.filter(pl.col("status") != "solved").to_dicts()
    if solved.is_empty():
        return None
    unit = UNITS[column]
    sizes = solved["size"].to_numpy()
    values = solved[column].to_numpy() / unit
    end = sizes[-1], values[-1]
    if failed:
        needed = max((failed[0]["bytes"] or 0.0) / unit, float(values.max()))
        end = failed[0]["size"], limit / unit if column == "seconds" else needed
    label = f"otmd, {task}" if (name, task[0]) == ("otmd", "R") else WORDS.get(name, name)
    return Line(label, MARKS[name], sizes, values, end, bool(failed))


def peers(results: Path) -> Figure:
    """Time of otmd and its peers in three panels, and memory in one."""
    table = read(results, ["status", "size", "known_bytes", "traced_bytes", "time_limit"])
    table = table.filter(pl.col("status").is_not_null()).sort("size")
    table = table.with_columns(bytes=pl.max_horizontal("known_bytes", "traced_bytes"))
    figure = Figure(figsize=(TWO_COLUMNS, 5.0))
    panels = figure.subplots(2, 2).flat
    figure.subplots_adjust(left=0.07, right=0.865, top=0.955, bottom=0.1, wspace=0.6, hspace=0.3)
    headline(figure, "otmd takes 150,000 tokens in a millisecond; programs end at hundreds")
    for axes, (title, column, keys) in zip(panels, PANELS, strict=True):
        time = column == "seconds"
        limit = table["time_limit" if time else "memory_limit"][0]
        lines = [line for key in keys if (line := peer_line(table, key, column, limit))]
        axes.set_title(title, loc="left")
        _peer_axes(axes)
        draw_lines(axes, lines, 3.5)
        if any(line.gave_up for line in lines):
            words = f"time limit, {limit:g} s" if time else f"limit, {limit / 2**30:g} GiB"
            _mark_limit(axes, limit / UNITS[column], words, 200.0 if time else 5.0)
        last = max(line.sizes[-1] for line in lines)
        ended = [line for line in lines if line.sizes[-1] == last]
        label_ends(axes, ended, lambda line: line.values[-1], **TIGHT)
        _label_stops(axes, lines, last, above=time)
    figure.supxlabel("vocabulary V", fontsize=8)
    return figure


def _peer_axes(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    ticks = (10, 100, 1000)
    axes.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks], fontsize=6.75)
    axes.set_xticks(list(VOCABULARIES), labels=[""] * 2, minor=True)
    for size, side in VOCABULARIES.items():
        axes.axvline(size, color=FAINT, linewidth=0.5, zorder=0)
        style: dict[str, Any] = {"ha": side, "va": "top", "fontsize": 6.75}
        axes.text(size, -0.035, f"{size:,}", transform=axes.get_xaxis_transform(), **style)


def _mark_limit(axes: Axes, height: float, words: str, room: float) -> None:
    """Draw the limit, and leave room above it for the names of competitors that reached it."""
    axes.axhline(height, color=QUIET, linewidth=0.8, linestyle=(0, (4, 2)))
    style: dict[str, Any] = {"color": QUIET, "va": "center"}
    axes.text(1.02, height, words, transform=axes.get_yaxis_transform(), **TIGHT, **style)
    axes.set_ylim(top=height * room)


def _label_stops(axes: Axes, lines: list[Line], last: float, above: bool) -> None:
    """Name the other lines above their crosses, the rightmost lowest, or next to them if there is room."""
    level = 0
    for line in sorted(lines, key=lambda line: -line.end[0] * line.gave_up):
        if not line.gave_up and line.sizes[-1] == last:
            continue
        how: dict[str, Any] = {"xytext": (6, 0), "va": "top", "textcoords": "offset points"}
        if line.label == "networkx":
            how |= {"xytext": (-5, 12), "ha": "right"}
        if line.gave_up and above:
            level += 1
            away = (9, LABEL_HEIGHT * (level + 0.8))
            how |= {"xytext": away, "ha": "left", "arrowprops": thread(line.mark.colour)}
        axes.annotate(line.label, line.end, color=line.mark.colour, **how, **TIGHT)
