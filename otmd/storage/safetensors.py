"""Map the arrays of a safetensors file of unknown origin.

The safetensors library checks the header against the file. Its own reader for NumPy lacks bfloat16 and copies
whole arrays, so the arrays are mapped here.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from otmd.storage.errors import DatasetError, named, one_line

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
LONGEST_HEADER = 32 << 20
"""Bytes of a header: every array it names becomes a Python object."""
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

    DatasetError if the file is torn, ValueError for an array of a type that is not read.
    """
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if LONGEST_HEADER < length < path.stat().st_size:
        raise DatasetError(
            f"{path}: got a header of {length} bytes, wanted at most {LONGEST_HEADER}"
        )
    try:
        with safe_open(path, "numpy") as stored:
            slices = [(name, stored.get_slice(name)) for name in stored.offset_keys()]
            found = [(name, each.get_dtype(), each.get_shape()) for name, each in slices]
            metadata = stored.metadata() or {}
    except SafetensorError as error:
        said = one_line(error)[:200]
        raise DatasetError(f"{path}: torn, or no safetensors file ({said})") from error
    arrays, at, whole = {}, 8 + length, np.memmap(path, np.uint8, "r")
    for name, kind, shape in found:
        if kind not in DTYPES:
            said = f"got type {named(kind)}, wanted one of {list(DTYPES)}"
            raise ValueError(f"{path}: {named(name)}: {said}")
        if len(shape) > 4 or max(shape, default=0) > _LONGEST_AXIS:
            raise DatasetError(f"{path}: {named(name)}: has too many axes, or too long ones")
        dtype = np.dtype(DTYPES[kind])
        # The library refuses gaps, so each array begins where the one before it ends.
        end = at + dtype.itemsize * math.prod(shape)
        raw = whole[at:end].view(dtype).reshape(shape)
        arrays[name], at = StoredArray(raw, kind == "BF16"), end
    return arrays, metadata
