"""``otmd plan``: which drafts, tree and rule to take for two models."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts.types import NonNegativeFloat

from otmd.cli import UsageError
from otmd.cli import options as o
from otmd.cli.options import PositiveInt
from otmd.storage.files import write_atomically

EXAMPLES = """
otmd plan --draft skip:13,15,17 --html plan.html
otmd plan --draft skip:13,15,17 --measure-latency times.json
otmd plan --target Qwen/Qwen3-1.7B --draft Qwen/Qwen3-0.6B --latency times.json --requests 1,8,32"""


def plan(
    *,
    target: o.Target = "default",
    draft: o.Draft = "skip:13,15,17",
    prompts: o.Prompts = "code,maths,chat",
    per_domain: o.PerDomain = 4,
    output: Annotated[Path, o.RUN] = Path("runs/plan"),
    tree_budget: str = "16",
    depth: PositiveInt = 8,
    temperature: Annotated[NonNegativeFloat, o.INPUT] = 1.0,
    cuts: o.Cuts = o.NO_CUTS,
    latency: Annotated[Path | None, o.INPUT] = None,
    measure_latency: Annotated[o.OutFile | None, o.INPUT] = None,
    context: Annotated[PositiveInt | None, o.INPUT] = None,
    requests: Annotated[str | None, o.INPUT] = None,
    pages: o.Pages = o.NO_PAGES,
    seed: o.Seed = 0,
    workers: o.Workers = None,
    overwrite: o.Overwrite = False,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Rank draft laws, trees and rules by tokens per step or second, and say which to take.

    Every candidate writes steps of its own after texts of the target. If a run is interrupted, the same
    command continues it.

    Parameters
    ----------
    output : Path
        The folder for what is computed.
    tree_budget : str
        Comma-separated: the most tokens that a tree may hold.
    depth : int
        The most levels of a tree.
    temperature : float
        The temperature of both models; at 0, drafts are the most likely tokens.
    latency : Path
        A JSON table of times (docs/plan.md); candidates are then ranked by tokens per second.
    measure_latency : Path
        Time the two models on this machine, write the table there, and use it.
    context : int
        The length of the text that times are for, in tokens; by default 256 to measure, else the table's
        smallest.
    requests : str
        Comma-separated numbers of concurrent requests, each with its own ranking; by default 1.
    """
    budgets = o.counts("--tree-budget", tree_budget)
    numbers = o.counts("--requests", requests) if requests else [1]
    if latency and measure_latency:
        raise UsageError("--latency: got it with --measure-latency, expected one table of times")
    if numbers != [1] and not latency:
        expected = "expected 1: --measure-latency times one request"
        without = "but no times for so many; give them with --latency"
        raise UsageError(f"--requests: got {requests}, {expected if measure_latency else without}")
    from otmd.models import load_prompts
    from otmd.models.drafts import check_draft
    from otmd.study.latency import measure_times, read_latency
    from otmd.study.plan import MEANS, SHORT, candidates, plan_table
    from otmd.study.ranking import decision, held_out, rank, ranking_table
    from otmd.study.table import wrapped

    check_draft(draft)
    ways = candidates(budgets, depth, temperature, short=SHORT)
    most = max(budgets)
    if measure_latency:
        sizes = sorted({2**k for k in range(most.bit_length())} | {most, most + 1})
        measured = measure_times(target, draft, sizes, context or 256)
        write_atomically(measure_latency, json.dumps(measured, indent=1).encode() + b"\n")
    path = latency or measure_latency
    times = [read_latency(path, most, context, number) if path else None for number in numbers]
    show = not (quiet or json_output)
    chosen = load_prompts(o.split("--prompts", prompts), per_domain, seed, progress=show)
    step = cuts.at(temperature)
    options = {"seed": seed, "workers": workers, "overwrite": overwrite, "progress": show}
    table = plan_table(target, draft, chosen, output, ways, step, **options)
    if not path:
        # Per step a short draft never pays. It is computed all the same, so that times can be given later.
        longer = {way.tree for way in candidates(budgets, depth, temperature)}
        table = table.filter(table["tree"].is_in(longer))
    said: list[str] = []
    tables = []
    rows = {}
    for number, cost in zip(numbers, times, strict=True):
        title = f"{number} concurrent request{'s' * (number > 1)}"
        ranked = rank(table, cost, ways)
        decided = decision(ranked, held_out(table, cost, ways))
        said += decided if len(numbers) == 1 else [f"{title}: {' '.join(decided)}"]
        tables.append(ranking_table(ranked, f"{title}, best first", MEANS))
        rows[str(number)] = ranked.to_dicts()
    about = {
        "target": target,
        "draft": draft,
        "prompts": str(len(chosen)),
        "temperature": str(step),
    }
    if json_output:
        print(json.dumps({"said": said, "by_requests": rows, "settings": about}, indent=1))
    else:
        print(*map(wrapped, said), *tables, sep="\n\n")
    pages.write(f"Plan for {target} with {draft}", said, tables, about, tables[0])
