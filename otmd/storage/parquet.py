"""Parquet files: tables of results, with checksums and the name of a part."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

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
