"""Recorded rows from Parquet: one column a field, lists for what has a number for each token."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otmd.audit.records import FIELDS, MOST_ROWS
from otmd.audit.records_safetensors import VECTORS
from otmd.audit.records_values import MOST_NUMBERS

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData, ParquetFile

MOST_VALUES = 1 << 28
"""Of a column in a row group, 2 GB in memory at worst: a small file can hold any number of equal values."""
_LONGEST_FOOTER = 16 << 20
_ROWS_AT_ONCE = 8


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file, with their numbers from 1, a few at a time.

    Raises
    ------
    ValueError
        For a file that is malformed or cut short, that has more rows or values than are read, or whose
        columns are of other types.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(
            path,
            pre_buffer=False,
            thrift_string_size_limit=_LONGEST_FOOTER,
            thrift_container_size_limit=_LONGEST_FOOTER,
        ) as stored:
            _check_types(path, stored)
            _check_sizes(path, stored.metadata)
            for batch in stored.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
                for own in range(batch.num_rows):
                    number += 1
                    yield (
                        number,
                        {name: _value(batch.column(name)[own]) for name in batch.schema.names},
                    )
    except (ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(
            f"{path}: row {number + 1}: cut short, or no Parquet file ({error})"
        ) from error


def _value(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "values"):
        return scalar.values.to_numpy(zero_copy_only=False)
    return scalar.as_py()


def _check_types(path: Path, stored: "ParquetFile") -> None:
    from pyarrow import types

    for field in stored.schema_arrow:
        if field.name not in FIELDS:
            raise ValueError(
                f"{path}: {field.name}: got an unknown field, wanted {', '.join(FIELDS)}"
            )
        kind, wanted = field.type, "a number or a text"
        if field.name.endswith(VECTORS):
            wanted = "a list of numbers"
            is_list = (
                types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
            )
            fits = is_list and _is_number(kind.value_type)
        else:
            fits = _is_number(kind) or types.is_string(kind) or types.is_large_string(kind)
        # A column of nulls alone has no type of its own.
        if not fits and not types.is_null(kind):
            raise ValueError(f"{path}: {field.name}: got type {kind}, wanted {wanted}")


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind)


def _check_sizes(path: Path, metadata: "FileMetaData") -> None:
    """Refuse what would not fit into memory, by what the file says; that it lies shows on reading."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if metadata.num_rows > MOST_ROWS:
        raise ValueError(f"{path}: got {metadata.num_rows} rows, wanted at most {MOST_ROWS}")
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        raise ValueError(f"{path}: got row groups that do not add up to {metadata.num_rows} rows")
    for group in groups:
        for i in range(group.num_columns):
            column = group.column(i)
            most = min(MOST_VALUES, max(1, group.num_rows) * MOST_NUMBERS)
            if column.num_values > most:
                raise ValueError(
                    f"{path}: {column.path_in_schema}: got {column.num_values} values in a group of "
                    f"{group.num_rows} rows, wanted at most {most}: write smaller row groups"
                )
