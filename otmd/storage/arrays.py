"""Read npz, npy and safetensors files of unknown origin: no pickles, no more unpacked than files may hold."""

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from otmd.storage.files import DatasetError, one_line, parse_json, refuse_repeated, shortened

MOST_UNPACKED = 1 << 30
"""Bytes by which the unpacked arrays of a file may exceed it: a small crafted file can claim any size."""
_MOST_ARRAYS = 1000
_KINDS = "biufUS"
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The type of arrays of bfloat16, which NumPy lacks: its 16 bits as a named field."""
# Errors of zipfile (the last two for an unknown compression and a missing password), and of numpy's headers.
_TORN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)
_NO_ARRAY = (*_TORN, ValueError, TypeError, SyntaxError, MemoryError, tokenize.TokenError)
_DTYPES = {"BF16": BFLOAT16, "U8": np.dtype("u1")} | {
    f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "FI" for size in (2, 4, 8)
}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Load every array of an npz file; DatasetError unless it holds numbers and texts alone."""
    try:
        # Opened here, since zipfile leaves a torn file open.
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            size = path.stat().st_size
            unpacked = sum(member.file_size for member in members)
            if len(members) > _MOST_ARRAYS or unpacked > size + MOST_UNPACKED:
                raise DatasetError(
                    f"{path}: got {len(members)} arrays of {unpacked} bytes in a file of {size}, expected at "
                    f"most {_MOST_ARRAYS} of {MOST_UNPACKED} bytes more than the file: store them "
                    "uncompressed (numpy.savez) or as safetensors"
                )
            names = [member.filename.removesuffix(".npy") for member in members]
            refuse_repeated(names, path)
            return {
                name: _read_array(f"{path}: {shortened(name)}", archive.open(member))
                for name, member in zip(names, members, strict=True)
            }
    except DatasetError:
        raise
    except (*_TORN, ValueError) as error:
        raise DatasetError(f"{path} is torn or no npz file ({one_line(error)})") from error


def read_npy(path: Path) -> np.ndarray:
    """Load the array of an npy file; errors as for :func:`read_npz`."""
    return _read_array(str(path), path.open("rb"))


def _read_array(name: str, stream: IO[bytes]) -> np.ndarray:
    try:
        with stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
    except _NO_ARRAY as error:
        raise DatasetError(f"{name}: torn, or no array ({one_line(error)})") from error
    if array.dtype.kind not in _KINDS or array.dtype.itemsize == 0:
        raise DatasetError(f"{name}: got dtype {array.dtype}, expected numbers or texts")
    return array


def as_numbers(rows: np.ndarray) -> np.ndarray:
    """The same rows, but float32 of equal values for :data:`BFLOAT16`."""
    if rows.dtype != BFLOAT16:
        return rows
    return (rows["bfloat16"].astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Map every array of a safetensors file, and read its text metadata; errors as for :func:`read_npz`.

    The safetensors library checks the header. Its reader for NumPy lacks bfloat16 and copies all of an array.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as stored:
            slices = [(name, stored.get_slice(name)) for name in stored.offset_keys()]
            entries = [(name, part.get_dtype(), part.get_shape()) for name, part in slices]
            metadata = stored.metadata() or {}
        content = np.memmap(path, np.uint8, "r")
        # A header behind its length in 8 bytes. The library refuses gaps, so each array begins where the
        # one before it ends.
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        # The library keeps the last of two keys of one name.
        parse_json(content[8:start].tobytes())
    except (SafetensorError, ValueError) as error:
        reason = one_line(error)[:200]
        raise DatasetError(f"{path}: torn, or no safetensors file ({reason})") from error
    arrays = {}
    for name, kind, shape in entries:
        if kind not in _DTYPES or len(shape) > 4 or max(shape, default=0) > 1 << 48:
            raise DatasetError(
                f"{path}: {shortened(name)}: got type {shortened(kind)} with {len(shape)} axes, expected one "
                f"of {', '.join(_DTYPES)} with at most 4, none too long"
            )
        end = start + _DTYPES[kind].itemsize * math.prod(shape)
        arrays[name] = content[start:end].view(_DTYPES[kind]).reshape(shape)
        start = end
    return arrays, metadata
