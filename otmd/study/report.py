"""A summary as tables for a terminal and for a page, as JSON, and as the figure of the gaps."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import polars.selectors as cs

from otmd.probabilities import wrong
from otmd.registry import VERIFIERS
from otmd.storage.files import one_line
from otmd.study import style
from otmd.study.estimate import CONFIDENCE
from otmd.study.rows import DEFAULT_LAWS, ROUNDING
from otmd.study.summary import DEFAULT_BY, ENDS, PROCESSING, comparable, with_optimal, worth_showing
from otmd.study.table import Cell, Table, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

LAW_ORDER = [law.__name__ for law in DEFAULT_LAWS]
VERIFIER_ORDER = [
    name for entry in VERIFIERS.values() for name in (entry.class_name, *entry.reported_names)
]
LITERATURE = {"KSequential": "K-SEQ", "SpecHub": "SpecHub"}
# Characters of the columns of n and α*, and of a verifier.
FIRST_COLUMNS, VERIFIER_COLUMN = 18, 21
MOST_IN_A_LINE = 5
# Gaps span two orders of magnitude: the axis is linear up to about this many percentage points (pp), and
# logarithmic above.
LINEAR_PP = 2.0
EDGE: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
TICKS = (0, 1, 3, 10, 30, 100)


def law_label(name: str) -> str:
    """The words of a class name: ``without replacement`` for ``WithoutReplacement``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", one_line(name)).lower()


def verifier_label(name: str) -> str:
    """A verifier's name in the literature, ``K-SEQ`` for ``KSequential``, or its class name as words."""
    return LITERATURE.get(name) or law_label(name)


def processing_label(*values: Any) -> str:
    """The values of the columns PROCESSING in words, such as ``T = 0.6, top-p 0.9``, without unused steps."""
    named = dict(zip(PROCESSING, values, strict=False))
    order = named.pop("order", None) or "transformers"
    words = {"temperature": "T =", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
    steps = [f"{words[name]} {value:.9g}" for name, value in named.items() if value is not None]
    return ", ".join(steps + [f"order {order}"] * (order != "transformers"))


def in_order(names: set[str], order: list[str]) -> list[str]:
    """Sort names by a given order; names that are not in it come last, in alphabetical order."""
    return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))


