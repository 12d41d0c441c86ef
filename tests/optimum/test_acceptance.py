"""Results of optimal_acceptance stand alone, and a batch gives what each of its positions gives."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from strategies import close_pair

import otmd
import otmd.kernel

B, V, N = 6, 20_000, 4
each_law = pytest.mark.parametrize("law", [otmd.WithReplacement, otmd.WithoutReplacement])


def peak(run: Callable[[], object]) -> int:
    run()
    tracemalloc.start()
    run()
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held


def test_memory_of_a_rate_alone() -> None:
    p, q = close_pair((B, V), scale=2.0)
    law = otmd.WithReplacement(q, N)
    # A copy of the target is kept, and no subset is made.
    assert p.nbytes <= peak(lambda: otmd.optimal_acceptance(p, law)) < p.nbytes + B * V
    assert peak(lambda: otmd.optimal_acceptance(p, law).subset) >= p.nbytes + B * V


@each_law
@pytest.mark.parametrize("size", [5, V])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x]
)
def test_the_subset_proves_the_rate_whatever_becomes_of_the_target(
    law: type, size: int, copied: Callable
) -> None:
    p, q = close_pair((B, size), scale=2.0)
    target, law = p.copy(), law(q, N)
    best = copied(otmd.optimal_acceptance(p, law))
    p[:] = 1.0 / size
    proof = 1 + (target * best.subset).sum(axis=-1) - law.containment(best.subset)
    np.testing.assert_allclose(proof, best.rate, rtol=0, atol=1e-12)
    assert best.subset is best.subset
    best.rate *= 100
    fresh = otmd.optimal_acceptance(target, law)
    np.testing.assert_array_equal(best.subset, fresh.subset)


@pytest.mark.parametrize("size", [40, 2 * V])
@pytest.mark.parametrize("law", [otmd.WithReplacement, otmd.WithoutReplacement, otmd.Greedy])
def test_a_batch_in_threads_is_its_positions_to_the_last_bit(
    law: type, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = close_pair((B, size), scale=2.0)
    alone = [otmd.optimal_acceptance(p[i], law(q[i], 3)).rate for i in range(B)]
    for count in (1, 2):
        monkeypatch.setattr(otmd.kernel, "num_threads", lambda count=count: count)
        np.testing.assert_array_equal(otmd.optimal_acceptance(p, law(q, 3)).rate, alone)
    crossed = otmd.optimal_acceptance(p[:, None], law(q[:2], 3)).rate
    assert crossed.shape == (B, 2)
    assert (crossed[0, 0], crossed[1, 1]) == (alone[0], alone[1])


def test_made_by_hand() -> None:
    subset = np.array([True, False])
    assert otmd.OptimalAcceptance(0.5, subset).subset is subset
