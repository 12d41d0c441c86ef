"""Stored data that a fuzzer found: each got past the readers, or was refused by the wrong error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from otmd.models import DatasetError, NGram, load_prompts, open_dataset
from otmd.models.dataset import SHARDS, Position, read_shard, write_shard
from otmd.storage.arrays import read_safetensors
from otmd.storage.store import Store

DEEP = "[" * 100_000


def stored(path: Path, header: object, size: int) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return path


def entry(begin: int, end: int) -> dict:
    return {"dtype": "F32", "shape": [1, (end - begin) // 4], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "places", [[(0, 8), (0, 8)], [(0, 8), (4, 12)], [(0, 8), (12, 20)], [(4, 12)]]
)
def test_arrays_that_overlap_or_leave_gaps(tmp_path, places):
    header = {f"a{i}": entry(*place) for i, place in enumerate(places)}
    with pytest.raises(DatasetError, match="invalid offset for tensor"):
        read_safetensors(stored(tmp_path / "a.safetensors", header, max(end for _, end in places)))


@pytest.mark.parametrize(
    ("shape", "said"),
    [([2**70, 0], "invalid JSON"), ([2**60, 0], "too long ones"), ([0] * 70, "too many axes")],
)
def test_axes_that_no_array_has(tmp_path, shape, said):
    header = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    with pytest.raises(DatasetError, match=said):
        read_safetensors(stored(tmp_path / "a.safetensors", header, 0))


@pytest.mark.parametrize("metadata", [3, [], {"domain": 3}, {"metadata": None}])
def test_metadata_that_are_no_texts(tmp_path, metadata):
    with pytest.raises(DatasetError, match="invalid JSON in header"):
        read_safetensors(stored(tmp_path / "a.safetensors", {"__metadata__": metadata}, 0))


def test_a_header_of_millions_of_lists_costs_little(tmp_path):
    header = b'{"a":[' + b"[]," * (1 << 20) + b"[]]}"
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DatasetError, match="invalid JSON in header"):
        read_safetensors(path)


def test_labels_of_an_array_without_end(tmp_path):
    logits = np.zeros((2, 3))
    arrays = {"target_logits": logits, "draft_logits": logits, "domain": np.zeros((2, 0))}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=r"domain must hold .*, got shape \(2, 0\)"):
        open_dataset(tmp_path / "a.npz")


def test_json_that_is_too_deep(tmp_path):
    logits = np.zeros((1, 3))
    np.savez(tmp_path / "a.npz", target_logits=logits, draft_logits=logits, metadata=DEEP)
    with pytest.raises(ValueError, match="metadata is not JSON"):
        open_dataset(tmp_path / "a.npz")
    (tmp_path / "own.jsonl").write_text(DEEP)
    with pytest.raises(ValueError, match="not JSON"):
        load_prompts([tmp_path / "own.jsonl"], progress=False)
    (tmp_path / "collect.json").write_text('{"a": ' + DEEP)
    with pytest.raises(ValueError, match="was not written by otmd"):
        Store(tmp_path, {}, SHARDS).check()


ROW = Position(0, "a", "b", 1, 2)


def test_a_shard_whose_logits_do_not_fit_its_rows(tmp_path):
    store = Store(tmp_path, {}, SHARDS)
    logits = {"target_logits": np.zeros((1, 3)), "draft_logits": np.zeros((1, 3))}
    assert read_shard(write_shard(store, 0, logits, [ROW], [])).rows == [ROW]
    for target, draft in [((2, 3), (2, 3)), ((1, 3), (1, 4)), ((3,), (3,))]:
        logits = {"target_logits": np.zeros(target), "draft_logits": np.zeros(draft)}
        path = write_shard(store, 0, logits, [ROW], [])
        with pytest.raises(DatasetError, match="is no shard of otmd: it has logits of shapes"):
            read_shard(path)


def test_a_shard_without_texts(tmp_path):
    path = stored(tmp_path / "a.safetensors", {"__metadata__": {"otmd": "[]"}}, 0)
    with pytest.raises(DatasetError, match="is no shard of otmd"):
        read_shard(path, "0" * 64)


GOOD = {"unigrams": np.array([1, 1]), "keys2": np.array([1]), "counts2": np.array([1])}


@pytest.mark.parametrize(
    "changed",
    [
        {"unigrams": np.array([0, 0])},
        {"unigrams": np.empty(0, int)},
        {"unigrams": np.array([[1]])},
        {"unigrams": np.array([1, -1])},
        {"keys2": np.array([9])},
        {"keys2": np.array([-1])},
        {"counts2": np.array([0])},
        {"counts2": np.array([1, 1])},
    ],
)
def test_counts_that_no_text_has(tmp_path, changed):
    np.savez(tmp_path / "good.npz", **GOOD)
    assert NGram.load(tmp_path / "good.npz").probs([0]).sum() == pytest.approx(1)
    np.savez(tmp_path / "a.npz", **GOOD | changed)
    with pytest.raises(ValueError, match="is no n-gram model"):
        NGram.load(tmp_path / "a.npz")
