"""Read npz and npy files of unknown origin: no pickles, and no array that unpacks to more than it says."""

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from otmd.storage.errors import DatasetError, named, one_line

MOST_UNPACKED = 1 << 30
"""Bytes by which the unpacked arrays may exceed the file: a small crafted file can claim any size."""
_MOST_ARRAYS = 1000
_KINDS = "biufUS"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Load every array of an npz file.

    DatasetError if it is torn or no npz file; ValueError for pickled objects, or more than it may unpack
    to.
    """
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} is torn or no npz file (it is no zip archive)")
    try:
        # Opened here, since zipfile leaves a torn file open.
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            return _arrays(path, archive)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        # Of zipfile: a compression that it lacks, or a password that is wanted.
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise DatasetError(f"{path} is torn or no npz file ({error})") from error


def read_npy(path: Path) -> np.ndarray:
    """Load the array of an npy file; errors as of :func:`read_npz`."""
    with path.open("rb") as stream:
        return _array(str(path), stream, path.stat().st_size)


def _arrays(path: Path, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if len(members) > _MOST_ARRAYS or unpacked > path.stat().st_size + MOST_UNPACKED:
        raise ValueError(
            f"{path}: got {len(members)} arrays of {unpacked} bytes in a file of {path.stat().st_size}, "
            f"wanted at most {_MOST_ARRAYS} of {MOST_UNPACKED} bytes more than the file: store them "
            "uncompressed (numpy.savez) or as safetensors"
        )
    arrays = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as packed:
            arrays[name] = _array(f"{path}: {named(name)}", packed, member.file_size)
    return arrays


def _array(name: str, packed: IO[bytes], size: int) -> np.ndarray:
    try:
        version = np.lib.format.read_magic(packed)
        if version not in _HEADERS:
            raise ValueError(f"format {version}")
        shape, _, dtype = _HEADERS[version](packed)
    except (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as error:
        raise DatasetError(f"{name}: torn, or no array ({one_line(error)})") from error
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        raise ValueError(f"{name}: got dtype {dtype}, wanted numbers or texts (no allow_pickle)")
    if min(shape, default=0) < 0 or packed.tell() + dtype.itemsize * math.prod(shape) != size:
        raise DatasetError(f"{name}: torn: it has {size} bytes for {dtype} of shape {shape}")
    packed.seek(0)
    return np.lib.format.read_array(packed, allow_pickle=False)
