"""npz and npy files that lie: each input found a fault once, or would fill the memory."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from otmd.storage.arrays import MOST_UNPACKED, read_npy, read_npz
from otmd.storage.files import DatasetError

TORN, OTHER = "torn, or no array", "expected numbers or texts"


def header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def archive(path: Path, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as stored:
        stored.writestr("a.npy", content)
    return path


def test_arrays_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.array(3)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_npz(tmp_path / "a.npz")
        assert found.keys() == arrays.keys()
        assert all((found[name] == arrays[name]).all() for name in arrays)
    np.save(tmp_path / "a.npy", np.asfortranarray(arrays["a"]))
    assert (read_npy(tmp_path / "a.npy") == arrays["a"]).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("'<f8'", f"({2**60},)"), TORN),
        (header("'<f8'", "(-1,)"), TORN),
        (header("'<f8'", "(2,)") + bytes(8), TORN),
        (header("'|V0'", f"({2**60},)"), OTHER),
        (header("'<U0'", f"({2**60},)"), OTHER),
        (header("'|O'", "()") + b"cos\nsystem\n.", "allow_pickle"),
        (header("[('a', '<f8')]", "(1,)") + bytes(8), OTHER),
        (header("(", "()"), TORN),
        (header("'''", "()"), TORN),
        (b"\x93NUMPY\x09\x00", TORN),
        (b"text", TORN),
        (b"", TORN),
    ],
)
def test_arrays_that_lie(tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_npz(archive(tmp_path / "a.npz", content))
    assert "\n" not in str(caught.value)
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_npy(tmp_path / "a.npy")


def test_a_zip_bomb_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("otmd.storage.arrays.MOST_UNPACKED", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1 << 18))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    with pytest.raises(ValueError, match="bytes more than the file"):
        read_npz(tmp_path / "a.npz")
    assert MOST_UNPACKED == 1 << 30


# Of the local and the central header of the only member: version, flags and method.
@pytest.mark.parametrize(
    ("at", "value"),
    [(6, 200), (8, 1), (8, 32), (10, 99)],
    ids=["version", "locked", "patch", "method"],
)
def test_archives_that_are_not_served(tmp_path, at, value):
    path = archive(tmp_path / "a.npz", header("'<f8'", "(1,)") + bytes(8))
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[central + at] = value
    content[at - 2] = value
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="torn or no npz file"):
        read_npz(path)


def test_bytes_that_cannot_be_unpacked(tmp_path):
    path = archive(tmp_path / "a.npz", header("'<f8'", "(1,)") + np.random.default_rng(0).bytes(8))
    content = bytearray(path.read_bytes())
    content[40:60] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="torn"):
        read_npz(path)
