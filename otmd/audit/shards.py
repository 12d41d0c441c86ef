"""Shards: a folder of safetensors files with whole rows, each file written whole or not at all."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otmd.probabilities import wrong
from otmd.storage.arrays import read_safetensors
from otmd.storage.files import parse_json, shortened, write_atomically

# The largest vocabulary that is read.
MOST_NUMBERS = 1 << 22
MOST_ROWS_OF_SHARD = 4096
# Characters of the fields of a row that are no arrays, a thousand drafts included.
_MOST_CHARACTERS = 20_000
_LAW, _FIELDS = "otmd_law", "otmd_fields"
_PATTERN = "rows-*.safetensors"
_CODES = {np.dtype("<u2"): "BF16"} | {
    np.dtype(f"<{kind.lower()}{size}"): f"{kind}{8 * size}" for kind in "FI" for size in (2, 4, 8)
}


def shards_of(folder: Path) -> list[Path]:
    """The shards of a folder in order; ValueError if one is missing."""
    shards = sorted(folder.glob(_PATTERN))
    for number, shard in enumerate(shards):
        if shard.name != _name(number):
            raise wrong(folder, shard.name, f"{_name(number)} before it")
        if not shard.is_file():
            raise wrong(shard, "no regular file", "one")
    return shards


def _name(number: int) -> str:
    return f"rows-{number:05}.safetensors"


def write_shard(folder: Path, number: int, law: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with the name of their law; an array is a tensor with the name ``17.target_logits``."""
    tensors = {
        f"{index}.{name}": _stored(value)
        for index, row in enumerate(rows)
        for name, value in row.items()
        if isinstance(value, np.ndarray)
    }
    others = [
        {name: value for name, value in row.items() if not isinstance(value, np.ndarray)}
        for row in rows
    ]
    metadata = {_LAW: law, _FIELDS: json.dumps(others)}
    write_atomically(folder / _name(number), _in_safetensors(tensors, metadata))


def _stored(array: NDArray) -> NDArray:
    """The array in a type of the format: float32 that are all of bfloat16 as their upper 16 bits."""
    if array.dtype not in _CODES or array.dtype.kind == "u":
        return array.astype("<f8" if array.dtype.kind == "f" else "<i8")
    bits = array.view(np.uint32) if array.dtype == np.float32 else None
    return array if bits is None or (bits & 0xFFFF).any() else (bits >> 16).astype("<u2")


def _in_safetensors(tensors: dict[str, NDArray], metadata: dict[str, str]) -> bytes:
    """The content of a file: the length of a header of JSON, the header, and the tensors without gaps."""
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    # In descending order of the sizes of their numbers, all are aligned.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    for name, tensor in ordered:
        end = start + tensor.nbytes
        code = _CODES[tensor.dtype]
        header[name] = {"dtype": code, "shape": [*tensor.shape], "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = [tensor.tobytes() for _, tensor in ordered]
    return b"".join([len(text).to_bytes(8, "little"), text, *content])


def law_of_shards(folder: Path) -> str:
    """The name of the law that the recorder was given."""
    return read_safetensors(_some_shards(folder)[0])[1].get(_LAW, "")


def _some_shards(folder: Path) -> list[Path]:
    shards = shards_of(folder)
    if not shards:
        raise wrong(folder, "a folder without rows", f"one with {_PATTERN}")
    return shards


def rows_of_shards(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a folder with their numbers from 1; arrays are memory-mapped, a shard at a time."""
    number = 0
    for shard in _some_shards(folder):
        arrays, metadata = read_safetensors(shard)
        rows = _fields_of(shard, metadata)
        tensors: list[dict[str, Any]] = [{} for _ in rows]
        for name, array in arrays.items():
            index, _, field = name.partition(".")
            size = array.raw.shape[0] if array.raw.ndim == 1 else 0
            is_row = index.isdecimal() and len(index) < 6 and int(index) < len(rows)
            if not is_row or field in rows[int(index)] or not 1 <= size <= MOST_NUMBERS:
                expected = f"a vector of at most {MOST_NUMBERS} numbers of one of {len(rows)} rows"
                raise wrong(f"{shard}: {shortened(name)}", f"shape {array.raw.shape}", expected)
            tensors[int(index)][field] = array
        for row, stored in zip(rows, tensors, strict=True):
            number += 1
            yield number, row | {name: array.rows(slice(None)) for name, array in stored.items()}


def _fields_of(shard: Path, metadata: dict[str, str]) -> list[dict[str, Any]]:
    """For each row of a shard, the fields that are no arrays."""
    text = metadata.get(_FIELDS, "")
    if len(text) > _MOST_CHARACTERS * MOST_ROWS_OF_SHARD:
        raise wrong(shard, f"fields of {len(text)} characters", "fewer")
    try:
        rows = parse_json(text)
    except ValueError as error:
        raise wrong(shard, f"fields that are no JSON ({error})", "a list of rows") from error
    is_list = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    if not is_list or len(rows) > MOST_ROWS_OF_SHARD:
        raise wrong(shard, "other fields", f"a list of at most {MOST_ROWS_OF_SHARD} rows")
    return rows
