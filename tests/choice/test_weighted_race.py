"""Kernels of the race against plain loops."""

from __future__ import annotations

from dataclasses import dataclass

import naive
import numpy as np
import pytest

from otmd.choice.weighted_race import (
    add_moments,
    locate,
    move_tokens,
    silent_winners,
    split_targets,
    token_values,
)
from otmd.race.quadrature import POWERS

ROUNDING = 1e-13
Array = np.ndarray


@dataclass(frozen=True)
class Winners:
    """Random arguments of `silent_winners`, and what it fills."""

    rates: Array
    silent: Array
    times: Array
    steps: Array
    count: Array
    last: Array

    @classmethod
    def random(cls, size: int, order: int, seed: int) -> Winners:
        rng = np.random.default_rng([31, size, order, seed])
        silent = rng.random((3, size))
        silent[0] = rng.integers(0, 2, size)
        times, series = rng.uniform(0.0, 3.0, 2), rng.random((2, 3, order, 2))
        times[0] *= seed % 2
        return cls(rng.exponential(1.0, size), silent, times, rng.random(2), *series)

    def found(self) -> tuple[Array, Array, Array, Array]:
        growth = np.outer(self.rates, self.times)
        known = self.rates, self.silent, np.exp(-growth), -np.expm1(-growth), self.steps
        (J, M), shape = self.silent.shape, self.count.shape
        out = np.empty(J), np.empty((J, M)), np.empty(shape), np.empty(shape)
        silent_winners(*known, self.count, self.last, *out)
        return out

    def expected(self, j: int, silent: Array, count: Array, last: Array) -> float:
        """By every set of tokens."""
        total = 0.0
        for k, time in enumerate(self.times):
            series = count[:, k].tolist(), last[:, k].tolist()
            ended = naive.arrivals(self.rates.tolist(), silent.tolist(), time, *series)[1]
            total += self.steps[k] * ended[-1]
        return total


WINNERS = [
    Winners.random(size, order, seed)
    for size in (0, 1, 2, 5)
    for order in (1, 2, 4)
    for seed in range(2)
]


@pytest.mark.parametrize("case", WINNERS)
def test_silent_winners_and_their_slopes(case: Winners) -> None:
    """The expectation is linear in each ℓ and in the series, so that differences are exact."""
    expected, slopes, by_count, by_last = case.found()
    for j, silent in enumerate(case.silent):
        series = case.count[j], case.last[j]
        assert expected[j] == pytest.approx(case.expected(j, silent, *series), rel=ROUNDING)
        for i in range(silent.size):
            ends = [np.where(np.arange(silent.size) == i, ell, silent) for ell in (0.0, 1.0)]
            zero, one = (case.expected(j, end, *series) for end in ends)
            assert slopes[j, i] == pytest.approx(one - zero, rel=1e-11, abs=ROUNDING)
        for place in np.ndindex(*case.count.shape[1:]):
            unit, none = np.zeros(case.count.shape[1:]), np.zeros(case.count.shape[1:])
            unit[place] = 1.0
            wanted = [case.expected(j, silent, *pair) for pair in ((unit, none), (none, unit))]
            found = by_count[j][place], by_last[j][place]
            np.testing.assert_allclose(found, wanted, rtol=ROUNDING, atol=1e-16)


def some_tail(seed: int) -> tuple[Array, Array, Array]:
    """Rates from nothing up to 1/2, nodes, and shares with both ends among them."""
    rng = np.random.default_rng([37, seed])
    rates = np.append(10.0 ** rng.uniform(-9, -0.31, 9), [0.5, 1e-30, 0.0])
    share = np.append(rng.random(10), [0.0, 1.0])
    return rates, rng.integers(0, 3, rates.size), rng.permutation(share)


