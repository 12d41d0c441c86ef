"""Files come back as they were written; what lies, is torn, or would fill the memory is refused."""

import io
import zipfile

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from otmd.storage import arrays
from otmd.storage.arrays import read_npy, read_npz, read_safetensors
from otmd.storage.files import DatasetError
from otmd.storage.parquet import parquet_bytes, read_parquet


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
TEXTS = parquet({"c": ["x"]})
TENSORS = save({"a": np.zeros(4), "b": np.zeros((1,) * 5)})
TWICE = save({"a": np.zeros(4), "b": np.zeros(4)}).replace(b'"b"', b'"a"')
NO_UTF8 = {b"key": b"\xff\xfe"}
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
    for read, content in ((read_npz, ARCHIVE), (read_parquet, TEXTS)):
        path.write_bytes(content)
        assert len(read(path)) == 1
    assert arrays.MOST_UNPACKED == 1 << 30


def test_arrays_come_back(tmp_path):
    stored = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.array(3)}
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "a.npz", **stored)
        found = read_npz(tmp_path / "a.npz")
        assert found.keys() == stored.keys()
        assert all((found[name] == stored[name]).all() for name in stored)
    np.save(tmp_path / "a.npy", np.asfortranarray(stored["a"]))
    assert (read_npy(tmp_path / "a.npy") == stored["a"]).all()


def test_a_part_is_read_under_its_own_name_alone(tmp_path):
    table = pl.DataFrame({"a": [1]})
    for name in ("one", "two"):
        (tmp_path / f"{name}.parquet").write_bytes(parquet_bytes(table, "one"))
    assert read_parquet(tmp_path / "one.parquet").equals(table)
    with pytest.raises(ValueError, match=r"two\.parquet: torn.*it is part one"):
        read_parquet(tmp_path / "two.parquet")
