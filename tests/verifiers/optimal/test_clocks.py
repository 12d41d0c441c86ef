"""Choice by random clocks: rates against sums over every tuple, derivatives against finite differences."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from choice_twins import clock_choice_probs

from otmd.verifiers.optimal.choice_plan import clock_quadrature, fill_choice_probs
from otmd.verifiers.optimal.independent_plan import ClassDrafts, choice_rates

ROUNDING = 1e-13
Array = np.ndarray


def rates_and_coupling(
    log_weights: Array, drafts: ClassDrafts, rejects: bool
) -> tuple[Array, Array]:
    weights = np.exp(log_weights)
    quadrature = clock_quadrature(weights.min(), weights.max() * drafts.copies.sum())
    rates = np.empty(weights.size)
    coupling = np.empty((weights.size, weights.size))
    choice_rates(weights, drafts, rejects, *quadrature, rates, coupling)
    return rates, coupling


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("spread", [0.0, 4.0, 40.0])
@pytest.mark.parametrize("copies", [(1,), (4,), (2, 1)])
def test_rates_and_their_slopes(copies: tuple[int, ...], spread: float, rejects: bool) -> None:
    """Rates against sums over every tuple of classes, and coupling against finite differences of rates."""
    slots = np.repeat(np.arange(len(copies)), copies)
    for seed in range(3):
        rng = np.random.default_rng([19, seed])
        sizes = rng.integers(1, 4, len(copies))
        curve = np.repeat(np.arange(len(copies)), sizes)
        never = np.where(rng.random(len(copies)) < 0.5, 0.0, rng.random(len(copies)))
        masses = np.concatenate([rng.dirichlet(np.ones(k)) for k in sizes]) * (1 - never)[curve]
        drafts = ClassDrafts(masses, curve, never, np.array(copies))
        log_weights = rng.uniform(-spread, 0.0, curve.size + rejects)
        weights = np.exp(log_weights)
        expected = np.zeros(log_weights.size)
        # −1 stands for a draft of no class.
        for classes in product(*[[*np.flatnonzero(curve == r), -1] for r in slots]):
            prob = np.prod(
                [never[r] if g < 0 else masses[g] for g, r in zip(classes, slots, strict=True)]
            )
            able = [g for g in classes if g >= 0] + [curve.size] * rejects
            total = weights[able].sum() if able else 1.0
            np.add.at(expected, able, prob * weights[able] / total)
        rates, coupling = rates_and_coupling(log_weights, drafts, rejects)
        np.testing.assert_allclose(rates, expected, atol=ROUNDING)
        np.testing.assert_array_equal(coupling, coupling.T)
        if spread > 4.0:
            continue
        for g, by in enumerate(1e-3 * np.eye(log_weights.size)):
            low2, low, high, high2 = (
                rates_and_coupling(log_weights + k * by, drafts, rejects)[0] for k in (-2, -1, 1, 2)
            )
            slope = -(low2 - 8 * low + 8 * high - high2) / 12e-3
            others = np.arange(log_weights.size) != g
            np.testing.assert_allclose(coupling[g, others], slope[others], atol=1e-10)


def test_the_twin_in_fractions() -> None:
    """Of two drafts, the first is of weight 1 or 3, the second of weight 3; the rejection has weight 1."""
    half = Fraction(1, 2)
    light, heavy = Fraction(3, 5), Fraction(3, 7)
    expected = [half * Fraction(1, 5) + half * heavy, half * (light + heavy)]
    assert clock_choice_probs([0, 1], [half, Fraction(1)], [1, 3], 1) == expected


@pytest.mark.parametrize("rejection", [0.0, 0.2, 30.0])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_fill_choice_probs_are_those_of_every_class(rejection: float, count: int) -> None:
    for seed in range(8):
        rng = np.random.default_rng([count, seed])
        weights = np.exp(rng.uniform(-12.0, 0.0, 5))
        classes, shares = rng.integers(0, 4, count), rng.random(count)
        shares[rng.random(count) < 0.2] = 1.0
        out = np.empty(count)
        slowest = min(weights.min(), rejection or np.inf)
        nodes = clock_quadrature(slowest, weights.max() * count + rejection)
        fill_choice_probs(classes, shares, weights, rejection, *nodes, out)
        expected = clock_choice_probs(
            classes.tolist(), shares.tolist(), weights.tolist(), rejection
        )
        np.testing.assert_allclose(out, np.array(expected), atol=ROUNDING)


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
