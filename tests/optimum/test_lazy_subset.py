"""The cut with replacement, whose tokens are written down when they are asked for."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest

import otmd
from otmd.optimum import ratio_cut
from otmd.optimum.acceptance import family_rates

B, V, N = 6, 20_000, 4


def pair(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.standard_normal((B, V))
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(
        logits + rng.standard_normal((B, V))
    )


def test_a_rate_needs_no_subset(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a subset was written down")

    p, q = pair()
    laws = otmd.WithReplacement(q[0], N).family()
    with monkeypatch.context() as patched:
        patched.setattr(ratio_cut, "cut_subsets", refuse)
        best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, N), every_n=True)
        assert family_rates(p[0], laws) == np.array(best.rate)[0].tolist()
        assert repr(best).startswith("OptimalAcceptance(rate=array(")
        with pytest.raises(AssertionError, match="written down"):
            _ = best.subset
    assert best.subset.shape == (B, N, V)


def test_memory_of_a_rate_alone() -> None:
    p, q = pair()
    law, size = otmd.WithReplacement(q, 8 * N), B * 8 * N * V

    def peak(ask) -> int:
        ask()
        tracemalloc.start()
        ask()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    def subset() -> object:
        return otmd.optimal_acceptance(p, law, every_n=True).subset

    assert peak(lambda: otmd.optimal_acceptance(p, law, every_n=True)) < size / 4
    assert peak(subset) >= size


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_subset_proves_the_rate(dtype: type) -> None:
    p, q = pair()
    law = otmd.WithReplacement(q, N)
    best = otmd.optimal_acceptance(p.astype(dtype), law)
    assert best.subset is best.subset
    assert best.subset.shape == (B, V)
    exact = otmd.validate_probs("p", p.astype(dtype))
    proof = 1 + (exact * best.subset).sum(axis=-1) - law.containment(best.subset)
    np.testing.assert_allclose(proof, best.rate, rtol=0, atol=1e-12)


@pytest.mark.parametrize("row", range(B))
def test_a_target_that_was_changed_meanwhile_is_refused(row: int) -> None:
    p, q = pair()
    best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, N))
    p[row] = p[row, ::-1].copy()
    with pytest.raises(ValueError, match="target_probs: got numbers with which the cut is worth"):
        _ = best.subset
    p[row] = p[row, ::-1].copy()
    np.testing.assert_array_equal(
        best.subset, otmd.optimal_acceptance(p, otmd.WithReplacement(q, N)).subset
    )
    # Once asked for it is kept.
    p[:] = 1.0 / V
    assert best.subset.any()


def test_a_target_that_is_none_any_more_is_refused() -> None:
    p, q = pair()
    best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, N))
    p[3, 7] = np.nan
    with pytest.raises(ValueError, match=r"target_probs: got nan at index \(3, 7\)"):
        _ = best.subset


def test_a_law_that_was_changed_meanwhile_is_refused() -> None:
    p, q = pair()
    law = otmd.WithReplacement(q, N)
    best = otmd.optimal_acceptance(p, law)
    law.draft_probs[0] = law.draft_probs[0, ::-1].copy()
    with pytest.raises(ValueError, match="target_probs: got numbers"):
        _ = best.subset


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_stand_alone(copied) -> None:
    p, q = pair()
    best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, N))
    other = copied(best)
    wanted = otmd.optimal_acceptance(p.copy(), otmd.WithReplacement(q, N)).subset
    p[:] = 1.0 / V
    np.testing.assert_array_equal(other.rate, best.rate)
    np.testing.assert_array_equal(other.subset, wanted)


def test_made_by_hand() -> None:
    subset = np.array([True, False])
    assert otmd.OptimalAcceptance(0.5, subset).subset is subset
