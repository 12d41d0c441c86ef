"""Target: recorded runs in each format, damaged and crafted, through the audit."""

from __future__ import annotations

import json
from functools import cache

from fuzz import files
from fuzz.choices import Choices
from otmd.audit import Recorder
from otmd.audit.declared import MAKERS
from otmd.audit.numbers import NUMBERS, read_numbers
from otmd.audit.records import FIELDS
from otmd.audit.run_audit import recorded_run
from otmd.probabilities import Processing

ALLOWED = (ValueError,)
USUAL = ("target_probs", "draft_probs", "draft_tokens", "output_token")
SUFFIXES = ("jsonl", "parquet", "safetensors", "numbers")


def one_input(choices: Choices) -> None:
    kind = choices.pick(SUFFIXES)
    law, seed = choices.pick(list(MAKERS)), choices.below(3)
    processing = Processing(top_k=2) if choices.rarely() else None
    content = _content(kind, choices) if choices.often() else choices.bytes(300)
    path = files.folder() / (NUMBERS if kind == "numbers" else f"run.{kind}")
    path.write_bytes(files.damaged(content, choices))
    try:
        if kind == "numbers":
            list(read_numbers(path))
            return
        found = recorded_run(path, law, target_processing=processing, rng=seed)
        str(found)
        found.to_dict()
    except ALLOWED as error:
        files.check_one_line(error)


def _content(kind: str, choices: Choices) -> bytes:
    if kind == "jsonl":
        return _lines(choices)
    if kind == "numbers":
        return _numbers()
    if kind == "parquet":
        return files.parquet(choices, _names(choices))
    return files.safetensors(choices, _names(choices), 1 + choices.below(3))


@cache
def _numbers() -> bytes:
    row = {name: files.honest(name, 1)[0] for name in USUAL}
    with Recorder(files.folder() / "recorded", "numbers") as recorder:
        recorder.add(**row)
        recorder.add(**row)
    return (files.folder() / "recorded" / NUMBERS).read_bytes()


def _names(choices: Choices) -> tuple[str, ...]:
    usual = [name for name in USUAL if not choices.rarely()]
    more = [choices.pick((*FIELDS, choices.text()))] if choices.below(4) == 1 else []
    return tuple(dict.fromkeys(usual + more))


def _lines(choices: Choices) -> bytes:
    lines = []
    names = _names(choices)
    for _ in range(1 + choices.below(4)):
        pairs = []
        for name in _names(choices) if choices.rarely() else names:
            honest = json.dumps(files.honest(name, 1)[0].tolist())
            pairs.append((name, files.json_value(choices) if choices.rarely() else honest))
        lines.append("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}")
    return "\n".join([*lines, ""]).encode()
