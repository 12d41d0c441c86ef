"""``otmd measure``: every verifier against the optimum, on a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts.types import PositiveFloat, PositiveInt

from otmd.cli.options import LAWS, VERIFIERS, Json, classes, counts, steps

if TYPE_CHECKING:
    import polars as pl

# What the optimal rule attains is the optimum that every row has beside its rate, and it takes longest.
DEFAULT_VERIFIERS = ",".join(name for name in VERIFIERS if name != "optimal")

EXAMPLES = """Examples:

  otmd measure runs/mine

  otmd measure runs/mine --law greedy,hub --num-drafts 2 --temperature 0.6,1.0

  otmd measure dump.npz --top-p 0.95 --output runs/top-p --json"""


def measure(
    dataset: Path,
    *,
    output: Path | None = None,
    law: str = "with-replacement,without-replacement,greedy,hub",
    verifier: str = DEFAULT_VERIFIERS,
    num_drafts: str = "1-4",
    temperature: str | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    tol: PositiveFloat = 1e-4,
    workers: PositiveInt | None = None,
    json_output: Json = False,
    quiet: bool = False,
) -> None:
    """Measure each verifier's acceptance rate and its gap to the optimum at every position.

    An interrupted run goes on where it stopped when the same command is given again.

    Parameters
    ----------
    dataset : Path
        A folder that collect made, or an .npz or .safetensors file with target_logits and
        draft_logits (or target_probs and draft_probs), each (N, V).
    output : Path
        The folder for the results; by default NAME-results beside the dataset.
    law : str
        Comma-separated: with-replacement, without-replacement, conditional-poisson, greedy, hub.
    verifier : str
        Comma-separated; each is measured with the laws that it serves. All but optimal, whose rate is
        the optimum that is there in any case, unless given.
    num_drafts : str
        Numbers of drafts: 1-4 or 1,2,8.
    temperature : str
        Comma-separated, for a dataset of logits; 1 unless given.
    top_k : int
        Keep the k likeliest tokens.
    top_p : float
        Keep the likeliest tokens that together have this mass.
    min_p : float
        Keep the tokens at least this likely relative to the likeliest.
    tol : float
        How far apart the certain bounds of a rate may be where there is no closed form.
    workers : int
        Processes; as many as there are CPUs unless given.
    json_output : bool
        Print the summary as JSON instead of tables.
    quiet : bool
        Show no progress bar.
    """
    from otmd import drafts, verifiers

    settings = {
        "laws": classes("--law", law, LAWS, drafts),
        "verifiers": classes("--verifier", verifier, VERIFIERS, verifiers),
        "num_drafts": counts("--num-drafts", num_drafts),
        "processing": steps(temperature or "1", top_k, top_p, min_p),
        "tol": tol,
        "workers": workers,
    }
    name = dataset.stem if dataset.is_file() else dataset.name
    folder = output or dataset.parent / f"{name}-results"
    table = measure_into(dataset, folder, settings, progress=not (quiet or json_output))
    show(table, folder / "results.parquet", json_output)


def measure_into(
    dataset: Any, folder: Path, settings: dict[str, Any], progress: bool
) -> "pl.DataFrame":
    """Measure into a folder; where it is interrupted, say what was kept."""
    from otmd.measurement import measure as run
    from otmd.measurement import positions_stored

    try:
        return run(dataset, output=folder, progress=progress, **settings)
    except KeyboardInterrupt as stop:
        stop.add_note(
            f"{positions_stored(folder)} positions are measured and kept in {folder}; the same "
            "command goes on from there."
        )
        raise


def show(table: "pl.DataFrame", results: Path, json_output: bool) -> None:
    """Print a measurement's summary, and where its table is."""
    from otmd.measurement import print_report, report_json, summarise

    summary = summarise(table)
    if json_output:
        print(report_json(summary, results=str(results)))
        return
    print_report(summary)
    print(f"\nOne row a position, law and verifier: {results}")
