"""The cut of drafts with replacement as one kernel: against brute force, the sorted scan and a loop."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import naive
import numpy as np
import pytest
from strategies import Array, instances

import otmd
from otmd.curve.cut_rows import cut_masses, cut_rows, cut_subsets
from otmd.curve.ratio_cut import SLACK, cut_tokens, power, smallest_cuts
from otmd.curve.ratio_groups import group_edges
from otmd.curve.replacement_cuts import cuts_with_replacement
from otmd.curve.sorted_curve import mass_before
from otmd.optimum.acceptance import best_prefix
from otmd.rows import Rows

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
        mass = np.empty(V + 1)
        mass_before(q, order, mass)
        _, values = cuts(p, q, 1, MOST)
        for n in range(1, MOST + 1):
            rate = best_prefix(p, order, np.minimum(mass, 1.0) ** n)[1]
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
    found = cuts_with_replacement(Rows.of(p, (40, 3)), Rows.of(q, (40, 3)), 2, 3)
    assert found.value.shape == (120, 2)
    subset = found.subsets()
    assert subset.shape == (120, 2, 5000)
    for i, j in [(0, 0), (17, 1), (39, 2)]:
        at = 3 * i + j
        _, alone = cuts(p[i, 0], q[j], 2, 3)
        np.testing.assert_array_equal(found.found[at], alone)
        np.testing.assert_allclose(found.value[at], alone, atol=1e-13)
        for n in (2, 3):
            own = subset[at, n - 2]
            value = p[i, 0][own].sum() - q[j][own].sum() ** n
            assert value == pytest.approx(found.value[at, n - 2])


def test_the_rows_of_a_batch_in_fractions() -> None:
    """Masses and tokens of the cuts of several positions, of which two read the same row of q."""
    edges = group_edges()
    for pair in pairwise(instances(60, seed=87)):
        if len(pair[0].p) != len(pair[1].p):
            continue
        p, q = np.array([x.p for x in pair]), np.array([x.q for x in pair])
        p_row, q_row = np.array([0, 1, 1]), np.array([0, 1, 0])
        ends, value, found, again = np.empty((4, 3, MOST))
        subset = np.empty((3, MOST, p.shape[1]), dtype=bool)
        cut_rows(p, p_row, q, q_row, 1, MOST, edges, ends, value, found)
        cut_subsets(p, p_row, q, q_row, 1, ends, again, subset)
        np.testing.assert_allclose(again, value, rtol=0, atol=1e-15)
        for b in range(3):
            target, draft = (naive.exact(x.tolist()) for x in (p[p_row[b]], q[q_row[b]]))
            for n in range(1, MOST + 1):
                best, _ = naive.smallest_best_cut(target, draft, n)
                tokens = np.flatnonzero(subset[b, n - 1])
                own = sum(target[y] for y in tokens) - sum(draft[y] for y in tokens) ** n
                exact = pytest.approx(float(best), abs=AGREE)
                assert (float(own), value[b, n - 1], found[b, n - 1]) == (exact, exact, exact)


def test_masses_below_ends() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.full(3000, 0.2), size=2)
    q[::7] = 0.0
    ends = np.array([0.0, 0.5, 1.0, np.inf])
    p_sums, q_sums = np.empty((2, 4))
    cut_masses(p, q, ends, p_sums, q_sums)
    for i, end in enumerate(ends):
        below = [y for y in range(3000) if q[y] > 0 and p[y] / q[y] < end]
        assert p_sums[i] == pytest.approx(sum(p[below].tolist()), abs=1e-14)
        assert q_sums[i] == pytest.approx(sum(q[below].tolist()), abs=1e-14)


def test_power() -> None:
    for n in range(1, 40):
        assert power(0.7, n) == pytest.approx(float(Fraction(7, 10) ** n), rel=1e-14)
