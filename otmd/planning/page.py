"""Tables as Markdown, as CSV, and as a page of its own: one HTML file that needs nothing else."""

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

Cell = str | float | int | None
TEMPLATE = Path(__file__).with_name("page.html")


class Table(NamedTuple):
    """``rows`` of cells under ``heads``, the best first; numbers are shown with ``decimals``.

    ``interval`` names the columns of a value and of its interval's ends, which the page draws as a bar.
    """

    title: str
    heads: list[str]
    rows: list[list[Cell]]
    note: str = ""
    decimals: int = 2
    interval: tuple[str, str, str] | None = None

    def shown(self, cell: Cell) -> str:
        """A cell as text; a dash for what is unknown."""
        if cell is None or cell != cell:
            return "–"
        return f"{cell:.{self.decimals}f}" if isinstance(cell, float) else cell.__str__()


def to_markdown(heading: str, said: Sequence[str], tables: Sequence[Table]) -> str:
    """Everything as Markdown."""
    lines = [f"# {heading}", *said]
    for table in tables:
        cells = [table.heads, ["---"] * len(table.heads)]
        cells += [[table.shown(cell) for cell in row] for row in table.rows]
        drawn = "\n".join(
            f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells
        )
        lines += [f"## {table.title}", drawn, table.note]
    return "\n\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One table as CSV, numbers in full."""
    out = io.StringIO()
    rows = [["" if cell is None or cell != cell else cell for cell in row] for row in table.rows]
    csv.writer(out, lineterminator="\n").writerows([table.heads, *rows])
    return out.getvalue()


def to_html(
    heading: str, said: Sequence[str], tables: Sequence[Table], about: Mapping[str, str]
) -> str:
    """One self-contained page: sentences, the first as the decision, tables to sort, and provenance."""
    parts = [f"<h1>{escape(heading)}</h1>"]
    parts += [f"<p{' class=lead' * (i == 0)}>{escape(text)}</p>" for i, text in enumerate(said)]
    parts += [_section(table) for table in tables]
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in about.items()
    )
    parts.append(f"<h2>Settings and provenance</h2><dl>{rows}</dl>")
    page = TEMPLATE.read_text("utf-8").replace("{title}", escape(heading))
    return page.replace("{body}", "\n".join(parts))


def _section(table: Table) -> str:
    bars = _bars(table)
    first = table.rows[0] if table.rows else [""] * len(table.heads)
    heads = "".join(
        f"<th{_kind(cell)}><button>{escape(head)}</button></th>"
        for head, cell in zip(table.heads, first, strict=True)
    )
    heads += "<th>interval</th>" * bool(bars)
    rows = "".join(
        f"<tr>{''.join(_cell(table, cell) for cell in row)}{bars[i] if bars else ''}</tr>\n"
        for i, row in enumerate(table.rows)
    )
    drawn = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return (
        f"<h2>{escape(table.title)}</h2><div class=scroll tabindex=0>{drawn}</div>"
        f"<p class=note>{escape(table.note)}</p>"
    )


def _cell(table: Table, cell: Cell) -> str:
    value = "" if cell is None or cell != cell else escape(str(cell))
    return f'<td{_kind(cell)} data-value="{value}">{escape(table.shown(cell))}</td>'


def _kind(cell: Cell) -> str:
    return "" if isinstance(cell, str) else " class=number"


def _bars(table: Table) -> list[str]:
    """For each row its interval, all on one scale."""
    if table.interval is None or not table.rows:
        return []
    places = [table.heads.index(name) for name in table.interval]
    ends = [[float(row[place] or 0.0) for place in places] for row in table.rows]
    least, most = min(low for _, low, _ in ends), max(high for *_, high in ends)
    scale = 100.0 / ((most - least) or 1.0)
    return [
        f'<td><div class=bar><i style="left:{scale * (low - least):.1f}%;width:{scale * (high - low):.1f}%">'
        f'</i><b style="left:{scale * (value - least):.1f}%"></b></div></td>'
        for value, low, high in ends
    ]
