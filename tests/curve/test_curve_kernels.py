"""What is read off the curve in a few passes: against plain loops and fractions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import reference
from strategies import Array, instances

import otmd
from otmd.curve._kernels import (
    fill_chains,
    fill_ratios,
    hockey_stick,
    inclusion_probs,
    k_sequential_scale,
    largest_entries,
    power,
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


@pytest.mark.parametrize("C", [0.0, 0.5, 1.0, 1.7, 40.0])
def test_hockey_stick(C: float) -> None:
    for p, q in HOSTILE:
        wanted = float(
            reference.hockey_stick(
                reference.exact(p.tolist()), reference.exact(q.tolist()), Fraction(C)
            )
        )
        assert hockey_stick(p, q, C) == pytest.approx(min(wanted, 1.0), abs=1e-15)


def test_the_chain_of_recursive_rejection() -> None:
    for p, q in HOSTILE:
        C, W, row = *np.empty((2, 1, NUM_DRAFTS + 1)), np.zeros(1, np.int64)
        fill_chains(p[None], row, q[None], row, C, W)
        exact = reference.exact(p.tolist()), reference.exact(q.tolist())
        for n in range(1, NUM_DRAFTS + 1):
            assert 1.0 - W[0, n] == pytest.approx(
                float(reference.rrs_by_curve(*exact, n)), abs=1e-14
            )


@pytest.mark.parametrize("pairs", [HOSTILE, LARGE])
def test_the_scale_of_k_sequential(pairs: list[tuple[Array, Array]]) -> None:
    """Against bisection on sums over the tokens; large enough to be lossless."""
    for number, (p, q) in enumerate(pairs):
        for n in range(1, NUM_DRAFTS + 1):
            scale, left = k_sequential_scale(p, q, n)
            assert 1.0 <= scale <= n
            assert left == pytest.approx(hockey_stick(p, q, scale), abs=1e-13)
            accepted = (1.0 - left) / scale
            assert (1.0 - accepted) ** n >= left - 1e-14, number
            low, high = 1.0, float(n)
            for _ in range(60):
                middle = 0.5 * (low + high)
                rejected = 1.0 - np.minimum(p / middle, q).sum()
                enough = rejected**n >= np.maximum(p - middle * q, 0.0).sum()
                low, high = (low, middle) if enough else (middle, high)
            wanted = 1.0 - (1.0 - np.minimum(p / high, q).sum()) ** n
            assert 1.0 - (1.0 - accepted) ** n == pytest.approx(wanted, abs=1e-12), number


def test_a_single_draft_needs_no_scale() -> None:
    """1 − (1 − W) may round below W, which made ρ a little more than 1 and lost the tokens about it."""
    for seed in range(60):
        p, q = language_pair(2000, seed)
        scale, left = k_sequential_scale(p, q, 1)
        assert scale == 1.0
        assert left == pytest.approx(hockey_stick(p, q, 1.0), abs=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_inclusion_probabilities(n: int) -> None:
    for p, _ in HOSTILE + LARGE[:1]:
        found = np.empty(p.size)
        inclusion_probs(p, n, found)
        wanted = [float(1 - (1 - Fraction(mass)) ** n) for mass in p.tolist()]
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [1, 1024, 5000])
def test_sums_and_the_largest(size: int) -> None:
    """They work in parts of 1,024 numbers."""
    rng = np.random.default_rng(0)
    values, subset = rng.integers(0, 1000, size) / 1000.0, rng.random(size) < 0.3
    assert sum_where(values, subset) == pytest.approx(values[subset].sum(), abs=1e-12)
    order = np.argsort(-values, kind="stable")
    assert largest_entries(values, min(7, size)).tolist() == order[:7].tolist()


def test_power() -> None:
    for n in range(1, 40):
        assert power(0.7, n) == pytest.approx(float(Fraction(7, 10) ** n), rel=1e-14)


def test_ratios() -> None:
    ratio = np.empty(4)
    fill_ratios(np.array([0.5, 0.0, 0.5, 0.0]), np.array([0.25, 0.5, 0.0, 0.0]), ratio)
    assert ratio.tolist() == [2.0, 0.0, np.inf, np.inf]


COUNTS = np.array([1, 2, 5])
P_ROW, Q_ROW = np.array([0, 1, 1]), np.array([0, 1, 0])


def batches() -> Iterator[tuple[Array, Array]]:
    """Two rows of p and two of q, which three positions read."""
    by_size: dict[int, list] = {}
    for instance in instances(150, seed=91):
        rows = by_size.setdefault(len(instance.p), [])
        rows.append(instance)
        if len(rows) == 2:
            yield np.array([x.p for x in rows]), np.array([x.q for x in rows])
            rows.clear()


BATCHES = list(batches())


def curve_of(p: Array, q: Array) -> otmd.RatioCurve:
    """Three positions, each a row of p and a row of q."""
    return otmd.RatioCurve.unchecked(p[P_ROW], q[Q_ROW])


def exact_pairs(p: Array, q: Array) -> list[tuple[list[Fraction], list[Fraction]]]:
    pairs = zip(P_ROW, Q_ROW, strict=True)
    return [(reference.exact(p[i].tolist()), reference.exact(q[j].tolist())) for i, j in pairs]


def test_recursive_rejection() -> None:
    for p, q in BATCHES:
        rates = curve_of(p, q).recursive_rejection_rates(COUNTS)
        wanted = [[reference.rrs_by_curve(*pair, n) for n in COUNTS] for pair in exact_pairs(p, q)]
        np.testing.assert_allclose(rates, np.array(wanted, float), rtol=0, atol=1e-14)


def test_k_sequential() -> None:
    for p, q in BATCHES:
        rates = curve_of(p, q).k_sequential_rates(COUNTS)
        for b, (i, j) in enumerate(zip(P_ROW, Q_ROW, strict=True)):
            target, draft = p[i].tolist(), q[j].tolist()
            for k, n in enumerate(COUNTS.tolist()):
                beta = reference.k_seq_beta(target, draft, reference.k_seq_rho(target, draft, n))
                assert rates[b, k] == pytest.approx(1 - (1 - beta) ** n, abs=1e-12)


def test_hits() -> None:
    for p, q in BATCHES:
        rates = curve_of(p, q).target_only_rates(COUNTS)
        wanted = [
            [sum(a * (1 - (1 - b) ** int(n)) for a, b in zip(*pair, strict=True)) for n in COUNTS]
            for pair in exact_pairs(p, q)
        ]
        np.testing.assert_allclose(rates, np.array(wanted, float), rtol=1e-13, atol=1e-300)


def test_hits_at_a_large_vocabulary() -> None:
    for p, q in LARGE:
        rates = otmd.RatioCurve(p, q).target_only_rates(COUNTS)
        wanted = [(p * (1.0 - (1.0 - q) ** n)).sum() for n in COUNTS]
        np.testing.assert_allclose(rates, wanted, rtol=1e-12)


def beside(target: list[Fraction], draft: list[Fraction], top: int) -> Fraction | float:
    """p(Top) + Σ min(p, q'), Top by a sort."""
    likeliest = sorted(range(len(draft)), key=lambda y: (-draft[y], y))[:top]
    others = [0 if y in likeliest else mass for y, mass in enumerate(draft)]
    left = sum(others)
    coupled = sum(min(a, b / left) for a, b in zip(target, others, strict=True)) if left else 0
    return sum(target[y] for y in likeliest) + coupled


def test_beside_the_likeliest_tokens() -> None:
    for p, q in BATCHES:
        for i, j in zip(P_ROW, Q_ROW, strict=True):
            target, draft = reference.exact(p[i].tolist()), reference.exact(q[j].tolist())
            for top in range(min(4, np.count_nonzero(q[j]))):
                law = otmd.TopThen(q[j], top + 1, top, otmd.WithReplacement)
                structure = law.position_structure()
                certain = p[i][structure.deterministic].sum()
                found = certain + np.minimum(p[i], structure.random.probs).sum()
                exact = pytest.approx(float(beside(target, draft, top)), abs=1e-14)
                assert found == exact
                greedy = otmd.Greedy(q[j], top + 1)
                assert otmd.acceptance_rate(otmd.Preference(), p[i], greedy) == exact
                if top == 1:
                    assert otmd.acceptance_rate(otmd.SpecHub(), p[i], otmd.Hub(q[j])) == exact
