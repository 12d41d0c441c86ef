"""The cut of drafts with and without replacement, whose tokens are only listed when they are asked for."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest

import otmd

B, V, N = 6, 20_000, 4
EACH_LAW = pytest.mark.parametrize("law", [otmd.WithReplacement, otmd.WithoutReplacement])


def pair(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.standard_normal((B, V))
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(
        logits + rng.standard_normal((B, V))
    )


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

    # A quarter of it is the copy of the target.
    assert peak(lambda: otmd.optimal_acceptance(p, law, every_n=True)) < size / 2
    assert peak(subset) >= size


@EACH_LAW
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_subset_proves_the_rate(law: type, dtype: type) -> None:
    p, q = pair()
    law = law(q, N)
    best = otmd.optimal_acceptance(p.astype(dtype), law)
    assert best.subset is best.subset
    assert best.subset.shape == (B, V)
    exact = otmd.validate_probs("p", p.astype(dtype))
    proof = 1 + (exact * best.subset).sum(axis=-1) - law.containment(best.subset)
    np.testing.assert_allclose(proof, best.rate, rtol=0, atol=1e-12)


@EACH_LAW
def test_once_asked_for_it_is_kept(law: type) -> None:
    p, q = pair()
    best = otmd.optimal_acceptance(p, law(q, N))
    before = best.subset.copy()
    p[:] = 1.0 / V
    np.testing.assert_array_equal(best.subset, before)


@EACH_LAW
def test_the_rates_may_be_changed_before(law: type) -> None:
    p, q = pair()
    best = otmd.optimal_acceptance(p, law(q, N), every_n=True)
    wanted = otmd.optimal_acceptance(p, law(q, N), every_n=True).subset
    best.rate *= 100
    np.testing.assert_array_equal(best.subset, wanted)


@EACH_LAW
@pytest.mark.parametrize("vocab_size", [5, V])
def test_a_target_changed_before_is_noticed(law: type, vocab_size: int) -> None:
    p, q = np.random.default_rng(1).dirichlet(np.ones(vocab_size), (2, B))
    best = otmd.optimal_acceptance(p, law(q, 2))
    assert best.rate[-1] < 1
    p[-1] = q[-1]
    with pytest.raises(ArithmeticError, match="unless the target was changed"):
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
