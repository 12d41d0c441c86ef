"""Bets: fair under the claim, by listing every sequence; growing where it is false."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import gammaln

from otmd.audit.statistics import CellBets, EventBets


def expected_wealth(probs: np.ndarray, length: int, caution: float) -> float:
    """Over all sequences of cells, drawn from rows that may differ, shape (length, K)."""
    total = 0.0
    for sequence in product(range(probs.shape[-1]), repeat=length):
        labels = np.array(sequence)
        prob = probs[np.arange(length), labels].prod()
        if prob > 0:
            total += prob * np.exp(CellBets(probs.shape[-1], caution).update(labels, probs)[-1])
    return total


@pytest.mark.parametrize("caution", [0.1, 3.0, 1000.0])
def test_bets_on_cells_are_fair(caution):
    rng = np.random.default_rng(0)
    same = np.broadcast_to([0.5, 0.3, 0.2], (5, 3))
    different = rng.dirichlet(np.ones(3), size=5)
    with_zeros = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]])
    for probs in (same, different, with_zeros):
        assert expected_wealth(probs, len(probs), caution) == pytest.approx(1, abs=1e-12)


def test_a_bet_that_knows_the_present_is_not_fair():
    """The same check fails for a factor that has seen the sample it bets on."""
    probs, total = np.array([0.5, 0.5]), 0.0
    for sequence in product(range(2), repeat=4):
        bets = CellBets(2, 1.0)
        bets.update(np.array(sequence), probs)
        total += 0.5**4 * np.exp(bets.update(np.array(sequence), probs)[-1])
    assert total > 1.5


@pytest.mark.parametrize("caution", [0.5, 30.0])
def test_with_one_law_it_is_the_dirichlet_mixture(caution):
    rng, probs = np.random.default_rng(1), np.array([0.6, 0.3, 0.1])
    labels = rng.choice(3, size=10_000, p=[0.5, 0.3, 0.2])
    counts, alpha = np.bincount(labels, minlength=3), caution * probs
    mixture = gammaln(caution) - gammaln(caution + counts.sum())
    mixture += (gammaln(alpha + counts) - gammaln(alpha)).sum()
    bets = CellBets(3, caution)
    assert bets.update(labels, probs)[-1] == pytest.approx(mixture - counts @ np.log(probs))
    assert bets.log_wealth > 100


@pytest.mark.parametrize("stake", [0.004, 0.25, 0.9])
def test_bets_on_a_chance_are_fair_up_to_the_largest(stake):
    for largest, chance in [(0.7, 0.7), (0.7, 0.4), (0.01, 0.01), (1.0, 0.9)]:
        total = 0.0
        for sequence in product([False, True], repeat=5):
            happened = np.array(sequence)
            prob = np.where(happened, chance, 1 - chance).prod()
            total += prob * np.exp(EventBets(stake).update(happened, largest)[-1])
        assert total <= 1 + 1e-12
        if chance == largest:
            assert total == pytest.approx(1, abs=1e-12)


def test_a_chance_above_the_largest_makes_wealth():
    rng = np.random.default_rng(3)
    happened = rng.random(5_000) < 0.8
    bets = EventBets(0.1)
    bets.update(happened, np.full(5_000, 0.7))
    assert bets.log_wealth > 20
    assert bets.update(happened[:0], 0.7).size == 0
