"""Files that lie, are torn, or would fill the memory: each found a fault once."""

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from otmd.storage import arrays
from otmd.storage.arrays import read_npy, read_npz, read_safetensors
from otmd.storage.files import DatasetError
from otmd.storage.parquet import read_columns, read_parquet


def npy(descr, shape, data=b""):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def npz(content):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as stored:
        stored.writestr("a.npy", content)
    return sink.getvalue()


def parquet(columns, metadata=None, **options):
    sink = io.BytesIO()
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def changed(content, at, value):
    return content[:at] + bytes([value]) + content[at + 1 :]


def with_member(at, value):
    """An archive, with a byte changed in the local and in the central header of its only member."""
    local = changed(ARCHIVE, at - 2, value)
    return changed(local, ARCHIVE.index(b"PK\x01\x02") + at, value)


TORN, OTHER = "torn, or no array", "expected numbers or texts"
ARRAYS = [
    (npy("'<f8'", f"({2**60},)"), TORN),
    (npy("'<f8'", "(-1,)"), TORN),
    (npy("'<f8'", "(2,)", bytes(8)), TORN),
    (npy("'|V0'", f"({2**60},)"), OTHER),
    (npy("'<U0'", f"({2**60},)"), OTHER),
    (npy("'|O'", "()", b"cos\nsystem\n."), "allow_pickle"),
    (npy("[('a', '<f8')]", "(1,)", bytes(8)), OTHER),
    (npy("(", "()"), TORN),
    (npy("'''", "()"), TORN),
    (b"\x93NUMPY\x09\x00", TORN),
    (b"text", TORN),
    (b"", TORN),
]
ARCHIVE = npz(npy("'<f8'", "(1,)", np.random.default_rng(0).bytes(8)))
TEXTS, NUMBERS, EMPTY = parquet({"c": ["x"]}), parquet({"b": range(100)}), parquet({})
TENSORS = save({"a": np.zeros(4), "b": np.zeros((1,) * 5)})
TWICE = save({"a": np.zeros(4), "b": np.zeros(4)}).replace(b'"b"', b'"a"')
NO_UTF8 = {b"key": b"\xff\xfe"}
NO_ROWS = b"\x16\x00\x16\x00\x26"
REFUSED = [
    *((read_npy, content, message) for content, message in ARRAYS),
    *((read_npz, npz(content), message) for content, message in ARRAYS),
    # Version, password, patch and method of compression.
    *((read_npz, with_member(at, value), "torn or no npz file")
      for at, value in ((6, 200), (8, 1), (8, 32), (10, 99))),
    (read_npz, ARCHIVE[:40] + b"\xff" * 20 + ARCHIVE[60:], "torn"),
    (read_npz, npz(npy("'<f8'", f"({1 << 18},)", bytes(1 << 21))), "bytes more than the file"),
    *((read_safetensors, content, "torn, or no safetensors file")
      for content in (b"", TENSORS[:40], TENSORS[:-1], TENSORS + b"x", TWICE)),
    (read_safetensors, TENSORS, "a: b: got type F64 with 5 axes, expected"),
    (read_safetensors, save({"a": np.zeros(2, bool)}), "got type BOOL with 1 axes"),
    *((read_columns, NUMBERS[:keep], "no Parquet file") for keep in (0, 3, 100, -1)),
    (read_columns, TEXTS, r"a: c: got string, expected numbers"),
    (lambda path: read_columns(path, ["e"]), TEXTS, "a: got no texts named e"),
    (lambda path: read_columns(path, ["c"]), parquet({"c": ["a", None]}), "a: got rows without a value"),
    # The changed byte makes the next one a part of the number of rows, which is negative.
    (read_columns, EMPTY.replace(NO_ROWS, changed(NO_ROWS, 3, 0x91)), "got -2441 rows of 0 columns"),
    (read_parquet, parquet({"a": [1]}, NO_UTF8), "a: .*metadata that are no UTF-8"),
    (read_parquet, parquet(pa.table({"a": [1]}, pa.schema([pa.field("a", pa.int64(), metadata=NO_UTF8)]))),
     "a: .*metadata that are no UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "content", "message"), REFUSED)
def test_refused(tmp_path, monkeypatch, read, content, message):
    monkeypatch.setattr(arrays, "MOST_UNPACKED", 1 << 20)
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / "a")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, DatasetError) == (read in (read_npy, read_npz, read_safetensors))


def test_the_sound_twins_of_crafted_files_are_read(tmp_path):
    path = tmp_path / "a"
    for read, content in ((read_npz, ARCHIVE), (read_columns, NUMBERS), (read_parquet, TEXTS)):
        path.write_bytes(content)
        assert len(read(path)) == 1
    path.write_bytes(EMPTY.replace(NO_ROWS, changed(NO_ROWS, 3, 0x92)))
    assert NO_ROWS in EMPTY
    assert read_columns(path) == {}
    assert arrays.MOST_UNPACKED == 1 << 30


def test_a_footer_that_is_too_long_is_refused_unread(tmp_path):
    path = tmp_path / "a.parquet"
    with path.open("wb") as stream:
        stream.write(b"PAR1")
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write((1 << 29).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="got a footer of 536870912 bytes"):
        read_columns(path)


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
    """The peak of a process that reads the file, beyond what its imports take."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of a process is read from /proc")
    columns, expected = COSTLY[name]
    encoding = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(columns, **(encoding if "prefixes" in name else {})))
    command = [sys.executable, "-c", READ, str(path), *({"text"} & columns.keys())]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    peak, _, said = found.stdout.strip().partition(" ")
    assert re.search(expected, said), said
    assert int(peak) < MOST_MEGABYTES