def print_report(summary: pl.DataFrame, recommendation: Sequence[str] = ()) -> None:
    """Print a recommendation, a table of all laws, then one for each law (and domain).

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.study.summarise`, grouped by its default columns, and also by ``domain`` if
        there is to be a table for each domain.
    recommendation : sequence of str
        Sentences of :func:`otmd.study.recommend`, printed first.

    Raises
    ------
    ValueError
        For a summary of other groups.
    """
    if missing := [name for name in DEFAULT_BY if name not in summary.columns]:
        raise wrong("summary", f"no {missing}", f"it grouped by {DEFAULT_BY}")
    for part in filter(None, [*map(wrapped, recommendation), _ranking(summary)]):
        print(part, end="\n\n")
    width = shutil.get_terminal_size().columns
    for title, rows in _sections(summary).items():
        label = max(len(row["processing"]) for row in rows)
        fitting = max(1, (width - label - FIRST_COLUMNS) // VERIFIER_COLUMN)
        verifiers = in_order({row["verifier"] for row in rows}, VERIFIER_ORDER)
        # As many tables as the terminal's width needs, of about equally many verifiers.
        for part in np.array_split(verifiers, -(-len(verifiers) // fitting)):
            print(_matrix(title, rows, part.tolist()), end="\n\n")
    arm = "± is the longer arm of its"
    caption = _caption(summary, arm, "undefined, or * where at some positions only")
    if 1 in summary["prompts"]:
        caption += "\n±?: one prompt gives no interval."
    print(wrapped(caption))


def report_json(summary: pl.DataFrame, results: str = "") -> dict[str, Any]:
    """The summary in JSON's types.

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.study.summarise`.
    results : str
        The path of the results file.

    Returns
    -------
    dict
        ``results``, ``confidence`` and ``groups``, one for each row. Rates and gaps are fractions; undefined
        ones are None.
    """
    groups = summary.with_columns(cs.float().fill_nan(None)).to_dicts()
    return {"results": results or None, "confidence": CONFIDENCE, "groups": groups}


def report_tables(summary: pl.DataFrame) -> tuple[str, list[Table]]:
    """A caption, and the tables of a page: one for each law, after one of all laws unless by domain."""
    tables = [*filter(None, [_ranking(summary)])]
    interval = ("gap, pp", "low", "high")
    heads = ["processing", "n", "verifier", "rate %", *interval, "α* %", "positions", "undefined"]
    rates = ("rate", "gap", "gap_low", "gap_high", "optimal")
    for title, rows in _sections(summary).items():
        cells: list[list[Cell]] = [
            [row["processing"], row["num_drafts"], verifier_label(row["verifier"])]
            + [_percent(row[name]) for name in rates]
            + [row["positions"], row["undefined"]]
            for row in rows
        ]
        tables.append(Table(title, heads, cells, interval=interval))
    ends = "low and high are the ends of its"
    return _caption(summary, ends, "undefined, at how many positions"), tables


def _rows(summary: pl.DataFrame) -> list[Row]:
    """The rows worth showing, each with a label of its processing."""
    return [
        row | {"processing": processing_label(*(row[name] for name in PROCESSING))}
        for row in worth_showing(summary).to_dicts()
    ]


def _sections(summary: pl.DataFrame) -> dict[str, list[Row]]:
    """The rows worth showing, by the title of their table: a law, and a domain if there is one."""
    rows = _rows(summary)
    laws = in_order({row["law"] for row in rows}, LAW_ORDER)
    domains = [*dict.fromkeys(row.get("domain") for row in rows)]
    sections: dict[str, list[Row]] = {}
    for domain, law in product(domains, laws):
        title = law_label(law) + (f" · {one_line(domain)}" if domain else "")
        chosen = [row for row in rows if (row.get("domain"), row["law"]) == (domain, law)]
        sections |= {title: chosen} if chosen else {}
    return sections


def _matrix(title: str, rows: list[Row], verifiers: list[str]) -> Table:
    """Rates and gaps with a row for each processing and number of drafts, a column for each verifier."""
    heads = ["", "n", "α* %", *(f"{verifier_label(v)}\nrate %  gap, pp" for v in verifiers)]
    lines: dict[str, dict[int, dict[str, Row]]] = {}
    for row in rows:
        line = lines.setdefault(row["processing"], {}).setdefault(row["num_drafts"], {})
        line[row["verifier"]] = row
    table: list[list[Cell]] = []
    for label, counts in lines.items():
        if table and max(map(len, lines.values())) > 1:
            table.append([""] * len(heads))
        for n, cells in sorted(counts.items()):
            rated = [row for row in cells.values() if row["optimal"] is not None]
            optimal = _with_margin(rated[0], "optimal", 1) if rated else "undefined"
            partly = "*" * any(row["undefined"] and row["positions"] for row in cells.values())
            shown = (_matrix_cell(cells.get(name)) for name in verifiers)
            table.append([label * (n == min(counts)), f"{n}{partly}", optimal, *shown])
    return Table(title, heads, table)


def _matrix_cell(row: Row | None) -> str:
    if row is None:
        return "·"
    if row["rate"] is None:
        return "undefined"
    return f"{100 * row['rate']:.1f}  {_with_margin(row, 'gap', 2)}"


def _with_margin(row: Row, measure: str, digits: int) -> str:
    """Write ``12.3 ±0.4``: percent, and the longer arm of the interval."""
    value, low, high = (row[f"{measure}{end}"] for end in ENDS)
    margin = "?" if low is None else f"{100 * max(value - low, high - value):.{digits}f}"
    # Adding zero turns −0.0 into 0.0.
    return f"{round(100 * value, digits) + 0.0:{digits + 3}.{digits}f} ±{margin}"


def _caption(summary: pl.DataFrame, of_interval: str, undefined: str) -> str:
    """A line on the size of the measurement, and the meaning of the signs in the tables."""
    shown = worth_showing(summary)
    positions, prompts = (shown[name].max() or 0 for name in ("positions", "prompts"))
    caption = (
        f"{positions} positions of {prompts} prompts. gap = α* − rate in percentage points; {of_interval} "
        "95% interval (jackknife over prompts)."
    )
    if shown["undefined"].sum():
        caption += (
            f"\n{undefined}: the draft distribution has fewer tokens with mass than n, or the verifier could "
            "not be rated; such positions are left out, and their rows' status says why."
        )
    served = shown.group_by("law", "num_drafts").agg(pl.col("verifier").n_unique())
    if served.group_by("law").agg(pl.col("verifier").n_unique() > 1)["verifier"].any():
        caption += "\n·: the verifier does not serve the law with so many drafts."
    return caption


def _ranking(summary: pl.DataFrame) -> Table | None:
    """A table of all pairs of law and verifier at the law's largest n, best rate first; not by domain."""
    rows = _rows(comparable(summary))
    steps = dict.fromkeys(row["processing"] for row in rows)
    pairs: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        pair = row["law"], row["verifier"], row["num_drafts"]
        pairs.setdefault(pair, {})[row["processing"]] = row["rate"]
    if len(pairs) < 2 or "domain" in summary.columns:
        return None
    means = {pair: sum(rates.values()) / len(rates) for pair, rates in pairs.items()}
    # Of equal rates, a closed form comes before Optimal, which needs a solver.
    ranked = sorted(pairs, key=lambda pair: (-round(means[pair], 9), pair[1] == "Optimal"))
    heads = ["drafts", "verifier", "n", *(f"{step}\nrate %" for step in steps)]
    cells: list[list[Cell]] = [
        [law_label(law), verifier_label(verifier), n]
        + [_percent(pairs[law, verifier, n].get(step)) for step in steps]
        for law, verifier, n in ranked
    ]
    return Table("all laws, best rate first", heads, cells, decimals=1)


def _percent(fraction: float | None) -> float | None:
    # An interval that is rounding alone would be drawn over the full width.
    return None if fraction is None else 100 * fraction * (abs(fraction) > ROUNDING) + 0.0


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
    figure.supxlabel("number of drafts n", fontsize=8)
    low, high = drawn["gap_low"].to_numpy().min(), drawn["gap_high"].to_numpy().max()
    panels[0, 0].set_yticks(TICKS, labels=[f"{tick}" for tick in TICKS])
    panels[0, 0].set_yticks([], minor=True)
    top = max(high, 1.0) * 1.15
    # The highest tick must not touch the words over the panel.
    top = max(top, *(1.5 * tick for tick in TICKS if tick <= top))
    panels[0, 0].set_ylim(min(low, 0) - 0.4, top)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, **EDGE) for look in looks.values()
    ]
    lines = -(-len(looks) // MOST_IN_A_LINE)
    names = [verifier_label(name) for name in looks]
    figure.legend(handles, names, loc="outside upper center", ncols=-(-len(looks) // lines))
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
    axes.annotate(
        text, (x, 1.0), xycoords=coordinates, **offset, ha=ha, fontsize=7, color=style.QUIET
    )
