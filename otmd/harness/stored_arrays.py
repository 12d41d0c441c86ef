"""Arrays in safetensors and npz files, read row by row."""

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otmd.harness.errors import DatasetError

DTYPES = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True)
class StoredArray:
    """An array on disk.

    Attributes
    ----------
    raw : array
        Memory-mapped where the file allows it; bfloat16 as its 16 bits.
    bfloat16 : bool
        Whether it is bfloat16, which NumPy does not have.
    """

    raw: np.ndarray
    bfloat16: bool = False

    @property
    def dtype(self) -> str:
        """Name of the type as stored."""
        return "bfloat16" if self.bfloat16 else str(self.raw.dtype)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Read these rows; bfloat16 comes as the float32 of equal value."""
        taken = np.asarray(self.raw[indices])
        if not self.bfloat16:
            return taken
        return (taken.astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path: Path) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Map every array of a safetensors file, and read its text metadata.

    Raises
    ------
    DatasetError
        If the file is cut short or is no safetensors file.
    ValueError
        If an array is of a type that no distribution is stored in.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise DatasetError(f"{path} is torn or no safetensors file")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            metadata = header.pop("__metadata__", {})
            entries = {name: _Entry.of(value) for name, value in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DatasetError(f"{path} is torn or no safetensors file ({error})") from error
    if 8 + length + max((entry.end for entry in entries.values()), default=0) != size:
        raise DatasetError(f"{path} is torn: its header speaks of another size than it has")
    arrays = {}
    for name, entry in entries.items():
        if entry.dtype not in DTYPES:
            raise ValueError(f"{path}: {name} is {entry.dtype}, wanted one of {list(DTYPES)}")
        arrays[name] = _map(path, entry, 8 + length)
    return arrays, metadata


@dataclass(frozen=True)
class _Entry:
    """What a safetensors header says of one array."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @classmethod
    def of(cls, value: dict[str, Any]) -> "_Entry":
        begin, end = map(int, value["data_offsets"])
        entry = cls(str(value["dtype"]), tuple(map(int, value["shape"])), begin, end)
        if min(*entry.shape, begin, end, 0) < 0:
            raise ValueError(f"got negative numbers in {value}")
        return entry


def _map(path: Path, entry: _Entry, start: int) -> StoredArray:
    dtype, bfloat16 = np.dtype(DTYPES[entry.dtype]), entry.dtype == "BF16"
    if 0 in entry.shape:
        return StoredArray(np.empty(entry.shape, dtype), bfloat16)
    if entry.end - entry.begin != dtype.itemsize * math.prod(entry.shape):
        raise DatasetError(f"{path} is torn: an array's bytes do not fit its shape {entry.shape}")
    raw = np.memmap(path, dtype=dtype, mode="r", offset=start + entry.begin, shape=entry.shape)
    return StoredArray(raw, bfloat16)


def read_npz(path: Path) -> dict[str, StoredArray]:
    """Load every array of an npz file; pickled objects are refused.

    Raises
    ------
    DatasetError
        If the file is cut short or is no npz file.
    ValueError
        If it holds pickled objects.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise DatasetError(f"{path} is torn or no npz file (it is no zip archive)")
        # Opened here, since NumPy leaves a torn file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: StoredArray(stored[name]) for name in stored.files}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise DatasetError(f"{path} is torn or no npz file ({error})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
