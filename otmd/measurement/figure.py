"""The figure of the gaps: how far each verifier stays below the optimum, by law and temperature."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from otmd.measurement.report import (
    LAW_ORDER,
    VERIFIER_LABELS,
    in_order,
    law_label,
    processing_label,
    verifier_label,
    worth_showing,
)
from otmd.measurement.style import FAINT, INK, QUIET, TWO_COLUMNS, Mark, marks, save_figure
from otmd.measurement.summary import DEFAULT_BY, PROCESSING, with_optimal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_IN_A_LINE = 5
# Gaps span two orders of magnitude: linear up to about this many pp, logarithmic above.
LINEAR_PP = 2.0
EDGE: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
TICKS = (0, 1, 3, 10, 30, 100)


def draw_gaps(
    summary: pl.DataFrame,
    paths: Sequence[str | Path],
    source: str = "",
) -> list[Path]:
    """Draw the gap to α* against the number of drafts, a panel a draft law and processing; the files written.

    The gap's axis is linear near zero and logarithmic above 2 pp; bars are the summary's
    intervals; the grey numbers over a panel are α* itself. ``Optimal`` is drawn at 0 for the laws
    that it serves, measured or not, since it attains α*. Maximal coupling, the optimum of one draft,
    is not drawn beside other verifiers.

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.measurement.summarise`, grouped by its default columns.
    paths : sequence of str or Path
        Where to save; the ending names the format (``.png``, ``.pdf``, ``.svg``).
    source : str
        The result file and the script; kept in the files' metadata, not drawn.

    Raises
    ------
    ValueError
        For other groups than the default, nothing to draw, or a path of another ending.
    """
    missing = [name for name in DEFAULT_BY if name not in summary.columns]
    if missing or "domain" in summary.columns:
        raise ValueError(f"summary: got columns {summary.columns}, wanted one by {DEFAULT_BY}")
    drawn = worth_showing(summary.filter(pl.col("gap").is_not_null()))
    if drawn.is_empty():
        raise ValueError("summary: got no defined gap, wanted at least one")
    return save_figure(lambda: make_figure(drawn), paths, source)


def make_figure(drawn: pl.DataFrame) -> "Figure":
    """Lay out a summary whose gaps are all defined; :func:`draw_gaps` says how and saves it."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    # In percentage points; without an interval the bars have no length.
    ends = (pl.col(f"gap{end}").fill_null(pl.col("gap")) for end in ("", "_low", "_high"))
    drawn = with_optimal(drawn).with_columns(end * 100 for end in ends)
    laws = in_order(set(drawn["law"]), LAW_ORDER)
    steps = drawn.select(PROCESSING).unique().sort(PROCESSING, nulls_last=False).rows()
    counts = {law: sorted(set(drawn.filter(pl.col("law") == law)["num_drafts"])) for law in laws}
    looks = marks(in_order(set(drawn["verifier"]), tuple(VERIFIER_LABELS)))
    figure = Figure(figsize=(TWO_COLUMNS, 0.75 + 1.55 * len(steps)), layout="constrained")
    panels: Any = figure.subplots(
        len(steps),
        len(laws),
        squeeze=False,
        sharey=True,
        sharex="col",
        width_ratios=[max(len(counts[law]), 1.7) for law in laws],
    )
    for row, step in enumerate(steps):
        for column, law in enumerate(laws):
            axes = panels[row, column]
            here = drawn.filter(
                pl.col("law") == law,
                *(pl.col(name).eq_missing(v) for name, v in zip(PROCESSING, step, strict=True)),
            )
            _panel(axes, here, looks, counts[law])
            if row == 0:
                axes.set_title(law_label(law).replace(" ", "\n"), pad=16)
        panels[row, 0].set_ylabel(f"{processing_label(*step)}\ngap to α* (pp)")
        _above(panels[row, 0], 0.0, "α* (%)", ("axes fraction", "axes fraction"), ha="right")
    figure.supxlabel("number of drafts n", fontsize=8)
    low, high = (drawn[name].to_numpy() for name in ("gap_low", "gap_high"))
    panels[0, 0].set_yticks(TICKS, labels=[f"{tick}" for tick in TICKS])
    panels[0, 0].set_yticks([], minor=True)
    top = max(high.max(), 1.0) * 1.15
    # The highest tick stays clear of the words over the panel.
    top = max(top, *(1.5 * tick for tick in TICKS if tick <= top))
    panels[0, 0].set_ylim(min(low.min(), 0) - 0.4, top)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, **EDGE) for look in looks.values()
    ]
    lines = -(-len(looks) // MOST_IN_A_LINE)
    names = [verifier_label(name) for name in looks]
    figure.legend(handles, names, loc="outside upper center", ncols=-(-len(looks) // lines))
    return figure


def _panel(axes: "Axes", here: pl.DataFrame, looks: dict[str, Mark], counts: list[int]) -> None:
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_yscale("asinh", linear_width=LINEAR_PP)
    axes.set_xticks(counts)
    axes.set_xlim(min(counts) - 0.5, max(counts) + 0.5)
    present = [name for name in looks if name in set(here["verifier"])]
    offsets = np.linspace(-0.09, 0.09, len(present)) if len(present) > 1 else [0.0]
    for name, offset in zip(present, offsets, strict=True):
        line = here.filter(pl.col("verifier") == name).sort("num_drafts")
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
    for n, alpha in here.group_by("num_drafts").agg(pl.col("optimal").first()).rows():
        _above(axes, n, f"{100 * alpha:.0f}", ("data", "axes fraction"), ha="center")


def _above(axes: "Axes", x: float, text: str, coordinates: Any, ha: Any) -> None:
    offset: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(text, (x, 1.0), xycoords=coordinates, **offset, ha=ha, fontsize=7, color=QUIET)
