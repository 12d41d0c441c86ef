"""``otmd audit``: what an engine recorded, against what it should have done."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts.types import NonNegativeFloat

from otmd.cli import FAULT_FOUND, INCONCLUSIVE, OK, UsageError
from otmd.cli import options as o

if TYPE_CHECKING:
    from otmd.audit import RecordedRunAudit
    from otmd.measurement.page import Table
    from otmd.probabilities import Processing

EXAMPLES = """
otmd audit run.jsonl
otmd audit run.parquet --law stratified --false-alarm 1e-4 --html audit.html
otmd audit run.safetensors --target-temperature 0.7 --target-top-p 0.9 --draft-temperature 0.7 --json"""


def audit(
    file: Path,
    *,
    law: str = "with-replacement",
    false_alarm: float = 1e-3,
    bias: float = 0.1,
    top: o.Top = 1,
    target_temperature: NonNegativeFloat | None = None,
    target_top_k: o.TopKOrAll = None,
    target_top_p: o.TopP = None,
    target_min_p: o.MinP = None,
    draft_temperature: NonNegativeFloat | None = None,
    draft_top_k: o.TopKOrAll = None,
    draft_top_p: o.TopP = None,
    draft_min_p: o.MinP = None,
    seed: o.Seed = 0,
    pages: o.Pages = o.NO_PAGES,
    json_output: o.Json = False,
) -> int:
    """Audit a recorded run of an engine: is its output lossless, and are its drafts what they are said to be.

    The exit code is 0 for PASS, 3 for FAULTY and 4 for INCONCLUSIVE, where too few rows were recorded to
    tell.

    Parameters
    ----------
    file : Path
        A .jsonl, .parquet or .safetensors file with a row for each position that was drafted at or decided.
    law : str
        How the drafts of a position were drawn: with-replacement, without-replacement, conditional-poisson,
        greedy, hub, stratified, top-then, certain-top, independent, or fixed for drafts that the text before
        them decides (n-grams, the argmax, a tree of the likeliest tokens).
    false_alarm : float
        Probability, at most, that a sound engine's run is called faulty.
    bias : float
        A run passes only if a bias of this size (total variation) would have been found with probability 0.9.
    top : int
        For top-then: how many of the likeliest tokens are always drafted.
    target_temperature : float
        For recorded logits: what the engine divided the target's by. Leave these eight out where rows hold
        probabilities, or their own settings.
    draft_temperature : float
        What the engine divided the draft's logits by.
    json_output : bool
        Print a JSON object instead of the report.
    """
    import numpy as np

    from otmd import __version__
    from otmd.audit import recorded_run
    from otmd.drafts import TopThen

    known = [*o.LAWS, "fixed"]
    if law not in known:
        raise UsageError(f"--law: got {law!r}, wanted one of {', '.join(known)}")
    if not 2e-5 <= false_alarm <= 0.25:
        raise UsageError(f"--false-alarm: got {false_alarm}, wanted a number from 2e-5 to 0.25")
    if not 0 < bias < 1:
        raise UsageError(f"--bias: got {bias}, wanted a number between 0 and 1")
    target = _processing("target", target_temperature, target_top_k, target_top_p, target_min_p)
    draft = _processing("draft", draft_temperature, draft_top_k, draft_top_p, draft_min_p)
    found = recorded_run(
        file,
        partial(TopThen, top=top) if law == "top-then" else law,
        false_alarm,
        bias=bias,
        target_processing=target,
        draft_processing=draft,
        rng=np.random.default_rng(seed),
    )
    print(json.dumps(found.to_dict(), indent=1) if json_output else found)
    tests, tables = _tests(found), _tables(found)
    about = {
        "recorded run": f"{file}, {found.num_rows:,} rows",
        "law of the drafts": found.law,
        "target": str(target or "as the rows say"),
        "draft": str(draft or "as the rows say"),
        "false alarms": f"with probability {false_alarm:g} at most",
        "bias": f"{bias:g}, which a PASS must have been able to find with probability 0.9",
        "seed": str(seed),
        "otmd": __version__,
    }
    pages.write(f"Audit of {file.name}", found.said, [tests, *tables], about, tests)
    return {"PASS": OK, "FAULTY": FAULT_FOUND, "INCONCLUSIVE": INCONCLUSIVE}[found.outcome]


def _processing(side: str, *options: Any) -> "Processing | None":
    """What the four options of a side say; None where none is given."""
    given = any(value is not None for value in options)
    return o.processing(f"--{side}-…: ", *options) if given else None


def _tests(found: "RecordedRunAudit") -> "Table":
    from otmd.audit.run_report import NUM_STATEMENTS
    from otmd.measurement.page import Cell, Table

    rows: list[list[Cell]] = []
    for own in found.claims:
        tests = (own.p_value, own.betting_p_value, own.total_variation_bound, own.detectable)
        rows.append([own.name, "REFUTED" if own.refuted else "none", own.num_samples, *tests])
    if pooled := found.acceptance:
        name = "no more is accepted than a lossless rule can"
        alarm = "REFUTED" if pooled.too_high else "none"
        rows.append([name, alarm, pooled.num_positions, None, pooled.p_value, None, None])
    heads = ["claim", "alarm", "samples", "p-value", "by bets", "bias ≥", "finds"]
    note = (
        f"An alarm is a p-value of at most {found.false_alarm / NUM_STATEMENTS:.1e}, or a bias above 0. The "
        "p-value is for a number of rows that was decided in advance, the one by bets is valid whenever one "
        "looks. Finds: the bias that the test finds with probability 0.9."
    )
    return Table("Tests", heads, rows, note, 4, small=True)


def _tables(found: "RecordedRunAudit") -> "list[Table]":
    """What the report shows beside the tests; a table without rows is left out."""
    from otmd.measurement.page import Table

    sizes = found.vocabularies if len(found.vocabularies) > 1 else {}
    bands = [band for bands in found.bands for band in bands]
    tables = [
        Table(
            "Rows that no sound engine writes",
            ["what", "rows", "the first", "usually"],
            [[x.what, x.count, ", ".join(map(str, x.first_rows)), x.usually] for x in found.cases],
            "Each is proof of a fault.",
        ),
        Table(
            "Vocabularies",
            ["tokens", "rows", "the first"],
            [[size, count, ", ".join(map(str, first))] for size, (count, first) in sizes.items()],
            "If they are of several models, audit them apart.",
        ),
        Table(
            "Output tokens by class",
            ["class", "observed", "expected", "deviations"],
            [[own.name, own.observed, own.expected, own.deviations] for own in bands],
            "Of p/q and of p, in standard deviations. Without an alarm above they mean nothing.",
            decimals=1,
        ),
        Table(
            "Metrics",
            ["metric", "value", "definition"],
            [[own.name, own.value, own.definition] for own in found.metrics],
            decimals=4,
        ),
    ]
    return [table for table in tables if table.rows]
