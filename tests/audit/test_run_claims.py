"""The bound of a mean total variation where positions depend on those before them, and the claims."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from otmd.audit.counts import IMPOSSIBLE, total_variation_bound
from otmd.audit.evidence import Classification, Evidence, judge_claim

LEVEL, RUNS = 0.1, 400


def adaptive_run(rng, size=400, shift=0.2):
    """Two cells; the chance of the first depends on what was drawn before."""
    labels, distances = np.empty(size, np.int64), np.empty(size)
    last = 0
    for i in range(size):
        chance = 0.5 + (shift if last == 0 else -shift / 2)
        last = labels[i] = int(rng.random() >= chance)
        distances[i] = abs(chance - 0.5)
    return labels, distances[size // 2 :].mean()


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


def test_the_bound_takes_a_law_for_each_position():
    rng = np.random.default_rng(2)
    probs = np.where(rng.random((20_000, 1)) < 0.5, [[0.9, 0.1]], [[0.2, 0.8]])
    honest = (rng.random(20_000) >= probs[:, 0]).astype(np.int64)
    assert total_variation_bound(honest, probs, 1e-3, independent=False) == 0
    assert total_variation_bound(np.ones(20_000, np.int64), probs, 1e-3, independent=False) > 0.5


def test_impossible_outcomes_count_as_too_often():
    labels = np.where(np.arange(2000) % 2, IMPOSSIBLE, 0)
    assert total_variation_bound(labels, np.array([1.0]), 1e-3, independent=False) > 0.4
    assert (
        total_variation_bound(np.zeros(1, np.int64), np.array([1.0]), 1e-3, independent=False) == 0
    )


def test_numbers_that_are_not_uniform_refute_a_claim():
    rng = np.random.default_rng(3)
    none = np.zeros(3000, bool)
    uniform = judge_claim("it is so", Evidence(rng.random(3000), none), 1e-3, rng=rng)
    assert not uniform.refuted
    skewed = judge_claim("it is so", Evidence(rng.random(3000) ** 1.3, none), 1e-3, rng=rng)
    assert skewed.p_value <= 1e-3
    assert skewed.betting_p_value <= 1e-3
    assert skewed.total_variation_bound > 0


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
