"""Kernels of the race against plain loops."""

from __future__ import annotations

from dataclasses import dataclass

import choice_twins
import numpy as np
import pytest

from otmd.laws.race.quadrature import POWERS
from otmd.verifiers.optimal.race_rates import silent_winners
from otmd.verifiers.optimal.race_tail import Tail, move_tokens

ROUNDING = 1e-13
Array = np.ndarray


@dataclass(frozen=True)
class Winners:
    """Random arguments of `silent_winners`, and its results."""

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
        return silent_winners(*known, self.count, self.last)

    def expected(self, j: int, silent: Array, count: Array, last: Array) -> float:
        """The expectation as a sum over every set of tokens."""
        total = 0.0
        for k, time in enumerate(self.times):
            series = count[:, k].tolist(), last[:, k].tolist()
            ended = choice_twins.arrivals(self.rates.tolist(), silent.tolist(), time, *series)[1]
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
    """Slopes against differences, which are exact: the expectation is linear in each ℓ and in the series."""
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
    """Rates from 0 up to 1/2, nodes, and shares from 0 to 1 with both ends included."""
    rng = np.random.default_rng([37, seed])
    rates = np.append(10.0 ** rng.uniform(-9, -0.31, 9), [0.5, 1e-30, 0.0])
    share = np.append(rng.random(10), [0.0, 1.0])
    return rates, rng.integers(0, 3, rates.size), rng.permutation(share)


def polynomial(terms: Array, share: float, rate: float) -> float:
    """Σ terms[a, r] share^a rate^r, term by term."""
    return sum(terms[a, r] * share**a * rate**r for a, r in np.ndindex(*terms.shape))


@pytest.mark.parametrize("seed", range(6))
def test_token_values_are_polynomials(seed: int) -> None:
    rates, lower, share = some_tail(seed)
    below, above = np.random.default_rng(seed).standard_normal((2, 3, 4, POWERS))
    for a in range(4):
        below[:, a, : a + 1] = above[:, a, : a + 1] = 0.0
    values, sums = np.empty(rates.size), (np.zeros((3, 5, POWERS)), np.zeros(4))
    known = rates, np.zeros(rates.size), below, above, NODES, 0
    move_tokens(*known, lower.copy(), share.copy(), values, *sums)
    for i, g in enumerate(lower):
        low, high = (polynomial(terms[g], share[i], rates[i]) for terms in (below, above))
        wanted = share[i] * low + (1.0 - share[i]) * high
        assert values[i] == pytest.approx(wanted, rel=1e-12, abs=ROUNDING)


NODES = np.array([0.0, 0.5, 0.9, 2.0])


def test_tokens_are_located_between_their_nodes() -> None:
    place = np.array([0.0, 0.1, 0.5, 0.7, 0.9, 1.9999, 2.0, 2.5])
    rates, inert = np.full(8, 0.01), np.zeros(POWERS)
    tail = Tail.at_ratios(rates, place * rates / 3.0, place, NODES, 0, inert)
    assert tail.lower.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    found = tail.share * NODES[tail.lower] + (1.0 - tail.share) * NODES[tail.lower + 1]
    np.testing.assert_allclose(found, np.minimum(place, 2.0), atol=1e-15)


@pytest.mark.parametrize("lowest", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_placed_where_they_are_chosen_with_what_they_want(
    seed: int, lowest: int
) -> None:
    """Each token is placed where it is chosen with its p; values rise along the nodes and with the share."""
    rng = np.random.default_rng([61, seed])
    rates, places = 10.0 ** rng.uniform(-12, -1, 60), rng.uniform(NODES[lowest], 2.0, 60)
    start = Tail.at_ratios(rates, rates * places, places, NODES, lowest, np.zeros(POWERS))
    lower, share = start.lower, start.share
    terms = np.zeros((4, 3, POWERS))
    terms[:, 0, 1] = [0.0, 0.6, 1.0, 1.8]
    terms[1:, 1, 2] = rng.uniform(-0.5, 0.5, 3)
    below, above = terms[:-1], terms[1:]
    wanted = rates * rng.uniform(0.0, 2.2, 60)
    moments, by_node, values = np.full((3, 5, POWERS), 0.25), np.zeros(4), np.empty(60)
    tokens = rates, wanted, below, above, NODES, lowest
    move_tokens(*tokens, lower, share, values, moments, by_node)
    places = lower.copy(), share.copy()
    move_tokens(*tokens, *places, values, np.zeros((3, 5, POWERS)), np.zeros(4))
    at_end, at_lowest = (lower == 2) & (share == 0.0), (lower == 1) & (share == 1.0) & (lowest == 1)
    assert at_end.any()
    assert at_lowest.any() == (lowest == 1)
    assert (wanted[at_end] >= values[at_end] * (1.0 - 1e-9)).all()
    assert (wanted[at_lowest] <= values[at_lowest] * (1.0 + 1e-9)).all()
    inside = ~at_end & ~at_lowest
    np.testing.assert_allclose(values[inside], wanted[inside], rtol=1e-7)
    for g, a, r in np.ndindex(*moments.shape):
        own = np.flatnonzero(lower == g)
        total = 0.25 + sum(share[own] ** a * rates[own] ** r)
        assert moments[g, a, r] == pytest.approx(total, rel=ROUNDING), (g, a, r)
    mass = np.zeros(4)
    for g, s, rate, mine in zip(lower, share, rates, wanted, strict=True):
        parts = s * polynomial(below[g], s, rate), (1.0 - s) * polynomial(above[g], s, rate)
        mass[g : g + 2] += mine * np.array(parts) / sum(parts)
    np.testing.assert_allclose(by_node, mass, rtol=1e-11)
