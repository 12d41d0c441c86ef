"""Target: recorded runs as lines and as tables, damaged and crafted, through the audit."""

from __future__ import annotations

import json
from functools import cache

from fuzz import files
from fuzz.choices import Choices
from otmd.audit import Recorder, recorded_run
from otmd.audit.declared import MAKERS
from otmd.audit.rows import FIELDS
from otmd.probabilities import Processing

ALLOWED = (ValueError,)
USUAL = ("target_probs", "draft_probs", "draft_tokens", "output_token")
NAMES = ("run.jsonl", "run.json", "part-00000.npz")


def one_input(choices: Choices) -> None:
    name = choices.pick(NAMES)
    law, seed = choices.pick(list(MAKERS)), choices.below(3)
    processing = Processing(top_k=2) if choices.rarely() else None
    is_folder = name != "run.jsonl"
    folder = files.folder()
    if is_folder:
        folder = folder / "recorded"
        recorded = _recorded()
        for path in folder.glob("part-*"):
            path.unlink()
        for other, content in recorded.items():
            (folder / other).write_bytes(content)
    content = _recorded().get(name, b"") if is_folder else _lines(choices)
    content = content if choices.often() else choices.bytes(300)
    (folder / name).write_bytes(files.damaged(content, choices))
    options = {} if is_folder else {"law": law, "target_processing": processing}
    try:
        found = recorded_run(folder if is_folder else folder / name, rng=seed, **options)
        str(found)
        found.to_dict()
    except ALLOWED as error:
        files.check_one_line(error)


@cache
def _recorded() -> dict[str, bytes]:
    row = {name: files.honest(name, 1)[0] for name in USUAL}
    folder = files.folder() / "recorded"
    with Recorder(folder) as recorder:
        recorder.add(**row)
        recorder.add(**row)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


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
