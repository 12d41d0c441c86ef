"""What a Parquet file costs to read, from its pages: its footer alone can say anything.

Equal values take next to no room, so a small file can hold any number of them, and Arrow reads a whole
list at a time, however long. Hence the headers of all pages are read first: they say how much there is.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from otmd.storage.thrift import read_numbers

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData, ParquetFile

MOST_UNPACKED = 48 << 20
"""Bytes that a row group may unpack to, beside twice what is stored of it."""
MOST_PAGE = 16 << 20
"""The same for a page."""
MOST_TEXT = 4 << 20
"""Bytes of a page of texts, each of which may be as long as the page."""
ROWS_AT_ONCE = 8
_LONGEST_FOOTER = 8 << 20
_MOST_ENTRIES = 1 << 17
_LONGEST_PAGE_HEADER = 1 << 16
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}
_WIDEST = 8
# Fields of a page header (Parquet's parquet.thrift), with those of the header of each kind of page.
_UNPACKED, _STORED, _NUM_VALUES = (2,), (3,), ((5, 1), (8, 1))


def open_parquet(path: Path) -> "ParquetFile":
    """Open a file to be read in batches, or raise ValueError where it would unpack to too much.

    Raises
    ------
    ValueError
        For a file that is too large for what is stored of it, or that is cut short.
    pyarrow.ArrowException, OSError
        For one that is no Parquet file.
    """
    from pyarrow.parquet import ParquetFile

    _check_footer(path)
    stored = ParquetFile(
        path,
        pre_buffer=False,
        buffer_size=1 << 20,
        thrift_string_size_limit=_LONGEST_FOOTER,
        thrift_container_size_limit=_MOST_ENTRIES,
    )
    try:
        with path.open("rb") as stream:
            _check_groups(path, stream, stored.metadata)
    except BaseException:
        stored.close()
        raise
    return stored


def _check_footer(path: Path) -> None:
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        length = int.from_bytes(stream.read(4), "little")
    if _LONGEST_FOOTER < length < size:
        raise ValueError(
            f"{path}: got a footer of {length} bytes, wanted at most {_LONGEST_FOOTER}: write larger "
            "row groups"
        )


def _check_groups(path: Path, stream: IO[bytes], metadata: "FileMetaData") -> None:
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        unpacked = stored = 0
        for c in range(group.num_columns):
            column = group.column(c)
            values = _count_values(path, stream, column)
            if "." not in column.path_in_schema:
                # Numbers and texts of their own are read a few at a time.
                continue
            unpacked += values * _WIDTHS.get(column.physical_type, _WIDEST)
            stored += column.total_compressed_size
        if unpacked > 2 * stored + MOST_UNPACKED:
            raise ValueError(
                f"{path}: got a row group of {group.num_rows} rows that unpacks from {stored} to {unpacked} "
                f"bytes, wanted at most twice as many and {MOST_UNPACKED}: write fewer rows a group"
            )


def _count_values(path: Path, stream: IO[bytes], column: "ColumnChunkMetaData") -> int:
    """Values of a column in a row group, as its pages say; their sizes are checked."""
    values = 0
    most = MOST_TEXT if column.physical_type == "BYTE_ARRAY" else MOST_PAGE
    for unpacked, stored, own in _pages(path, stream, column):
        beside = 0 if column.physical_type == "BYTE_ARRAY" else 2 * stored
        if unpacked > beside + most:
            raise ValueError(
                f"{path}: {column.path_in_schema}: got a page that unpacks from {stored} to {unpacked} "
                f"bytes, wanted at most {beside + most}: write smaller pages"
            )
        values += own
    if values != column.num_values:
        raise ValueError(
            f"{path}: {column.path_in_schema}: got pages of {values} values in all, wanted "
            f"{column.num_values}, as the footer says: cut short, or no Parquet file"
        )
    return values


def _pages(
    path: Path, stream: IO[bytes], column: "ColumnChunkMetaData"
) -> Iterator[tuple[int, int, int]]:
    """Bytes unpacked, bytes stored and values of each page that Arrow would read."""
    at, values = column.data_page_offset, 0
    if column.dictionary_page_offset and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    while values < column.num_values and at < end:
        stream.seek(max(0, at))
        try:
            length, fields = read_numbers(stream.read(_LONGEST_PAGE_HEADER))
            unpacked, stored = fields[_UNPACKED], fields[_STORED]
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{path}: {column.path_in_schema}: cut short, or no Parquet file: no page at byte {at}"
            ) from error
        own = sum(fields.get(place, 0) for place in _NUM_VALUES)
        if min(unpacked, stored, own) < 0:
            raise ValueError(f"{path}: {column.path_in_schema}: got a page with negative sizes")
        yield unpacked, stored, own
        values += own
        at += length + stored
