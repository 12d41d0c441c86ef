from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from otmd.models import DatasetError, NGram, collect, load_prompts, open_dataset
from otmd.models.dataset import SHARDS, Position, read_shard, write_shard
from otmd.models.variants import skip_layers
from otmd.storage.store import Store

RNG = np.random.default_rng(0)
TARGET = RNG.normal(size=(5, 11))
DRAFT = RNG.normal(size=(5, 11))
LABELS = {
    "prompt_id": np.array(["a", "a", "b", "b", "c"]),
    "domain": np.array(["code", "code", "chat", "chat", "chat"]),
    "position": np.array([3, 4, 7, 8, 9]),
    "token": np.array([1, 0, 10, 2, 2]),
}


def folder(tiny, prompts, path):
    return collect(
        tiny,
        skip_layers(tiny, [1]),
        prompts,
        path,
        positions_per_prompt=3,
        max_new_tokens=8,
        batch_size=2,
        progress=False,
    )


def test_rows_in_any_order_across_shards(tiny, prompts, tmp_path):
    dataset = folder(tiny, prompts, tmp_path)
    whole_target, whole_draft = dataset.arrays(np.arange(len(dataset)))
    wanted = [len(dataset) - 1, 0, 5, 5, 2]
    target, draft = dataset.arrays(wanted)
    np.testing.assert_array_equal(target, whole_target[wanted])
    np.testing.assert_array_equal(draft, whole_draft[wanted])
    assert target.dtype == np.float32
    assert dataset.arrays([])[0].shape == (0, 62)
    assert [p.index for p in dataset.positions] == list(range(len(dataset)))


