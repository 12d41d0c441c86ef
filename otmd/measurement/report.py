"""The summary as tables in a terminal and as JSON; what tables and figures call things."""

import json
import re
from typing import Any

import polars as pl
import polars.selectors as cs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otmd.measurement.page import Cell
from otmd.measurement.page import Table as PageTable
from otmd.measurement.style import make_table, print_table
from otmd.measurement.summary import DEFAULT_BY, PROCESSING, with_optimal
from otmd.storage.errors import one_line

Row = dict[str, Any]

LAW_ORDER = (
    "WithReplacement",
    "WithoutReplacement",
    "ConditionalPoisson",
    "Stratified",
    "Greedy",
    "Hub",
    "CertainTop",
)
VERIFIER_LABELS = {
    "MaximalCoupling": "maximal coupling",
    "RecursiveRejection": "recursive rejection",
    "KSequential": "K-SEQ",
    "SpecHub": "SpecHub",
    "GreedyCoupling": "greedy coupling",
    "Preference": "preference",
    "TargetOnly": "target only",
    "Optimal": "optimal",
}
# Characters.
FIRST_COLUMNS, VERIFIER_COLUMN = 20, 20
UNDEFINED = Text("undefined", style="dim")


def law_label(name: str) -> str:
    """``WithoutReplacement`` → ``without replacement``; any class name becomes words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", one_line(name)).lower()


def verifier_label(name: str) -> str:
    """``KSequential`` → ``K-SEQ``: the name in the literature, or the class name as words."""
    return VERIFIER_LABELS.get(name) or law_label(name)


def processing_label(
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> str:
    """``T = 0.6, top-p 0.9``: the steps between logits and probabilities that change anything."""
    cuts = {"top-k": top_k, "top-p": top_p, "min-p": min_p}
    given = [f"{name} {value:g}" for name, value in cuts.items() if value is not None]
    return ", ".join([f"T = {temperature:g}", *given])


def in_order(names: set[str], order: tuple[str, ...]) -> list[str]:
    """Sort names by a given order; names that are not in it come last, by alphabet."""
    return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))


def worth_showing(summary: pl.DataFrame) -> pl.DataFrame:
    """Drop maximal coupling where others are measured: it serves n = 1 only, and is the optimum there."""
    echo = (pl.col("verifier") == "MaximalCoupling") & (pl.col("gap").abs() < 1e-9)
    rest = summary.filter(~echo.fill_null(False))
    return summary if rest.is_empty() else rest


def print_report(
    summary: pl.DataFrame, console: Console | None = None, confidence: float = 0.95
) -> None:
    """Print one table a draft law (and domain), then one over all laws, and what follows from it.

    Parameters
    ----------
    summary : polars.DataFrame
        From :func:`otmd.measurement.summarise`, grouped by its default columns, and ``domain``
        where the table is to be split by it; ValueError for other groups.
    console : rich.console.Console, optional
        By default one on stdout.
    confidence : float
        What the summary was made with, for the caption.
    """
    missing = [name for name in DEFAULT_BY if name not in summary.columns]
    if missing:
        raise ValueError(f"summary: got no {missing}, wanted it grouped by {DEFAULT_BY}")
    console = console or Console()
    for title, rows in _sections(summary).items():
        for table in _tables(title, rows, console.width):
            console.print(table, markup=False)
            console.print()
    arm = f"± is the longer arm of its {100 * confidence:g}%"
    caption = _caption(summary, arm, "undefined, or * where at some positions only")
    if 1 in summary["prompts"]:
        caption += "\n±?: one prompt gives no interval."
    console.print(Text(caption, style="dim"))
    if "domain" not in summary.columns and (closing := _ranking(summary)):
        console.print()
        print_table(closing[0], console)
        console.print(f"\n{closing[1]}", highlight=False, markup=False)


def report_json(summary: pl.DataFrame, confidence: float = 0.95, results: str = "") -> str:
    """Return the summary as JSON: ``results``, ``confidence`` and ``groups``, one a row.

    Rates and gaps are fractions; what is undefined is null. ``results`` names the table's file.
    """
    groups = summary.with_columns(cs.float().fill_nan(None)).to_dicts()
    whole = {"results": results or None, "confidence": confidence, "groups": groups}
    return json.dumps(whole, indent=1, ensure_ascii=False)


def _sections(summary: pl.DataFrame) -> dict[str, list[Row]]:
    """The rows worth showing by the title of their table: a law, and a domain if it is split by it."""
    rows = worth_showing(summary).to_dicts()
    sections: dict[str, list[Row]] = {}
    for domain in dict.fromkeys(row.get("domain") for row in rows):
        for law in in_order({row["law"] for row in rows}, LAW_ORDER):
            here = [row for row in rows if row["law"] == law and row.get("domain") == domain]
            if here:
                sections[law_label(law) + (f" · {one_line(domain)}" if domain else "")] = here
    return sections


def _tables(title: str, rows: list[Row], width: int) -> list[Table]:
    """The tables of a law: one, or several where the verifiers are too many for the terminal's width."""
    verifiers = in_order({row["verifier"] for row in rows}, tuple(VERIFIER_LABELS))
    fitting = max(1, (width - FIRST_COLUMNS) // VERIFIER_COLUMN)
    size = -(-len(verifiers) // -(-len(verifiers) // fitting))
    parts = [verifiers[i : i + size] for i in range(0, len(verifiers), size)]
    return [_table(title, rows, part) for part in parts]


def _table(title: str, rows: list[Row], verifiers: list[str]) -> Table:
    heads = [f"{verifier_label(name)}\nrate %  gap, pp" for name in verifiers]
    table = make_table(["", "n", "α* %", *heads], title)
    lines: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((*_step(row), row["num_drafts"]), {})[row["verifier"]] = row
    steps = list(dict.fromkeys(key[:-1] for key in lines))
    last = None
    for *step, n in sorted(lines, key=lambda key: (steps.index(key[:-1]), key[-1])):
        label = processing_label(*step)
        if len(steps) < len(lines) and last not in (None, label):
            table.add_row()
        table.add_row(*_line(label if label != last else "", n, lines[*step, n], verifiers))
        last = label
    return table


def _step(row: Row) -> tuple:
    return tuple(row[name] for name in PROCESSING)


def _line(label: str, n: int, cells: dict[str, Row], verifiers: list[str]) -> list[str | Text]:
    anyone = min(cells.values(), key=lambda row: row["optimal"] is None)
    partly = "*" if any(row["undefined"] and row["positions"] for row in cells.values()) else ""
    line: list[str | Text] = [label, f"{n}{partly}", _with_margin(anyone, "optimal", 1)]
    for name in verifiers:
        row = cells.get(name)
        if row is None:
            line.append(Text("·", style="dim"))
        elif row["rate"] is None:
            line.append(UNDEFINED)
        else:
            line.append(_with_margin(row, "gap", 2, before=f"{100 * row['rate']:.1f}  "))
    return line


def _with_margin(row: Row, measure: str, digits: int, before: str = "") -> Text:
    """Write ``12.3 ±0.4``: percent, and the longer arm of the interval."""
    value, low, high = row[measure], row[f"{measure}_low"], row[f"{measure}_high"]
    if value is None:
        return UNDEFINED
    # Adding zero turns −0.0 into 0.0.
    number = f"{round(100 * value, digits) + 0.0:.{digits}f}"
    margin = "?" if low is None else f"{100 * max(value - low, high - value):.{digits}f}"
    return Text.assemble(before, (f"{number:>{digits + 3}}", "bold"), (f" ±{margin}", "dim"))


def _caption(summary: pl.DataFrame, of_interval: str, undefined: str) -> str:
    """What was measured, and what the signs in the tables mean."""
    rows = worth_showing(summary).to_dicts()
    positions, prompts = (
        max((r[name] for r in rows), default=0) for name in ("positions", "prompts")
    )
    lines = [
        f"{positions} positions of {prompts} prompts. gap = α* − rate in percentage points; {of_interval} "
        "interval (bootstrap over prompts)."
    ]
    if any(row["undefined"] for row in rows):
        lines.append(
            f"{undefined}: the draft distribution has fewer tokens with mass than n, or the verifier could "
            "not be rated; such positions are left out, and their rows' status says why."
        )
    return "\n".join(lines)


def report_tables(
    summary: pl.DataFrame, confidence: float = 0.95
) -> tuple[list[str], list[PageTable]]:
    """Sentences and tables for :func:`otmd.measurement.page.to_html` and its siblings.

    Where the summary is not split by domain, the first sentence says what to do, and the first table
    ranks all laws.
    """
    closing = None if "domain" in summary.columns else _ranking(summary)
    said, tables = ([closing[1]], [closing[0]]) if closing else ([], [])
    interval = ("gap, pp", "low", "high")
    heads = ["processing", "n", "verifier", "rate %", *interval, "α* %", "positions", "undefined"]
    for title, rows in _sections(summary).items():
        cells: list[list[Cell]] = []
        for row in rows:
            rates = [
                _percent(row[name]) for name in ("rate", "gap", "gap_low", "gap_high", "optimal")
            ]
            named = [
                processing_label(*_step(row)),
                row["num_drafts"],
                verifier_label(row["verifier"]),
            ]
            cells.append([*named, *rates, row["positions"], row["undefined"]])
        tables.append(PageTable(title, heads, cells, interval=interval))
    ends = f"low and high are the ends of its {100 * confidence:g}%"
    return [*said, _caption(summary, ends, "undefined, at how many positions")], tables


def _ranking(summary: pl.DataFrame) -> tuple[PageTable, str] | None:
    """All pairs of law and verifier at the law's largest n, best rate first, and a conclusion."""
    shown = worth_showing(with_optimal(summary)).filter(pl.col("rate").is_not_null())
    rows = shown.to_dicts()
    most = {
        row["law"]: max(r["num_drafts"] for r in rows if r["law"] == row["law"]) for row in rows
    }
    pairs: dict[tuple[str, str], dict[tuple, float]] = {}
    for row in rows:
        if row["num_drafts"] == most[row["law"]]:
            pairs.setdefault((row["law"], row["verifier"]), {})[_step(row)] = row["rate"]
    if len(pairs) < 2:
        return None
    steps = list(dict.fromkeys(_step(row) for row in rows))
    means = {pair: sum(rates.values()) / len(rates) for pair, rates in pairs.items()}
    # Where a closed form attains the optimum, it comes before the solver that does the same.
    ranked = sorted(pairs, key=lambda pair: (-round(means[pair], 9), pair[1] == "Optimal"))
    heads = ["drafts", "verifier", "n", *(f"{processing_label(*step)}, rate %" for step in steps)]
    cells: list[list[Cell]] = [
        [law_label(law), verifier_label(verifier), most[law]]
        + [_percent(pairs[law, verifier].get(step)) for step in steps]
        for law, verifier in ranked
    ]
    title = "all laws, best rate first"
    return PageTable(title, heads, cells, decimals=1), _conclusion(ranked, means, most)


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _conclusion(
    ranked: list[tuple[str, str]], means: dict[tuple[str, str], float], most: dict[str, int]
) -> str:
    def in_words(law: str, verifier: str) -> tuple[str, str]:
        label = law_label(law)
        drafts = f"drafts {label}" if label.startswith("with") else f"{label} drafts"
        rule = verifier_label(verifier)
        rule = f"the {rule} rule" if verifier in ("Optimal", "Preference") else rule
        return f"{most[law]} {drafts}", rule

    drafts, rule = in_words(*ranked[0])
    said = f"What to do: draw {drafts} and verify them by {rule}"
    simple = next((pair for pair in ranked if pair[1] != "Optimal"), None)
    if simple in (None, ranked[0]):
        return f"{said}: nothing measured accepts more."
    drafts, rule = in_words(*simple)
    less = 100 * (means[ranked[0]] - means[simple])
    return f"{said}; without its solver, {drafts} and {rule} accept {less:.1f} pp less."
