"""``otmd plan``: what to draft and how to verify it, from two models' distributions along texts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts.types import NonNegativeFloat, PositiveInt

from otmd.cli import UsageError
from otmd.cli import options as o

if TYPE_CHECKING:
    from otmd.study.planning.latency import Latency

EXAMPLES = """
otmd collect runs/texts --consecutive 48 --per-domain 8
otmd plan runs/texts --html plan.html
otmd plan runs/texts --measure-latency times.json
otmd plan dump.npz --temperature 0.7 --draft-temperature 0.7,1 --latency times.json --json"""


def plan(
    dataset: Path,
    *,
    output: Path | None = None,
    num_drafts: o.NumDrafts = "1,2,4",
    tree_budget: str = "4,8,16",
    depth: PositiveInt = 8,
    rules: str | None = None,
    temperature: NonNegativeFloat | None = None,
    cuts: o.Cuts = o.NO_CUTS,
    draft_temperature: str | None = None,
    latency: Path | None = None,
    measure_latency: Path | None = None,
    context: PositiveInt | None = None,
    pages: o.Pages = o.NO_PAGES,
    seed: o.Seed = 0,
    workers: o.Workers = None,
    overwrite: o.Overwrite = False,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Rank laws of drafts, rules and trees by tokens per step or second, and say which to take.

    Nothing is decoded: the steps follow from both models' distributions along the target's own texts. If a
    run is interrupted, the same command continues it.

    Parameters
    ----------
    dataset : Path
        Texts of consecutive positions: a folder that collect --consecutive made, or a dump with prompt_id,
        position and token.
    output : Path
        The folder for what is computed; by default NAME-plan next to the dataset.
    tree_budget : str
        Comma-separated: the most tokens that a tree may hold.
    depth : int
        The most levels of a tree.
    rules : str
        Comma-separated names of candidates; by default all but rrs, k-seq, their paths and the optimal ones.
    temperature : float
        How a dump's texts were sampled, as are the cuts and the order below. A collected dataset records it.
    draft_temperature : str
        Comma-separated: which to try for the draft; the target's unless given.
    latency : Path
        A JSON table of times (docs/plan.md); rows are then ranked by tokens per second.
    measure_latency : Path
        Time the dataset's two models on this machine, write the table there, and use it.
    context : int
        The length of the text that times are for, in tokens; by default 256 to measure, else the table's
        smallest.
    """
    from otmd.models import open_dataset
    from otmd.study.planning.candidates import CANDIDATES
    from otmd.study.planning.plan import DEFAULT_RULES, make_plan
    from otmd.study.table import Table, wrapped

    names = o.split("--rules", rules) if rules else list(DEFAULT_RULES)
    if unknown := [name for name in names if name not in CANDIDATES]:
        raise UsageError(f"--rules: got {unknown[0]!r}, expected some of {', '.join(CANDIDATES)}")
    settings = {
        "rules": names,
        "num_drafts": o.counts("--num-drafts", num_drafts),
        "budgets": o.counts("--tree-budget", tree_budget),
        "depth": depth,
        "seed": seed,
        "workers": workers,
        "overwrite": overwrite,
    }
    if temperature is not None or cuts != o.NO_CUTS:
        settings["target"] = cuts.at(temperature)
    if draft_temperature:
        temperatures = o.numbers("--draft-temperature", draft_temperature, float, "0.6 or 0.6,1.0")
        steps = map(o.NO_CUTS.at, dict.fromkeys(temperatures))
        settings["draft_temperatures"] = [step.temperature for step in steps]
    data = open_dataset(dataset)
    most = max(settings["budgets"])
    settings["latency"] = _latency(latency, measure_latency, context, data.metadata, most)
    folder = output or o.default_folder(dataset, "plan")
    with o.kept_when_stopped(lambda: f"Finished texts are kept in {folder}"):
        result = make_plan(data, folder, progress=not (quiet or json_output), **settings)
    tables = result.tables()
    name = dataset.stem if dataset.is_file() else dataset.name
    pages.write(f"Plan for {name}", result.said, tables, result.about, tables[0])
    if json_output:
        print(json.dumps(result.to_dict(), indent=1, ensure_ascii=False))
    else:
        for sentence in result.said:
            print(wrapped(sentence), end="\n\n")
        # The last two columns are left to --markdown and --html, which have room.
        rows = [row[:-2] for row in tables[0].rows]
        print(Table("", tables[0].heads[:-2], rows, wrapped(tables[0].note)))


def _latency(
    given: Path | None, measured: Path | None, context: int | None, metadata: dict, budget: int
) -> "Latency | None":
    from otmd.storage.files import write_atomically
    from otmd.study.planning.latency import measure_latency, read_latency

    if given and measured:
        raise UsageError("--latency: got it with --measure-latency, expected one table of times")
    if measured:
        sizes = sorted({2**k for k in range(budget.bit_length())} | {budget, budget + 1})
        times = measure_latency(metadata, sizes, context or 256)
        write_atomically(measured.absolute(), json.dumps(times, indent=1).encode() + b"\n")
    path = given or measured
    return read_latency(path, context) if path else None
