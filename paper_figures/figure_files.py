"""What the figure scripts share: reading results, drawing a grid, and writing figures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from otmd.study.style import FAINT, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In inches.
HEADLINE = 0.18


def read(path: Path, script: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read a table; ValueError if it lacks the columns that the script writes."""
    table = pl.read_parquet(path)
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"results: {path} lacks the columns {missing}, expected those of {script}")
    return table


def grid(axes: "Axes") -> None:
    """Faint lines behind the values."""
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def headline(figure: "Figure", words: str) -> None:
    """Write what the figure says over its panels, and make room for it."""
    style = {"x": 0.01, "ha": "left", "fontsize": 9, "fontweight": "bold"}
    if figure.get_layout_engine():
        figure.suptitle(words, **style)
        return
    width, height = figure.get_size_inches()
    share = height / (height + HEADLINE)
    figure.set_size_inches(width, height + HEADLINE)
    panels = figure.subplotpars
    figure.subplots_adjust(top=panels.top * share, bottom=panels.bottom * share)
    figure.suptitle(words, y=0.99, va="top", **style)


def write(
    script: str,
    draw: "Callable[[Path], Figure]",
    defaults: tuple[Path, Sequence[Path]],
    arguments: list[str],
) -> None:
    """Draw the given results, or the defaults, into the given files, or the defaults; print their paths."""
    results = Path(arguments[0]) if arguments else defaults[0]
    figures = arguments[1:] or defaults[1]
    source = f"{script}, {results}"
    for path in save_figure(lambda: draw(results), figures, source, "figures"):
        print(path)
