"""Recorded rows from safetensors: one array a field, its first axis the rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from otmd.audit.records_values import MOST_NUMBERS, RecordedNumbers
from otmd.storage.errors import named
from otmd.storage.safetensors import StoredArray, read_safetensors

VECTORS = ("logits", "probs", "ids", "tokens")
_BFLOAT16_TOLERANCE = float(np.sqrt(2.0**-7))


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file, with their numbers from 1; arrays are mapped, not loaded.

    Raises
    ------
    ValueError
        For a file that is cut short or lies about its size, or arrays that are not as long as each other.
    """
    arrays, _ = read_safetensors(path)
    for name, array in arrays.items():
        _check_shape(path, name, array)
    lengths = {name: len(array.raw) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: got arrays with {lengths} rows, wanted equally many")
    for row in range(next(iter(lengths.values()), 0)):
        yield row + 1, {name: _value(array, row) for name, array in arrays.items()}


def _value(array: StoredArray, row: int) -> Any:
    own = array.rows(row)
    return RecordedNumbers(own, _BFLOAT16_TOLERANCE) if array.bfloat16 and own.ndim else own


def _check_shape(path: Path, name: str, array: StoredArray) -> None:
    axes = 2 if name.endswith(VECTORS) else 1
    if array.raw.ndim != axes or (axes == 2 and not 1 <= array.raw.shape[1] <= MOST_NUMBERS):
        wanted = f"(N, V) with V at most {MOST_NUMBERS}" if axes == 2 else "(N,)"
        raise ValueError(f"{path}: {named(name)}: got shape {array.raw.shape}, wanted {wanted}")
