"""What a Parquet file may cost to read: crafted ones are refused before memory runs out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from otmd.storage.parquet import open_parquet
from otmd.storage.thrift import read_numbers

MOST_MEGABYTES = 256
READ = """
import sys
import pyarrow.parquet
from otmd.audit.records import read_records

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before, said = peak(), "read"
try:
    for _ in read_records(sys.argv[1], {}):
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


def megabytes(path: Path) -> tuple[int, str]:
    """Peak of a process that reads the file, beyond what its imports take, and what it said."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of a process is read from /proc")
    command = [sys.executable, "-c", READ, str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    peak, _, said = found.stdout.strip().partition(" ")
    return int(peak), said


@pytest.mark.parametrize("row", [0, 70], ids=["first", "last"])
def test_one_row_with_all_the_values_of_a_group_costs_little(tmp_path, row):
    lengths = [1] * 71
    lengths[row] = 12 << 20
    path = written(tmp_path / "a.parquet", {"target_probs": lists(lengths)})
    assert path.stat().st_size < 10_000
    peak, said = megabytes(path)
    assert "numbers, wanted at most" in said or "write fewer rows a group" in said
    assert peak < MOST_MEGABYTES


def test_columns_add_up(tmp_path):
    columns = {name: lists([8 << 20, 1], "f8") for name in ("target_probs", "draft_probs")}
    with pytest.raises(ValueError, match="row group of 2 rows that unpacks from"):
        open_parquet(written(tmp_path / "a.parquet", columns))


def test_a_page_that_unpacks_to_far_more_is_refused(tmp_path):
    options = {"use_dictionary": False, "compression": "gzip", "data_page_size": 1 << 30}
    columns = {"target_probs": lists([5 << 20, 1])}
    with pytest.raises(ValueError, match="a page that unpacks from"):
        open_parquet(written(tmp_path / "a.parquet", columns, **options))


def test_a_long_text_for_every_row_is_refused(tmp_path):
    columns = {"request": ["a" * (5 << 20)] * 64}
    with pytest.raises(ValueError, match="request: got a page that unpacks"):
        open_parquet(written(tmp_path / "a.parquet", columns))


def test_many_dense_rows_in_one_group_are_read_in_little_memory(tmp_path):
    path = written(tmp_path / "a.parquet", {"target_probs": lists([100_000] * 120, random=True)})
    peak, said = megabytes(path)
    assert "read" in said
    assert peak < MOST_MEGABYTES


def test_a_footer_that_says_fewer_values_than_the_pages(tmp_path):
    """The number of values in the footer is changed: the pages still say what they hold."""
    path = written(tmp_path / "a.parquet", {"target_probs": lists([300, 3])}, compression="none")
    content = bytearray(path.read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    at = content.index(b"\xde\x04", footer)  # 303 as a zigzag varint
    content[at : at + 2] = b"\xdc\x04"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"got pages of 303 values in all, wanted 302"):
        open_parquet(path)


def test_a_footer_that_is_too_long_is_refused_unread(tmp_path):
    path = tmp_path / "a.parquet"
    with path.open("wb") as stream:
        stream.write(b"PAR1")
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write((1 << 29).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="got a footer of 536870912 bytes"):
        open_parquet(path)


def test_a_structure_of_thrift():
    # 1: i32 3; 3: i64 -1; 5: {1: i32 2}; 6: true; 7: binary of two bytes.
    data = b"\x15\x06\x26\x01\x2c\x15\x04\x00\x11\x18\x02ab\x00rest"
    assert read_numbers(data) == (14, {(1,): 3, (3,): -1, (5, 1): 2})


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x15" + b"\xff" * 20, b"\x1c" * 50, b"\x19\x15"])
def test_what_is_no_structure(data):
    with pytest.raises(ValueError, match=r"structure|number|kind"):
        read_numbers(data)
