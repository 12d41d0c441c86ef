"""Figure: distance to the sequence-level optimum, from ``experiments/sequences/sequence_optimum.py``.

    python paper_figures/sequence_optimum.py
    python paper_figures/sequence_optimum.py runs/mine.parquet figures/mine.pdf

The figure's metadata name this script and the result file.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from figure_files import headline, read, write
from sequence_figures import ERRORS, RULE_MARKS

from otmd.study.style import FAINT, ONE_COLUMN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("paper_figures/results/sequence_optimum.parquet")
FIGURES = (Path("docs/images/sequence_optimum.svg"), Path("runs/figures/sequence_optimum.pdf"))
COLUMNS = ("vocab_size", "depth", "law", "rule", "value", "difference", "difference_error")
RULES = (
    "RRS",
    "RRSw",
    "K-SEQ",
    "SpecHub",
    "optimal at each token",
    "block verification",
    "Traversal",
)


def draw(path: Path) -> "Figure":
    """A row for each law of drafts and size, a mark for each rule: how many tokens a step it is short."""
    from matplotlib.figure import Figure

    table = read(path, "experiments/sequences/sequence_optimum.py", COLUMNS)
    groups = table.select("vocab_size", "depth", "law").unique(maintain_order=True).rows()
    figure = Figure(figsize=(ONE_COLUMN, 1.5 + 0.3 * len(groups)), layout="constrained")
    axes = figure.subplots()
    headline(figure, "On one path block verification is optimal")
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for rule in RULES:
        rows = table.filter(rule=rule)
        places = [groups.index(key) for key in rows.select("vocab_size", "depth", "law").rows()]
        mark = RULE_MARKS[rule]
        axes.errorbar(
            (-rows["difference"]).to_list(),
            places,
            xerr=(ERRORS * rows["difference_error"]).to_list(),
            ls="none",
            color=mark.colour,
            marker=mark.marker,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            elinewidth=0.8,
            label=rule,
        )
    axes.set_yticks(range(len(groups)), labels=[f"{law}, L = {depth}" for _, depth, law in groups])
    axes.invert_yaxis()
    axes.set_xlim(left=-0.01)
    axes.set_xlabel("tokens a step short of the optimum")
    figure.legend(loc="outside lower center", ncols=2, handletextpad=0.2, fontsize=7)
    return figure


if __name__ == "__main__":
    write("paper_figures/sequence_optimum.py", draw, (RESULTS, FIGURES), sys.argv[1:])
