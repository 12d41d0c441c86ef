"""Counts in cells: p-values and bounds hold what they say, by listing every outcome or against loops."""

from __future__ import annotations

from itertools import product
from math import factorial, log, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binom
from strategies import pairs

from otmd.audit import statistics
from otmd.audit.claims import Classification, Evidence, judge_claim
from otmd.audit.statistics import (
    IMPOSSIBLE,
    exact_p_value,
    g_statistic,
    lower_bound,
    make_cells,
    ratio_order,
    token_cells,
    total_variation_bound,
    upper_bound,
)

ALARM = 1e-6
LAWS = {
    "two cells": ([0.5, 0.5], 9),
    "uneven": ([0.7, 0.25, 0.05], 7),
    "thin": ([0.98, 0.01, 0.01], 6),
    "four": ([0.4, 0.3, 0.2, 0.1], 5),
}


def naive_g(counts: tuple[int, ...], probs: list[float]) -> float:
    total = sum(counts)
    return sum(2 * c * log(c / (total * p)) for c, p in zip(counts, probs, strict=True) if c)


def chance(counts: tuple[int, ...], probs: list[float]) -> float:
    ways = factorial(sum(counts)) // prod(factorial(c) for c in counts)
    return ways * prod(p**c for c, p in zip(counts, probs, strict=True))


def outcomes(total: int, cells: int) -> list[tuple[int, ...]]:
    return [c for c in product(range(total + 1), repeat=cells) if sum(c) == total]


def naive_p_value(counts: tuple[int, ...], probs: list[float]) -> float:
    own = naive_g(counts, probs)
    every = outcomes(sum(counts), len(probs))
    return sum(chance(c, probs) for c in every if naive_g(c, probs) >= own - 1e-9)


def assert_super_uniform(p_values: list[float], chances: list[float]) -> None:
    """P(p ≤ x) ≤ x at every x that is attained."""
    for x in p_values:
        reached = sum(c for p, c in zip(p_values, chances, strict=True) if p <= x)
        assert reached <= x + 1e-9, f"P(p ≤ {x}) = {reached}"


@pytest.mark.parametrize("name", LAWS)
def test_the_p_value_is_the_twins_and_super_uniform(name):
    probs, total = LAWS[name]
    every, rng = outcomes(total, len(probs)), np.random.default_rng(0)
    values = [exact_p_value(np.array(c), np.array(probs), 1e-3, rng=rng) for c in every]
    for counts, value in zip(every, values, strict=True):
        assert g_statistic(np.array(counts), np.array(probs)) == pytest.approx(
            naive_g(counts, probs), abs=1e-12
        )
        assert value == pytest.approx(min(1.0, naive_p_value(counts, probs)), abs=1e-10)
    assert_super_uniform(values, [chance(c, probs) for c in every])


def test_the_check_of_p_values_can_fail():
    every = outcomes(9, 2)
    chances = [chance(c, [0.5, 0.5]) for c in every]
    halved = [naive_p_value(c, [0.5, 0.5]) / 2 for c in every]
    with pytest.raises(AssertionError, match="P\\(p"):
        assert_super_uniform(halved, chances)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.02, 0.3])
def test_p_values_by_draws_are_super_uniform(monkeypatch, level):
    monkeypatch.setattr(statistics, "_MOST_ENUMERATED", 0)
    rng, probs, runs = np.random.default_rng(2), np.full(40, 1 / 40), 600
    every = rng.multinomial(100, probs, size=runs)
    small = sum(exact_p_value(counts, probs, 0.01, rng=rng) <= level for counts in every)
    assert stats.binomtest(small, runs, level, alternative="greater").pvalue > ALARM
    assert small > 0.3 * level * runs


def naive_cells(p: np.ndarray, q: np.ndarray, number: int) -> list[list[int]]:
    """The tokens of each part of [0, 1), by the middles of their intervals in the order of p/q."""
    tokens = [y for y in range(p.size) if p[y] > 0]
    tokens.sort(key=lambda y: (np.log(p[y]) - np.log(q[y]) if q[y] > 0 else np.inf, y))
    parts: dict[int, list[int]] = {}
    before = 0.0
    for y in tokens:
        parts.setdefault(min(int(number * (before + p[y] / 2)), number - 1), []).append(y)
        before += p[y]
    return [sorted(parts[k]) for k in sorted(parts)]


@given(pair=pairs(), number=st.integers(1, 9))
def test_cells_are_the_twins(pair, number):
    p, q = pair
    cells = make_cells(p, ratio_order(p, q), number)
    found = [np.flatnonzero(cells.labels == k).tolist() for k in range(cells.probs.size)]
    assert found == naive_cells(p, q, number)
    np.testing.assert_allclose(cells.probs, [p[own].sum() for own in found], rtol=1e-12)
    assert ((cells.labels == IMPOSSIBLE) == (p == 0)).all()
    assert (cells.probs > 0).all()


def test_rare_tokens_are_a_cell_apart():
    p = np.array([0.5, 0.5 - 3e-9, 1e-9, 2e-9, 0.0])
    for mass, apart in [(4e-9, [2, 3]), (1.5e-9, [2]), (0.0, [])]:
        labels = make_cells(p, np.arange(5), 1, mass).labels
        assert labels.tolist() == [0, 0, *(int(y in apart) for y in (2, 3)), IMPOSSIBLE]
    cells = token_cells(p, ratio_order(p, np.full(5, 0.2)), 1000)
    assert cells.labels[2] == cells.labels[3]
    assert np.sort(cells.probs)[0] < 1e-8


