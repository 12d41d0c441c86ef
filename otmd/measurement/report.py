"""The summary as a table in a terminal, and as JSON."""

import json
import math
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otmd.measurement.labels import (
    LAW_ORDER,
    VERIFIER_LABELS,
    in_order,
    law_label,
    processing_label,
    verifier_label,
    worth_showing,
)
from otmd.measurement.summary import DEFAULT_BY, PROCESSING

Row = dict[str, Any]


def print_report(
    summary: pl.DataFrame, console: Console | None = None, confidence: float = 0.95
) -> None:
    """Print one table a draft law (and domain): rows by temperature and n, columns by verifier.

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.measurement.summarise`, grouped by its default columns, and ``domain``
        where the table is to be split by it.
    console : rich.console.Console, optional
        By default one on stdout.
    confidence : float
        What the summary was made with, for the caption.

    Raises
    ------
    ValueError
        If the summary lacks one of the default groups.
    """
    missing = [name for name in DEFAULT_BY if name not in summary.columns]
    if missing:
        raise ValueError(f"summary: got no {missing}, wanted it grouped by {DEFAULT_BY}")
    console = console or Console()
    rows = worth_showing(summary).to_dicts()
    domains = list(dict.fromkeys(row.get("domain") for row in rows))
    for domain in domains:
        for law in in_order({row["law"] for row in rows}, LAW_ORDER):
            here = [row for row in rows if row["law"] == law and row.get("domain") == domain]
            if here:
                console.print(_table(law, domain, here))
                console.print()
    console.print(_caption(rows, confidence))


def report_json(summary: pl.DataFrame, confidence: float = 0.95, results: str = "") -> str:
    """Return the summary as JSON: ``results``, ``confidence`` and ``groups``, one a row.

    Rates and gaps are fractions; what is undefined is null. ``results`` names the table's file.
    """
    groups = [{key: _plain(value) for key, value in row.items()} for row in summary.to_dicts()]
    whole = {"results": results or None, "confidence": confidence, "groups": groups}
    return json.dumps(whole, indent=1, ensure_ascii=False)


def _table(law: str, domain: str | None, rows: list[Row]) -> Table:
    verifiers = in_order({row["verifier"] for row in rows}, tuple(VERIFIER_LABELS))
    title = law_label(law) + (f" · {domain}" if domain else "")
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("\nn", justify="right", no_wrap=True)
    table.add_column("\nα* %", justify="right", no_wrap=True)
    for name in verifiers:
        table.add_column(f"{verifier_label(name)}\nrate %  gap, pp", justify="right", no_wrap=True)
    lines = _lines(rows)
    apart = len({key[:-1] for key, _ in lines}) < len(lines)
    last = None
    for key, cells in lines:
        label = processing_label(*key[:-1])
        if apart and last not in (None, label):
            table.add_row()
        table.add_row(*_line(label if label != last else "", key[-1], cells, verifiers))
        last = label
    return table


def _lines(rows: list[Row]) -> list[tuple[tuple, dict[str, Row]]]:
    lines: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        key = (*(row[name] for name in PROCESSING), row["num_drafts"])
        lines.setdefault(key, {})[row["verifier"]] = row
    steps = list(dict.fromkeys(key[:-1] for key in lines))
    return sorted(lines.items(), key=lambda item: (steps.index(item[0][:-1]), item[0][-1]))


def _line(label: str, n: int, cells: dict[str, Row], verifiers: list[str]) -> list[str | Text]:
    anyone = next(iter(cells.values()))
    partly = "*" if anyone["undefined"] and anyone["positions"] else ""
    line: list[str | Text] = [label, f"{n}{partly}", _with_margin(anyone, "optimal", 1)]
    for name in verifiers:
        row = cells.get(name)
        if row is None:
            line.append(Text("·", style="dim"))
        elif row["rate"] is None:
            line.append(Text("undefined", style="dim"))
        else:
            line.append(_with_margin(row, "gap", 2, before=f"{100 * row['rate']:.1f}  "))
    return line


def _with_margin(row: Row, measure: str, digits: int, before: str = "") -> Text:
    """Write ``12.3 ±0.4``: percent, and the longer arm of the interval."""
    value, low, high = row[measure], row[f"{measure}_low"], row[f"{measure}_high"]
    if value is None:
        return Text("undefined", style="dim")
    # Adding zero turns −0.0 into 0.0.
    number = f"{round(100 * value, digits) + 0.0:.{digits}f}"
    margin = "?" if low is None else f"{100 * max(value - low, high - value):.{digits}f}"
    return Text.assemble(before, (f"{number:>{digits + 3}}", "bold"), (f" ±{margin}", "dim"))


def _caption(rows: list[Row], confidence: float) -> Text:
    positions = max((row["positions"] for row in rows), default=0)
    prompts = max((row["prompts"] for row in rows), default=0)
    lines = [
        f"{positions} positions of {prompts} prompts. gap = α* − rate in percentage points; ± is "
        f"the longer arm of its {100 * confidence:g}% interval (bootstrap over prompts)."
    ]
    if any(row["undefined"] for row in rows):
        lines.append(
            "undefined, or * where at some positions only: the draft distribution has fewer tokens "
            "with mass than n, and such positions are left out."
        )
    if any(row["prompts"] == 1 for row in rows):
        lines.append("±?: one prompt gives no interval.")
    return Text("\n".join(lines), style="dim")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
