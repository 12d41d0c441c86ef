"""Figure: what each way of drafting and verifying accepts, from the results of ``otmd demo``.

python paper_figures/first_look.py
python paper_figures/first_look.py runs/mine-results/results.parquet figures/mine.svg
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from figure_files import headline, write

from otmd.study import load_results, summarise
from otmd.study.style import FAINT, INK, QUIET, TWO_COLUMNS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/gaps.parquet")
FIGURES = (Path("docs/images/first_look.svg"), Path("runs/figures/first_look.pdf"))
TEMPERATURE, DRAFTS = 1.0, 4
PLAIN, BEST = "#0072B2", "#D55E00"


class Bar(NamedTuple):
    """One way to draft and to verify."""

    label: str
    law: str
    verifier: str
    num_drafts: int = DRAFTS


BARS = (
    Bar("one sampled draft", "WithReplacement", "MaximalCoupling", 1),
    Bar("the 4 likeliest tokens", "CertainTop", "TargetOnly"),
    Bar("4 sampled, recursive rejection", "WithReplacement", "RecursiveRejection"),
    Bar("4 sampled, K-SEQ", "WithReplacement", "KSequential"),
    Bar("4 sampled, preference rule", "WithReplacement", "Preference"),
    Bar("4 different, recursive rejection", "WithoutReplacement", "RecursiveRejection"),
    Bar("3 likeliest and 1 sampled (greedy)", "Greedy", "GreedyCoupling"),
    Bar("4 stratified, preference rule", "Stratified", "Preference"),
)


def rates(results: Path) -> list[dict[str, float]]:
    """Mean rate, interval and α* of each bar, in per cent; ValueError if a bar was not measured."""
    summary = summarise(load_results(results)).filter(pl.col("temperature") == TEMPERATURE)
    rows = []
    for bar in BARS:
        found = summary.filter(law=bar.law, verifier=bar.verifier, num_drafts=bar.num_drafts)
        if found.height != 1:
            raise ValueError(
                f"results: {results} has {found.height} rows of {bar.label}, expected one"
            )
        row = found.row(0, named=True)
        rows.append(
            {name: 100 * row[name] for name in ("rate", "rate_low", "rate_high", "optimal")}
        )
    return rows


def draw(results: Path) -> "Figure":
    """A bar for each way, with the optimum of the same drafts as a line across it."""
    from matplotlib.figure import Figure

    rows = rates(results)
    figure = Figure(figsize=(TWO_COLUMNS, 2.7))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.33, right=0.97, top=0.97, bottom=0.17)
    headline(figure, f"How drafts are drawn decides how many survive (temperature {TEMPERATURE:g})")
    most = max(row["rate"] for row in rows)
    for place, row in enumerate(rows):
        y = len(rows) - place
        around = [[row["rate"] - row["rate_low"]], [row["rate_high"] - row["rate"]]]
        colour = BEST if row["rate"] == most else PLAIN
        axes.barh(
            y, row["rate"], 0.62, xerr=around, color=colour, ecolor=QUIET, error_kw={"lw": 0.7}
        )
        axes.plot([row["optimal"]] * 2, [y - 0.4, y + 0.4], color=INK, lw=1.6)
        axes.text(1.5, y, f"{row['rate']:.1f}", va="center", color="#fafafa", fontweight="bold")
    axes.set_yticks(range(len(rows), 0, -1), [bar.label for bar in BARS])
    axes.set_xlim(0, 100)
    axes.set_xlabel(
        "positions where a draft is accepted (%); line across: α*, the most of any verifier"
    )
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    return figure


if __name__ == "__main__":
    write("paper_figures/first_look.py", draw, (RESULTS, FIGURES), sys.argv[1:])
