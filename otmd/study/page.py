"""Tables as Markdown, as CSV, and as a page: one HTML file that needs no other file."""

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

Cell = str | float | int | None
TEMPLATE = Path(__file__).with_name("page.html")


class Table(NamedTuple):
    """A table: ``rows`` of cells under ``heads``. Floats are shown with ``decimals``, None and NaN as a dash.

    ``interval`` names three columns, a value and the ends of its interval, which the page draws as a bar.
    With ``small``, floats that would be shown as 0 are written like 1.2e-05.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    decimals: int = 2
    interval: tuple[str, str, str] | None = None
    small: bool = False

    def shown(self, cell: Cell) -> str:
        """A cell as text."""
        if cell is None or cell != cell:
            return "–"
        if self.small and isinstance(cell, float) and 0.0 < abs(cell) < 10.0**-self.decimals:
            return f"{cell:.1e}"
        # Adding zero turns −0.0 into 0.0.
        number = isinstance(cell, float)
        return f"{round(cell, self.decimals) + 0.0:.{self.decimals}f}" if number else str(cell)


def to_markdown(heading: str, said: Sequence[str], tables: Sequence[Table]) -> str:
    """Heading, sentences and tables as Markdown."""
    lines = [f"# {heading}", *said]
    for table in tables:
        cells = [table.heads, ["---"] * len(table.heads)]
        cells += [[table.shown(cell) for cell in row] for row in table.rows]
        drawn = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
        lines += [f"## {table.title}", "\n".join(drawn), *[table.note] * bool(table.note)]
    return "\n\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One table as CSV, with numbers in full and empty cells for None and NaN."""
    out = io.StringIO()
    rows = [["" if cell is None or cell != cell else cell for cell in row] for row in table.rows]
    csv.writer(out, lineterminator="\n").writerows([table.heads, *rows])
    return out.getvalue()


def to_html(
    heading: str, said: Sequence[str], tables: Sequence[Table], about: Mapping[str, str]
) -> str:
    """One self-contained HTML page: sentences, the first in larger type, tables, and ``about`` as a list."""
    parts = [f"<h1>{escape(heading)}</h1>"]
    parts += [f"<p{' class=lead' * (i == 0)}>{escape(text)}</p>" for i, text in enumerate(said)]
    parts += [_section(table) for table in tables]
    rows = [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in about.items()]
    parts.append(f"<h2>Settings and provenance</h2><dl>{''.join(rows)}</dl>")
    page = TEMPLATE.read_text("utf-8").replace("{title}", escape(heading))
    return page.replace("{body}", "\n".join(parts))


def _section(table: Table) -> str:
    bars = _bars(table) or [""] * len(table.rows)
    first = table.rows[0] if table.rows else [""] * len(table.heads)
    heads = [
        f"<th{_kind(cell)}><button>{escape(head)}</button></th>"
        for head, cell in zip(table.heads, first, strict=True)
    ]
    heads += ["<th>interval</th>"] * any(bars)
    rows = [
        f"<tr>{''.join(_cell(table, cell) for cell in row)}{bar}</tr>\n"
        for row, bar in zip(table.rows, bars, strict=True)
    ]
    return (
        f"<h2>{escape(table.title)}</h2><div class=scroll tabindex=0><table><thead><tr>{''.join(heads)}"
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div><p class=note>{escape(table.note)}</p>"
    )


def _cell(table: Table, cell: Cell) -> str:
    value = "" if cell is None or cell != cell else escape(str(cell))
    return f'<td{_kind(cell)} data-value="{value}">{escape(table.shown(cell))}</td>'


def _kind(cell: Cell) -> str:
    return "" if isinstance(cell, str) else " class=number"


def _bars(table: Table) -> list[str]:
    """A cell with a bar for each row's interval, all on one scale; empty if the table names no interval."""
    if table.interval is None or not table.rows:
        return []
    places = [list(table.heads).index(name) for name in table.interval]
    # None becomes NaN here. Without an interval, its ends are the value itself.
    cells = np.array([[row[place] for place in places] for row in table.rows], dtype=np.float64)
    cells = np.where(np.isnan(cells), cells[:, :1], cells)
    known = cells[~np.isnan(cells)]
    least, most = (known.min(), known.max()) if known.size else (0.0, 0.0)
    percent = 100.0 * (cells - least) / ((most - least) or 1.0)
    return [
        f'<td><div class=bar><i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
        f'<b style="left:{value:.1f}%"></b></div></td>'
        if value == value
        else "<td></td>"
        for value, low, high in percent.tolist()
    ]
