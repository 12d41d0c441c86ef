"""Recorded rows from Parquet: one column a field, lists for what has a number for each token."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otmd.audit.records import FIELDS, MOST_ROWS
from otmd.audit.records_safetensors import VECTORS
from otmd.storage.errors import named, one_line
from otmd.storage.parquet import ROWS_AT_ONCE, open_parquet

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData, ParquetFile


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file, with their numbers from 1, a few at a time.

    Raises
    ------
    ValueError
        For a file that is malformed or cut short, that has more rows or values than are read, or whose
        columns are of other types.
    """
    from pyarrow import ArrowException

    number = 0
    try:
        with open_parquet(path) as stored:
            _check_types(path, stored)
            _check_rows(path, stored.metadata)
            for batch in stored.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
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
            f"{path}: row {number + 1}: cut short, or no Parquet file ({one_line(error)})"
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
                f"{path}: {named(field.name)}: got an unknown field, wanted {', '.join(FIELDS)}"
            )
        kind, wanted = field.type, "a number"
        if field.name.endswith(VECTORS):
            wanted = "a list of numbers"
            is_list = (
                types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
            )
            fits = is_list and _is_number(kind.value_type)
        else:
            fits = _is_number(kind)
            if field.name == "request":
                wanted = "a number or a text"
                fits = fits or types.is_string(kind) or types.is_large_string(kind)
        # A column of nulls alone has no type of its own.
        if not fits and not types.is_null(kind):
            raise ValueError(f"{path}: {field.name}: got type {kind}, wanted {wanted}")


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind)


def _check_rows(path: Path, metadata: "FileMetaData") -> None:
    if metadata.num_rows > MOST_ROWS:
        raise ValueError(f"{path}: got {metadata.num_rows} rows, wanted at most {MOST_ROWS}")
    groups = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if sum(groups) != metadata.num_rows:
        raise ValueError(f"{path}: got row groups that do not add up to {metadata.num_rows} rows")
