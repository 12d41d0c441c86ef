"""Arrays in safetensors and npz files, as a data set stores them."""

import zipfile
from pathlib import Path

import numpy as np

from otmd import stored_arrays
from otmd.harness.errors import DatasetError
from otmd.stored_arrays import StoredArray, TornFileError


def read_safetensors(path: Path) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Map every array of a safetensors file, and read its text metadata.

    Raises
    ------
    DatasetError
        If the file is cut short or is no safetensors file.
    ValueError
        If an array is of a type that is not read.
    """
    try:
        return stored_arrays.read_safetensors(path)
    except TornFileError as error:
        raise DatasetError(str(error)) from error


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