@pytest.mark.parametrize("seed", range(6))
def test_moments_are_sums_of_powers(seed: int) -> None:
    """Added to what is there; what is left out is too small to see beside q itself."""
    rates, lower, share = some_tail(seed)
    moments, count = np.full((4, 5, POWERS), 0.25), np.arange(1.0, 13.0)
    add_moments(rates, count, lower, share, moments)
    for g, a, r in np.ndindex(*moments.shape):
        own = [i for i in range(rates.size) if lower[i] == g]
        wanted = 0.25 + sum(count[i] * share[i] ** a * rates[i] ** r for i in own)
        assert moments[g, a, r] == pytest.approx(wanted, rel=ROUNDING), (g, a, r)


def polynomial(terms: Array, share: float, rate: float) -> float:
    """Σ terms[a, r] share^a rate^r, term by term."""
    return sum(terms[a, r] * share**a * rate**r for a, r in np.ndindex(*terms.shape))


@pytest.mark.parametrize("seed", range(6))
def test_token_values_are_polynomials(seed: int) -> None:
    rates, lower, share = some_tail(seed)
    below, above = np.random.default_rng(seed).standard_normal((2, 3, 4, POWERS))
    values = np.empty(rates.size)
    token_values(rates, lower, share, below, above, values)
    for i, g in enumerate(lower):
        low, high = (polynomial(terms[g], share[i], rates[i]) for terms in (below, above))
        wanted = share[i] * low + (1.0 - share[i]) * high
        assert values[i] == pytest.approx(wanted, rel=1e-12, abs=ROUNDING)


NODES = np.array([0.0, 0.5, 0.9, 2.0])


def test_tokens_are_located_between_their_nodes() -> None:
    place = np.array([0.0, 0.1, 0.5, 0.7, 0.9, 1.9999, 2.0, 2.5])
    lower, share = np.empty(8, np.int64), np.empty(8)
    locate(place, NODES, lower, share)
    assert lower.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    found = share * NODES[lower] + (1.0 - share) * NODES[lower + 1]
    np.testing.assert_allclose(found, np.minimum(place, 2.0), atol=1e-15)


def test_what_tokens_want_is_split_as_their_values_are() -> None:
    wanted, low, high = (
        np.array([1.0, 2.0, 4.0, 8.0]),
        np.array([0.0, 1, 3, 0]),
        np.array([2.0, 1, 1, 0]),
    )
    lower, share, mass = np.array([0, 1, 1, 2]), np.array([0.5, 0.25, 0.5, 0.5]), np.zeros(4)
    split_targets(wanted, low, high, lower, share, mass)
    np.testing.assert_allclose(mass, [0.0, 1.0 + 0.5 + 3.0, 1.5 + 1.0, 0.0], atol=1e-15)


@pytest.mark.parametrize("least", [1e-300, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_tokens_move_to_where_they_are_chosen_with_what_they_want(seed: int, least: float) -> None:
    """The value rises along the nodes, and a little with the token's own share."""
    rng = np.random.default_rng([61, seed])
    rates, places = 10.0 ** rng.uniform(-12, -1, 60), rng.uniform(least, 2.0, 60)
    lower, share = np.empty(60, np.int64), np.empty(60)
    locate(places, NODES, lower, share)
    terms = np.zeros((4, 3, POWERS))
    terms[:, 0, 1] = [0.0, 0.6, 1.0, 1.8]
    terms[1:, 1, 2] = rng.uniform(-0.5, 0.5, 3)
    below, above = terms[:-1], terms[1:]
    wanted = rates * rng.uniform(0.0, 2.2, 60)
    low, high = np.empty(60), np.empty(60)
    move_tokens(rates, wanted, below, above, NODES, least, lower, share, low, high)
    values = np.empty(60)
    token_values(rates, lower, share, below, above, values)
    np.testing.assert_allclose(values, share * low + (1.0 - share) * high, rtol=1e-12)
    at_end, at_least = (lower == 2) & (share == 0.0), (lower == 1) & (share == 1.0) & (least == 0.5)
    assert at_end.any()
    assert at_least.any() == (least == 0.5)
    assert (wanted[at_end] >= values[at_end] * (1.0 - 1e-9)).all()
    assert (wanted[at_least] <= values[at_least] * (1.0 + 1e-9)).all()
    inside = ~at_end & ~at_least
    np.testing.assert_allclose(values[inside], wanted[inside], rtol=1e-7)
