"""Read npz, npy and safetensors files of unknown origin: no pickles, no array larger than its file allows."""

import math
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from otmd.storage.files import DatasetError, one_line, shortened

MOST_UNPACKED = 1 << 30
"""Bytes by which the unpacked arrays of a file may exceed it: a small crafted file can claim any size."""
_MOST_ARRAYS = 1000
_KINDS = "biufUS"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Zipfile raises the last two for an unknown compression or a missing password.
_TORN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)
_DTYPES = {"BF16": "<u2", "U8": "u1"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "FI" for size in (2, 4, 8)
}
# Bytes of a safetensors header: every array that it names becomes a Python object.
_LONGEST_HEADER = 32 << 20
_LONGEST_AXIS = 1 << 48


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Load every array of an npz file.

    DatasetError if it is torn or not an npz file; ValueError for pickled objects or too much unpacked data.
    """
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} is torn or no npz file (it is no zip archive)")
    try:
        # Opened here, since zipfile leaves a torn file open.
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            members, size = archive.infolist(), path.stat().st_size
            unpacked = sum(member.file_size for member in members)
            if len(members) > _MOST_ARRAYS or unpacked > size + MOST_UNPACKED:
                raise ValueError(
                    f"{path}: got {len(members)} arrays of {unpacked} bytes in a file of {size}, expected at "
                    f"most {_MOST_ARRAYS} of {MOST_UNPACKED} bytes more than the file: store them "
                    "uncompressed (numpy.savez) or as safetensors"
                )
            arrays = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                with archive.open(member) as packed:
                    arrays[name] = _array(f"{path}: {shortened(name)}", packed, member.file_size)
            return arrays
    except _TORN as error:
        raise DatasetError(f"{path} is torn or no npz file ({error})") from error


def read_npy(path: Path) -> np.ndarray:
    """Load the array of an npy file; errors as for :func:`read_npz`."""
    with path.open("rb") as stream:
        return _array(str(path), stream, path.stat().st_size)


def _array(name: str, packed: IO[bytes], size: int) -> np.ndarray:
    try:
        version = np.lib.format.read_magic(packed)
        if version not in _HEADERS:
            raise ValueError(f"format {version}")
        shape, _, dtype = _HEADERS[version](packed)
    except (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as error:
        raise DatasetError(f"{name}: torn, or no array ({one_line(error)})") from error
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise ValueError(f"{name}: got dtype {dtype}, expected numbers or texts (no allow_pickle)")
    if min(shape, default=0) < 0 or packed.tell() + dtype.itemsize * math.prod(shape) != size:
        raise DatasetError(f"{name}: torn: it has {size} bytes for {dtype} of shape {shape}")
    packed.seek(0)
    return np.lib.format.read_array(packed, allow_pickle=False)


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array on disk. ``raw`` is memory-mapped; it has the 16 bits of a bfloat16, which NumPy lacks."""

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
    """Map every array of a safetensors file, and read its text metadata; errors as for :func:`read_npz`.

    The safetensors library checks the header. Its reader for NumPy lacks bfloat16 and copies whole arrays.
    """
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if _LONGEST_HEADER < length < path.stat().st_size:
        raise DatasetError(
            f"{path}: got a header of {length} bytes, expected at most {_LONGEST_HEADER}"
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
        if kind not in _DTYPES:
            said = f"got type {shortened(kind)}, expected one of {list(_DTYPES)}"
            raise ValueError(f"{path}: {shortened(name)}: {said}")
        if len(shape) > 4 or max(shape, default=0) > _LONGEST_AXIS:
            raise DatasetError(f"{path}: {shortened(name)}: has too many axes, or too long ones")
        dtype = np.dtype(_DTYPES[kind])
        # The library refuses gaps, so each array begins where the one before it ends.
        end = at + dtype.itemsize * math.prod(shape)
        raw = whole[at:end].view(dtype).reshape(shape)
        arrays[name], at = StoredArray(raw, kind == "BF16"), end
    return arrays, metadata
