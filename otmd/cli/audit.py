"""``otmd audit``: what an engine recorded, against what it should have done."""

import json
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts.types import NonNegativeFloat

from otmd.cli import FAULT_FOUND, INCONCLUSIVE, OK, UsageError
from otmd.cli import options as o

if TYPE_CHECKING:
    from otmd.audit import RecordedRunAudit
    from otmd.probabilities import Processing

EXAMPLES = """
otmd audit run.jsonl
otmd audit run.parquet --law stratified --false-alarm 1e-4 --html audit.html
otmd audit run.safetensors --target-temperature 0.7 --target-top-p 0.9 --draft-temperature 0.7 --json
otmd audit texts.jsonl --oracle Qwen/Qwen3-0.6B --target-temperature 0.8"""


def audit(
    file: Annotated[Path, o.INPUT],
    *,
    oracle: Annotated[str | None, o.INPUT] = None,
    law: str | None = None,
    false_alarm: Annotated[float, o.ACCURACY] = 1e-3,
    bias: Annotated[float, o.ACCURACY] = 0.1,
    top: o.Top = 1,
    target_temperature: Annotated[NonNegativeFloat | None, o.SAMPLING] = None,
    target_top_k: o.TopKOrAll = None,
    target_top_p: o.TopP = None,
    target_min_p: o.MinP = None,
    target_order: o.Order = None,
    draft_temperature: Annotated[NonNegativeFloat | None, o.SAMPLING] = None,
    draft_top_k: o.TopKOrAll = None,
    draft_top_p: o.TopP = None,
    draft_min_p: o.MinP = None,
    draft_order: o.Order = None,
    seed: o.Seed = 0,
    pages: o.Pages = o.NO_PAGES,
    json_output: o.Json = False,
) -> int:
    """Audit a recorded run of an engine: is its output lossless, and are its drafts what they are said to be.

    With --oracle, audit texts that a server wrote, against the target's own probabilities.

    The exit code is 0 for PASS, 3 for FAULTY and 4 for INCONCLUSIVE, where too few rows were recorded to
    tell.

    Parameters
    ----------
    file : Path
        The folder of a recorder, or a .jsonl, .parquet or .safetensors file with a row for each position with
        drafts or an output token; with --oracle, a .jsonl or .parquet file with prompt_tokens and
        output_tokens for each text.
    oracle : str
        The target that the texts are audited against: default, a .gguf file, a folder, or a name on the hub.
    law : str
        How the drafts of a position were drawn: with-replacement, without-replacement, conditional-poisson,
        greedy, hub, stratified, top-then, top-k, independent, or fixed for drafts that the text before
        them decides (n-grams, the argmax, a tree of the most likely tokens). with-replacement unless given.
    false_alarm : float
        Probability, at most, that a sound engine's run is called faulty.
    bias : float
        A run passes only if a bias of this size (total variation) would have been found with probability 0.9.
    target_temperature : float
        For recorded logits: what the engine divided the target's logits by. Leave out the target and draft
        options if rows hold probabilities, or their own settings.
    draft_temperature : float
        What the engine divided the draft's logits by.
    """
    from otmd.audit.run_audit import SMALLEST_FALSE_ALARM, recorded_run
    from otmd.laws import TopThen
    from otmd.study.table import Table

    if not SMALLEST_FALSE_ALARM <= false_alarm <= 0.25:
        expected = f"a number from {SMALLEST_FALSE_ALARM:g} to 0.25"
        raise UsageError(f"--false-alarm: got {false_alarm}, expected {expected}")
    if not 0 < bias < 1:
        raise UsageError(f"--bias: got {bias}, expected a number between 0 and 1")
    target = _processing(
        "target", target_temperature, target_top_k, target_top_p, target_min_p, target_order
    )
    draft = _processing(
        "draft", draft_temperature, draft_top_k, draft_top_p, draft_min_p, draft_order
    )
    if oracle is not None:
        if law or draft:
            raise UsageError(
                "--oracle: got it with --law or draft options, which are for recorded drafts"
            )
        result = _audited_texts(file, oracle, target, false_alarm, bias, seed)
    else:
        chosen = None if law is None else _checked_law(law)
        result = recorded_run(
            file,
            partial(TopThen, top=top) if chosen == "top-then" else chosen,
            false_alarm,
            bias=bias,
            target_processing=target,
            draft_processing=draft,
            rng=seed,
        )
    listed = [
        Table(x.title, x.heads, x.rows, x.note, x.decimals, small="p-value" in x.heads)
        for x in result.tables
    ]
    tested = {"recorded run": f"{file}, {result.num_rows:,} rows", "law of the drafts": result.law}
    if oracle is not None:
        tested = {"texts": f"{file}, {result.num_rows:,} tokens", "oracle": oracle}
    about = tested | {
        "target": str(target or "as the rows say"),
        "draft": str(draft or "as the rows say"),
        "false alarms": f"with probability {false_alarm:g} at most",
        "bias": f"{bias:g}, which a PASS must have been able to find with probability 0.9",
        "seed": str(seed),
    }
    print(json.dumps(result.to_dict(), indent=1) if json_output else result)
    pages.write(f"Audit of {file.name}", result.said, listed, about, listed[0])
    return {"PASS": OK, "FAULTY": FAULT_FOUND, "INCONCLUSIVE": INCONCLUSIVE}[result.outcome]


def _checked_law(name: str) -> str:
    from otmd.audit.declared import MAKERS

    laws = [*MAKERS, "top-then"]
    if name not in laws:
        raise UsageError(f"--law: got {name!r}, expected one of {', '.join(laws)}")
    return name


def _audited_texts(
    file: Path,
    oracle: str,
    target: "Processing | None",
    false_alarm: float,
    bias: float,
    seed: int,
) -> "RecordedRunAudit":
    from otmd.audit import texts
    from otmd.models import load_target

    # Loaded once the first texts have been read.
    model = cache(partial(load_target, oracle))
    settings = {} if target is None else asdict(target)
    settings |= {"false_alarm": false_alarm, "bias": bias, "rng": seed}
    return texts(file, lambda prefixes: model().logits_after(prefixes), **settings)


def _processing(side: str, *options: Any) -> "Processing | None":
    """The processing that the options of a side say; None if none is given."""
    given = any(value is not None for value in options)
    return o.processing(f"{side}_", *options) if given else None