@pytest.mark.parametrize("form", ["folder", "npz"])
def test_survives_pickling(tiny, prompts, tmp_path, form):
    if form == "folder":
        dataset = folder(tiny, prompts, tmp_path)
    else:
        np.savez(tmp_path / "dump.npz", target_logits=TARGET, draft_logits=DRAFT, **LABELS)
        dataset = open_dataset(tmp_path / "dump.npz")
    again = pickle.loads(pickle.dumps(dataset))
    assert again.path == dataset.path
    assert again.positions == dataset.positions
    np.testing.assert_array_equal(again.arrays([1])[0], dataset.arrays([1])[0])


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_npz_of_every_type(tmp_path, kind, dtype):
    arrays = {f"target_{kind}": TARGET.astype(dtype), f"draft_{kind}": DRAFT.astype(dtype)}
    np.savez(tmp_path / "dump.npz", metadata=json.dumps({"engine": "x"}), **arrays, **LABELS)
    dataset = open_dataset(tmp_path / "dump.npz")
    assert (dataset.kind, dataset.vocab_size, len(dataset)) == (kind, 11, 5)
    assert repr(dataset) == f"<Dataset {dataset.path}: {kind} of 5 positions, V = 11>"
    target, draft = dataset.arrays([4, 0])
    assert target.dtype == dtype
    np.testing.assert_array_equal(target, TARGET.astype(dtype)[[4, 0]])
    np.testing.assert_array_equal(draft, DRAFT.astype(dtype)[[4, 0]])
    place = dataset.positions[4]
    assert (place.prompt_id, place.domain, place.position) == ("c", "chat", 9)
    assert dataset.metadata["engine"] == "x"
    assert dataset.metadata["source"] == "dump.npz"
    assert dataset.metadata["dtype"] == {"target": dtype, "draft": dtype}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_safetensors_of_every_type(tmp_path, dtype):
    target = torch.tensor(TARGET).to(getattr(torch, dtype))
    draft = torch.tensor(DRAFT).to(getattr(torch, dtype))
    save_file(
        {
            "target_probs": target,
            "draft_probs": draft,
            "prompt_id": torch.tensor([0, 0, 1, 1, 2]),
            "position": torch.tensor([3, 4, 7, 8, 9], dtype=torch.int32),
        },
        tmp_path / "dump.safetensors",
        metadata={
            "domain": json.dumps(LABELS["domain"].tolist()),
            "metadata": json.dumps({"engine": "y"}),
        },
    )
    dataset = open_dataset(tmp_path / "dump.safetensors")
    read, other = dataset.arrays([4, 0])
    assert read.dtype == ("float32" if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(read, target[[4, 0]].to(torch.float64).numpy())
    np.testing.assert_array_equal(other, draft[[4, 0]].to(torch.float64).numpy())
    place = dataset.positions[3]
    assert (place.prompt_id, place.domain, place.position) == ("1", "chat", 8)
    assert dataset.metadata["engine"] == "y"
    assert dataset.metadata["dtype"]["target"] == dtype


def test_types_may_differ_and_extremes_survive_bfloat16(tmp_path):
    extreme = torch.tensor([[float("-inf"), 3e38, 1e-40, -0.0]]).to(torch.bfloat16)
    save_file(
        {"target_logits": extreme, "draft_logits": torch.zeros(1, 4, dtype=torch.float64)},
        tmp_path / "dump.safetensors",
    )
    target, draft = open_dataset(tmp_path / "dump.safetensors").arrays([0])
    np.testing.assert_array_equal(target, extreme.to(torch.float32).numpy())
    assert np.signbit(target[0, 3])
    assert (target.dtype, draft.dtype) == (np.float32, np.float64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"target_logits": TARGET}, "got .'target_logits'"),
        ({"target_logits": TARGET, "draft_probs": DRAFT}, "expected either"),
        (
            dict.fromkeys(["target_logits", "draft_logits", "target_probs", "draft_probs"], DRAFT),
            "expected either",
        ),
        ({"target_logits": TARGET, "draft_logits": DRAFT[:4]}, "expected the same"),
        ({"target_logits": TARGET[0], "draft_logits": DRAFT[0]}, r"expected \(N, V\)"),
        ({"target_logits": TARGET[:0], "draft_logits": DRAFT[:0]}, r"expected \(N, V\)"),
        (
            {"target_logits": TARGET.astype(int), "draft_logits": DRAFT.astype(int)},
            "floating",
        ),
        ({"target_logits": TARGET, "draft_logits": DRAFT, "position": np.arange(4)}, "position"),
        (
            {"target_logits": TARGET, "draft_logits": DRAFT, "metadata": np.array("[1]")},
            "metadata must be a JSON dict",
        ),
        (
            {"target_logits": TARGET, "draft_logits": DRAFT, "metadata": np.array("{")},
            "metadata is not JSON",
        ),
    ],
)
def test_dumps_of_another_form(tmp_path, arrays, message):
    np.savez(tmp_path / "dump.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        open_dataset(tmp_path / "dump.npz")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("promptid", "unknown array promptid; did you mean prompt_id?"),
        ("positions", "unknown array positions; did you mean position?"),
        ("target_ids", "unknown array target_ids"),
        ("xyz", "unknown array xyz; expected some of target_logits, "),
    ],
)
def test_an_array_that_is_misspelt_is_refused(tmp_path, name, said):
    arrays = {"target_logits": TARGET, "draft_logits": DRAFT, name: np.arange(5)}
    path = tmp_path / "dump.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {said}")):
        open_dataset(path)
    tensors = {key: torch.tensor(array) for key, array in arrays.items()}
    path = tmp_path / "dump.safetensors"
    save_file(tensors, path)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {said}")):
        open_dataset(path)


@pytest.mark.parametrize(
    ("name", "meant"), [("temprature", "temperature"), ("top-k", "top_k"), ("ordr", "order")]
)
def test_metadata_that_are_misspelt_are_refused(tmp_path, name, meant):
    arrays = {"target_logits": TARGET, "draft_logits": DRAFT}
    about = {"engine": "x", "model": "large", "date": "today", "temperature": 0.7}
    np.savez(tmp_path / "dump.npz", metadata=json.dumps(about), **arrays)
    assert open_dataset(tmp_path / "dump.npz").metadata["temperature"] == 0.7
    np.savez(tmp_path / "dump.npz", metadata=json.dumps(about | {name: 0.5}), **arrays)
    with pytest.raises(ValueError, match=f"unknown metadata {name}; did you mean {meant}\\?"):
        open_dataset(tmp_path / "dump.npz")


