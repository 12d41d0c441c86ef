"""Figure: laws of drafts against drafts without replacement, at real positions, from ``real_positions.py``.

python paper_figures/laws.py
python paper_figures/laws.py runs/mine.parquet figures/mine.svg
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from figure_files import grid, headline, write
from position_rates import PAIR, RESULTS, means, read_positions, side_by_side

from otmd.study.style import INK, QUIET, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = (Path("docs/images/laws.svg"), Path("runs/figures/laws.pdf"))
BASE, POISSON = "α*, without", "α*, Poisson"
DRAFTS = 4
LOOKS = {
    "α*, with": ("with replacement", INK, "P"),
    "α*, 1 then without": ("top 1, rest without", "#56B4E9", "v"),
    "α*, 2 then without": ("top 2, rest without", "#0072B2", "s"),
    "greedy": ("top 3, one random (greedy)", "#CC79A7", "^"),
}
COUNTS = {2: ("#0072B2", "o"), 3: ("#E69F00", "s"), 4: ("#009E73", "D")}


def by_law(path: Path) -> pl.DataFrame:
    """Mean of each law's α* less that without replacement, by temperature."""
    wide = side_by_side(read_positions(path).filter(draft=PAIR), [BASE, *LOOKS], DRAFTS)
    return means(wide, ["temperature"], {name: pl.col(name) - pl.col(BASE) for name in LOOKS})


def misstated(path: Path) -> pl.DataFrame:
    """Mean and largest difference between α* of the two laws without replacement, by temperature and n."""
    table, parts = read_positions(path).filter(draft=PAIR), []
    for n in COUNTS:
        wide = side_by_side(table, [BASE, POISSON], n)
        error = pl.col(POISSON) - pl.col(BASE)
        largest = wide.group_by("temperature").agg(largest=error.abs().max())
        rows = means(wide, ["temperature"], {"error": error}).join(largest, on="temperature")
        parts.append(rows.with_columns(num_drafts=pl.lit(n)))
    return pl.concat(parts)


def draw(results: Path) -> "Figure":
    """Laws at the left, the error of taking one law for another at the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 2.9))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.08, right=0.985, top=0.91, bottom=0.33, wspace=0.22)
    headline(figure, "Cold sampling punishes drafts with replacement, hot sampling certain tokens")
    rows = by_law(results)
    for name, (label, colour, marker) in LOOKS.items():
        _line(left, rows.filter(name=name).sort("temperature"), label, colour, marker)
    left.set_ylabel("α* − α* without replacement (pp)")
    left.set_title(f"laws for {DRAFTS} drafts, beside without replacement", loc="left")
    errors = misstated(results)
    for n, (colour, marker) in COUNTS.items():
        part = errors.filter(num_drafts=n).sort("temperature")
        _line(right, part, f"mean, n = {n}", colour, marker)
        style = {"color": colour, "ls": ":", "lw": 0.9}
        right.plot(
            part["temperature"], 100 * part["largest"], label=f"largest |…|, n = {n}", **style
        )
    right.set_ylabel("α* Poisson − α* without (pp)")
    right.set_title("error of taking one law for the other", loc="left")
    for axes, columns in ((left, 2), (right, 2)):
        axes.axhline(0.0, color=QUIET, lw=0.6)
        axes.set_xlabel("temperature")
        grid(axes)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "fontsize": 7}
        axes.legend(ncols=columns, columnspacing=1.2, **below)
    return figure


def _line(axes: "Axes", rows: pl.DataFrame, label: str, colour: str, marker: str) -> None:
    around = [100 * (rows["value"] - rows["low"]), 100 * (rows["high"] - rows["value"])]
    look = {"color": colour, "marker": marker, "label": label, "elinewidth": 0.6}
    axes.errorbar(rows["temperature"], 100 * rows["value"], around, **look)


if __name__ == "__main__":
    write("paper_figures/laws.py", draw, (RESULTS, FIGURES), sys.argv[1:])
