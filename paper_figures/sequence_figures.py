"""What the figures on draft sequences have in common: how rules look."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from otmd.study.style import INK, MARKS, Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
