"""The cut of drafts with replacement as one kernel: against brute force, the sorted scan and a loop."""

from __future__ import annotations

from fractions import Fraction

import naive
import numpy as np
import pytest
from strategies import Array, instances

import otmd
from otmd.kernels.ratio_cut import SLACK, cut_tokens, power, smallest_cuts
from otmd.kernels.ratio_groups import group_edges
from otmd.optimum.acceptance import best_prefix
from otmd.optimum.ratio_cut import cuts_with_replacement

MOST = 5
AGREE = SLACK + 1e-14


def cuts(p: Array, q: Array, first: int, last: int) -> tuple[Array, Array]:
    ends, values = np.empty(last - first + 1), np.empty(last - first + 1)
    smallest_cuts(p, q, first, last, group_edges(), ends, values)
    return ends, values


def test_every_subset_in_fractions() -> None:
    for instance in instances(300, seed=83):
        p, q = np.array(instance.p), np.array(instance.q)
        ends, values = cuts(p, q, 1, MOST)
        subsets, p_sum, q_sum = np.empty((MOST, p.size), dtype=bool), np.empty(MOST), np.empty(MOST)
        cut_tokens(p, q, ends, subsets, p_sum, q_sum)
        for n in range(1, MOST + 1):
            exact = naive.exact(p.tolist()), naive.exact(q.tolist())
            best, smallest = naive.smallest_best_cut(*exact, n)
            assert p_sum[n - 1] - q_sum[n - 1] ** n == pytest.approx(float(best), abs=AGREE), (
                instance
            )
            assert values[n - 1] == pytest.approx(float(best), abs=AGREE), instance
            assert subsets[n - 1].sum() <= len(smallest) + (p == q).sum(), instance


@pytest.mark.parametrize("V", [50, 2000, 12_000])
@pytest.mark.parametrize("spread", [1e-6, 0.1, 1.0, 30.0])
def test_the_sorted_scan(V: int, spread: float) -> None:
    """Ratios all but equal, and over thirty orders of magnitude."""
    for seed in range(2):
        rng = np.random.default_rng([V, seed])
        logits = 2.0 * rng.standard_normal(V)
        p = otmd.probs_from_logits(logits)
        q = otmd.probs_from_logits(logits + spread * rng.standard_normal(V))
        order = otmd.RatioCurve(p, q).order
        _, values = cuts(p, q, 1, MOST)
        for n in range(1, MOST + 1):
            contained = otmd.WithReplacement(q, n).prefix_containment(order)
            rate = best_prefix(p, order, contained)[1]
            assert 1.0 + values[n - 1] == pytest.approx(rate, abs=2e-13)


def test_all_numbers_of_drafts_at_once_are_each_alone() -> None:
    for instance in instances(100, seed=85):
        p, q = np.array(instance.p), np.array(instance.q)
        _, together = cuts(p, q, 1, MOST)
        for n in range(1, MOST + 1):
            assert cuts(p, q, n, n)[1][0] == pytest.approx(together[n - 1], abs=AGREE)


def test_positions_in_threads_are_a_loop() -> None:
    """Enough numbers for several threads, leading axes that are broadcast, and every row its own."""
    rng = np.random.default_rng(0)
    p, q = (
        rng.dirichlet(np.full(5000, 0.1), size=(40, 1)),
        rng.dirichlet(np.full(5000, 0.1), size=3),
    )
    value, found, subset = cuts_with_replacement(p, q, 2, 3)
    assert value.shape == (40, 3, 2)
    assert subset.shape == (40, 3, 2, 5000)
    for i, j in [(0, 0), (17, 1), (39, 2)]:
        _, alone = cuts(p[i, 0], q[j], 2, 3)
        np.testing.assert_array_equal(found[i, j], alone)
        np.testing.assert_allclose(value[i, j], alone, atol=1e-13)
        for n in (2, 3):
            own = subset[i, j, n - 2]
            assert p[i, 0][own].sum() - q[j][own].sum() ** n == pytest.approx(value[i, j, n - 2])


def test_power() -> None:
    for n in range(1, 40):
        assert power(0.7, n) == pytest.approx(float(Fraction(7, 10) ** n), rel=1e-14)
