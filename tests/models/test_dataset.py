import json
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from otmd.models import DatasetError, collect, open_dataset
from otmd.models.dataset import SHARDS, Position, read_shard, write_shard
from otmd.models.drafts import skip_layers
from otmd.storage.store import Store

TARGET, DRAFT = np.random.default_rng(0).normal(size=(2, 5, 11))
PROMPTS = np.array(["a", "a", "b", "b", "c"])
TEXT = {"prompt_id": "a", "domain": "b", "tokens": [1, 2], "start": 1, "positions": [1]}


def folder(tiny, prompts, path):
    options = {"positions_per_prompt": 3, "max_new_tokens": 8, "batch_size": 2, "progress": False}
    return collect(tiny, skip_layers(tiny, [1]), prompts, path, **options)


def dump(path, kind="logits", target=TARGET, draft=DRAFT, **more):
    np.savez(path, **{f"target_{kind}": target, f"draft_{kind}": draft}, **more)
    return open_dataset(path)


def test_rows_in_any_order_across_shards(tiny, prompts, tmp_path):
    dataset = folder(tiny, prompts, tmp_path)
    stored = dataset.arrays(np.arange(len(dataset)))
    rows = [len(dataset) - 1, 0, 5, 5, 2]
    for read, whole in zip(dataset.arrays(rows), stored, strict=True):
        np.testing.assert_array_equal(read, whole[rows])
        assert read.dtype == np.float32
    assert dataset.arrays([])[0].shape == (0, 62)
    assert [p.index for p in dataset.positions] == list(range(len(dataset)))


def test_survives_pickling(tiny, prompts, tmp_path):
    for dataset in (folder(tiny, prompts, tmp_path / "a"), dump(tmp_path / "dump.npz")):
        again = pickle.loads(pickle.dumps(dataset))
        assert again.path == dataset.path
        assert again.positions == dataset.positions
        np.testing.assert_array_equal(again.arrays([1])[0], dataset.arrays([1])[0])


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_npz_of_every_type(tmp_path, kind, dtype):
    target, draft = TARGET.astype(dtype), DRAFT.astype(dtype)
    dataset = dump(tmp_path / "dump.npz", kind, target, draft, prompt_id=PROMPTS)
    assert repr(dataset) == f"<Dataset {dataset.path}: {kind} of 5 positions, V = 11>"
    for read, given in zip(dataset.arrays([4, 0]), (target, draft), strict=True):
        assert read.dtype == dtype
        np.testing.assert_array_equal(read, given[[4, 0]])
    assert dataset.positions[4] == Position(4, "c", "dump", 4)
    assert dataset.metadata == {"source": "dump.npz", "dtype": {"target": dtype, "draft": dtype}}


def test_safetensors_of_every_type(tmp_path):
    """A bfloat16 keeps its extremes; the texts of other programs are left alone."""
    target = torch.tensor([[float("-inf"), 3e38, 1e-40, -0.0], [1, 2, 3, 4]]).to(torch.bfloat16)
    draft = torch.zeros(2, 4, dtype=torch.float64)
    arrays = {"target_logits": target, "draft_logits": draft, "prompt_id": torch.tensor([7, 7])}
    path = tmp_path / "dump.safetensors"
    save_file(arrays, path, metadata={"format": "pt", "model": "large"})
    dataset = open_dataset(path)
    read = dataset.arrays([1, 0])
    np.testing.assert_array_equal(read[0], target[[1, 0]].to(torch.float32).numpy())
    assert np.signbit(read[0][1, 3])
    assert [rows.dtype for rows in read] == [np.float32, np.float64]
    assert dataset.metadata["dtype"] == {"target": "bfloat16", "draft": "float64"}
    assert {row.prompt_id for row in dataset.positions} == {"7"}
    save_file(arrays, path, metadata={"prompt_id": '["a", "b"]'})
    with pytest.raises(ValueError, match=r"dump\.safetensors: array: got prompt_id, expected"):
        open_dataset(path)


def test_a_data_set_is_identified_by_its_files(tiny, prompts, tmp_path):
    dataset = folder(tiny, prompts, tmp_path / "a")
    assert dataset.sha256 == open_dataset(tmp_path / "a", verify=False).sha256
    assert dataset.sha256 != folder(tiny, prompts[::-1], tmp_path / "b").sha256
    changed = dump(tmp_path / "d.npz", draft=DRAFT + 1)
    assert dump(tmp_path / "c.npz").sha256 != changed.sha256


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_named_with_its_file_and_array(tmp_path, value):
    draft = DRAFT.copy()
    draft[3, 4] = value
    dataset = dump(tmp_path / "dump.npz", draft=draft, prompt_id=PROMPTS)
    assert dataset.arrays([0, 4])[1].shape == (2, 11)
    said = f"position 3 (prompt b, position 3): dump.npz: draft_logits: got {value} for token 4"
    with pytest.raises(ValueError, match=re.escape(said)):
        dataset.arrays([0, 3])


def test_shards_of_another_run_are_not_taken(tiny, prompts, tmp_path):
    folder(tiny, prompts, tmp_path / "a")
    folder(tiny, prompts[::-1], tmp_path / "b")
    theirs = next((tmp_path / "b").glob("000001-*.safetensors"))
    (tmp_path / "a" / theirs.name).write_bytes(theirs.read_bytes())
    with pytest.raises(DatasetError, match="holds 5 shards, expected the 4 of its run"):
        open_dataset(tmp_path / "a")


def test_folders_that_are_none_of_otmd(tmp_path):
    store = Store(tmp_path, {}, SHARDS)

    def written(target=(1, 3), draft=(1, 3), text=TEXT):
        return write_shard(store, 0, [text], np.zeros(target), np.zeros(draft))

    assert read_shard(written())[0] == [TEXT]
    bare = tmp_path / "a.safetensors"
    text = json.dumps({"__metadata__": {"otmd": "{"}}).encode()
    bare.write_bytes(len(text).to_bytes(8, "little") + text)
    shapes = (written((2, 3), (2, 3)), written((1, 3), (1, 4)), written((3,), (3,)))
    texts = [written(text=TEXT | changed) for changed in ({"domain": 1}, {"positions": ["1"]})]
    for path in (bare, *shapes, *texts, written(text=3)):
        with pytest.raises(DatasetError, match="is no shard of otmd"):
            read_shard(path, verify=False)
    (tmp_path / "collect.json").write_text('{"a": ' + "[" * 100_000)
    with pytest.raises(ValueError, match="was not written by otmd"):
        store.check()
    for content in ('{"shards": ', "[1]", '{"format": 1}'):
        (tmp_path / "collect.json").write_text(content)
        with pytest.raises(DatasetError, match=r"collect\.json is torn, or not of this version"):
            open_dataset(tmp_path)