def test_a_data_set_is_identified_by_its_files(tiny, prompts, tmp_path):
    dataset = folder(tiny, prompts, tmp_path / "a")
    assert dataset.sha256 == open_dataset(tmp_path / "a", verify=False).sha256
    assert dataset.sha256 != folder(tiny, prompts[::-1], tmp_path / "b").sha256
    for path, draft in (("c", DRAFT), ("d", DRAFT + 1)):
        np.savez(tmp_path / f"{path}.npz", target_logits=TARGET, draft_logits=draft)
    opened = [open_dataset(tmp_path / f"{path}.npz") for path in "cd"]
    assert opened[0].sha256 != opened[1].sha256


def test_a_text_beside_the_arrays_is_refused_where_it_resembles_a_label(tmp_path):
    tensors = {"target_logits": torch.tensor(TARGET), "draft_logits": torch.tensor(DRAFT)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt", "model": "large"})
    assert len(open_dataset(tmp_path / "a.safetensors")) == 5
    save_file(
        tensors, tmp_path / "b.safetensors", metadata={"promptid": '["a", "a", "b", "b", "b"]'}
    )
    with pytest.raises(ValueError, match=r"unknown array promptid; did you mean prompt_id\?"):
        open_dataset(tmp_path / "b.safetensors")


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_named_with_its_file_and_array(tmp_path, kind, value):
    draft = np.full((5, 11), 1 / 11)
    draft[3, 4] = value
    arrays = {f"target_{kind}": np.full((5, 11), 1 / 11), f"draft_{kind}": draft}
    np.savez(tmp_path / "dump.npz", **arrays, prompt_id=LABELS["prompt_id"])
    dataset = open_dataset(tmp_path / "dump.npz")
    assert dataset.arrays([0, 4])[1].shape == (2, 11)
    said = f"position 3 (prompt b, position 3): dump.npz: draft_{kind}: got {value} for token 4"
    with pytest.raises(ValueError, match=re.escape(said)):
        dataset.arrays([0, 3])


@pytest.mark.parametrize(
    "position",
    [
        np.full(5, np.inf),
        np.array(["x"] * 5),
        np.zeros((5, 2)),
        np.full(5, 1.7),
    ],
)
def test_positions_that_are_no_whole_numbers(tmp_path, position):
    arrays = {"target_logits": TARGET, "draft_logits": DRAFT, "position": position}
    np.savez(tmp_path / "dump.npz", **arrays)
    with pytest.raises(ValueError, match=r"dump\.npz: position must hold whole numbers"):
        open_dataset(tmp_path / "dump.npz")


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("keep", [0, 40, -1])
def test_torn_dumps(tmp_path, ending, keep):
    path = tmp_path / f"dump.{ending}"
    if ending == "npz":
        np.savez(path, target_logits=TARGET, draft_logits=DRAFT)
    else:
        tensors = {"target_logits": torch.tensor(TARGET), "draft_logits": torch.tensor(DRAFT)}
        save_file(tensors, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match="torn"):
        open_dataset(path)


def test_paths_that_are_no_data_set(tmp_path):
    for path, message in [
        (tmp_path / "nowhere", "there is no data set"),
        (tmp_path, "no folder made by collect"),
    ]:
        with pytest.raises(ValueError, match=message):
            open_dataset(path)
    (tmp_path / "table.csv").write_text("1,2")
    with pytest.raises(ValueError, match=r"\.npz or \.safetensors"):
        open_dataset(tmp_path / "table.csv")


def test_sizes_are_compared_even_without_hashing(tiny, prompts, tmp_path):
    folder(tiny, prompts, tmp_path)
    shard = next(tmp_path.glob("000001-*.safetensors"))
    shard.write_bytes(shard.read_bytes() + b"x")
    with pytest.raises(DatasetError, match="torn"):
        open_dataset(tmp_path, verify=False)


def test_a_whole_shard_of_another_run_is_not_taken(tiny, prompts, tmp_path):
    folder(tiny, prompts, tmp_path / "a")
    folder(tiny, prompts[::-1], tmp_path / "b")
    ours = next((tmp_path / "a").glob("000001-*.safetensors"))
    ours.write_bytes(next((tmp_path / "b").glob("000001-*.safetensors")).read_bytes())
    with pytest.raises(DatasetError, match=r"altered|torn"):
        open_dataset(tmp_path / "a")


DEEP = "[" * 100_000


def stored(path: Path, header: object, size: int) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return path


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
        with pytest.raises(DatasetError, match="is no shard of otmd"):
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
