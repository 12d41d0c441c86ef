"""Files of recorded rows: JSON Lines, Parquet, safetensors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otmd.audit.records import (
    BFLOAT16_TOLERANCE,
    FIELDS,
    MOST_NUMBERS,
    VECTORS,
    RecordedNumbers,
    wrong,
)
from otmd.storage.errors import named
from otmd.storage.parquet import read_batches
from otmd.storage.safetensors import StoredArray, read_safetensors

LONGEST_LINE = 32 << 20
"""Bytes of a line of JSON: two full rows of 500,000 tokens, with 30 digits each."""
# Each may become an object; a row has a few dozen of its own.
_MOST_PARTS = 10_000


def rows_of_file(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file with their numbers from 1, a few at a time.

    Raises ValueError for what is no regular file, another suffix, or a malformed file.
    """
    readers = {
        ".jsonl": _rows_of_json_lines,
        ".parquet": _rows_of_parquet,
        ".safetensors": _rows_of_safetensors,
    }
    if path.suffix not in readers:
        raise wrong(path, f"a {path.suffix!r} file", f"one of {', '.join(readers)}")
    if path.exists() and not path.is_file():
        raise wrong(path, "no regular file (a pipe, a device or a folder)", "one")
    return readers[path.suffix](path)


def _rows_of_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines that are not blank. A longer line than :data:`LONGEST_LINE` is refused before it is read."""
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                told = f"got a line of more than {LONGEST_LINE} bytes"
                raise ValueError(f"{path}: row {number}: {told}")
            if line.strip():
                yield number, _parsed(path, number, line)


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        if sum(line.count(mark) for mark in b'[{:"') > _MOST_PARTS:
            raise ValueError(f"more than {_MOST_PARTS} brackets, colons and quotes")
        row = json.loads(line, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        what = "cut short" if not line.endswith(b"\n") else "malformed"
        raise ValueError(f"{path}: row {number}: no JSON, {what} ({error})") from error
    if not isinstance(row, dict):
        told = "a JSON object with the fields"
        raise wrong(f"{path}: row {number}", type(row).__name__, told)
    return row


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {named(twice)} stands there twice")
    return row


def _rows_of_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """One column a field, lists for what has a number for each token."""
    number = 0
    for batch in read_batches(path):
        if number == 0:
            _check_types(path, batch)
        for own in range(len(next(iter(batch.values()), ()))):
            number += 1
            yield number, {name: _value(column[own]) for name, column in batch.items()}


def _value(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    is_list = hasattr(scalar, "values")
    return scalar.values.to_numpy(zero_copy_only=False) if is_list else scalar.as_py()


def _check_types(path: Path, columns: dict[str, Any]) -> None:
    from pyarrow import types

    for name, column in columns.items():
        kind, wanted = column.type, "a number"
        if name not in FIELDS:
            raise wrong(f"{path}: {named(name)}", "an unknown field", ", ".join(FIELDS))
        if name.endswith(VECTORS):
            wanted = "a list of numbers"
            lists = types.is_list, types.is_large_list, types.is_fixed_size_list
            kind = kind.value_type if any(own(kind) for own in lists) else None
        fits = kind is not None and (types.is_integer(kind) or types.is_floating(kind))
        if name == "request":
            wanted = "a number or a text"
            fits = fits or types.is_string(kind) or types.is_large_string(kind)
        # A column of nulls alone has no type of its own.
        if not fits and not types.is_null(column.type):
            raise wrong(f"{path}: {name}", f"type {column.type}", wanted)


def _rows_of_safetensors(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """One array a field, its first axis the rows; arrays are mapped, not loaded."""
    arrays, _ = read_safetensors(path)
    for name, array in arrays.items():
        axes, shape = (2 if name.endswith(VECTORS) else 1), array.raw.shape
        if len(shape) != axes or (axes == 2 and not 1 <= shape[1] <= MOST_NUMBERS):
            wanted = f"(N, V) with V at most {MOST_NUMBERS}" if axes == 2 else "(N,)"
            raise wrong(f"{path}: {named(name)}", f"shape {shape}", wanted)
    lengths = {name: len(array.raw) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise wrong(path, f"arrays with {lengths} rows", "equally many")
    for row in range(next(iter(lengths.values()), 0)):
        yield row + 1, {name: _stored(array, row) for name, array in arrays.items()}


def _stored(array: StoredArray, row: int) -> Any:
    own = array.rows(row)
    return RecordedNumbers(own, BFLOAT16_TOLERANCE) if array.bfloat16 and own.ndim else own
