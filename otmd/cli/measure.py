"""``otmd measure``: every verifier against the optimum, on a dataset."""

import inspect
import json
from pathlib import Path
from typing import Annotated

from otmd.cli import UsageError
from otmd.cli import options as o
from otmd.cli.options import about
from otmd.registry import LAWS, VERIFIERS, find

DEFAULT_LAWS = ",".join(name for name, law in LAWS.items() if law.measured)
DEFAULT_VERIFIERS = ",".join(name for name, rule in VERIFIERS.items() if rule.measured)

# Options that a finished run cannot follow.
MEASURING = (
    *("output", "law", "top", "verifier", "num_drafts", "temperature", "cuts", "tol", "device"),
    "overwrite",
)

EXAMPLES = """
otmd measure runs/mine
otmd measure runs/mine --law greedy,hub --num-drafts 2 --temperature 0.6,1.0
otmd measure dump.npz --top-p 0.95 --order llama.cpp --output runs/top-p --json
otmd measure runs/mine-results --by-domain --html page.html --csv summary.csv --figure gaps.png"""


def measure(
    dataset: Annotated[Path, o.INPUT, about("Folder of collect, .npz, .safetensors, or results.")],
    *,
    output: Annotated[Path | None, o.RUN, about("Unless given, NAME-results.")] = None,
    law: o.Law = DEFAULT_LAWS,
    top: o.Top = 1,
    verifier: Annotated[str, about(f"{', '.join(VERIFIERS)}.")] = DEFAULT_VERIFIERS,
    num_drafts: o.NumDrafts = "1-4",
    temperature: o.Temperature = "1",
    cuts: o.Cuts = o.NO_CUTS,
    tol: o.Tol = 1e-4,
    workers: o.Workers = None,
    device: Annotated[str | None, o.RARE, about("Of torch, such as cuda, for rates.")] = None,
    overwrite: o.Overwrite = False,
    by_domain: Annotated[bool, o.RUN, about("A table for each law and domain.")] = False,
    figure: o.Figure = None,
    pages: o.Pages = o.NO_PAGES,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure each verifier's acceptance rate and its gap to the optimum at every position.

    If a run is interrupted, the same command continues it. With the folder of a finished run, print it again.
    """
    from otmd import study
    from otmd.study.report import DEFAULT_BY, report_tables
    from otmd.study.run import LAYOUT, RESULTS
    from otmd.study.style import figure_paths
    from otmd.study.table import Table

    figures = figure_paths(figure or [], "figure")
    # Of the folder "." the results have a name, too.
    dataset = dataset if dataset.name else dataset.resolve()
    is_run = (dataset / LAYOUT.record).is_file() or (dataset / RESULTS).is_file()
    if is_run or dataset.suffix == ".parquet":
        given = locals()
        for name in MEASURING:
            if given[name] != inspect.signature(measure).parameters[name].default:
                option = name.replace("_", "-")
                raise UsageError(f"--{option}: got it with {dataset}, which has been measured")
        results = dataset if dataset.suffix == ".parquet" else dataset / RESULTS
        table = study.load_results(dataset)
    else:
        folder = output or dataset.with_name(f"{dataset.stem if dataset.is_file() else dataset.name}-results")
        results = folder / RESULTS
        table = study.measure(
            dataset,
            o.read_laws(law, top),
            [find("verifier", name, VERIFIERS).load() for name in o.split("--verifier", verifier)],
            o.counts("--num-drafts", num_drafts),
            cuts.at_each(temperature),
            tol,
            workers,
            progress=not (quiet or json_output),
            output=folder,
            device=device,
            overwrite=overwrite,
        )
    summary = study.summarise(table, ("domain", *DEFAULT_BY) if by_domain else DEFAULT_BY)
    recommendation = [] if by_domain else study.recommend(table)
    # If pages or figures fail, the numbers have been printed.
    if json_output:
        print(json.dumps(study.report_json(summary, str(results)), indent=1, ensure_ascii=False))
    else:
        study.print_report(summary, recommendation=recommendation)
        print(f"\nOne row a position, law and verifier: {results}")
    caption, tables = report_tables(summary)
    about = {"results": str(results), "intervals": "95%, jackknife over prompts with Student's t"}
    numbers = Table("", summary.columns, summary.rows())
    pages.write(f"Report on {results.parent.name}", [*recommendation, caption], tables, about, numbers)
    if figures:
        drawn = study.summarise(table) if by_domain else summary
        o.say_written(study.draw_gaps(drawn, figures, source=f"otmd measure, {results}"))
