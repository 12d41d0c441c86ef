"""Target: dumps, folders of shards, n-gram models and prompts, damaged and crafted."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from fuzz import files
from fuzz.choices import Choices
from otmd.models import DatasetError, NGram, load_prompts, open_dataset
from otmd.models.dataset import SHARDS, read_shard
from otmd.storage.store import Store
from otmd.study.planning.texts import Text
from otmd.study.planning.tree_choices import most_likely_trees

ALLOWED = (ValueError, DatasetError)
COLUMNS = ("prompt_id", "domain", "position", "token", "shard", "row")


def one_input(data: bytes) -> None:
    choices = Choices(data)
    try:
        choices.pick((_npz, _safetensors, _folder, _ngram, _prompts, _settings))(choices)
    except ALLOWED as error:
        files.check_one_line(error)


def _names(choices: Choices) -> tuple[str, ...]:
    kind = choices.pick(("logits", "probs"))
    names = [f"target_{kind}", f"draft_{kind}"]
    more = ("prompt_id", "domain", "position", "metadata", "draft_paths")
    names += [name for name in more if choices.below(2)]
    return tuple(names if choices.often() else names[1:])


def _written(name: str, content: bytes, choices: Choices) -> Path:
    path = files.folder() / name
    path.write_bytes(files.damaged(content if choices.often() else choices.rest(), choices))
    return path


def _read(path: Path, verify: bool = True) -> None:
    dataset = open_dataset(path, verify)
    rows = range(min(3, len(dataset)))
    dataset.arrays(rows)
    most_likely_trees(dataset, [Text("a", "b", [*rows], [0] * len(rows))], 3)


def _npz(choices: Choices) -> None:
    content = files.npz(choices, _names(choices), 1 + choices.below(3))
    _read(_written("dump.npz", content, choices))


def _safetensors(choices: Choices) -> None:
    content = files.safetensors(choices, _names(choices), 1 + choices.below(3))
    _read(_written("dump.safetensors", content, choices))


def _folder(choices: Choices) -> None:
    folder = files.folder() / "collected"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows = [{"prompt_id": "a", "domain": "b", "position": 1, "token": 2}]
    about = json.dumps({"rows": rows, "texts": [{}]}) if choices.often() else choices.text()
    header = {"__metadata__": {"otmd": about}} if choices.often() else {}
    for number, name in enumerate(("target_logits", "draft_logits")):
        span = [8 * number, 8 * number + 8]
        header[name] = {"dtype": "F32", "shape": [1, 2], "data_offsets": span}
    text = json.dumps(header).encode()
    shard = files.damaged(len(text).to_bytes(8, "little") + text + bytes(16), choices)
    digest = hashlib.sha256(shard).hexdigest()
    name = f"000000-{digest[:16]}.safetensors"
    (folder / name).write_bytes(shard)
    entry = {"name": name, "bytes": len(shard), "sha256": digest}
    (folder / "manifest.parquet").write_bytes(_manifest(choices, entry))
    verify = bool(choices.below(2))
    _read(folder, verify)
    read_shard(folder / name)


def _manifest(choices: Choices, entry: dict) -> bytes:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    if not choices.often():
        entry[choices.pick(("name", "bytes", "sha256"))] = choices.pick((3, "a", None, [], "../x"))
    shards = json.dumps([entry]) if choices.often() else files.json_value(choices)
    metadata = "{}" if choices.often() else files.json_value(choices)
    about = f'{{"shards": {shards}, "metadata": {metadata}}}'
    if not choices.often():
        return files.parquet(choices, COLUMNS, files.json_value(choices))
    columns = {name: ["a"] for name in COLUMNS[:2]} | {name: [0] for name in COLUMNS[2:]}
    columns["shard"] = [entry["name"] if choices.often() else choices.text()]
    columns["row"] = [0 if choices.often() else choices.pick((-1, 5, None, 2**62))]
    table = pa.table({key: pa.array(own) for key, own in columns.items() if choices.often()})
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"otmd": about}), sink)
    return files.damaged(sink.getvalue(), choices)


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
