"""``otmd audit``: what an engine recorded, against what it should have done."""

import json
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts.types import NonNegativeFloat

from otmd.cli import FAULT_FOUND, INCONCLUSIVE, OK, UsageError
from otmd.cli import options as o
from otmd.cli.options import about
from otmd.registry import LAWS

if TYPE_CHECKING:
    from otmd.probabilities import Processing

EXAMPLES = """
otmd audit run
otmd audit run.jsonl --law stratified --false-alarm 1e-4 --html audit.html
otmd audit run.jsonl --rule block --end-tokens 2 --target-temperature 0.7 --draft-temperature 0.7
otmd audit texts.jsonl --oracle Qwen/Qwen3-0.6B --target-temperature 0.8 --end-tokens 151643,151645"""

# Fixed drafts are decided by the text before them; none is for plain decoding.
DECLARED = (*LAWS, "fixed", "none")
Temperature = Annotated[NonNegativeFloat | None, o.INPUT, about("For recorded logits.")]


def audit(
    file: Annotated[Path, o.INPUT, about("A folder of a recorder, .jsonl or .jsonl.gz.")],
    *,
    oracle: Annotated[str | None, o.INPUT, about("Audit texts in FILE against this target.")] = None,
    law: Annotated[str | None, about(f"{', '.join(DECLARED)}.")] = None,
    rule: Annotated[Literal["token", "block", "tree"] | None, about("Token by token unless given.")] = None,
    all_drafts: Annotated[bool, about("With --rule block: all drafts are recorded.")] = False,
    end_tokens: Annotated[str | None, o.INPUT, about("Ids that end a text.")] = None,
    false_alarm: Annotated[float, o.INPUT, about("Probability of calling a sound run faulty.")] = 1e-3,
    bias: Annotated[float, o.INPUT, about("The bias that a run must exclude to pass.")] = 0.1,
    top: o.Top = 1,
    target_temperature: Temperature = None,
    target_top_k: o.TopK = None,
    target_top_p: o.TopP = None,
    target_min_p: o.MinP = None,
    target_order: o.Order = None,
    draft_temperature: Temperature = None,
    draft_top_k: o.TopK = None,
    draft_top_p: o.TopP = None,
    draft_min_p: o.MinP = None,
    draft_order: o.Order = None,
    seed: o.Seed = 0,
    pages: o.Pages = o.NO_PAGES,
    json_output: o.Json = False,
) -> int:
    """Audit a recorded run of an engine: is its output lossless, and are its drafts as declared.

    Exit codes: 0 for PASS, 3 for FAULTY and 4 for INCONCLUSIVE (few rows, no drafts, mistakes).
    """
    from otmd.audit import recorded_run, texts
    from otmd.audit.source import numbered
    from otmd.laws import TopThen
    from otmd.study.table import Table

    target = _processing("target", target_temperature, target_top_k, target_top_p, target_min_p, target_order)
    draft = _processing("draft", draft_temperature, draft_top_k, draft_top_p, draft_min_p, draft_order)
    ids = [] if end_tokens is None else end_tokens.split(",")
    if not all(name.strip().isdecimal() for name in ids):
        expected = "token ids separated by commas"
        raise UsageError(f"--end-tokens: got {end_tokens!r}, expected {expected}")
    ends = [int(name) for name in ids]
    tested: dict[str, str]
    if oracle is not None:
        if law or draft or rule or all_drafts:
            raise UsageError(
                "--oracle: got it with --law, --rule, --all-drafts or draft options, which are for "
                "recorded drafts"
            )
        settings = {} if target is None else asdict(target)
        settings |= {"end_tokens": ends, "false_alarm": false_alarm, "bias": bias, "rng": seed}
        # Loaded once the first texts have been read.
        model = cache(partial(_load, oracle))
        result = texts(file, lambda prefixes: model().logits_after(prefixes), **settings)
        tested = {"texts": f"{file}, {result.num_rows:,} tokens", "oracle": oracle}
    else:
        if law not in (None, *DECLARED):
            raise UsageError(f"--law: got {law!r}, expected one of {', '.join(DECLARED)}")
        if file.is_file() and "output_tokens" in next(numbered(file, "")[0], (0, {}))[1]:
            raise UsageError(f"--oracle: got none, but {file} is a file of texts; give --oracle MODEL")
        result = recorded_run(
            file,
            partial(TopThen, top=top) if law == "top-then" else law,
            false_alarm,
            rule=rule,
            all_drafts=all_drafts,
            end_tokens=None if end_tokens is None else ends,
            bias=bias,
            target_processing=target,
            draft_processing=draft,
            rng=seed,
        )
        tested = {
            "recorded run": f"{file}, {result.num_rows:,} rows",
            "law of the drafts": result.law,
            "rule": result.rule,
        }
    tables = [
        Table(x.title, x.heads, x.rows, x.note, x.decimals, small="p-value" in x.heads) for x in result.tables
    ]
    settled = tested | {
        "target": str(target or "as the rows say"),
        "draft": str(draft or "as the rows say"),
        "false alarms": f"with probability {false_alarm:g} at most",
        "bias": f"{bias:g}, which a PASS must have been able to find with probability 0.9",
        "seed": str(seed),
    }
    print(json.dumps(result.to_dict(), indent=1) if json_output else result)
    pages.write(f"Audit of {file.name}", result.said, tables, settled, tables[0])
    return {"PASS": OK, "FAULTY": FAULT_FOUND, "INCONCLUSIVE": INCONCLUSIVE}[result.outcome]


def _load(oracle: str) -> Any:
    from otmd.models import load_target

    return load_target(oracle)


def _processing(side: str, temperature: float | None, *cuts: Any) -> "Processing | None":
    """The processing that the options of a side say; None if none is given."""
    if temperature is None and all(cut is None for cut in cuts):
        return None
    try:
        return o.Cuts(*cuts).at(temperature)
    except ValueError as error:
        raise ValueError(f"{side}_{error}") from error
