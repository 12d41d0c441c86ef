"""A summary as tables in a terminal, as tables of a page, as JSON, and as the figure of the gaps."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import polars.selectors as cs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otmd.registry import VERIFIERS
from otmd.storage.files import one_line
from otmd.study import style
from otmd.study.page import Cell
from otmd.study.page import Table as PageTable
from otmd.study.rows import DEFAULT_LAWS, ROUNDING
from otmd.study.summary import DEFAULT_BY, PROCESSING, with_optimal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

LAW_ORDER = [law.__name__ for law in DEFAULT_LAWS]
VERIFIER_ORDER = [
    name for entry in VERIFIERS.values() for name in (entry.class_name, *entry.reported_names)
]
LITERATURE = {"KSequential": "K-SEQ", "SpecHub": "SpecHub"}
# Widths in characters.
FIRST_COLUMNS, VERIFIER_COLUMN = 20, 20
UNDEFINED = Text("undefined", style="dim")
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


def worth_showing(summary: pl.DataFrame) -> pl.DataFrame:
    """Leave out maximal coupling, which serves n = 1 only and is optimal there, unless it is alone."""
    trivial = (pl.col("verifier") == "MaximalCoupling") & (pl.col("gap").abs() < 1e-9)
    others = summary.filter(~trivial.fill_null(False))
    return summary if others.is_empty() else others


def _rows(summary: pl.DataFrame) -> list[Row]:
    """The rows worth showing, each with a label of its processing."""
    return [
        row | {"processing": processing_label(*(row[name] for name in PROCESSING))}
        for row in worth_showing(summary).to_dicts()
    ]


def print_report(
    summary: pl.DataFrame,
    console: Console | None = None,
    confidence: float = 0.95,
    recommendation: Sequence[str] = (),
) -> None:
    """Print a table for each draft law (and domain), then one of all laws, and a recommendation.

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.study.summarise`, grouped by its default columns, and also by ``domain`` if
        there is to be a table for each domain. Other groups are a ValueError.
    console : rich.console.Console, optional
        Where to print; by default stdout.
    confidence : float
        The coverage of the summary's intervals, for the caption.
    recommendation : sequence of str
        Sentences of :func:`otmd.study.recommend`, printed last.
    """
    missing = [name for name in DEFAULT_BY if name not in summary.columns]
    if missing:
        raise ValueError(f"summary: got no {missing}, expected it grouped by {DEFAULT_BY}")
    console = console or Console()
    fitting = max(1, (console.width - FIRST_COLUMNS) // VERIFIER_COLUMN)
    for title, rows in _sections(summary).items():
        verifiers = in_order({row["verifier"] for row in rows}, VERIFIER_ORDER)
        # As many tables as the terminal's width needs, of about equally many verifiers.
        for part in np.array_split(verifiers, -(-len(verifiers) // fitting)):
            console.print(_table(title, rows, part.tolist()), markup=False)
            console.print()
    arm = f"± is the longer arm of its {100 * confidence:g}%"
    caption = _caption(summary, arm, "undefined, or * where at some positions only")
    if 1 in summary["prompts"]:
        caption += "\n±?: one prompt gives no interval."
    console.print(Text(caption, style="dim"))
    if "domain" not in summary.columns and (ranking := _ranking(summary)):
        console.print()
        style.print_table(ranking, console)
    for sentence in recommendation:
        console.print(f"\n{sentence}", highlight=False, markup=False)


def report_json(summary: pl.DataFrame, confidence: float = 0.95, results: str = "") -> str:
    """Return the summary as a JSON object: ``results``, ``confidence`` and ``groups``, one for each row.

    Rates and gaps are fractions; undefined ones are null. ``results`` is the path of the results file.
    """
    groups = summary.with_columns(cs.float().fill_nan(None)).to_dicts()
    whole = {"results": results or None, "confidence": confidence, "groups": groups}
    return json.dumps(whole, indent=1, ensure_ascii=False)


def _sections(summary: pl.DataFrame) -> dict[str, list[Row]]:
    """The rows worth showing, by the title of their table: a law, and a domain if there is one."""
    rows = _rows(summary)
    sections: dict[str, list[Row]] = {}
    for domain in dict.fromkeys(row.get("domain") for row in rows):
        for law in in_order({row["law"] for row in rows}, LAW_ORDER):
            here = [row for row in rows if row["law"] == law and row.get("domain") == domain]
            if here:
                sections[law_label(law) + (f" · {one_line(domain)}" if domain else "")] = here
    return sections


def _table(title: str, rows: list[Row], verifiers: list[str]) -> Table:
    heads = [f"{verifier_label(name)}\nrate %  gap, pp" for name in verifiers]
    table = style.make_table(["", "n", "α* %", *heads], title)
    lines: dict[str, dict[int, dict[str, Row]]] = {}
    for row in rows:
        line = lines.setdefault(row["processing"], {}).setdefault(row["num_drafts"], {})
        line[row["verifier"]] = row
    for place, (label, counts) in enumerate(lines.items()):
        if place and max(map(len, lines.values())) > 1:
            table.add_row()
        for n, cells in sorted(counts.items()):
            known = [row for row in cells.values() if row["optimal"] is not None]
            optimal = _with_margin(known[0], "optimal", 1) if known else UNDEFINED
            partly = "*" * any(row["undefined"] and row["positions"] for row in cells.values())
            shown = (_cell(cells.get(name)) for name in verifiers)
            table.add_row(label * (n == min(counts)), f"{n}{partly}", optimal, *shown)
    return table


def _cell(row: Row | None) -> Text:
    if row is None:
        return Text("·", style="dim")
    if row["rate"] is None:
        return UNDEFINED
    return _with_margin(row, "gap", 2, before=f"{100 * row['rate']:.1f}  ")


def _with_margin(row: Row, measure: str, digits: int, before: str = "") -> Text:
    """Write ``12.3 ±0.4``: percent, and the longer arm of the interval."""
    value, low, high = row[measure], row[f"{measure}_low"], row[f"{measure}_high"]
    # Adding zero turns −0.0 into 0.0.
    number = f"{round(100 * value, digits) + 0.0:.{digits}f}"
    margin = "?" if low is None else f"{100 * max(value - low, high - value):.{digits}f}"
    return Text.assemble(before, (f"{number:>{digits + 3}}", "bold"), (f" ±{margin}", "dim"))


def _caption(summary: pl.DataFrame, of_interval: str, undefined: str) -> str:
    """What was measured, and the meaning of the signs in the tables."""
    shown = worth_showing(summary)
    positions, prompts = (shown[name].max() or 0 for name in ("positions", "prompts"))
    caption = (
        f"{positions} positions of {prompts} prompts. gap = α* − rate in percentage points; {of_interval} "
        "interval (jackknife over prompts)."
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


def report_tables(summary: pl.DataFrame, confidence: float = 0.95) -> tuple[str, list[PageTable]]:
    """A caption, and tables for the functions of :mod:`otmd.study.page`.

    Unless the summary is grouped by domain, the first table ranks all laws.
    """
    ranking = None if "domain" in summary.columns else _ranking(summary)
    tables = [ranking] if ranking else []
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
        tables.append(PageTable(title, heads, cells, interval=interval))
    ends = f"low and high are the ends of its {100 * confidence:g}%"
    return _caption(summary, ends, "undefined, at how many positions"), tables


def _ranking(summary: pl.DataFrame) -> PageTable | None:
    """A table of all pairs of law and verifier at the law's largest n, best rate first."""
    rows = [row for row in _rows(with_optimal(summary)) if row["rate"] is not None]
    steps = dict.fromkeys(row["processing"] for row in rows)
    most: dict[str, int] = {}
    for row in rows:
        most[row["law"]] = max(row["num_drafts"], most.get(row["law"], 0))
    pairs: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["num_drafts"] == most[row["law"]]:
            pairs.setdefault((row["law"], row["verifier"]), {})[row["processing"]] = row["rate"]
    if len(pairs) < 2:
        return None
    means = {pair: sum(rates.values()) / len(rates) for pair, rates in pairs.items()}
    # Of equal rates, a closed form comes before Optimal, which needs a solver.
    ranked = sorted(pairs, key=lambda pair: (-round(means[pair], 9), pair[1] == "Optimal"))
    heads = ["drafts", "verifier", "n", *(f"{step}, rate %" for step in steps)]
    cells: list[list[Cell]] = [
        [law_label(law), verifier_label(verifier), most[law]]
        + [_percent(pairs[law, verifier].get(step)) for step in steps]
        for law, verifier in ranked
    ]
    title = "all laws, best rate first"
    return PageTable(title, heads, cells, decimals=1)


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
    missing = [name for name in DEFAULT_BY if name not in summary.columns]
    if missing or "domain" in summary.columns:
        raise ValueError(f"summary: got columns {summary.columns}, expected one by {DEFAULT_BY}")
    drawn = worth_showing(summary.filter(pl.col("gap").is_not_null()))
    if drawn.is_empty():
        raise ValueError("summary: got no defined gap, expected at least one")
    return style.save_figure(lambda: make_figure(drawn), paths, source)


def make_figure(drawn: pl.DataFrame) -> "Figure":
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
    figure = Figure(figsize=(style.TWO_COLUMNS, 0.75 + 1.55 * len(steps)), layout="constrained")
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


def _panel(
    axes: "Axes", here: pl.DataFrame, looks: dict[str, style.Mark], counts: list[int]
) -> None:
    axes.axhline(0, color=style.INK, linewidth=0.8, zorder=1)
    axes.grid(axis="y", color=style.FAINT, linewidth=0.5)
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
    best = here.group_by("num_drafts", maintain_order=True).agg(pl.col("optimal").first())
    for n, alpha in best.rows():
        _above(axes, n, f"{100 * alpha:.0f}", ("data", "axes fraction"), ha="center")


def _above(axes: "Axes", x: float, text: str, coordinates: Any, ha: Any) -> None:
    offset: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(
        text, (x, 1.0), xycoords=coordinates, **offset, ha=ha, fontsize=7, color=style.QUIET
    )
