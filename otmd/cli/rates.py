"""``otmd rates``: an engine's acceptance counters under every definition in use."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from otmd.cli import options as o

EXAMPLES = """
curl -s http://localhost:8000/metrics > metrics.txt; otmd rates metrics.txt
otmd rates sglang-answers.jsonl --json
otmd rates spec-bench-answers.jsonl"""


def rates(
    file: Annotated[Path, o.INPUT],
    *,
    without_extra_token: Annotated[bool, o.INPUT] = False,
    json_output: o.Json = False,
) -> None:
    """Convert what an engine counted: tokens per step, acceptance per draft, per step and by depth.

    Reads vLLM's metrics, and answers of SGLang, llama.cpp and Spec-Bench.

    Parameters
    ----------
    file : Path
        A text of vLLM's metrics, or a .jsonl file of answers.
    without_extra_token : bool
        The accept_lengths of the file leave out the extra token of each step; Spec-Bench's count it.
    """
    from otmd.engines import read_counts
    from otmd.study.table import Table

    counts = read_counts(file, without_extra_token=without_extra_token)
    values = {
        "tokens per step": (counts.tokens_per_step, "with the extra token: block efficiency"),
        "accepted drafts per step": (counts.accepted_per_step, "without the extra token"),
        "draft acceptance rate": (counts.draft_acceptance_rate, "accepted drafts / drafts"),
    }
    if json_output:
        numbers = {name.replace(" ", "_"): value for name, (value, _) in values.items()}
        by_depth = {
            name: getattr(counts, name) for name in ("per_step", "conditional", "histogram")
        }
        print(json.dumps(asdict(counts) | numbers | by_depth, indent=1))
        return
    title = f"{counts.source}: {counts.steps:,.0f} steps, {counts.accepted:,.0f} accepted drafts"
    print(
        Table(title, ["", "value", "definition"], [[k, *v] for k, v in values.items()], decimals=4)
    )
    if counts.at_least:
        rows = zip(counts.per_step, counts.conditional, counts.histogram[1:], strict=True)
        heads = ["depth", "at least, per step", "conditional", "exactly, per step"]
        note = (
            "At least: steps that accept so many drafts / steps (vLLM's per-position rate, and what its "
            "synthetic_acceptance_rates are). Conditional: / steps that accept all drafts before."
        )
        table = [[k, *row] for k, row in enumerate(rows, start=1)]
        print(f"\n{Table('By depth', heads, table, note, decimals=4)}")
