"""Parquet files: tables of results with checksums, and other people's tables in small batches.

Pyarrow is trusted with damaged files, but not with the sizes they claim: a small file can unpack to any size.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otmd.storage.files import one_line, refuse_repeated, shortened, write_atomically

if TYPE_CHECKING:
    import polars as pl
    from pyarrow.parquet import FileMetaData, ParquetFile

MOST_UNPACKED = 48 << 20
"""Bytes that a row group may unpack to, in addition to twice its stored size."""
# Rows of a batch: a row may hold a whole distribution.
_ROWS_AT_ONCE = 4096
_LONGEST_FOOTER = 8 << 20
_MOST_ENTRIES = 1 << 17
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}
_WIDEST = 8
# The metadata that names the part which a table is.
_PART = b"otmd part"


def write_parquet(path: Path, table: "pl.DataFrame") -> None:
    """Write a table as Parquet, whole or not at all, with a checksum of each page."""
    write_atomically(path, parquet_bytes(table))


def parquet_bytes(table: "pl.DataFrame", part: str = "") -> bytes:
    """Return a table as the bytes of a Parquet file, with a checksum of each page and the name of a part."""
    import polars as pl
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    texts = [name for name, kind in table.schema.items() if kind == pl.String]
    # Written by Arrow, since polars neither writes nor compares checksums.
    pq.write_table(
        table.to_arrow().replace_schema_metadata({_PART: part} if part else None),
        buffer,
        compression="zstd",
        compression_level=9,
        # Rates hardly ever repeat. (The stubs know of all columns or none.)
        use_dictionary=texts,  # pyright: ignore[reportArgumentType]
        write_page_checksum=True,
    )
    return buffer.getvalue()


def read_parquet(path: Path) -> "pl.DataFrame":
    """Read a table; ValueError if the file is torn, altered, no Parquet file, or another part's."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Read whole first, so that an error of the disk is not taken for one of the file.
    data = io.BytesIO(path.read_bytes())
    try:
        # Without threads: pyarrow can abort a process that ends right after it started them.
        stored = pq.ParquetFile(data, page_checksum_verification=True, pre_buffer=False)
        # Polars panics at metadata that are no UTF-8, for which the text has U+FFFD.
        if "\ufffd" in stored.schema_arrow.to_string(truncate_metadata=False):
            raise ValueError("metadata that are no UTF-8")
        part = (stored.schema_arrow.metadata or {}).get(_PART, path.stem.encode()).decode()
        if part != path.stem:
            raise ValueError(f"it is part {part}")
        return pl.DataFrame(stored.read(use_threads=False))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: torn, altered or no Parquet file ({reason})") from error


def read_batches(path: Path, texts: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield at most 4,096 rows at a time, as pyarrow arrays by name, those of ``texts`` as dictionaries.

    ValueError if the file is torn, altered, or has other columns than numbers and ``texts``.
    """
    import pyarrow.types as kinds

    with _opened(path, texts) as stored:
        for field in stored.schema_arrow:
            # A short file may repeat a long text, or a list of them, in every row.
            if not (kinds.is_primitive(field.type) or field.name in texts):
                raise ValueError(
                    f"{path}: {shortened(field.name)}: got {field.type}, expected numbers"
                )
        for batch in stored.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            yield dict(zip(batch.schema.names, batch.columns, strict=True))


def read_metadata(path: Path) -> dict[bytes, bytes]:
    """Read the key-value metadata of a file's schema; errors as for :func:`read_batches`."""
    with _opened(path) as stored:
        return dict(stored.schema_arrow.metadata or {})


@contextmanager
def _opened(path: Path, texts: Sequence[str] = ()) -> Iterator["ParquetFile"]:
    """Open a file to read in batches; ValueError if it is torn, or says that it unpacks to too much."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    # Opened here, since pyarrow takes no path that is no UTF-8.
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        length = int.from_bytes(stream.read(4), "little")
        if _LONGEST_FOOTER < length < size:
            raise ValueError(
                f"{path}: got a footer of {length} bytes, expected at most {_LONGEST_FOOTER}: write larger "
                "row groups"
            )
        try:
            with ParquetFile(
                stream,
                pre_buffer=False,
                read_dictionary=[*texts],
                page_checksum_verification=True,
                buffer_size=1 << 20,
                thrift_string_size_limit=_LONGEST_FOOTER,
                thrift_container_size_limit=_MOST_ENTRIES,
            ) as stored:
                refuse_repeated(stored.schema_arrow.names, str(path))
                _check_groups(path, stored.metadata)
                yield stored
        except (pa.ArrowException, OSError, UnicodeError, KeyError) as error:
            reason = one_line(error)
            raise ValueError(f"{path}: cut short, or no Parquet file ({reason})") from error


def _check_groups(path: Path, metadata: "FileMetaData") -> None:
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        # At a negative number of rows pyarrow ends the process.
        if group.num_rows < 0 or (group.num_rows > 0 and group.num_columns == 0):
            counts = f"a row group of {group.num_rows} rows in {group.num_columns} columns"
            raise ValueError(f"{path}: got {counts}, expected rows that are stored")
        unpacked = stored = 0
        for c in range(group.num_columns):
            column = group.column(c)
            # The sizes stated are of encoded pages: dictionaries and run lengths store a number in less than
            # its width. That matters for lists only, of which a few rows may have many numbers.
            numbers = column.num_values * _WIDTHS.get(column.physical_type, _WIDEST)
            listed = numbers if "." in column.path_in_schema else 0
            unpacked += max(column.total_uncompressed_size, listed)
            stored += column.total_compressed_size
        if unpacked > 2 * stored + MOST_UNPACKED:
            raise ValueError(
                f"{path}: got a row group of {group.num_rows} rows that unpacks from {stored} to {unpacked} "
                f"bytes, expected at most {2 * stored + MOST_UNPACKED}: write fewer rows a group"
            )
