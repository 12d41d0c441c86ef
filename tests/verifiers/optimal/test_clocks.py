"""Choice by random clocks: rates against sums over every tuple, derivatives against finite differences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from choice_twins import clock_chances, clock_choice, clock_potential

from otmd.verifiers.optimal.choice_plan import clock_quadrature, fill_choice_probs
from otmd.verifiers.optimal.independent_plan import ClassDrafts, choice_rates

ROUNDING = 1e-13
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """Log weights of the classes, with that of a rejection last if there is one, draft masses, and n."""

    log_weights: Array
    masses: Array
    num_drafts: int
    never: float
    rejects: bool

    def exact(self) -> tuple[Array, float]:
        """The rates and the potential as sums over every tuple."""
        weights = np.exp(self.log_weights).tolist()
        rejection = weights.pop() if self.rejects else 0.0
        rest = self.masses.tolist(), self.num_drafts, self.never, rejection
        rates = clock_choice(weights, *rest)[: self.log_weights.size]
        return np.array(rates), clock_potential(weights, *rest)

    def found(self) -> tuple[Array, Array]:
        """The rates and the coupling from the kernel."""
        size, weights = self.log_weights.size, np.exp(self.log_weights)
        rates, coupling = np.empty(size), np.empty((size, size))
        nodes = clock_quadrature(weights.min(), weights.max() * self.num_drafts)
        curve, copies = np.zeros(self.masses.size, np.int64), np.array([self.num_drafts])
        drafts = ClassDrafts(self.masses, curve, np.array([self.never]), copies)
        choice_rates(weights, drafts, self.rejects, *nodes, rates, coupling)
        return rates, coupling

    def moved(self, by: Array) -> Case:
        return replace(self, log_weights=self.log_weights + by)


def cases(spread: float) -> list[Case]:
    made = []
    for seed in range(48):
        rng = np.random.default_rng([17, seed])
        size, n = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        rejects, never = bool(seed % 2), (0.0, 0.3, 0.95)[seed % 3]
        masses = rng.dirichlet(np.ones(size)) * (1.0 - never) * (0.6 if seed % 4 == 0 else 1.0)
        log_weights = rng.uniform(-spread, 0.0, size + rejects)
        made.append(Case(log_weights, masses, n, never, rejects))
    return made


@pytest.mark.parametrize("spread", [0.0, 2.0, 15.0, 40.0])
def test_rates_are_those_of_every_tuple(spread: float) -> None:
    for case in cases(spread):
        np.testing.assert_allclose(
            case.found()[0], case.exact()[0], atol=ROUNDING, err_msg=str(case)
        )


def test_the_twin_in_fractions() -> None:
    """The naive twin agrees with exact numbers, worked out by hand for two classes and two drafts."""
    half, third = Fraction(1, 2), Fraction(1, 3)
    rates = clock_choice([1, 2], [half, third], 2, Fraction(1, 6), 1)
    # The first class is chosen from 2/3 of its pairs with itself, 1/4 of those with the second class, and 1/2
    # of those with a draft that is never chosen.
    assert rates[:2] == [
        Fraction(2, 12) + Fraction(1, 12) + Fraction(1, 12),
        Fraction(4, 45) + Fraction(1, 6) + Fraction(2, 27),
    ]
    assert sum(rates) == 1


def test_a_spread_of_classes_is_the_mean_over_their_tuples() -> None:
    half = Fraction(1, 2)
    got = clock_chances([0, 1], [half, Fraction(1)], [1, 3], 1)
    # The first draft is of weight 1 or 3, the second of weight 3.
    light, heavy = Fraction(3, 5), Fraction(3, 7)
    assert got == [half * Fraction(1, 5) + half * heavy, half * (light + heavy)]


def test_the_rates_are_the_gradient_of_the_mean_logarithm() -> None:
    """The expected logarithm of the sum of the drafted weights is the convex part of what is minimised."""
    step = 1e-3
    for case in cases(4.0):
        for g, rate in enumerate(case.found()[0]):
            by = np.zeros(case.log_weights.size)
            by[g] = step
            values = [case.moved(k * by).exact()[1] for k in (-2, -1, 1, 2)]
            slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
            assert slope == pytest.approx(rate, abs=1e-10), (g, case)


def test_coupling_is_the_slope_of_the_rates() -> None:
    step = 1e-3
    for case in cases(4.0):
        coupling = case.found()[1]
        np.testing.assert_array_equal(coupling, coupling.T)
        for g in range(case.log_weights.size):
            by = np.zeros(case.log_weights.size)
            by[g] = step
            values = [case.moved(k * by).found()[0] for k in (-2, -1, 1, 2)]
            slope = -(values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
            others = np.arange(by.size) != g
            np.testing.assert_allclose(coupling[g, others], slope[others], atol=1e-10)


def test_scaling_every_weight_changes_nothing() -> None:
    for case in cases(10.0):
        scaled = case.moved(np.full(case.log_weights.size, -7.0))
        np.testing.assert_allclose(case.found()[0], scaled.found()[0], atol=ROUNDING)


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("copies", [(1, 1), (1, 1, 1), (2, 1), (1, 3)])
def test_drafts_of_several_curves(copies: tuple[int, ...], rejects: bool) -> None:
    """Rates against sums over every tuple of classes, and coupling against finite differences of rates."""
    slots = np.repeat(np.arange(len(copies)), copies)
    for seed in range(6):
        rng = np.random.default_rng([19, seed])
        sizes = rng.integers(1, 4, len(copies))
        curve = np.repeat(np.arange(len(copies)), sizes)
        never = np.where(rng.random(len(copies)) < 0.5, 0.0, rng.random(len(copies)))
        masses = np.concatenate([rng.dirichlet(np.ones(k)) for k in sizes]) * (1 - never)[curve]
        drafts = ClassDrafts(masses, curve, never, np.array(copies))
        log_weights = rng.uniform(-4.0, 0.0, curve.size + rejects)

        def found(log_weights: Array, drafts: ClassDrafts = drafts) -> tuple[Array, Array]:
            weights, size = np.exp(log_weights), log_weights.size
            nodes = clock_quadrature(weights.min(), weights.max() * slots.size)
            rates, coupling = np.empty(size), np.empty((size, size))
            choice_rates(weights, drafts, rejects, *nodes, rates, coupling)
            return rates, coupling

        weights, wanted = np.exp(log_weights), np.zeros(log_weights.size)
        # −1 stands for a draft of no class.
        each = [[*np.flatnonzero(curve == r), -1] for r in slots]
        for classes in product(*each):
            prob = np.prod(
                [never[r] if g < 0 else masses[g] for g, r in zip(classes, slots, strict=True)]
            )
            able = [g for g in classes if g >= 0] + [curve.size] * rejects
            total = weights[able].sum() if able else 1.0
            np.add.at(wanted, able, prob * weights[able] / total)
        rates, coupling = found(log_weights)
        np.testing.assert_allclose(rates, wanted, atol=ROUNDING)
        for g, by in enumerate(1e-3 * np.eye(log_weights.size)):
            low2, low, high, high2 = (found(log_weights + k * by)[0] for k in (-2, -1, 1, 2))
            slope = -(low2 - 8 * low + 8 * high - high2) / 12e-3
            others = np.arange(log_weights.size) != g
            np.testing.assert_allclose(coupling[g, others], slope[others], atol=1e-10)


@pytest.mark.parametrize("rejection", [0.0, 0.2, 30.0])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_fill_choice_probs_are_those_of_every_class(rejection: float, count: int) -> None:
    for seed in range(30):
        rng = np.random.default_rng([count, seed])
        weights = np.exp(rng.uniform(-12.0, 0.0, 5))
        classes, shares = rng.integers(0, 4, count), rng.random(count)
        shares[rng.random(count) < 0.2] = 1.0
        out = np.empty(count)
        slowest = min(weights.min(), rejection or np.inf)
        nodes = clock_quadrature(slowest, weights.max() * count + rejection)
        fill_choice_probs(classes, shares, weights, rejection, *nodes, out)
        wanted = clock_chances(classes.tolist(), shares.tolist(), weights.tolist(), rejection)
        np.testing.assert_allclose(out, np.array(wanted), atol=ROUNDING)


def test_the_last_class_has_no_next_one() -> None:
    """With a share of 1, the class above is not looked at."""
    out = np.empty(1)
    fill_choice_probs(
        np.array([1]), np.ones(1), np.array([0.5, 2.0]), 2.0, *clock_quadrature(2.0, 4.0), out
    )
    assert out[0] == pytest.approx(0.5, abs=ROUNDING)


@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e12, 1e30])
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
