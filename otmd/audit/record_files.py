"""The rows of a recorded run in a file, as they are: JSON lines, Parquet or safetensors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from otmd.probabilities import wrong
from otmd.storage.arrays import read_safetensors
from otmd.storage.files import parse_json, shortened
from otmd.storage.parquet import read_batches

# Bytes of a line of JSON: two full rows of 500,000 tokens, with 30 digits each.
LONGEST_LINE = 32 << 20
# Brackets, colons and quotes of a line: each may become a Python object. A sound row has a few dozen.
_MOST_MARKS = 10_000
# The largest vocabulary that is read.
MOST_NUMBERS = 1 << 22
# Endings of the names of fields that hold lists of numbers.
_VECTORS = ("logits", "probs", "ids", "tokens")


def rows_of_file(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file with their numbers from 1, a few at a time; ValueError for a bad file."""
    readers = {
        ".jsonl": _rows_of_json_lines,
        ".parquet": _rows_of_parquet,
        ".safetensors": _rows_of_safetensors,
    }
    if path.suffix not in readers:
        raise wrong(path, f"a {path.suffix!r} file", f"one of {', '.join(readers)}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise wrong(path, "no regular file (a pipe, a device or a folder)", "one")
    return readers[path.suffix](path)


def _rows_of_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines that are not blank. One longer than :data:`LONGEST_LINE` is refused before it is read in full."""
    with path.open("rb") as stream:
        lines = iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            name = f"{path}: row {number}"
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{name}: got a line of more than {LONGEST_LINE} bytes")
            if not line.strip():
                continue
            try:
                if sum(line.count(mark) for mark in b'[{:"') > _MOST_MARKS:
                    raise ValueError(f"more than {_MOST_MARKS} brackets, colons and quotes")
                row = parse_json(line)
            except ValueError as error:
                fault = "malformed" if line.endswith(b"\n") else "cut short"
                raise ValueError(f"{name}: no JSON, {fault} ({error})") from error
            if not isinstance(row, dict):
                raise wrong(name, type(row).__name__, "a JSON object with the fields")
            yield number, row


def _rows_of_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each column is a field. Fields with a number for each token are columns of lists."""
    number = 0
    for batch in read_batches(path):
        for row in zip(*batch.values(), strict=True):
            number += 1
            yield (
                number,
                {name: _value(name, scalar) for name, scalar in zip(batch, row, strict=True)},
            )


def _value(name: str, scalar: Any) -> Any:
    """Convert an Arrow scalar: a list to an array, which may hold objects, others to a Python value."""
    if not (scalar.is_valid and "list" in str(scalar.type).partition("<")[0]):
        return scalar.as_py()
    array = scalar.values.to_numpy(zero_copy_only=False)
    if scalar.values.null_count and name.endswith("logits") and array.dtype.kind == "f":
        array = np.where(scalar.values.is_null().to_numpy(zero_copy_only=False), -np.inf, array)
    return array


def _rows_of_safetensors(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each array is a field, with the rows as its first axis. Arrays are memory-mapped, not loaded."""
    arrays, _ = read_safetensors(path)
    for name, array in arrays.items():
        axes = 2 if name.endswith(_VECTORS) else 1
        shape = array.raw.shape
        if len(shape) != axes or (axes == 2 and not 1 <= shape[1] <= MOST_NUMBERS):
            expected = f"(N, V) with V at most {MOST_NUMBERS}" if axes == 2 else "(N,)"
            raise wrong(f"{path}: {shortened(name)}", f"shape {shape}", expected)
    lengths = {name: len(array.raw) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise wrong(path, f"arrays with {lengths} rows", "equally many")
    for row in range(next(iter(lengths.values()), 0)):
        yield row + 1, {name: array.rows(row) for name, array in arrays.items()}
