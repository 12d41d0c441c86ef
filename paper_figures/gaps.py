"""Figure: the gap of each verifier to the optimum, from the results of ``otmd demo``.

    python paper_figures/gaps.py
    python paper_figures/gaps.py runs/mine-results figures/mine.pdf

Reads the per-position results and draws their summary. The figure's metadata name this script and the
result file.
"""

import sys
from pathlib import Path

from otmd.study import draw_gaps, load_results, summarise

RESULTS = Path("runs/demo/results/results.parquet")
FIGURES = (Path("runs/figures/gaps.png"), Path("runs/figures/gaps.pdf"))


def main(arguments: list[str]) -> None:
    """Draw from the given results into the given files, or from the demo's."""
    results = Path(arguments[0]) if arguments else RESULTS
    figures = [Path(name) for name in arguments[1:]] or FIGURES
    summary = summarise(load_results(results))
    for path in draw_gaps(summary, figures, source=f"paper_figures/gaps.py, {results}"):
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
