"""What a Parquet file may cost to read: crafted ones are refused before memory runs out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from otmd.storage.parquet import parquet_bytes, read_batches, read_parquet

MOST_MEGABYTES = 256
READ = """
import sys
import pyarrow.parquet
from pathlib import Path
from otmd.storage.parquet import read_batches

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before, said = peak(), "read"
try:
    for _ in read_batches(Path(sys.argv[1]), [*sys.argv[2:]]):
        pass
except ValueError as error:
    said = str(error)
print((peak() - before) // 1024, said)
"""


def lists(lengths: list[int], dtype: str = "f4", random: bool = False) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = np.random.default_rng(0).random(ends[-1]) if random else np.zeros(ends[-1])
    return pa.LargeListArray.from_arrays(ends, pa.array(values.astype(dtype)))


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


LARGE = 12 << 20
COSTLY = {
    "all values in the first row": lambda: {"target_probs": lists([LARGE] + [1] * 70)},
    "all values in the last row": lambda: {"target_probs": lists([1] * 70 + [LARGE])},
    "a long text": lambda: {"request": ["a" * (5 << 20)] * 64},
    "a long text in place of numbers": lambda: {"depth": ["a" * (5 << 20)] * 64},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_what_would_fill_the_memory_costs_little_or_is_refused(tmp_path, name):
    path = written(tmp_path / "a.parquet", COSTLY[name]())
    peak, said = megabytes(path, *(["request"] if name == "a long text" else []))
    refusals = ("expected numbers", "write fewer rows a group")
    expected = {"a long text": ("read",)}
    assert any(words in said for words in (*expected.get(name, ()), *refusals)), said
    assert peak < MOST_MEGABYTES


def test_a_group_that_unpacks_to_far_more_is_refused(tmp_path):
    """Columns add up."""
    columns = {name: lists([8 << 20, 1], "f8") for name in ("target_probs", "draft_probs")}
    path = written(tmp_path / "a.parquet", columns)
    with pytest.raises(ValueError, match="row group of 2 rows that unpacks from"):
        next(read_batches(path))


def test_batches_are_the_rows_in_order(tmp_path):
    columns = {"b": pa.array(range(21)), "c": pa.array(["x"] * 21)}
    path = written(tmp_path / "a.parquet", columns, row_group_size=10)
    batches = list(read_batches(path, ["c"]))
    assert all(batch.keys() == columns.keys() for batch in batches)
    assert [x for batch in batches for x in batch["b"].to_pylist()] == list(range(21))


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_file_that_is_cut_short_is_named_in_one_line(tmp_path, keep):
    path = written(tmp_path / "a.parquet", {"b": pa.array(range(100))})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.parquet: .*no Parquet file") as caught:
        list(read_batches(path))
    assert "\n" not in str(caught.value)


def test_a_footer_that_is_too_long_is_refused_unread(tmp_path):
    path = tmp_path / "a.parquet"
    with path.open("wb") as stream:
        stream.write(b"PAR1")
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write((1 << 29).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="got a footer of 536870912 bytes"):
        next(read_batches(path))


@pytest.mark.parametrize(("byte", "rows"), [(b"\x91", -2441), (b"\x92", 2441)])
def test_rows_that_no_column_stores_are_refused(tmp_path, byte, rows):
    """The changed byte makes the next one a part of the number of rows."""
    path = written(tmp_path / "a.parquet", {})
    content = path.read_bytes()
    damaged = content.replace(b"\x16\x00\x16\x00\x26", b"\x16\x00\x16" + byte + b"\x26")
    assert damaged != content
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"got a row group of {rows} rows in 0 columns"):
        next(read_batches(path))


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
