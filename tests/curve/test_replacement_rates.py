"""Rates with replacement in a few passes: against plain loops, fractions and the sorted curve."""

from __future__ import annotations

from fractions import Fraction

import naive
import numpy as np
import pytest
from strategies import Array, instances

import otmd
from otmd.curve.ratio_groups import group_edges
from otmd.curve.replacement_rates import (
    hit_rate,
    hockey_stick,
    inclusion_probs,
    k_sequential_scales,
    least_sum_beside,
    recursive_rejection_chain,
    sum_where,
)

HOSTILE = [(np.array(x.p), np.array(x.q)) for x in instances(250, seed=71)]
NUM_DRAFTS = 6


def language_pair(V: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([V, seed])
    logits, noise = 3.0 * rng.standard_normal(V), rng.choice([0.1, 1.0]) * rng.standard_normal(V)
    p, q = (otmd.probs_from_logits(x) for x in (logits, logits + noise))
    return p, q


LARGE = [language_pair(V, seed) for V in (2000, 12_000) for seed in range(2)]

NONE = np.empty(0, np.int64)


@pytest.mark.parametrize("C", [0.0, 0.5, 1.0, 1.7, 40.0])
def test_hockey_stick_and_sum_of_the_smaller(C: float) -> None:
    for p, q in HOSTILE:
        wanted = float(
            naive.hockey_stick(naive.exact(p.tolist()), naive.exact(q.tolist()), Fraction(C))
        )
        assert hockey_stick(p, q, C) == pytest.approx(min(wanted, 1.0), abs=1e-15)
        assert least_sum_beside(p, q, NONE) == pytest.approx(np.minimum(p, q).sum(), abs=1e-15)


def test_the_chain_of_recursive_rejection() -> None:
    for p, q in HOSTILE:
        C, W = np.empty(NUM_DRAFTS + 1), np.empty(NUM_DRAFTS + 1)
        recursive_rejection_chain(p, q, C, W)
        exact = naive.exact(p.tolist()), naive.exact(q.tolist())
        for n in range(1, NUM_DRAFTS + 1):
            assert 1.0 - W[n] == pytest.approx(float(naive.rrs_by_curve(*exact, n)), abs=1e-14)


@pytest.mark.parametrize("pairs", [HOSTILE, LARGE])
def test_the_scales_of_k_sequential(pairs: list[tuple[Array, Array]]) -> None:
    """Against the sorted curve, whose own test is against fractions; large enough to be lossless."""
    for number, (p, q) in enumerate(pairs):
        scale, left = np.empty(NUM_DRAFTS), np.empty(NUM_DRAFTS)
        k_sequential_scales(p, q, group_edges(), scale, left)
        curve = otmd.RatioCurve(p, q)
        for n in range(1, NUM_DRAFTS + 1):
            assert left[n - 1] == pytest.approx(hockey_stick(p, q, scale[n - 1]), abs=1e-13)
            accepted = (1.0 - left[n - 1]) / scale[n - 1]
            rate = 1.0 - (1.0 - accepted) ** n
            assert rate == pytest.approx(curve.k_sequential_rates(n)[-1], abs=1e-12), number
            assert (1.0 - accepted) ** n >= left[n - 1] - 1e-14


def test_a_single_draft_needs_no_scale() -> None:
    """1 − (1 − W) may round below W, which made ρ a little more than 1 and lost the tokens about it."""
    for seed in range(60):
        p, q = language_pair(2000, seed)
        scale, left = np.empty(3), np.empty(3)
        k_sequential_scales(p, q, group_edges(), scale, left)
        assert scale[0] == 1.0
        assert left[0] == pytest.approx(hockey_stick(p, q, 1.0), abs=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_inclusion_probabilities(n: int) -> None:
    for p, _ in HOSTILE:
        found = np.empty(p.size)
        inclusion_probs(p, n, found)
        wanted = [float(1 - (1 - Fraction(mass)) ** n) for mass in p.tolist()]
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=0)


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_hit_rate(n: int) -> None:
    for p, q in HOSTILE:
        pairs = [(Fraction(a), Fraction(b)) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
        wanted = float(sum(a * (1 - (1 - b) ** n) for a, b in pairs))
        assert hit_rate(p, q, n) == pytest.approx(wanted, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("tokens", [[], [0], [1], [0, 1], [-1], [0, -1]])
def test_sum_of_the_smaller_beside_tokens(tokens: list[int]) -> None:
    for p, q in HOSTILE:
        forced = np.unique(np.arange(p.size)[[t for t in tokens if t < p.size]])
        others = [0 if y in forced else Fraction(mass) for y, mass in enumerate(q.tolist())]
        left = sum(others)
        wanted = 0.0
        if left > 0:
            mass = zip(p.tolist(), others, strict=True)
            wanted = float(sum(min(Fraction(a), b / left) for a, b in mass))
        assert least_sum_beside(p, q, forced) == pytest.approx(wanted, rel=1e-12, abs=1e-300)


def test_sums_over_a_subset() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 1024, 5000):
        values, subset = rng.random(size), rng.random(size) < 0.3
        assert sum_where(values, subset) == pytest.approx(values[subset].sum(), abs=1e-12)
