"""The cut of independent drafts against all subsets, the maximum flow, and other cuts at full vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from strategies import close_pair

import otmd
from otmd.laws import Slots
from otmd.optimum import independent_cut as cut_module
from otmd.optimum.bounds import draft_probability_bound
from otmd.optimum.independent_cut import independent_cut
from otmd.optimum.minimum_cut import minimum_cut

FULL = 50_000


def least_of_all_subsets(p: np.ndarray, rows: np.ndarray) -> float:
    masks = (np.arange(2**p.size)[:, None] >> np.arange(p.size)) & 1
    return float(np.min(masks @ p - np.prod(masks @ rows.T, axis=1)))


def value_of(p: np.ndarray, rows: np.ndarray, subset: np.ndarray) -> float:
    return float(p[subset].sum() - np.prod(rows[:, subset].sum(axis=1)))


def random_positions(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """p and q_j of one to four distributions, some repeated, equal to p, one-hot or rounded to ties."""
    rng = np.random.default_rng(0)
    for i in range(count):
        size = rng.integers(1, 12)
        alpha = np.full(size, rng.choice([0.1, 0.5, 1.0, 3.0]))
        p = rng.dirichlet(alpha)
        rows = rng.dirichlet(alpha, size=rng.integers(1, 5))
        if i % 11 == 0:
            p = (np.round(8 * p) + 1) / (np.round(8 * p) + 1).sum()
            rows = np.round(8 * rows) + 0.5
            rows /= rows.sum(axis=1, keepdims=True)
        if i % 5 == 0:
            rows[:] = p
        if i % 7 == 0:
            rows[0] = np.eye(size)[rng.integers(size)]
        yield p, np.repeat(rows, 1 + (i % 4 == 0), axis=0)


def weights_with_ties(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """p and q_j uniform on random sets of tokens, or of small integer weights."""
    rng = np.random.default_rng(1)
    for i in range(count):
        shape = rng.integers(1, 5), rng.integers(2, 12)
        most = 2 if i % 2 else 5
        rows = rng.integers(most, size=shape) + 1e-9 * (i % 3 == 0) * rng.random(shape)
        rows[np.arange(shape[0]), rng.integers(shape[1], size=shape[0])] += 1.0
        weights = rng.integers(most, size=shape[1]) + 1e-300
        p = rng.dirichlet(np.ones(shape[1])) if i % 5 == 0 else weights / weights.sum()
        yield p, rows / rows.sum(axis=1, keepdims=True)


def test_against_all_subsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving alone does not end: a box between two reachable values of q(H) shrinks to rounding."""
    boxes = 0

    def counted(*arguments):
        nonlocal boxes
        boxes += 1
        assert boxes < 1000
        return tightened(*arguments)

    tightened = cut_module._tightened
    monkeypatch.setattr(cut_module, "_tightened", counted)
    known = [
        ([0, 0.25, 0.75], [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]]),
        ([0.2, 0.4, 0.4, 0], [[0, 0.5, 0.5, 0], [1 / 3, 0, 1 / 3, 1 / 3]]),
    ]
    cases = [(np.array(p), np.array(rows)) for p, rows in known]
    for p, rows in [*cases, *weights_with_ties(200), *random_positions(150)]:
        boxes = 0
        subset, value = independent_cut(p, Slots.overlapping(rows))
        assert abs(value - least_of_all_subsets(p, rows)) < 1e-12
        assert abs(value - value_of(p, rows, subset)) < 1e-12


def test_the_smallest_minimiser_is_that_of_the_maximum_flow() -> None:
    for p, rows in random_positions(80):
        if rows.shape[1] ** len(rows) < 2000:
            subset, rate = minimum_cut(p, otmd.Independent(rows))
            best = otmd.optimal_acceptance(p, otmd.Independent(rows))
            assert abs(best.rate - rate) < 1e-12
            np.testing.assert_array_equal(best.subset, subset)


@pytest.fixture(scope="module")
def pair() -> tuple[np.ndarray, np.ndarray]:
    return close_pair(FULL, 1.0, 1, scale=3.0)


def test_equal_and_disjoint_drafters_at_full_vocabulary(pair) -> None:
    p, q = pair
    for n in (2, 3, 8):
        for law in (otmd.WithReplacement(q, n), otmd.Stratified(q, n)):
            slots = law.position_structure.slots
            rows = np.repeat(slots.dense, slots.copies, axis=0)
            best, same = (otmd.optimal_acceptance(p, x) for x in (otmd.Independent(rows), law))
            assert abs(best.rate - same.rate) < 1e-12
            assert slots.disjoint or (best.subset == same.subset).all()


def test_the_certificate_of_different_drafters_at_full_vocabulary(pair) -> None:
    """The rate is 1 + p(H) − g(H); the preference rule comes near it from below."""
    p, q = pair
    rng = np.random.default_rng(2)
    other = otmd.probs_from_logits(np.log(p) + 2.0 * rng.standard_normal(FULL))
    certain = np.eye(1, FULL, int(np.argmax(other)))[0]
    for rows in ([q, other], [q, certain], [q, q, other, certain]):
        law = otmd.Independent(rows)
        best = otmd.optimal_acceptance(p, law)
        assert abs(best.rate - 1 - value_of(p, np.array(rows), best.subset)) < 1e-12
        below = best.rate - otmd.Preference().acceptance_rate(p, law)
        assert -1e-12 < below < 0.02


def test_rows_whose_sums_are_rounded(pair) -> None:
    """A whole stratum is in the cut, and sums to more than 1 by more than the slack of a cut."""
    p, _ = pair
    sharpened = otmd.probs_from_logits(1.6 * np.log(p))
    rng = np.random.default_rng(4)
    for scale in (1.0 - 1e-12, 1.0, 1.0 + 1e-12):
        other = otmd.probs_from_logits(np.log(p) + 2.0 * rng.standard_normal(FULL))
        strata = otmd.Stratified(sharpened, 2).position_structure.slots.dense
        rows = np.concatenate([strata, other[None]]) * scale
        subset, value = independent_cut(p, Slots.overlapping(rows))
        law = otmd.Independent(rows)
        assert abs(value - value_of(p, rows, subset)) < 1e-11
        assert value <= draft_probability_bound(p, law) - 1 + 1e-11
        assert value >= otmd.Preference().acceptance_rate(p, law) - 1 - 1e-11


def test_the_cut_is_a_half_space(pair) -> None:
    """Theorem 13: H* = {y : p_y < Σ_r c_r q_r(y)}, with c the other drafters' masses of H*."""
    p, q = pair
    rng = np.random.default_rng(3)
    other = otmd.probs_from_logits(np.log(q) + 2.0 * rng.standard_normal(FULL))
    subset = otmd.optimal_acceptance(p, otmd.Independent([q, other])).subset
    assert 0 < subset.sum() < FULL
    plane = other[subset].sum() * q + q[subset].sum() * other
    np.testing.assert_array_equal(subset, p < plane)
