"""The files of a collected folder: shards of logits with their rows, and the manifest.

A shard is ``NUMBER-HASH.safetensors``, HASH being the first 16 hexadecimal digits of the file's SHA-256, so
a torn or altered shard is known by its name. The manifest is a table of all rows, derived from the shards and
written last: a folder without it is unfinished. Its metadata hold, as JSON under ``otmd``, the description of
the run and the name, size and SHA-256 of every shard; the rows are read from the shards.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otmd.storage.arrays import StoredArray, read_safetensors
from otmd.storage.errors import DatasetError, one_line
from otmd.storage.files import sha256_of, write_atomically
from otmd.storage.parquet import read_metadata
from otmd.storage.store import Layout, Store

RECORD, MANIFEST = "collect.json", "manifest.parquet"
_NAME = re.compile(r"(\d{6})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class Row:
    """One position of a shard: ``token`` is what came there in the text."""

    prompt_id: str
    domain: str
    position: int
    token: int

    def __post_init__(self) -> None:
        texts, numbers = (self.prompt_id, self.domain), (self.position, self.token)
        if not all(isinstance(own, str) for own in texts):
            raise TypeError("prompt_id and domain must be texts")
        if not all(isinstance(own, int) for own in numbers):
            raise TypeError("position and token must be whole numbers")


@dataclass(frozen=True)
class Shard:
    """A shard that has been read: its rows are in the order of the arrays' first axis."""

    path: Path
    sha256: str
    rows: list[Row]
    target: StoredArray
    draft: StoredArray


def write_shard(
    store: Store[Shard],
    number: int,
    target_logits: np.ndarray,
    draft_logits: np.ndarray,
    rows: list[Row],
    texts: list[dict[str, Any]],
) -> Path:
    """Write a shard of raw logits (N, V) with its N rows, and return its path.

    ``texts`` are the rows' token sequences: dicts of ``prompt_id``, ``tokens`` and ``start``.
    """
    from safetensors.numpy import save

    # Equal content must give equal bytes, and safetensors writes several metadata entries in no fixed order:
    # so there is only one.
    about = json.dumps({"rows": [asdict(row) for row in rows], "texts": texts})
    arrays = {"target_logits": target_logits, "draft_logits": draft_logits}
    data = save({k: np.ascontiguousarray(v) for k, v in arrays.items()}, {"otmd": about})
    name = f"{number:06}-{hashlib.sha256(data).hexdigest()[:16]}"
    store.write(name, data)
    return store.path(name)


def read_shard(path: Path, sha256: str | None = None) -> Shard:
    """Open a shard; DatasetError if it is torn. Its hash is computed unless it was checked before."""
    if not path.is_file():
        raise DatasetError(f"the shard {path} is missing; call collect again to make it anew")
    if sha256 is None:
        sha256 = sha256_of(path)
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] != sha256[:16]:
            raise DatasetError(
                f"the shard {path} is torn or was altered: its sha256 is {sha256}; "
                "call collect again to make it anew"
            )
    arrays, metadata = read_safetensors(path)
    try:
        rows = [Row(**row) for row in json.loads(metadata["otmd"])["rows"]]
        target, draft = arrays["target_logits"], arrays["draft_logits"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is no shard of otmd ({error!r})") from error
    shape = target.raw.shape
    if len(shape) != 2 or shape[0] != len(rows) or draft.raw.shape != shape:
        raise DatasetError(
            f"{path} is no shard of otmd: it has logits of shapes {shape} and {draft.raw.shape} for "
            f"{len(rows)} rows"
        )
    return Shard(path, sha256, rows, target, draft)


SHARDS = Layout(
    read_shard, ".safetensors", r"\d{6}-[0-9a-f]{16}", RECORD, MANIFEST, argument="folder"
)


def read_texts(path: Path) -> list[dict[str, Any]]:
    """Token sequences of a shard (see :func:`write_shard`), or DatasetError if otmd did not write it."""
    try:
        return json.loads(read_safetensors(path)[1]["otmd"])["texts"]
    except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise DatasetError(f"{path} is no shard of otmd ({error!r})") from error


def write_manifest(folder: Path, shards: Sequence[Shard], metadata: dict[str, Any]) -> None:
    """Derive the manifest from the shards and write it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {**asdict(row), "shard": shard.path.name, "row": index}
        for shard in shards
        for index, row in enumerate(shard.rows)
    ]
    entries = [
        {"name": s.path.name, "bytes": s.path.stat().st_size, "sha256": s.sha256} for s in shards
    ]
    about = json.dumps({"metadata": metadata, "shards": entries})
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"otmd": about})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomically(folder / MANIFEST, sink.getvalue().to_pybytes())


def read_manifest(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The shards of a folder, and how the data set was made; DatasetError if the manifest is torn."""
    path = folder / MANIFEST
    try:
        about = json.loads(read_metadata(path)[b"otmd"])
        return _check_shards(about["shards"]), dict(about["metadata"])
    except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise DatasetError(
            f"{path} is torn or was not written by otmd ({one_line(error)}); call collect again, which "
            "makes it anew from the shards"
        ) from error


def _check_shards(shards: Any) -> list[dict[str, Any]]:
    """Return the entries, or raise ValueError; a name must not lead out of the folder."""
    kinds = {"name": str, "bytes": int, "sha256": str}
    if not isinstance(shards, list) or not shards:
        raise ValueError("it has no shards")
    for shard in shards:
        sound = isinstance(shard, dict) and all(
            isinstance(shard.get(key), kind) for key, kind in kinds.items()
        )
        if not sound or _NAME.fullmatch(shard["name"]) is None:
            raise ValueError(f"no entry of a shard: {shard!s:.80}")
    return shards
