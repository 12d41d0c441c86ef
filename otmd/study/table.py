"""A table as text, HTML, Markdown or CSV, and self-contained pages of tables."""

import csv
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from otmd.probabilities import FloatArray

Cell = str | float | int | None
# Texts of more characters are broken into lines.
LONG = 24
TEMPLATE = Path(__file__).with_name("page.html")


class Table(NamedTuple):
    """A table: ``rows`` of cells under ``heads``. Floats are shown with ``decimals``, None and NaN as a dash.

    ``interval`` names three columns, a value and the ends of its interval, which a page draws as a bar.
    With ``small``, floats below one unit of the last decimal are written like 1.2e-05. A line break in a head
    is a comma wherever it cannot be shown.
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
        if not isinstance(cell, float):
            return str(cell)
        if self.small and 0.0 < abs(cell) < 10.0**-self.decimals:
            return f"{cell:.1e}"
        # Adding zero turns −0.0 into 0.0.
        return f"{round(cell, self.decimals) + 0.0:.{self.decimals}f}"

    def __str__(self) -> str:
        """The table for a terminal; columns behind the first texts are right-aligned.

        In a terminal that is too narrow for its columns, each cell has a line of its own.
        """
        heads = [head.split("\n") for head in self.heads]
        height = max(map(len, heads))
        lines = [[""] * (height - len(head)) + head for head in heads]
        cells = [*zip(*lines, strict=True)]
        cells += [[self.shown(cell) for cell in row] for row in self.rows]
        is_text = [isinstance(cell, str) for cell in self.rows[0]] if self.rows else [True]
        texts = is_text.index(False) if False in is_text else 1
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        sides = "<" * texts + ">" * (len(widths) - texts)
        row_format = "  ".join(f"{{:{s}{w}}}" for s, w in zip(sides, widths, strict=True))
        rows = [row_format.format(*row).rstrip() for row in cells]
        # Text that does not go to a terminal may be of any width.
        if max(map(len, rows)) > shutil.get_terminal_size((sys.maxsize, 0)).columns:
            named = (zip(self._flat_heads(), row, strict=True) for row in cells[height:])
            lines = ([f"{head}: {cell}".strip(": ") for head, cell in row] for row in named)
            rows = [wrapped("\n".join(filter(None, row))) + "\n" for row in lines]
        return "\n".join([*filter(None, [self.title]), *rows, *filter(None, [self.note])])

    def to_markdown(self) -> str:
        """The table as Markdown, with its title and note."""
        cells = [self._flat_heads(), ["---"] * len(self.heads)]
        cells += [[self.shown(cell) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
        text = "\n\n".join(filter(None, [f"## {self.title}", self.note, "\n".join(lines)]))
        return escape(text, quote=False)

    def to_csv(self) -> str:
        """The rows as CSV, with numbers in full and empty cells for None and NaN."""
        out = io.StringIO()
        rows = [["" if cell is None or cell != cell else cell for cell in row] for row in self.rows]
        csv.writer(out, lineterminator="\n").writerows([self._flat_heads(), *rows])
        return out.getvalue()

    def to_html(self) -> str:
        """The table as HTML, with its title and note."""
        first = self.rows[0] if self.rows else [""] * len(self.heads)
        heads = [
            f"<th{_kind(cell)}><button>{escape(head)}</button></th>"
            for head, cell in zip(self._flat_heads(), first, strict=True)
        ]
        rows = [[*map(self._html_cell, row)] for row in self.rows]
        if self.interval and self.rows:
            # The chart stands behind the upper end of the interval.
            column = list(self.heads).index(self.interval[2]) + 1
            for cells, chart in zip([heads, *rows], self._chart(self.interval), strict=True):
                cells.insert(column, chart)
        title = f"<h2>{escape(self.title)}</h2>" * bool(self.title)
        note = f"<p class=note>{escape(self.note)}</p>" * bool(self.note)
        body = "".join(f"<tr>{''.join(cells)}</tr>\n" for cells in rows)
        return (
            f"{title}{note}<div class=scroll tabindex=0><table><thead><tr>{''.join(heads)}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )

    def _flat_heads(self) -> list[str]:
        return [head.replace("\n", " ") for head in self.heads]

    def _html_cell(self, cell: Cell) -> str:
        value = "" if cell is None or cell != cell else escape(str(cell))
        return f'<td{_kind(cell)} data-value="{value}">{escape(self.shown(cell))}</td>'

    def _chart(self, interval: tuple[str, str, str]) -> list[str]:
        """The cells of a chart: a head with the axis, and a bar for each row's interval."""
        columns = [list(self.heads).index(name) for name in interval]
        # None becomes NaN here. Without an interval, its ends are the value itself.
        cells = np.array([[row[column] for column in columns] for row in self.rows], np.float64)
        cells = np.where(np.isnan(cells), cells[:, :1], cells)
        finite = cells[~np.isnan(cells)]
        ticks = _ticks(finite.min(), finite.max()) if finite.size else np.array([0.0, 1.0])
        percent = 100.0 * (cells - ticks[0]) / (ticks[-1] - ticks[0])
        shares = np.linspace(0.0, 100.0, len(ticks))
        labels = "".join(
            f'<s style="left:{share:.1f}%">{tick:g}</s>' for share, tick in zip(shares, ticks, strict=True)
        )
        lines = re.sub(">[^<]*</s>", "></s>", labels)
        name = escape(interval[0].replace("\n", " "))
        chart = [f"<th class=axis>{name}<div class=bar>{labels}</div></th>"]
        for value, low, high in percent.tolist():
            bar = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
            mark = f'<b style="left:{value:.1f}%"></b>'
            marks = "" if value != value else bar + mark
            chart.append(f"<td><div class=bar>{lines}{marks}</div></td>")
        return chart


def _ticks(least: float, most: float) -> FloatArray:
    """Two to six equally spaced round numbers that span the values."""
    span = (most - least) or 1.0
    power = 10.0 ** np.floor(np.log10(span))
    step = next(part * power for part in (0.2, 0.5, 1, 2, 5) if span <= 4 * part * power)
    first, last = np.floor(least / step), np.ceil(most / step)
    return step * np.arange(first, max(last, first + 1) + 1)


def _kind(cell: Cell) -> str:
    if isinstance(cell, str):
        return " class=words" * (len(cell) > LONG)
    return " class=number"


def wrapped(text: str) -> str:
    """A text in lines that fit into the terminal."""
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.fill(line, width) for line in text.splitlines())


def markdown_page(heading: str, said: Sequence[str], tables: Sequence[Table]) -> str:
    """Heading, sentences and tables as Markdown."""
    texts = [escape(text, quote=False) for text in (f"# {heading}", *said)]
    return "\n\n".join([*texts, *(table.to_markdown() for table in tables)]) + "\n"


def html_page(heading: str, said: Sequence[str], tables: Sequence[Table], about: Mapping[str, str]) -> str:
    """A self-contained HTML page: sentences, the first in larger type, tables, and ``about`` as a list."""
    parts = [f"<h1>{escape(heading)}</h1>"]
    parts += [f"<p{' class=lead' * (i == 0)}>{escape(text)}</p>" for i, text in enumerate(said)]
    parts += [table.to_html() for table in tables]
    rows = [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in about.items()]
    parts.append(f"<h2>Settings and provenance</h2><dl>{''.join(rows)}</dl>")
    page = TEMPLATE.read_text("utf-8").replace("{title}", escape(heading))
    return page.replace("{body}", "\n".join(parts))
