"""``otmd plan``: what to draft and how to verify it, from two models' distributions along texts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts.types import NonNegativeFloat

from otmd.cli import UsageError
from otmd.cli import options as o
from otmd.cli.options import NonNegativeInt, PositiveInt
from otmd.storage.files import write_atomically

if TYPE_CHECKING:
    from otmd.study.planning.latency import Latency

EXAMPLES = """
otmd collect runs/texts --consecutive 48 --per-domain 8
otmd plan runs/texts --html plan.html
otmd plan runs/texts --measure-latency times.json
otmd plan runs/texts --draft-temperature 0.7,1 --latency times.json --json
otmd plan runs/texts --latency times.json --requests 1,8,32"""


def plan(
    dataset: Annotated[Path, o.INPUT],
    *,
    output: Annotated[Path | None, o.RUN] = None,
    num_drafts: o.NumDrafts = "1,2,4",
    tree_budget: str = "4,8,16",
    depth: PositiveInt = 8,
    rules: str | None = None,
    temperature: Annotated[NonNegativeFloat | None, o.SAMPLING] = None,
    cuts: o.Cuts = o.NO_CUTS,
    draft_temperature: str | None = None,
    draft_top_k: NonNegativeInt | None = None,
    latency: Annotated[Path | None, o.TIMES] = None,
    measure_latency: Annotated[o.OutFile | None, o.TIMES] = None,
    context: Annotated[PositiveInt | None, o.TIMES] = None,
    requests: Annotated[str | None, o.TIMES] = None,
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
        Texts of consecutive positions: a folder that collect --consecutive made.
    output : Path
        The folder for what is computed; by default NAME-plan next to the dataset.
    tree_budget : str
        Comma-separated: the most tokens that a tree may hold.
    depth : int
        The most levels of a tree.
    rules : str
        Comma-separated names of candidates; by default all but rrs, k-seq, their paths and the optimal ones.
    temperature : float
        How the texts were sampled, as are the cuts and the order below; the dataset's own unless given.
    draft_temperature : str
        Comma-separated: which to try for the draft; the target's unless given.
    draft_top_k : int
        Sampled drafts come from this many most likely tokens of the draft; 0, the default, keeps all.
    latency : Path
        A JSON table of times (docs/plan.md); rows are then ranked by tokens per second.
    measure_latency : Path
        Time the dataset's two models on this machine, write the table there, and use it.
    context : int
        The length of the text that times are for, in tokens; by default 256 to measure, else the table's
        smallest.
    requests : str
        Comma-separated numbers of concurrent requests, each with its own ranking; by default 1.
    """
    from otmd.models import open_dataset
    from otmd.study.planning.candidates import CANDIDATES
    from otmd.study.planning.plan import DEFAULT_RULES, make_plan
    from otmd.study.table import Table, wrapped

    names = o.split("--rules", rules) if rules else DEFAULT_RULES
    if unknown := [name for name in names if name not in CANDIDATES]:
        raise UsageError(f"--rules: got {unknown[0]!r}, expected some of {', '.join(CANDIDATES)}")
    settings = {
        "rules": names,
        "num_drafts": o.counts("--num-drafts", num_drafts),
        "budgets": o.counts("--tree-budget", tree_budget),
        "depth": depth,
        "draft_top_k": draft_top_k or None,
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
    numbers = o.counts("--requests", requests) if requests else [1]
    settings["latency"] = _latency(latency, measure_latency, context, numbers, data.metadata, most)
    folder = output or o.default_folder(dataset, "plan")
    with o.kept_when_stopped(lambda: f"Finished texts are kept in {folder}"):
        result = make_plan(data, folder, progress=not (quiet or json_output), **settings)
    rankings = result.by_budget()
    heads = ["within", *rankings[max(rankings)].heads]
    rows = [[budget, *row] for budget, table in rankings.items() for row in table.rows]
    tables = result.tables()
    name = dataset.stem if dataset.is_file() else dataset.name
    if json_output:
        print(json.dumps(result.to_dict(), indent=1, ensure_ascii=False))
    else:
        for sentence in result.said:
            print(wrapped(sentence), end="\n\n")
        largest, key, *smaller = tables
        printed = len(rankings) - 1 + (len(result.rankings) > 1)
        for table in (largest, *smaller[:printed]):
            print(f"{table._replace(note=wrapped(table.note))}\n")
        for rule, title, _ in key.rows:
            print(wrapped(f"{rule}: {title}"))
    pages.write(f"Plan for {name}", result.said, tables, result.about, Table("", heads, rows))


def _latency(
    given: Path | None,
    measured: Path | None,
    context: int | None,
    requests: list[int],
    metadata: dict,
    budget: int,
) -> "list[Latency]":
    from otmd.study.planning.latency import measure_latency, read_latency

    if given and measured:
        raise UsageError("--latency: got it with --measure-latency, expected one table of times")
    path = given or measured
    if not path:
        if requests != [1]:
            raise UsageError("--requests: got it without times, expected --latency")
        return []
    if measured:
        if requests != [1]:
            raise UsageError(f"--requests: got {requests}, but --measure-latency times one request")
        sizes = sorted({2**k for k in range(budget.bit_length())} | {budget, budget + 1})
        times = measure_latency(metadata, sizes, context or 256)
        write_atomically(measured, json.dumps(times, indent=1).encode() + b"\n")
    return [read_latency(path, context, number) for number in requests]
