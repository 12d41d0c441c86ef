"""Kernels of a few passes over the tokens: against plain loops in fractions, beyond one part of tokens."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import reference
from strategies import Array, instances

import otmd
from otmd.curve._kernels import (
    hockey_stick,
    inclusion_probs,
    k_sequential_scale,
    largest_entries,
    sum_where,
)

HOSTILE = [(np.array(x.p), np.array(x.q)) for x in instances(60, seed=71)]
COUNTS = [1, 2, 5]


def language_pair(V: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([V, seed])
    logits, noise = 3.0 * rng.standard_normal(V), rng.choice([0.1, 1.0]) * rng.standard_normal(V)
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(logits + noise)


LARGE = [language_pair(V, 0) for V in (2000, 12_000)]


@pytest.mark.parametrize("C", [0.0, 1e-9, 0.5, 1.0, 1.7, 40.0, 1e20])
def test_hockey_stick(C: float) -> None:
    for p, q in HOSTILE:
        exact = reference.exact(p.tolist()), reference.exact(q.tolist())
        expected = float(reference.hockey_stick(*exact, Fraction(C)))
        assert hockey_stick(p, q, C) == pytest.approx(min(expected, 1.0), abs=1e-15)


def test_rates_in_fractions() -> None:
    """Recursive rejection, and the hits of a verifier that looks at the target only."""
    for p, q in HOSTILE:
        curve, exact = otmd.RatioCurve(p, q), (*map(reference.exact, (p.tolist(), q.tolist())),)
        expected = [float(reference.rrs_by_curve(*exact, n)) for n in COUNTS]
        np.testing.assert_allclose(curve.recursive_rejection_rates(COUNTS), expected, rtol=0, atol=1e-14)
        hits = [float(sum(a * (1 - (1 - b) ** n) for a, b in zip(*exact, strict=True))) for n in COUNTS]
        np.testing.assert_allclose(curve.target_only_rates(COUNTS), hits, rtol=1e-13, atol=1e-300)
    for p, q in LARGE:
        hits = [(p * (1.0 - (1.0 - q) ** n)).sum() for n in COUNTS]
        rates = otmd.RatioCurve(p, q).target_only_rates(COUNTS)
        np.testing.assert_allclose(rates, hits, rtol=1e-12)


@pytest.mark.parametrize("pairs", [HOSTILE, LARGE], ids=["hostile", "large"])
def test_the_scale_of_k_sequential(pairs: list[tuple[Array, Array]]) -> None:
    """Against bisection on sums over the tokens; large enough to be lossless."""
    for p, q in pairs:
        rates = otmd.RatioCurve(p, q).k_sequential_rates(6)
        for n in range(1, 7):
            scale, left = k_sequential_scale(p, q, n)
            assert 1.0 <= scale <= n
            assert left == pytest.approx(hockey_stick(p, q, scale), abs=1e-13)
            assert (1.0 - (1.0 - left) / scale) ** n >= left - 1e-14
            low, high = 1.0, float(n)
            for _ in range(60):
                middle = 0.5 * (low + high)
                rejected = 1.0 - np.minimum(p / middle, q).sum()
                enough = rejected**n >= np.maximum(p - middle * q, 0.0).sum()
                low, high = (low, middle) if enough else (middle, high)
            expected = 1.0 - (1.0 - np.minimum(p / high, q).sum()) ** n
            assert rates[n - 1] == pytest.approx(expected, abs=1e-12)


def test_a_single_draft_needs_no_scale() -> None:
    """1 − (1 − W) may round below W, which made ρ a little more than 1 and lost the tokens about it."""
    for seed in range(10):
        p, q = language_pair(2000, seed)
        scale, left = k_sequential_scale(p, q, 1)
        assert scale == 1.0
        assert left == pytest.approx(hockey_stick(p, q, 1.0), abs=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_inclusion_probabilities(n: int) -> None:
    for p, _ in HOSTILE + LARGE[:1]:
        included = np.empty(p.size)
        inclusion_probs(p, n, included)
        expected = [float(1 - (1 - Fraction(mass)) ** n) for mass in p.tolist()]
        np.testing.assert_allclose(included, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [1, 1023, 1025, 5000])
def test_sums_and_the_largest(size: int) -> None:
    """They work in parts of 1,024 numbers. Ties go to the lowest token."""
    rng = np.random.default_rng(size)
    subset = rng.random(size) < 0.3
    for values in (rng.random(size), rng.integers(0, 50, size) / 50, np.sort(rng.random(size))):
        assert sum_where(values, subset) == pytest.approx(values[subset].sum(), abs=1e-12)
        order = np.argsort(-values, kind="stable")
        for count in {0, 1, min(5, size)}:
            assert largest_entries(values, count).tolist() == order[:count].tolist()
