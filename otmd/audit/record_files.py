"""Files of recorded rows: JSON Lines, Parquet, safetensors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otmd.audit.records import (
    BFLOAT16_TOLERANCE,
    FIELDS,
    MOST_NUMBERS,
    MOST_ROWS,
    VECTORS,
    RecordedNumbers,
)
from otmd.storage.errors import named, one_line
from otmd.storage.parquet import ROWS_AT_ONCE, open_parquet
from otmd.storage.safetensors import StoredArray, read_safetensors

LONGEST_LINE = 32 << 20
"""Bytes of a line of JSON: two full rows of 500,000 tokens, with 30 digits each."""
# Each may become an object; a row has a few dozen of its own.
_MOST_PARTS = 10_000


def rows_of_file(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file with their numbers from 1, a few at a time.

    Raises
    ------
    ValueError
        For what is no regular file, another suffix, or a malformed file.
    """
    readers = {
        ".jsonl": _rows_of_json_lines,
        ".parquet": _rows_of_parquet,
        ".safetensors": _rows_of_safetensors,
    }
    if path.suffix not in readers:
        raise ValueError(f"{path}: got a {path.suffix!r} file, wanted one of {', '.join(readers)}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: got no regular file (a pipe, a device or a folder), wanted one")
    return readers[path.suffix](path)


def _rows_of_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines that are not blank. A longer line than :data:`LONGEST_LINE` is refused before it is read."""
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(
                    f"{path}: row {number}: got a line of more than {LONGEST_LINE} bytes"
                )
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
        raise ValueError(
            f"{path}: row {number}: got {type(row).__name__}, wanted a JSON object with the fields"
        )
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
    from pyarrow import ArrowException

    number = 0
    try:
        with open_parquet(path) as stored:
            _check_columns(path, stored)
            for batch in stored.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
                for own in range(batch.num_rows):
                    number += 1
                    row = {name: _value(batch.column(name)[own]) for name in batch.schema.names}
                    yield number, row
    except (ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(
            f"{path}: row {number + 1}: cut short, or no Parquet file ({one_line(error)})"
        ) from error


def _value(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    return (
        scalar.values.to_numpy(zero_copy_only=False)
        if hasattr(scalar, "values")
        else scalar.as_py()
    )


def _check_columns(path: Path, stored: Any) -> None:
    from pyarrow import types

    def is_number(kind: Any) -> bool:
        return types.is_integer(kind) or types.is_floating(kind)

    for column in stored.schema_arrow:
        name, kind = column.name, column.type
        if name not in FIELDS:
            raise ValueError(
                f"{path}: {named(name)}: got an unknown field, wanted {', '.join(FIELDS)}"
            )
        if name.endswith(VECTORS):
            wanted = "a list of numbers"
            lists = types.is_list, types.is_large_list, types.is_fixed_size_list
            fits = any(own(kind) for own in lists) and is_number(kind.value_type)
        else:
            wanted = "a number or a text" if name == "request" else "a number"
            is_text = types.is_string(kind) or types.is_large_string(kind)
            fits = is_number(kind) or (name == "request" and is_text)
        # A column of nulls alone has no type of its own.
        if not fits and not types.is_null(kind):
            raise ValueError(f"{path}: {name}: got type {kind}, wanted {wanted}")
    metadata = stored.metadata
    if metadata.num_rows > MOST_ROWS:
        raise ValueError(f"{path}: got {metadata.num_rows} rows, wanted at most {MOST_ROWS}")
    groups = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if sum(groups) != metadata.num_rows:
        raise ValueError(f"{path}: got row groups that do not add up to {metadata.num_rows} rows")


def _rows_of_safetensors(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """One array a field, its first axis the rows; arrays are mapped, not loaded."""
    arrays, _ = read_safetensors(path)
    for name, array in arrays.items():
        axes, shape = (2 if name.endswith(VECTORS) else 1), array.raw.shape
        if len(shape) != axes or (axes == 2 and not 1 <= shape[1] <= MOST_NUMBERS):
            wanted = f"(N, V) with V at most {MOST_NUMBERS}" if axes == 2 else "(N,)"
            raise ValueError(f"{path}: {named(name)}: got shape {shape}, wanted {wanted}")
    lengths = {name: len(array.raw) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: got arrays with {lengths} rows, wanted equally many")
    for row in range(next(iter(lengths.values()), 0)):
        yield row + 1, {name: _stored(array, row) for name, array in arrays.items()}


def _stored(array: StoredArray, row: int) -> Any:
    own = array.rows(row)
    return RecordedNumbers(own, BFLOAT16_TOLERANCE) if array.bfloat16 and own.ndim else own
