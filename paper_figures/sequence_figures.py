"""What the figures on draft sequences have in common: how rules look, and how a figure is written."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from otmd.measurement.figure import SOURCE_KEYS
from otmd.measurement.style import FAINT, INK, MARKS, Mark, figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RULE_MARKS = {
    "RRS": MARKS["RecursiveRejection"],
    "RRSw": Mark("#D55E00", "^"),
    "K-SEQ": MARKS["KSequential"],
    "SpecHub": MARKS["SpecHub"],
    "optimal": MARKS["Optimal"],
    "optimal at each token": MARKS["Optimal"],
    "optimal, with replacement": MARKS["Optimal"],
    "optimal, without": Mark("#56B4E9", "X"),
    "block verification": Mark("#CC79A7", "v"),
    "Traversal": Mark("#E69F00", "h"),
}
# Ninety-five per cent of a normal distribution.
ERRORS = 1.96
PUBLISHED: dict[str, Any] = {
    "ls": "none",
    "marker": "_",
    "markersize": 9,
    "color": INK,
    "markeredgewidth": 1.0,
}


def read(path: Path, script: str, columns: Sequence[str]) -> pl.DataFrame:
    """A summary, or ValueError where it is none of the script's."""
    table = pl.read_parquet(path)
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"results: {path} lacks the columns {missing}, wanted those of {script}")
    return table


def grid(axes: "Axes") -> None:
    """Faint lines behind the values."""
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def line(axes: "Axes", xs: Sequence[float], rows: pl.DataFrame, rule: str, **look: Any) -> None:
    """Values of one rule with their 95% intervals."""
    mark = RULE_MARKS[rule]
    axes.errorbar(
        xs,
        rows["value"].to_list(),
        yerr=(ERRORS * rows["error"]).to_list(),
        color=mark.colour,
        marker=mark.marker,
        markeredgecolor="white",
        markeredgewidth=0.4,
        elinewidth=0.8,
        label=rule,
        **look,
    )


def write(
    script: str,
    draw: Callable[[Path], "Figure"],
    defaults: tuple[Path, Sequence[Path]],
    arguments: list[str],
) -> None:
    """Draw from given results into given files, or from the repository's; say which were written."""
    results = Path(arguments[0]) if arguments else defaults[0]
    figures = [Path(name) for name in arguments[1:]] or defaults[1]
    for path in figures:
        if path.suffix not in SOURCE_KEYS:
            raise ValueError(f"figures: got {path}, wanted an ending of {', '.join(SOURCE_KEYS)}")
    with figure_style():
        figure = draw(results)
        for path in figures:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, metadata={SOURCE_KEYS[path.suffix]: f"{script}, {results}"})
            print(path)
