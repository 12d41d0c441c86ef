"""Who is among the first arrivals beside slow tokens, against counts of the others one by one."""

import naive
import numpy as np
import pytest

from otmd.race.heavy_inclusion import heavy_inclusion


@pytest.mark.parametrize("num_drafts", [2, 3, 5])
@pytest.mark.parametrize("num_heavy", [0, 1, 2, 7])
def test_counts_of_the_others(num_heavy: int, num_drafts: int) -> None:
    rng = np.random.default_rng([89, num_heavy, num_drafts])
    present, slow = rng.random((num_heavy, 4)), rng.random((5, 4))
    weights, missed = rng.random(4), np.empty((num_drafts, num_heavy))
    slow_counts = [naive.poisson_binomial(slow[:, t].tolist(), num_drafts) for t in range(4)]
    at_most = np.cumsum(np.transpose(slow_counts), axis=0)
    counts = heavy_inclusion(1.0 - present, present, at_most, weights, missed)
    for t in range(4):
        wanted = naive.poisson_binomial(present[:, t].tolist(), num_drafts)
        assert counts[:, t].tolist() == pytest.approx(wanted, rel=1e-13)
    for i in range(num_heavy):
        for k in range(num_drafts):
            total = 0.0
            for t in range(4):
                others = [*np.delete(present[:, t], i).tolist(), *slow[:, t].tolist()]
                fewer = sum(naive.poisson_binomial(others, k + 1))
                total += weights[t] * (1.0 - present[i, t]) * fewer
            assert missed[k, i] == pytest.approx(total, rel=1e-12)
