"""``otmd report``: a finished measurement as tables, JSON or a figure."""

from pathlib import Path
from typing import Annotated

from otmd.cli import options as o

EXAMPLES = """
otmd report runs/mine-results
otmd report runs/mine-results --by-domain
otmd report runs/mine-results --html page.html --csv summary.csv
otmd report runs/mine-results --figure gaps.png --figure gaps.pdf --json"""


def report(
    results: Annotated[Path, o.INPUT],
    *,
    by_domain: Annotated[bool, o.RUN] = False,
    confidence: Annotated[float, o.ACCURACY] = 0.95,
    figure: o.Figure = None,
    pages: o.Pages = o.NO_PAGES,
    json_output: o.Json = False,
) -> None:
    """Print α*, each verifier's rate and its gap to α*, with confidence intervals over prompts.

    Parameters
    ----------
    results : Path
        The folder that measure wrote, or its results.parquet.
    by_domain : bool
        Print one table for each law and domain of prompts.
    confidence : float
        Coverage of the intervals.
    """
    from otmd.study import (
        draw_gaps,
        load_results,
        print_report,
        recommend,
        report_json,
        summarise,
    )
    from otmd.study.report import report_tables
    from otmd.study.summary import DEFAULT_BY
    from otmd.study.table import Table

    figures = o.figures(figure)
    _refuse_other_files(results)
    table = load_results(results)
    if table.is_empty():
        raise ValueError(f"{results}: holds a table of no rows; `otmd measure` makes one with rows")

    by = ("domain", *DEFAULT_BY) if by_domain else DEFAULT_BY
    shown = summarise(table, by, confidence)
    recommendation = [] if by_domain else recommend(table, confidence)
    about = {
        "results": str(results),
        "intervals": f"{100 * confidence:g}%, jackknife over prompts with Student's t",
    }
    summary = Table("", shown.columns, shown.rows())
    caption, tables = report_tables(shown, confidence)
    pages.write(f"Report on {results.stem}", [*recommendation, caption], tables, about, summary)
    if json_output:
        print(report_json(shown, confidence, str(results)))
    else:
        print_report(shown, confidence=confidence, recommendation=recommendation)
    if figures:
        drawn = summarise(table, DEFAULT_BY, confidence) if by_domain else shown
        for path in draw_gaps(drawn, figures, source=f"otmd report {results}"):
            if not json_output:
                print(f"Figure: {path}")


def _refuse_other_files(results: Path) -> None:
    """Raise ValueError for files of other kinds, with the command that takes them."""
    if results.is_dir() and (results / "manifest.parquet").is_file():
        what = f"is a data set, not results; `otmd measure {results}` measures it"
    elif results.is_file() and results.suffix in (".npz", ".safetensors"):
        what = f"is a dump, not results; `otmd measure {results}` measures it"
    elif results.is_file() and results.suffix == ".jsonl":
        what = f"is no table of results; `otmd audit {results}` takes a recorded run"
    elif results.exists() and not results.is_dir() and not results.is_file():
        what = "is no regular file, expected the results of `otmd measure`"
    else:
        return
    raise ValueError(f"{results}: {what}")
