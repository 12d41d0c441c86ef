"""Arrays and tables come back as they were written, and a part under its own name alone."""

import numpy as np
import polars as pl
import pytest

from otmd.storage.arrays import read_npy, read_npz
from otmd.storage.parquet import parquet_bytes, read_parquet


def test_arrays_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.array(3)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_npz(tmp_path / "a.npz")
        assert found.keys() == arrays.keys()
        assert all((found[name] == arrays[name]).all() for name in arrays)
    np.save(tmp_path / "a.npy", np.asfortranarray(arrays["a"]))
    assert (read_npy(tmp_path / "a.npy") == arrays["a"]).all()


def test_a_part_is_read_under_its_own_name_alone(tmp_path):
    table = pl.DataFrame({"a": [1]})
    for name in ("one", "two"):
        (tmp_path / f"{name}.parquet").write_bytes(parquet_bytes(table, "one"))
    assert read_parquet(tmp_path / "one.parquet").equals(table)
    with pytest.raises(ValueError, match=r"two\.parquet: torn.*it is part one"):
        read_parquet(tmp_path / "two.parquet")
