"""Choice by random clocks, against sums over the classes of the drafts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from choice_twins import clock_choice_probs

from otmd.verifiers.optimal.choice_plan import Side, clock_quadrature

ROUNDING = 1e-13


def test_the_twin_in_fractions() -> None:
    """Of two drafts, the first is of weight 1 or 3, the second of weight 3; the rejection has weight 1."""
    half = Fraction(1, 2)
    light, heavy = Fraction(3, 5), Fraction(3, 7)
    expected = [half * Fraction(1, 5) + half * heavy, half * (light + heavy)]
    assert clock_choice_probs([0, 1], [half, Fraction(1)], [1, 3], 1) == expected


@pytest.mark.parametrize("rejection", [0.0, 0.2, 30.0])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_choice_probs_are_those_of_every_class(rejection: float, count: int) -> None:
    for seed in range(8):
        rng = np.random.default_rng([count, seed])
        weights = np.exp(rng.uniform(-12.0, 0.0, 5))
        classes, shares = rng.integers(0, 4, count), rng.random(count)
        shares[rng.random(count) < 0.2] = 1.0
        slowest = min(weights.min(), rejection or np.inf)
        side = Side(
            weights,
            np.zeros(5, int),
            rejection,
            clock_quadrature(slowest, weights.max() * count + rejection),
            offered=lambda tokens: np.ones(tokens.size),
            classes_of=lambda _, __, both=(classes, shares): (
                np.stack([both[0], both[0] + 1], axis=1),
                np.stack([both[1], 1.0 - both[1]], axis=1),
            ),
        )
        expected = clock_choice_probs(classes.tolist(), shares.tolist(), weights.tolist(), rejection)
        chosen = side.choice_probs(np.arange(count), np.zeros(count, int))
        np.testing.assert_allclose(chosen, np.array(expected), atol=ROUNDING)


@pytest.mark.parametrize("ratio", [1.0, 1e30])
def test_the_quadrature_integrates_exponentials(ratio: float) -> None:
    slowest = 3e-5
    times, steps = clock_quadrature(slowest, slowest * ratio)
    assert (np.diff(times) > 0).all()
    for rate in np.geomspace(slowest, slowest * ratio, 9):
        assert steps @ (rate * np.exp(-rate * times)) == pytest.approx(1.0, abs=ROUNDING)


def test_a_coarser_rule_would_be_noticed() -> None:
    """A control: a rule with every fourth node is less exact than the tolerance of these tests."""
    times, steps = clock_quadrature(1e-3, 1.0)
    coarse = 4 * steps[::4] @ np.exp(-times[::4])
    assert abs(coarse - 1.0) > 100 * ROUNDING
