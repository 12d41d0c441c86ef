"""Shared by all figures and tables: reading results, averaging them, and drawing in one style."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otmd.study import summarise
from otmd.study.style import FAINT, INK, MARKS, Mark

RESULTS = Path("paper_figures/results")
PAIR = "skip:13,15,17"
POSITION = ("draft", "temperature", "domain", "prompt_id", "index")
ABOUT = ("entropy", "top_draft", "total_variation")
MEASURED = ("optimal", "rate", "rate_low", "rate_high", "gap", "gap_low", "gap_high")
# In inches, and in points.
HEADLINE = 0.18
LABEL_HEIGHT = 7.6

CHOICES = {
    "α*, with": ("WithReplacement", None),
    "RRS": ("WithReplacement", "RecursiveRejection"),
    "K-SEQ": ("WithReplacement", "KSequential"),
    "α*, without": ("WithoutReplacement", None),
    "RRSw": ("WithoutReplacement", "RecursiveRejection"),
    "greedy": ("Greedy", "GreedyCoupling"),
    "SpecHub": ("Hub", "SpecHub"),
    "α*, Poisson": ("ConditionalPoisson", None),
    "α*, 1 then without": ("top 1, then WithoutReplacement", None),
    "α*, 2 then without": ("top 2, then WithoutReplacement", None),
}
"""Law and verifier by the name in figures; without a verifier, the law's optimum."""

PAIRS = {
    "skip:15": ("1 layer left out", Mark("#009E73", "o")),
    "skip:13,15,17": ("3 layers left out", Mark("#0072B2", "s")),
    "skip:27,28,29": ("last 3 layers left out", Mark("#E69F00", "D")),
    "ngram:3+context": ("n-gram", Mark("#CC79A7", "^")),
    "Qwen2.5-Coder 0.5B": ("1.5B drafted by 0.5B", Mark("#56B4E9", "v")),
}
"""Label and look of each draft in the study of laws."""

LOOKS = {
    "α*, without": Mark("#56B4E9", "X"),
    "α*, with": Mark(INK, "P"),
    "RRSw": Mark("#E69F00", "^"),
    "K-SEQ": MARKS["KSequential"],
    "RRS": MARKS["RecursiveRejection"],
    "greedy": MARKS["GreedyCoupling"],
    "SpecHub": MARKS["SpecHub"],
}
"""Look of the choices of :data:`CHOICES`."""

COUNTS = {2: Mark("#0072B2", "o"), 3: Mark("#E69F00", "s"), 4: Mark("#009E73", "D")}
"""Look of numbers of drafts."""


def read(name: str | Path, columns: Iterable[str] = ()) -> pl.DataFrame:
    """Read a table of results, by its name or path; ValueError if it lacks one of the columns."""
    path = RESULTS / f"{name}.parquet" if isinstance(name, str) else name
    table = pl.read_parquet(path)
    missing = sorted({*columns} - {*table.columns})
    if missing:
        raise ValueError(f"results: {path} lacks {missing}, expected what this figure is drawn from")
    return table


def read_positions(name: str | Path = "real_positions") -> pl.DataFrame:
    """Rows of positions where the law is defined; a rate is the middle of its guaranteed bounds."""
    table = read(name, [*POSITION, *ABOUT, "law", "verifier", "optimal", "rate_low", "rate_high"])
    rate = (pl.col("rate_low") + pl.col("rate_high")) / 2
    # Before version 0.3, the laws "top 1, then …" had a longer name.
    law = pl.col("law").str.replace(r"^(\d) \w+, then ", "top $1, then ")
    return table.filter(pl.col("optimal").is_not_null()).with_columns(rate=rate, law=law)


def side_by_side(table: pl.DataFrame, names: Sequence[str], num_drafts: int) -> pl.DataFrame:
    """A row for each position and a column for each choice, where all choices are defined."""
    keys = [*POSITION, *ABOUT]
    wide = None
    for name in names:
        law, verifier = CHOICES[name]
        rows = table.filter(pl.col("num_drafts") == num_drafts, pl.col("law") == law)
        if verifier is None:
            rows = rows.unique(POSITION, keep="first", maintain_order=True)
        else:
            rows = rows.filter(pl.col("verifier") == verifier)
        column = rows.select(*keys, pl.col("rate" if verifier else "optimal").alias(name))
        wide = column if wide is None else wide.join(column, on=keys, how="inner")
    if wide is None or wide.is_empty():
        raise ValueError(f"names: got {list(names)} with {num_drafts} drafts, expected some rates")
    return wide


def means(wide: pl.DataFrame, by: Sequence[str], of: Mapping[str, pl.Expr] | Sequence[str]) -> pl.DataFrame:
    """Mean of each expression or column in each group, with its 95% interval over prompts.

    Columns ``by``, ``name``, ``value``, ``low``, ``high``, ``positions`` and ``prompts``.
    """
    values = of if isinstance(of, Mapping) else {name: pl.col(name) for name in of}
    kept = list(dict.fromkeys([*by, "domain", "prompt_id"]))
    rows = [
        wide.select(*kept, pl.lit(name).alias("name"), *(value.alias(m) for m in MEASURED))
        for name, value in values.items()
    ]
    return summarise(pl.concat(rows), by=[*by, "name"]).select(
        *by, "name", "positions", "prompts", value="rate", low="rate_low", high="rate_high"
    )


def spread(heights: list[float], apart: float, top: float) -> list[float]:
    """Heights in the same order, at least ``apart`` from each other, near those given."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + apart if placed else 0.0))
    ceiling = top
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - apart
    return placed


def thread(colour: str) -> dict[str, Any]:
    """The line from a name to the line that it names."""
    style = {"arrowstyle": "-", "lw": 0.6, "alpha": 0.7, "relpos": (0, 0.5), "shrinkA": 1}
    return {"color": colour, **style}


def grid(axes: Axes, axis: Any = "y") -> None:
    """Faint lines behind the values."""
    axes.grid(axis=axis, color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def headline(figure: Figure, words: str) -> None:
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


def legend_below(axes: Axes, y: float, ncols: int = 2, **style: Any) -> None:
    """A legend under the panel."""
    style = {"columnspacing": 1.2, **style}
    axes.legend(ncols=ncols, loc="upper center", bbox_to_anchor=(0.5, y), fontsize=7, **style)


def intervals(axes: Axes, x: Any, rows: pl.DataFrame, mark: Mark, scale: float = 1.0, **style: Any) -> None:
    """Values of ``rows`` at x, with their intervals from ``low`` to ``high``."""
    value, low, high = (scale * rows[name] for name in ("value", "low", "high"))
    look = {"color": mark.colour, "marker": mark.marker, "elinewidth": 0.6, **style}
    axes.errorbar(x, value, [value - low, high - value], **look)
