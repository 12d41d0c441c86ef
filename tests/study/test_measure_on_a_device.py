from typing import Any

import joblib
import numpy as np
import pytest
import torch
from polars.testing import assert_frame_equal

import otmd
from otmd.models import Dataset, open_dataset
from otmd.study import measure
from otmd.study.device import closed_forms
from otmd.study.rows import make_settings

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]
STEPS = [otmd.Processing(0.0), otmd.Processing(0.6), otmd.Processing(), otmd.Processing(top_k=3)]
SETTINGS: dict[str, Any] = {"num_drafts": (1, 2, 4), "processing": STEPS, "workers": 1}


@pytest.fixture
def wide(tmp_path) -> Dataset:
    """Logits of 70 tokens, at one position all draft mass on one of them."""
    rng = np.random.default_rng(0)
    target = 3 * rng.standard_normal((5, 70)).astype(np.float32)
    draft = target + rng.standard_normal((5, 70)).astype(np.float32)
    draft[3, 1:] = -np.inf
    np.savez(tmp_path / "dump.npz", target_logits=target, draft_logits=draft)
    return open_dataset(tmp_path / "dump.npz")


@pytest.mark.parametrize("where", DEVICES)
def test_the_table_is_the_same(where: str, wide: Dataset) -> None:
    table = measure(wide, device=where, **SETTINGS)
    assert_frame_equal(table, measure(wide, **SETTINGS), abs_tol=1e-12, rel_tol=0)
    assert table["status"].str.starts_with("undefined").sum() > 0


def test_a_difference_would_be_found(wide: Dataset, monkeypatch) -> None:
    monkeypatch.setattr(
        "otmd.tensors.greedy_rates", lambda p, q, n, validate: 0.9 * torch.ones(p.shape[0], n)
    )
    table = measure(wide, device="cpu", **SETTINGS)
    with pytest.raises(AssertionError):
        assert_frame_equal(table, measure(wide, **SETTINGS), abs_tol=1e-6, rel_tol=0)


def test_closed_forms_are_not_computed_twice_and_the_rest_is_by_the_cpu(wide, monkeypatch) -> None:
    rules = [otmd.KSequential, otmd.RecursiveRejection]
    settings = {"num_drafts": (2,), "workers": 1, "verifiers": rules}
    whole = measure(wide, **settings)
    # Computed on the CPU, it would fail.
    monkeypatch.setattr(otmd.KSequential, "acceptance_bounds", None)
    assert_frame_equal(measure(wide, device="cpu", **settings), whole, abs_tol=1e-12, rel_tol=0)
    served = closed_forms(make_settings([otmd.WithReplacement, otmd.Greedy], rules, (2,)))
    assert set(served) == {
        ("WithReplacement", 2, "KSequential"),
        ("WithReplacement", 2, "RecursiveRejection"),
    }


def test_with_workers_and_probabilities(dataset: Dataset, tmp_path) -> None:
    with joblib.parallel_config("threading", n_jobs=2):
        found = measure(dataset, num_drafts=(2,), device="cpu")
    assert_frame_equal(found, measure(dataset, num_drafts=(2,), workers=1), abs_tol=1e-12)
    probs = [otmd.Processing()(values) for values in dataset.arrays(range(len(dataset)))]
    np.savez(tmp_path / "probs.npz", target_probs=probs[0], draft_probs=probs[1])
    found, alone = (measure(tmp_path / "probs.npz", workers=1, device=d) for d in ("cpu", None))
    assert_frame_equal(found, alone, abs_tol=1e-12)


def test_a_bad_position_is_named(dataset: Dataset, tmp_path) -> None:
    target, draft = dataset.arrays(range(len(dataset)))
    target[7, 2] = np.nan
    np.savez(tmp_path / "dump.npz", target_logits=target, draft_logits=draft)
    for settings in ({}, {"verifiers": [otmd.KSequential]}, {"processing": [STEPS[3]]}):
        with pytest.raises(ValueError, match="dataset: position 7"):
            measure(tmp_path / "dump.npz", workers=1, device="cpu", **settings)
