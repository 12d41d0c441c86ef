"""Map the arrays of a safetensors file of unknown origin: its header is checked against the file."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from otmd.storage.errors import DatasetError, named

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "U8": "u1",
}
# Limits of a header, since two characters of JSON can become a Python object of 56 bytes.
LONGEST_HEADER = 32 << 20
MOST_BRACKETS = 1 << 20
_LONGEST_AXIS = 1 << 48


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array on disk: ``raw`` is memory-mapped, bfloat16 (which NumPy does not have) as its 16 bits."""

    raw: np.ndarray
    bfloat16: bool = False

    @property
    def dtype(self) -> str:
        """Name of the type as stored."""
        return "bfloat16" if self.bfloat16 else str(self.raw.dtype)

    def rows(self, indices: np.ndarray | int) -> np.ndarray:
        """Read these rows; bfloat16 comes as the float32 of equal value."""
        taken = np.asarray(self.raw[indices])
        if not self.bfloat16:
            return taken
        return (taken.astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path: Path) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Map every array of a safetensors file, and read its text metadata.

    Raises DatasetError if the file is cut short, or its header is too long or does not fit it; ValueError if
    an array is of a type that is not read.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise DatasetError(f"{path}: torn, or no safetensors file")
        if length > LONGEST_HEADER:
            raise DatasetError(
                f"{path}: got a header of {length} bytes, wanted at most {LONGEST_HEADER}"
            )
        header = stream.read(length)
    entries, metadata = _parse_header(path, header)
    _check_places(path, entries, size - 8 - length)
    return {name: _map(path, name, entry, 8 + length) for name, entry in entries.items()}, metadata


class _Entry(NamedTuple):
    """What a safetensors header says of one array."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _entry(value: dict[str, Any]) -> _Entry:
    begin, end = map(int, value["data_offsets"])
    entry = _Entry(str(value["dtype"]), tuple(map(int, value["shape"])), begin, end)
    if min(*entry.shape, begin, end, 0) < 0 or len(entry.shape) > 4:
        raise ValueError("an array has negative numbers or too many axes")
    if max(*entry.shape, 0, 0) > _LONGEST_AXIS:
        raise ValueError(f"an array has an axis longer than {_LONGEST_AXIS}")
    return entry


def _parse_header(path: Path, header: bytes) -> tuple[dict[str, _Entry], dict[str, str]]:
    try:
        if header.count(b"[") + header.count(b"{") > MOST_BRACKETS:
            raise ValueError(f"more than {MOST_BRACKETS} brackets")
        found: dict[str, Any] = json.loads(header)
        metadata = found.pop("__metadata__", {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata are no texts")
        entries = {name: _entry(value) for name, value in found.items()}
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise DatasetError(
            f"{path}: torn, or no safetensors file: its header cannot be read ({error})"
        ) from error
    return entries, metadata


def _check_places(path: Path, entries: dict[str, _Entry], size: int) -> None:
    """Raise DatasetError unless the arrays lie one behind the other and fill the file."""
    at = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at:
            raise DatasetError(f"{path}: torn: its arrays overlap or leave gaps")
        at = entry.end
    if at != size:
        raise DatasetError(f"{path}: torn: its header speaks of another size than it has")


def _map(path: Path, name: str, entry: _Entry, start: int) -> StoredArray:
    if entry.dtype not in DTYPES:
        raise ValueError(
            f"{path}: {named(name)}: got type {named(entry.dtype)}, wanted one of {list(DTYPES)}"
        )
    dtype, bfloat16 = np.dtype(DTYPES[entry.dtype]), entry.dtype == "BF16"
    if entry.end - entry.begin != dtype.itemsize * math.prod(entry.shape):
        raise DatasetError(
            f"{path}: torn: {named(name)} has {entry.end - entry.begin} bytes for the shape {entry.shape}"
        )
    if 0 in entry.shape:
        return StoredArray(np.empty(entry.shape, dtype), bfloat16)
    raw = np.memmap(path, dtype=dtype, mode="r", offset=start + entry.begin, shape=entry.shape)
    return StoredArray(raw, bfloat16)
