import json
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from otmd.models import DatasetError, collect, open_dataset
from otmd.models.variants import skip_layers

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


def test_indices_out_of_range(tmp_path):
    np.savez(tmp_path / "dump.npz", target_logits=TARGET, draft_logits=DRAFT)
    dataset = open_dataset(tmp_path / "dump.npz")
    for indices in ([5], [-1]):
        with pytest.raises(ValueError, match=r"\[0, 5\)"):
            dataset.arrays(indices)


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
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


def test_without_labels_every_row_is_a_prompt_of_its_own(tmp_path):
    np.savez(tmp_path / "dump.npz", target_probs=TARGET, draft_probs=DRAFT)
    places = open_dataset(tmp_path / "dump.npz").positions
    assert [p.prompt_id for p in places] == ["0", "1", "2", "3", "4"]
    assert {p.domain for p in places} == {"dump"}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"target_logits": TARGET}, "found .'target_logits'"),
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


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "dump.npz", target_logits=np.array([{}], object), draft_logits=DRAFT)
    with pytest.raises(ValueError, match="allow_pickle"):
        open_dataset(tmp_path / "dump.npz")


@pytest.mark.parametrize(
    "position",
    [
        np.full(5, np.nan),
        np.array(["x"] * 5),
        np.zeros((5, 2)),
        np.full(5, np.inf),
        np.full(5, 1.7),
    ],
)
def test_positions_that_are_no_whole_numbers(tmp_path, position):
    arrays = {"target_logits": TARGET, "draft_logits": DRAFT, "position": position}
    np.savez(tmp_path / "dump.npz", **arrays)
    with pytest.raises(ValueError, match=r"dump\.npz: position must hold whole numbers"):
        open_dataset(tmp_path / "dump.npz")


@pytest.mark.parametrize("content", [b"some text", b"\x93NUMPY\x01\x00"])
def test_what_is_no_npz(tmp_path, content):
    (tmp_path / "dump.npz").write_bytes(content)
    with pytest.raises(DatasetError, match="no npz file"):
        open_dataset(tmp_path / "dump.npz")


@pytest.mark.parametrize(
    "header",
    [
        [1],
        {"target_logits": "x"},
        {"target_logits": {"shape": [1, 2], "data_offsets": [0, 8]}},
        {"target_logits": {"dtype": "F32", "shape": [1, 2], "data_offsets": [8]}},
        {"target_logits": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}},
        {"target_logits": {"dtype": "F32", "shape": None, "data_offsets": [0, 8]}},
    ],
)
def test_headers_that_are_not_those_of_safetensors(tmp_path, header):
    text = json.dumps(header).encode()
    path = tmp_path / "dump.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(DatasetError, match="no safetensors file"):
        open_dataset(path)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("keep", [0, 4, 40, 300, -1])
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


def test_a_type_no_law_is_stored_in(tmp_path):
    tensors = {"target_logits": torch.zeros(2, 3, dtype=torch.int8)}
    save_file(tensors, tmp_path / "dump.safetensors")
    with pytest.raises(ValueError, match="target_logits: got type I8"):
        open_dataset(tmp_path / "dump.safetensors")


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