LEVELS = (0.2, 0.05, 0.001)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("trials", [1, 2, 7, 1000])
def test_it_is_clopper_pearson_beyond_one_hit(level, trials):
    for hits in {0, 2, trials // 2, trials} - {1}:
        if hits > trials:
            continue
        interval = stats.binomtest(hits, trials).proportion_ci(1 - 2 * level, "exact")
        assert lower_bound(hits, trials, level) == pytest.approx(interval.low, abs=1e-12)
        if hits < trials - 1 or hits == trials:
            assert upper_bound(hits, trials, level) == pytest.approx(interval.high, abs=1e-12)
    assert lower_bound(1, trials, level) <= stats.beta.ppf(level, 1, trials) + 1e-15


def law_of_hits(chances: np.ndarray) -> np.ndarray:
    law = np.ones(1)
    for chance in chances:
        law = np.append(law * (1 - chance), 0) + np.append(0, law * chance)
    return law


@pytest.mark.parametrize("level", LEVELS)
def test_the_bounds_cover_the_mean_of_unequal_chances(level):
    rng = np.random.default_rng(0)
    for trials in (1, 2, 3, 8, 20):
        low = np.array([lower_bound(h, trials, level) for h in range(trials + 1)])
        high = np.array([upper_bound(h, trials, level) for h in range(trials + 1)])
        for _ in range(20):
            chances = rng.beta(*rng.choice([0.1, 1.0, 5.0], size=2), size=trials)
            chances *= rng.choice([1.0, 0.1, level])
            law = law_of_hits(chances)
            assert law[low > chances.mean() + 1e-15].sum() <= level + 1e-12
            assert law[high < chances.mean() - 1e-15].sum() <= level + 1e-12


def chance_of_failure(output: np.ndarray, probs: np.ndarray, number: int, level: float) -> float:
    """P(the bound exceeds the total variation), over all sequences of labels.

    The last outcome of ``output`` is impossible.
    """
    distance = 0.5 * (np.abs(output[:-1] - probs).sum() + output[-1])
    wrong = 0.0
    for sequence in product(range(output.size), repeat=number):
        labels = np.array(sequence)
        prob = output[labels].prod()
        labels[labels == probs.size] = IMPOSSIBLE
        if prob and total_variation_bound(labels, probs, level) > distance + 1e-12:
            wrong += prob
    return wrong


@pytest.mark.parametrize(
    "output",
    [[0.6, 0.4, 0.0], [0.7, 0.3, 0.0], [0.9, 0.1, 0.0], [0.55, 0.35, 0.1], [0.0, 1.0, 0.0]],
    ids=str,
)
def test_the_total_variation_bound_is_too_high_no_more_often_than_it_says(output):
    probs = np.array([0.6, 0.4])
    for number in (1, 6, 7):
        assert chance_of_failure(np.array(output), probs, number, 0.2) <= 0.2 + 1e-12


def test_the_set_must_not_be_judged_by_the_samples_that_chose_it():
    """The same bound without the split fails: the halves are not a formality."""
    rng, probs, failures = np.random.default_rng(1), np.full(50, 0.02), 0
    for _ in range(60):
        labels = rng.integers(50, size=500)
        often = np.bincount(labels, minlength=50) > 10
        hits = int(often[labels].sum())
        failures += lower_bound(hits, 500, 0.05) - probs[often].sum() > 0
        assert total_variation_bound(labels, probs, 1e-6) == 0
    assert failures > 50


LEVEL, RUNS = 0.1, 150


def adaptive_run(rng, size=400, shift=0.2):
    """Two cells; the chance of the first depends on what was drawn before."""
    labels, distances = np.empty(size, np.int64), np.empty(size)
    last = 0
    for i in range(size):
        chance = 0.5 + (shift if last == 0 else -shift / 2)
        last = labels[i] = int(rng.random() >= chance)
        distances[i] = abs(chance - 0.5)
    return labels, distances[size // 2 :].mean()


@pytest.mark.slow
def test_the_bound_holds_for_dependent_positions():
    """Fails by chance with probability 1e-6 at most."""
    rng = np.random.default_rng(0)
    wrong = below = 0
    for _ in range(RUNS):
        labels, distance = adaptive_run(rng)
        bound = total_variation_bound(labels, np.array([0.5, 0.5]), LEVEL, independent=False)
        wrong += bound > distance
        below += bound == 0
    assert wrong <= binom.isf(1e-6, RUNS, LEVEL)
    assert below < RUNS


def test_the_bound_is_near_the_distance_with_many_samples():
    rng = np.random.default_rng(1)
    labels = rng.choice(4, 40_000, p=[0.4, 0.3, 0.2, 0.1])
    bound = total_variation_bound(labels, np.full(4, 0.25), 1e-3, independent=False)
    assert 0.17 < bound <= 0.2


def test_impossible_outcomes_count_as_too_often():
    labels = np.where(np.arange(2000) % 2, IMPOSSIBLE, 0)
    assert total_variation_bound(labels, np.array([1.0]), 1e-3, independent=False) > 0.4
    assert (
        total_variation_bound(np.zeros(1, np.int64), np.array([1.0]), 1e-3, independent=False) == 0
    )


def test_bets_on_classes_find_what_cells_of_numbers_hide():
    """Classes that lie elsewhere at each position: the numbers stay uniform, and the classes are off."""
    rng = np.random.default_rng(4)
    numbers, none = rng.random(2000), np.zeros(2000, bool)
    probs = np.tile([0.5, 0.5], (2000, 1))
    labels = (rng.random(2000) < 0.6).astype(np.int64)
    found = judge_claim(
        "it is so", Evidence(numbers, none, [Classification(labels, probs)]), 1e-3, rng=rng
    )
    assert found.betting_p_value <= 1e-3
    assert found.p_value > 1e-3
