"""Confidence bounds: wrong no more often than they say, by listing every outcome."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from otmd.audit.counts import IMPOSSIBLE, lower_bound, total_variation_bound, upper_bound

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
        for _ in range(200):
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
    for _ in range(300):
        labels = rng.integers(50, size=500)
        often = np.bincount(labels, minlength=50) > 10
        hits = int(often[labels].sum())
        failures += lower_bound(hits, 500, 0.05) - probs[often].sum() > 0
        assert total_variation_bound(labels, probs, 1e-6) == 0
    assert failures > 250


def test_the_bound_comes_near_the_total_variation():
    rng, probs = np.random.default_rng(2), np.full(10, 0.1)
    output = np.repeat([0.15, 0.05], 5)
    labels = rng.choice(10, size=200_000, p=output)
    assert 0.23 < total_variation_bound(labels, probs, 1e-3) <= 0.25
    rows = np.broadcast_to(probs, (labels.size, 10))
    assert total_variation_bound(labels, rows, 1e-3) == total_variation_bound(labels, probs, 1e-3)


def test_laws_that_differ_from_row_to_row():
    """Each row is drawn from its own law: nothing shows; from the reversed law: it does."""
    rng = np.random.default_rng(3)
    rows = rng.dirichlet([1.0, 2.0, 4.0], size=20_000)
    cumulative = rows.cumsum(axis=1)
    labels = (rng.random((20_000, 1)) > cumulative).sum(axis=1)
    assert total_variation_bound(labels, rows, 1e-3) == 0
    assert total_variation_bound(labels, rows[:, ::-1], 1e-3) > 0.1
