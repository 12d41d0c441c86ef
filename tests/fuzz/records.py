"""Target: recorded runs in each format, damaged and crafted, through the audit."""

from __future__ import annotations

import numpy as np

from fuzz import files
from fuzz.choices import Choices
from otmd.audit.records import FIELDS
from otmd.audit.run_audit import recorded_run
from otmd.audit.samples import MAKERS
from otmd.probabilities import Processing

ALLOWED = (ValueError,)
USUAL = ("target_probs", "target_logits", "draft_probs", "draft_tokens", "output_token", "depth")
SUFFIXES = ("jsonl", "parquet", "safetensors")


def one_input(data: bytes) -> None:
    choices = Choices(data)
    kind = choices.pick(SUFFIXES)
    make = {"jsonl": _lines, "parquet": _parquet, "safetensors": _safetensors}[kind]
    law, seed = choices.pick(list(MAKERS)), choices.below(3)
    processing = Processing(top_k=2) if choices.below(4) == 1 else None
    content = make(choices) if choices.often() else choices.rest()
    path = files.folder() / f"run.{kind}"
    path.write_bytes(files.damaged(content, choices))
    try:
        found = recorded_run(
            path, law, target_processing=processing, rng=np.random.default_rng(seed)
        )
        str(found)
        found.to_dict()
    except ALLOWED as error:
        files.check_one_line(error)


def _names(choices: Choices) -> tuple[str, ...]:
    usual = [name for name in USUAL if choices.below(3)]
    more = [choices.pick(FIELDS)] if choices.below(3) == 0 else []
    return tuple(dict.fromkeys(usual + more)) if choices.often() else (choices.text(), *usual)


def _lines(choices: Choices) -> bytes:
    lines = []
    for _ in range(1 + choices.below(4)):
        pairs = []
        for name in _names(choices):
            usual = {"d": "[0,1]", "o": "1", "t": "[0.5,0.25,0.25]"}.get(name[:1], "0")
            usual = "[0.25,0.5,0.25]" if name == "draft_probs" else usual
            value = usual if choices.often() else files.json_value(choices)
            pairs.append(f'"{name}":{value}')
        lines.append("{" + ",".join(pairs) + "}")
    return "\n".join([*lines, ""]).encode()


def _parquet(choices: Choices) -> bytes:
    return files.parquet(choices, _names(choices))


def _safetensors(choices: Choices) -> bytes:
    return files.safetensors(choices, _names(choices), 1 + choices.below(3))
