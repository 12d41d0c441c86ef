"""The figure of the gaps to α*, by draft law, processing and number of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from otmd.probabilities import wrong
from otmd.study import style
from otmd.study.report import (
    DEFAULT_BY,
    LAW_ORDER,
    PROCESSING,
    VERIFIER_ORDER,
    in_order,
    law_label,
    processing_label,
    verifier_label,
    with_optimal,
    worth_showing,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_IN_A_LINE = 5
# Gaps span two orders of magnitude: the axis is linear up to about this many percentage points (pp), and
# logarithmic above.
LINEAR_PP = 2.0
EDGE: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
TICKS = (0, 1, 3, 10, 30, 100)


def draw_gaps(summary: pl.DataFrame, paths: Sequence[str | Path], source: str = "") -> list[Path]:
    """Draw the gap to α* against the number of drafts, with a panel for each draft law and processing.

    The gap's axis is linear up to about 2 percentage points and logarithmic above. Bars are the summary's
    intervals; the grey numbers over a panel are α*. ``Optimal`` is drawn at 0 for the laws that it serves,
    measured or not. Maximal coupling, which is optimal for one draft, is drawn only if it is alone.

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.study.summarise`, grouped by its default columns.
    paths : sequence of str or Path
        Where to save; the ending names the format (``.png``, ``.pdf``, ``.svg``).
    source : str
        The result file and the script, for the files' metadata.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    ValueError
        For other groups than the default, nothing to draw, or a path of another ending.
    """
    if {*DEFAULT_BY} - {*summary.columns} or "domain" in summary.columns:
        raise wrong("summary", f"columns {summary.columns}", f"one by {DEFAULT_BY}")
    drawn = worth_showing(summary.filter(pl.col("gap").is_not_null()))
    if drawn.is_empty():
        raise wrong("summary", "no defined gap", "at least one")
    return style.save_figure(lambda: make_figure(drawn), paths, source)


def make_figure(drawn: pl.DataFrame) -> Figure:
    """The figure of :func:`draw_gaps`, of a summary whose gaps are all defined."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    # In percentage points. Without an interval its ends are the gap itself.
    ends = (pl.col(f"gap{end}").fill_null(pl.col("gap")) for end in ("", "_low", "_high"))
    drawn = with_optimal(drawn).with_columns(end * 100 for end in ends)
    laws = in_order(set(drawn["law"]), LAW_ORDER)
    steps = drawn.select(PROCESSING).unique().sort(PROCESSING, nulls_last=False).rows()
    parts = drawn.partition_by("law", *PROCESSING, as_dict=True)
    counts = {law: sorted(set(drawn.filter(pl.col("law") == law)["num_drafts"])) for law in laws}
    looks = style.marks(in_order(set(drawn["verifier"]), VERIFIER_ORDER))
    figure = Figure(figsize=(style.TWO_COLUMNS, 0.75 + 1.65 * len(steps)), layout="constrained")
    widths = [max(len(counts[law]), 1.7) for law in laws]
    shared: dict[str, Any] = {"squeeze": False, "sharey": True, "sharex": "col"}
    panels: Any = figure.subplots(len(steps), len(laws), **shared, width_ratios=widths)
    for row, step in enumerate(steps):
        for column, law in enumerate(laws):
            axes = panels[row, column]
            _panel(axes, parts.get((law, *step), drawn.clear()), looks, counts[law])
            if row == 0:
                axes.set_title(law_label(law).replace(" ", "\n"), pad=16)
        panels[row, 0].set_ylabel(f"{processing_label(*step)}\ngap to α* (pp)")
        _above(panels[row, 0], 0.0, "α* (%)", ("axes fraction", "axes fraction"), ha="right")
    figure.supxlabel("number of drafts n; the scale of gaps is linear to 2 pp, logarithmic above", fontsize=8)
    low, high = drawn["gap_low"].to_numpy().min(), drawn["gap_high"].to_numpy().max()
    panels[0, 0].set_yticks(TICKS, labels=[f"{tick}" for tick in TICKS])
    panels[0, 0].set_yticks([], minor=True)
    top = max(high, 1.0) * 1.15
    # The highest tick must not touch the words over the panel.
    top = max(top, *(1.5 * tick for tick in TICKS if tick <= top))
    panels[0, 0].set_ylim(min(low, 0) - 0.4, top)
    handles = [Line2D([], [], color=look.colour, marker=look.marker, **EDGE) for look in looks.values()]
    lines = -(-len(looks) // MOST_IN_A_LINE)
    names = [verifier_label(name) for name in looks]
    legend = figure.legend(handles, names, loc="outside upper center", ncols=-(-len(looks) // lines))
    legend.set_title("How far each verifier stays below the optimum")
    legend.get_title().set(size=9, weight="bold")
    return figure


def _panel(axes: Axes, rows: pl.DataFrame, looks: dict[str, style.Mark], counts: list[int]) -> None:
    axes.axhline(0, color=style.INK, linewidth=0.8, zorder=1)
    axes.grid(axis="y", color=style.FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_yscale("asinh", linear_width=LINEAR_PP)
    axes.set_xticks(counts)
    axes.set_xlim(min(counts) - 0.5, max(counts) + 0.5)
    present = [name for name in looks if name in set(rows["verifier"])]
    offsets = np.linspace(-0.09, 0.09, len(present)) if len(present) > 1 else [0.0]
    for name, offset in zip(present, offsets, strict=True):
        line = rows.filter(pl.col("verifier") == name).sort("num_drafts")
        gap, low, high = (line[name].to_numpy() for name in ("gap", "gap_low", "gap_high"))
        axes.errorbar(
            line["num_drafts"].to_numpy() + offset,
            gap,
            yerr=[np.maximum(gap - low, 0), np.maximum(high - gap, 0)],
            color=looks[name].colour,
            marker=looks[name].marker,
            **EDGE,
            elinewidth=1.0,
            zorder=3,
        )
    best = rows.group_by("num_drafts", maintain_order=True).agg(pl.col("optimal").first())
    for n, alpha in best.rows():
        _above(axes, n, f"{100 * alpha:.0f}", ("data", "axes fraction"), ha="center")


def _above(axes: Axes, x: float, text: str, coordinates: Any, ha: Any) -> None:
    offset: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(text, (x, 1.0), xycoords=coordinates, **offset, ha=ha, fontsize=7, color=style.QUIET)
