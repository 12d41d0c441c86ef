"""Figure: rates at real positions by temperature, domain and draft, from ``real_positions.py``.

python paper_figures/domain_rates.py
python paper_figures/domain_rates.py runs/mine.parquet figures/mine.svg
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from figure_files import grid, headline, write
from position_rates import PAIR, RESULTS, means, read_positions, side_by_side

from otmd.study.style import INK, MARKS, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = (Path("docs/images/domain_rates.svg"), Path("runs/figures/domain_rates.pdf"))
LOOKS = {
    "α*, without": ("#56B4E9", "X"),
    "α*, with": (INK, "P"),
    "greedy": MARKS["GreedyCoupling"],
    "RRSw": ("#E69F00", "^"),
    "K-SEQ": MARKS["KSequential"],
    "RRS": MARKS["RecursiveRejection"],
}
DRAFTS, TEMPERATURE, LADDER_TEMPERATURE = 3, 0.7, 1.0


def panels_of(path: Path) -> list[tuple[str, str, pl.DataFrame]]:
    """Title, column and means of each panel."""
    wide = side_by_side(read_positions(path), list(LOOKS), DRAFTS)
    rules = {name: pl.col(name) for name in LOOKS}
    pair = wide.filter(draft=PAIR)
    ladder = wide.filter(temperature=LADDER_TEMPERATURE)
    distance = ladder.group_by("draft").agg(distance=pl.col("total_variation").mean().round(3))
    return [
        ("by temperature", "temperature", means(pair, ["temperature"], rules)),
        (
            "by domain, T = 0.7",
            "domain",
            means(pair.filter(temperature=TEMPERATURE), ["domain"], rules),
        ),
        (
            "by draft, T = 1",
            "distance",
            means(ladder.join(distance, on="draft"), ["distance"], rules),
        ),
    ]


def draw(results: Path) -> "Figure":
    """By temperature, by domain, and by draft."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 2.75))
    panels = figure.subplots(1, 3, sharey=True)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.9, bottom=0.29, wspace=0.06)
    headline(figure, "Three drafts: the optimum rises with the temperature, greedy drafts do not")
    words = {"distance": "mean total variation of the draft", "domain": "domain"}
    for axes, (title, column, rows) in zip(panels, panels_of(results), strict=True):
        _points(axes, column, rows)
        axes.set_title(title, loc="left")
        axes.set_xlabel(words.get(column, column))
        grid(axes)
    panels[0].set_ylabel("acceptance rate")
    figure.legend(*panels[0].get_legend_handles_labels(), ncols=6, loc="lower center", fontsize=7)
    return figure


def _points(axes: "Axes", column: str, rows: pl.DataFrame) -> None:
    rows = rows.sort(column)
    names = rows[column].unique(maintain_order=True).to_list()
    discrete = rows[column].dtype == pl.String
    for number, (name, (colour, marker)) in enumerate(LOOKS.items()):
        part = rows.filter(name=name)
        at = part[column].to_list()
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "label": name,
            "elinewidth": 0.6,
        }
        if discrete:
            # Beside each other, so that the intervals can be told apart.
            at = [names.index(x) + 0.11 * (number - 2.5) for x in at]
            style["ls"] = "none"
        axes.errorbar(
            at, part["value"], [part["value"] - part["low"], part["high"] - part["value"]], **style
        )
    if discrete:
        axes.set_xticks(range(len(names)), labels=names)


if __name__ == "__main__":
    write("paper_figures/domain_rates.py", draw, (RESULTS, FIGURES), sys.argv[1:])
