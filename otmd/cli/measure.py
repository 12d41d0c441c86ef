"""``otmd measure``: every verifier against the optimum, on a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from otmd.cli import options as o

if TYPE_CHECKING:
    import polars as pl

DEFAULT_LAWS = ",".join(name for name, law in o.LAWS.items() if law.measured)
DEFAULT_VERIFIERS = ",".join(name for name, rule in o.VERIFIERS.items() if rule.measured)

EXAMPLES = """
otmd measure runs/mine
otmd measure runs/mine --law greedy,hub --num-drafts 2 --temperature 0.6,1.0
otmd measure dump.npz --top-p 0.95 --order llama.cpp --output runs/top-p --json"""


def measure(
    dataset: Annotated[Path, o.INPUT],
    *,
    output: Annotated[Path | None, o.RUN] = None,
    law: o.Law = DEFAULT_LAWS,
    top: o.Top = 1,
    verifier: str = DEFAULT_VERIFIERS,
    num_drafts: o.NumDrafts = "1-4",
    temperature: o.Temperature = "1",
    cuts: o.Cuts = o.NO_CUTS,
    tol: o.Tol = 1e-4,
    workers: o.Workers = None,
    device: Annotated[str | None, o.RUN] = None,
    overwrite: o.Overwrite = False,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure each verifier's acceptance rate and its gap to the optimum at every position.

    If a run is interrupted, the same command continues it.

    Parameters
    ----------
    dataset : Path
        A folder that collect made, or an .npz or .safetensors file with target_logits and
        draft_logits (or target_probs and draft_probs), each (N, V).
    output : Path
        The folder for the results; by default NAME-results next to the dataset.
    verifier : str
        Comma-separated; each is measured with the laws that it serves. Two are measured only if named:
        poisson-coupling, and optimal, whose rate is the optimum of every row.
    device : str
        Compute rates in closed form on this device of torch, such as cuda. Without it, on the CPU without
        torch.
    """
    from otmd.study import print_report, recommend, report_json, summarise
    from otmd.study.run import RESULTS

    settings = {
        "laws": o.read_laws(law, top),
        "verifiers": o.read_verifiers(verifier),
        "num_drafts": o.counts("--num-drafts", num_drafts),
        "processing": cuts.at_each(temperature),
        "tol": tol,
        "workers": workers,
        "device": device,
        "overwrite": overwrite,
    }
    folder = output or o.default_folder(dataset, "results")
    table = measure_into(dataset, folder, settings, progress=not (quiet or json_output))
    results = folder / RESULTS
    summary = summarise(table)
    if json_output:
        print(report_json(summary, results=str(results)))
        return
    print_report(summary, recommendation=recommend(table))
    print(f"\nOne row a position, law and verifier: {results}")


def measure_into(
    dataset: Any, folder: Path, settings: dict[str, Any], progress: bool
) -> "pl.DataFrame":
    """Measure into a folder; an interrupt's message says what was kept."""
    from otmd.study import measure as run
    from otmd.study import positions_stored

    with o.kept_when_stopped(
        lambda: f"{positions_stored(folder)} positions are measured and kept in {folder}"
    ):
        return run(dataset, output=folder, progress=progress, **settings)
