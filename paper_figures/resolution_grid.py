"""Figure: Global Resolution against the optimal verifier, from ``experiments/claims/resolution_grid.py``.

python paper_figures/resolution_grid.py
python paper_figures/resolution_grid.py runs/mine.parquet figures/mine.svg
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from figure_files import grid, headline, read, write

from otmd.study.style import INK, ONE_COLUMN, Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/resolution_grid.parquet")
FIGURES = (Path("docs/images/resolution_grid.svg"), Path("runs/figures/resolution_grid.pdf"))
LOOKS = {2: Mark("#0072B2", "o"), 3: Mark("#E69F00", "s"), 4: Mark("#009E73", "D")}


def medians(path: Path) -> pl.DataFrame:
    """Median time in units of the optimal verifier's, and how often the search converged, by n and k."""
    columns = ["kept", "num_drafts", "seconds", "optimal_seconds", "converged"]
    table = read(path, "experiments/claims/resolution_grid.py", columns)
    table = table.with_columns(ratio=pl.col("seconds") / pl.col("optimal_seconds"))
    of = {"ratio": pl.col("ratio").median(), "converged": 100 * pl.col("converged").mean()}
    return table.group_by("num_drafts", "kept").agg(**of).sort("num_drafts", "kept")


def draw(results: Path) -> "Figure":
    """Time at the left, how often it converged at the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(ONE_COLUMN, 2.2))
    panels = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.15, right=0.96, top=0.88, bottom=0.34, wspace=0.5)
    headline(figure, "More tokens kept: slower, seldom converged")
    rows = medians(results)
    for axes, column in zip(panels, ("ratio", "converged"), strict=True):
        for n, part in rows.group_by("num_drafts", maintain_order=True):
            colour, marker = LOOKS[int(n[0])]  # pyright: ignore[reportArgumentType]
            axes.plot(part["kept"], part[column], color=colour, marker=marker, label=f"n = {n[0]}")
        _axes(axes, sorted(rows["kept"].unique()))
    panels[0].set_yscale("log")
    panels[1].set_ylim(0, 104)
    panels[0].axhline(1.0, color=INK, lw=0.8, ls=(0, (4, 2)))
    panels[0].set_title("time / Optimal's time", loc="left")
    panels[1].set_title("converged (%)", loc="left")
    legend: dict[str, Any] = {"ncols": 3, "loc": "lower center", "fontsize": 7}
    figure.legend(*panels[0].get_legend_handles_labels(), columnspacing=1.0, **legend)
    return figure


def _axes(axes: "Axes", kept: list[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(kept, labels=[str(k) for k in kept])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("tokens kept, k")
    grid(axes)


if __name__ == "__main__":
    write("paper_figures/resolution_grid.py", draw, (RESULTS, FIGURES), sys.argv[1:])
