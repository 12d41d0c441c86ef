"""Figure: which law and verifier accept most, by temperature and certainty, from ``real_positions.py``.

python paper_figures/choice.py
python paper_figures/choice.py runs/mine.parquet figures/mine.svg
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from figure_files import write
from position_rates import PAIR, RESULTS, means, read_positions, side_by_side

from otmd.study.style import INK, QUIET, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = (Path("docs/images/choice.svg"), Path("runs/figures/choice.pdf"))
DRAFTS = 4
BASE = "RRS"
EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)
FEWEST_PROMPTS = 4
PANELS = {
    "Rules in closed form: K-SEQ where no token is likely, greedy drafts elsewhere": {
        "RRS": ("RRS", "#D55E00"),
        "K-SEQ": ("K-SEQ", "#0072B2"),
        "RRSw": ("RRSw", "#E69F00"),
        "greedy": ("greedy", "#CC79A7"),
    },
    "Optimal: without replacement, some of the likeliest tokens certain or none": {
        "α*, with": ("with", "#0072B2"),
        "α*, without": ("without", "#009E73"),
        "α*, 1 then without": ("1 certain", "#E69F00"),
        "α*, 2 then without": ("2 certain", "#D55E00"),
        "greedy": ("greedy", "#CC79A7"),
    },
}


def bands() -> list[str]:
    """The names of the bands of the draft's largest probability."""
    ends = ["0", *(f"{edge:g}" for edge in EDGES), "1"]
    return [f"{low}–{high}" for low, high in pairwise(ends)]


def winners(path: Path, names: list[str]) -> pl.DataFrame:
    """Best choice of each cell: its gain over RRS with replacement, and its lead over the second.

    ``certain`` says whether the interval of that lead excludes 0.
    """
    table = read_positions(path).filter(draft=PAIR)
    wide = side_by_side(table, list(dict.fromkeys([BASE, *names])), DRAFTS)
    numbers = np.searchsorted(EDGES, wide["top_draft"].to_numpy())
    wide = wide.with_columns(band=pl.Series([bands()[number] for number in numbers]))
    found = []
    for (temperature, band), cell in wide.group_by("temperature", "band", maintain_order=True):
        if cell.select("domain", "prompt_id").n_unique() < FEWEST_PROMPTS:
            continue
        best, second = sorted(names, key=lambda name: -cell[name].to_numpy().mean())[:2]
        of = {"gain": pl.col(best) - pl.col(BASE), "lead": pl.col(best) - pl.col(second)}
        gain, lead = means(cell, [], of).sort("name").iter_rows(named=True)
        found.append(
            {
                "temperature": temperature,
                "band": band,
                "best": best,
                "second": second,
                "gain": gain["value"],
                "lead": lead["value"],
                "certain": lead["low"] > 0,
                "positions": cell.height,
            }
        )
    return pl.DataFrame(found)


def draw(results: Path) -> "Figure":
    """A chart for closed-form verifiers, and one where every law is served by the optimal one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(TWO_COLUMNS, 5.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, (title, looks) in zip(panels, PANELS.items(), strict=True):
        _chart(axes, winners(results, list(looks)), looks)
        axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
        axes.set_ylabel("temperature")
    panels[-1].set_xlabel(f"largest probability of the draft ({DRAFTS} drafts)")
    return figure


def _chart(axes: "Axes", cells: pl.DataFrame, looks: dict[str, tuple[str, str]]) -> None:
    temperatures, columns = sorted(cells["temperature"].unique()), bands()
    for cell in cells.iter_rows(named=True):
        x, y = columns.index(cell["band"]), temperatures.index(cell["temperature"])
        label, colour = looks[cell["best"]]
        # Pale on a light page, and deep on a dark one.
        axes.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], color=colour, alpha=0.35, lw=0)
        words = f"{label}  {100 * cell['gain']:.1f}"
        weight = "bold" if cell["certain"] else "normal"
        colour = INK if cell["certain"] else QUIET
        axes.text(
            x + 0.5,
            y + 0.48,
            words,
            fontsize=8,
            weight=weight,
            color=colour,
            ha="center",
            va="center",
        )
    axes.set_xlim(0, len(columns))
    axes.set_ylim(0, len(temperatures))
    axes.set_xticks([i + 0.5 for i in range(len(columns))], labels=columns, fontsize=7)
    axes.set_yticks(
        [i + 0.5 for i in range(len(temperatures))], labels=[f"{t:g}" for t in temperatures]
    )
    axes.tick_params(length=0)


if __name__ == "__main__":
    write("paper_figures/choice.py", draw, (RESULTS, FIGURES), sys.argv[1:])
