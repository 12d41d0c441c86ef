"""What a Parquet file may cost to read: crafted ones are refused before memory runs out."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from otmd.storage.parquet import parquet_bytes, read_columns, read_parquet

MOST_MEGABYTES = 256
READ = """
import sys
from pathlib import Path
import pyarrow.parquet
from otmd.storage.parquet import read_columns

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
try:
    said = len(read_columns(Path(sys.argv[1]), sys.argv[2:])["text"])
except ValueError as error:
    said = str(error)
print((peak() - before) // 1024, said)
"""


def written(path: Path, columns: dict, **options) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def megabytes(path: Path, *texts: str) -> tuple[int, str]:
    """Peak of a process that reads the file, beyond what its imports take, and what it said."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of a process is read from /proc")
    command = [sys.executable, "-c", READ, str(path), *texts]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    peak, _, said = found.stdout.strip().partition(" ")
    return int(peak), said


LONG = "a" * (5 << 20)
COSTLY = {
    "a list": ({"a": pa.array([np.zeros(12 << 20, "f4"), [0]])}, "got list<.*expected numbers"),
    "many rows": ({"a": np.zeros(17 << 20)}, "got 17825792 rows of 1 columns"),
    "many columns": (
        {f"a{i}": np.zeros(1 << 14) for i in range(1999)},
        "got 16384 rows of 1999 columns",
    ),
    "distinct texts": ({"text": [LONG + str(i) for i in range(64)]}, "unpack to 335.* bytes"),
    "one text in each row": ({"text": [LONG] * 64}, "^64$"),
    "texts told by their prefixes": ({"text": [LONG + str(i) for i in range(64)]}, "no Parquet"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_what_would_fill_the_memory_costs_little_or_is_refused(tmp_path, name):
    columns, expected = COSTLY[name]
    encoding = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
    options = encoding if "prefixes" in name else {}
    path = written(tmp_path / "a.parquet", columns, **options)
    peak, said = megabytes(path, *({"text"} & columns.keys()))
    assert re.search(expected, said), said
    assert peak < MOST_MEGABYTES


def test_columns_are_the_rows_in_order(tmp_path):
    columns = {
        "b": np.arange(21),
        "c": [f"x{i % 4}" for i in range(21)],
        "d": [True, False, True] * 7,
    }
    path = written(tmp_path / "a.parquet", columns, row_group_size=10)
    found = read_columns(path, ["c"])
    assert {name: x.tolist() for name, x in found.items()} == columns | {"b": [*range(21)]}
    with pytest.raises(ValueError, match=r"a\.parquet: c: got string, expected numbers"):
        read_columns(path)
    with pytest.raises(ValueError, match=r"a\.parquet: got no texts named e"):
        read_columns(path, ["e"])
    with pytest.raises(ValueError, match=r"a\.parquet: got rows without a value"):
        read_columns(written(path, {"c": ["a", None]}), ["c"])


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_file_that_is_cut_short_is_named_in_one_line(tmp_path, keep):
    path = written(tmp_path / "a.parquet", {"b": pa.array(range(100))})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.parquet: .*no Parquet file") as caught:
        read_columns(path)
    assert "\n" not in str(caught.value)


def test_a_footer_that_is_too_long_is_refused_unread(tmp_path):
    path = tmp_path / "a.parquet"
    with path.open("wb") as stream:
        stream.write(b"PAR1")
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write((1 << 29).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="got a footer of 536870912 bytes"):
        read_columns(path)


def test_rows_that_no_column_stores_are_refused_or_none(tmp_path):
    """The changed byte makes the next one a part of the number of rows."""
    path = written(tmp_path / "a.parquet", {})
    content = path.read_bytes()
    for byte in (b"\x92", b"\x91"):
        damaged = content.replace(b"\x16\x00\x16\x00\x26", b"\x16\x00\x16" + byte + b"\x26")
        assert damaged != content
        path.write_bytes(damaged)
        if byte == b"\x92":
            assert read_columns(path) == {}
    with pytest.raises(ValueError, match="got -2441 rows of 0 columns"):
        read_columns(path)


@pytest.mark.parametrize("place", ["field", "schema"])
def test_metadata_that_are_no_text_are_refused(tmp_path, place):
    damaged = {b"key": b"\xff\xfe"}
    field = pa.field("a", pa.int64(), metadata=damaged if place == "field" else None)
    schema = pa.schema([field], metadata=damaged if place == "schema" else None)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1]}, schema=schema), path)
    with pytest.raises(ValueError, match=r"a\.parquet: .*metadata that are no UTF-8"):
        read_parquet(path)


def test_a_part_is_read_under_its_own_name_alone(tmp_path):
    table = pl.DataFrame({"a": [1]})
    for name in ("one", "two"):
        (tmp_path / f"{name}.parquet").write_bytes(parquet_bytes(table, "one"))
    assert read_parquet(tmp_path / "one.parquet").equals(table)
    with pytest.raises(ValueError, match=r"two\.parquet: torn.*it is part one"):
        read_parquet(tmp_path / "two.parquet")
