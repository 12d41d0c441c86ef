"""Parquet files: tables of results with checksums, and tables of unknown origin, read within bounds.

Pyarrow is trusted with damaged files, but not with the sizes they claim: a small file can unpack to any size.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from otmd.storage.files import one_line, refuse_repeated, shortened

if TYPE_CHECKING:
    import polars as pl
    from pyarrow.parquet import ParquetFile

MOST_UNPACKED = 48 << 20
"""Bytes that a table may unpack to, in addition to twice the size of its file."""
_MOST_CELLS = 16 << 20
_LONGEST_FOOTER = 8 << 20
_MOST_ENTRIES = 1 << 17
# The metadata that names the part which a table is.
_PART = b"otmd part"


def parquet_bytes(table: "pl.DataFrame", part: str = "") -> bytes:
    """Return a table as the bytes of a Parquet file, with a checksum of each page and the name of a part."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    # Written by Arrow, since polars neither writes nor compares checksums.
    stored = table.to_arrow().replace_schema_metadata({_PART: part} if part else None)
    pq.write_table(stored, buffer, compression="zstd", write_page_checksum=True)
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


def read_columns(path: Path, texts: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Read columns of numbers, and of texts those named; ValueError if the file is torn, or too large."""
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
                read_dictionary=[*texts],  # each row may repeat a long text
                page_checksum_verification=True,
                thrift_string_size_limit=_LONGEST_FOOTER,
                thrift_container_size_limit=_MOST_ENTRIES,
            ) as stored:
                _check_sizes(path, size, stored)
                text = pa.dictionary(pa.int32(), pa.string())
                for field in stored.schema_arrow:
                    is_text = field.name in texts and field.type == text
                    if not (is_text or pa.types.is_primitive(field.type)):
                        kind = shortened(field.type)
                        raise ValueError(f"{path}: {shortened(field.name)}: got {kind}, expected numbers")
                table = stored.read(use_threads=False)
                if any(column.null_count for column in table.columns):
                    raise ValueError(f"{path}: got rows without a value")
                return {name: table[name].to_numpy() for name in table.column_names}
        except KeyError as error:
            raise ValueError(f"{path}: got no texts named {', '.join(texts)}") from error
        except (pa.ArrowException, OSError, UnicodeError) as error:
            reason = one_line(error)
            raise ValueError(f"{path}: cut short, or no Parquet file ({reason})") from error


def _check_sizes(path: Path, size: int, stored: "ParquetFile") -> None:
    """Raise ValueError for a file that claims too much, or has a column twice."""
    schema, metadata = stored.schema_arrow, stored.metadata
    refuse_repeated(schema.names, path)
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    num_rows = sum(group.num_rows for group in groups)
    unpacked = sum(group.total_byte_size for group in groups)
    most = 2 * size + MOST_UNPACKED
    # At a negative number of rows pyarrow ends the process.
    crafted = any(x.num_rows < 0 or x.num_columns != metadata.num_columns for x in groups)
    if crafted or num_rows * len(schema) > _MOST_CELLS or unpacked > most:
        raise ValueError(
            f"{path}: got {num_rows} rows of {len(schema)} columns that unpack to {unpacked} bytes, "
            f"expected at most {_MOST_CELLS} values in {most} bytes"
        )
