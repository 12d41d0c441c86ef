"""Arrays in safetensors and npz files, as a data set stores them."""

from pathlib import Path

from otmd.harness.errors import DatasetError
from otmd.storage import npz, safetensors
from otmd.storage.errors import TornFileError
from otmd.storage.safetensors import StoredArray


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
        return safetensors.read_safetensors(path)
    except TornFileError as error:
        raise DatasetError(str(error)) from error


def read_npz(path: Path) -> dict[str, StoredArray]:
    """Load every array of an npz file; pickled objects are refused.

    Raises
    ------
    DatasetError
        If the file is cut short or is no npz file.
    ValueError
        If it holds pickled objects, or unpacks to far more than its own size.
    """
    try:
        return {name: StoredArray(array) for name, array in npz.read_npz(path).items()}
    except TornFileError as error:
        raise DatasetError(str(error)) from error
