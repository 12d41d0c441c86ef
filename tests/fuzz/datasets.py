"""Target: dumps, folders of shards, n-gram models and prompts, damaged and crafted."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from fuzz import files
from fuzz.choices import Choices
from otmd.models import DatasetError, NGram, load_prompts, open_dataset
from otmd.models.dataset import SHARDS, read_shard
from otmd.storage.store import Store

ALLOWED = (ValueError, DatasetError)
COLUMNS = ("prompt_id", "domain", "position", "token", "shard", "row")


def one_input(choices: Choices) -> None:
    try:
        choices.pick((_dump, _dump, _folder, _ngram, _prompts, _settings))(choices)
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
    rows = [{"prompt_id": "a", "domain": "b", "position": 1, "token": 2}]
    about = json.dumps({"rows": rows, "texts": [{}]}) if choices.often() else choices.text()
    logits = {name: np.zeros((1, 2), np.float32) for name in ("target_logits", "draft_logits")}
    shard = files.damaged(save(logits, {"otmd": about} if choices.often() else None), choices)
    digest = hashlib.sha256(shard).hexdigest()
    entry = {"name": f"000000-{digest[:16]}.safetensors", "bytes": len(shard), "sha256": digest}
    (folder / entry["name"]).write_bytes(shard)
    if not choices.often():
        entry[choices.pick([*entry])] = choices.pick((3, "a", None, [], "../x"))
    shards = json.dumps([entry]) if choices.often() else files.json_value(choices)
    metadata = "{}" if choices.often() else files.json_value(choices)
    text = f'{{"shards": {shards}, "metadata": {metadata}}}'
    columns = {name: ["a"] for name in COLUMNS[:2]} | {name: [0] for name in COLUMNS[2:]}
    columns["shard"] = [entry["name"] if choices.often() else choices.text()]
    columns["row"] = [0 if choices.often() else choices.pick((-1, 5, None, 2**62))]
    table = pa.table({key: pa.array(cells) for key, cells in columns.items() if choices.often()})
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"otmd": text}), sink)
    content = files.damaged(sink.getvalue(), choices)
    if not choices.often():
        content = files.parquet(choices, COLUMNS, files.json_value(choices))
    (folder / "manifest.parquet").write_bytes(content)
    _read(folder, bool(choices.below(2)))
    for path in folder.glob("*.safetensors"):
        read_shard(path)


def _ngram(choices: Choices) -> None:
    names = ("unigrams", "keys2", "counts2")[: 1 + choices.below(3)]
    model = NGram.load(_written("ngram.npz", files.npz(choices, names, 2), choices))
    model.probs([choices.below(3), choices.below(3)])


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
    (folder / "manifest.parquet").touch()
    Store(folder, {"format": 1, "a": {"b": 2}}, SHARDS).check()
