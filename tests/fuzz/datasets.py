"""Target: dumps, folders of shards, and prompts, damaged and crafted."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fuzz import files
from fuzz.choices import Choices
from otmd.models import DatasetError, load_prompts, open_dataset
from otmd.models.dataset import SHARDS
from otmd.storage.store import Store

ALLOWED = (ValueError, DatasetError)


def one_input(choices: Choices) -> None:
    try:
        choices.pick((_dump, _dump, _folder, _prompts, _settings))(choices)
    except ALLOWED as error:
        files.check_one_line(error)


def _names(choices: Choices) -> tuple[str, ...]:
    kind = choices.pick(("logits", "probs"))
    names = [f"target_{kind}", f"draft_{kind}"]
    names += [name for name in ("prompt_id", "metadata") if choices.rarely()]
    return tuple(names if choices.often() else names[1:])


def _written(name: str, content: bytes, choices: Choices) -> Path:
    path = files.folder() / name
    path.write_bytes(files.damaged(content if choices.often() else choices.bytes(300), choices))
    return path


def _read(path: Path, verify: bool = True) -> None:
    dataset = open_dataset(path, verify)
    dataset.arrays(range(min(3, len(dataset))))


def _dump(choices: Choices) -> None:
    kind = choices.pick(("npz", "safetensors"))
    content = getattr(files, kind)(choices, _names(choices), 1 + choices.below(3))
    _read(_written(f"dump.{kind}", content, choices))


def _folder(choices: Choices) -> None:
    folder = files.folder() / "collected"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    text = {"prompt_id": "a", "domain": "b", "tokens": [1, 2], "start": 1, "positions": [1]}
    if not choices.often():
        text[choices.pick([*text])] = choices.pick((3, "a", None, [], ["x"], {}))
    about = json.dumps([text]) if choices.often() else choices.text()
    logits = {name: np.zeros((1, 2), np.float32) for name in ("target_logits", "draft_logits")}
    shard = files.damaged(save(logits, {"otmd": about} if choices.often() else None), choices)
    digest = hashlib.sha256(shard).hexdigest()
    (folder / f"000000-{digest}.safetensors").write_bytes(shard)
    shards = "1" if choices.often() else files.json_value(choices)
    record = f'{{"shards": {shards}}}' if choices.often() else files.json_value(choices)
    (folder / "collect.json").write_bytes(files.damaged(record.encode(), choices))
    _read(folder, bool(choices.below(2)))


def _prompts(choices: Choices) -> None:
    pairs = (
        f'"{name}": {files.json_value(choices)}'
        for name in ("text", "id", "answer", "domain")
        if choices.below(3)
    )
    lines = '{"text": "a b"}\n{' + ",".join(pairs) + "}\n"
    suffix = choices.pick(("jsonl", "jsonl", "txt"))
    load_prompts([_written(f"own.{suffix}", lines.encode(), choices)], progress=False)


def _settings(choices: Choices) -> None:
    folder = files.folder() / "begun"
    folder.mkdir(exist_ok=True)
    content = f'{{"format": 1, "a": {files.json_value(choices)}}}'
    (folder / "collect.json").write_bytes(files.damaged(content.encode(), choices))
    (folder / f"000000-{'0' * 64}.safetensors").touch()
    Store(folder, {"format": 1, "a": {"b": 2}}, SHARDS).check()
