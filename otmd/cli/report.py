"""``otmd report``: a finished measurement as tables, JSON or a figure."""

from pathlib import Path

from cyclopts.types import NonNegativeInt, PositiveInt

from otmd.cli.options import Json

EXAMPLES = """Examples:

  otmd report runs/mine-results

  otmd report runs/mine-results --by-domain

  otmd report runs/mine-results --figure gaps.png --figure gaps.pdf --json"""


def report(
    results: Path,
    *,
    by_domain: bool = False,
    confidence: float = 0.95,
    resamples: PositiveInt = 2000,
    seed: NonNegativeInt = 0,
    figure: list[Path] | None = None,
    json_output: Json = False,
) -> None:
    """Print α*, each verifier's rate and its gap to α*, with confidence intervals over prompts.

    Parameters
    ----------
    results : Path
        The folder that measure wrote, or its results.parquet.
    by_domain : bool
        One table a law and domain of prompts.
    confidence : float
        Coverage of the intervals.
    resamples : int
        How many times the prompts are drawn anew for the intervals.
    seed : int
        Of that drawing.
    figure : list[Path]
        Also draw the gaps into this file, .png, .pdf or .svg; may be given more than once.
    json_output : bool
        Print JSON instead of tables.
    """
    from otmd.measurement import draw_gaps, load_results, print_report, report_json, summarise
    from otmd.measurement.summary import DEFAULT_BY

    if results.exists() and not (results.is_file() or results.is_dir()):
        raise ValueError(f"{results}: got no regular file (a pipe or a device), wanted one")
    table = load_results(results)

    def summary(by: tuple[str, ...]):
        return summarise(table, by, confidence, resamples, seed)

    shown = summary(("domain", *DEFAULT_BY) if by_domain else DEFAULT_BY)
    if json_output:
        print(report_json(shown, confidence, str(results)))
    else:
        print_report(shown, confidence=confidence)
    if figure:
        drawn = shown if not by_domain else summary(DEFAULT_BY)
        for path in draw_gaps(drawn, figure, source=f"otmd report {results}"):
            if not json_output:
                print(f"Figure: {path}")
