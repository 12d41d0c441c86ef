"""Kernels of the race against plain loops, and the end of the race against exact probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import naive
import numpy as np
import pytest
from scipy.special import comb

from otmd.drafts.exponential_race import POWERS, latest_win, win_times
from otmd.kernels.weighted_race import add_moments, node_values, silent_winners

ROUNDING = 1e-13
Array = np.ndarray


# ---------------------------------------------------------------- one kernel at a time


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
    moments = np.full((4, 5, POWERS), 0.25)
    add_moments(rates, lower, share, 1.0, moments)
    for g, a, r in np.ndindex(*moments.shape):
        own = [i for i in range(rates.size) if lower[i] == g]
        wanted = 0.25 + sum(share[i] ** a * rates[i] ** r for i in own)
        assert moments[g, a, r] == pytest.approx(wanted, rel=ROUNDING), (g, a, r)


@pytest.mark.parametrize("seed", range(6))
def test_node_values_are_polynomials(seed: int) -> None:
    rates, lower, share = some_tail(seed)
    below, above = np.random.default_rng(seed).standard_normal((2, 3, 4, POWERS))
    low, high = np.empty(rates.size), np.empty(rates.size)
    node_values(rates, lower, share, below, above, low, high)
    for found, terms in ((low, below), (high, above)):
        for i, g in enumerate(lower):
            sums = [
                terms[g, a, r] * share[i] ** a * rates[i] ** r for a, r in np.ndindex(4, POWERS)
            ]
            assert found[i] == pytest.approx(sum(sums), rel=1e-12, abs=ROUNDING)


# ---------------------------------------------------------------- when the race is over

KINDS = ("uniform", "dirichlet", "peaked", "wide", "steps")


def draft_of(kind: str, V: int, seed: int = 0) -> Array:
    rng = np.random.default_rng([41, V, seed])
    mass = {
        "uniform": lambda: np.ones(V),
        "dirichlet": lambda: rng.gamma(1.0, size=V) + 1e-12,
        "peaked": lambda: np.append(0.999999 * V / 1e-6, np.ones(V - 1)),
        "wide": lambda: 10.0 ** rng.uniform(-30, 0, V),
        "steps": lambda: np.where(np.arange(V) < 3, 1e4, 1.0),
    }[kind]()
    return mass / mass.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("V", [8, 60, 3000])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_by_the_latest_win_all_have_won(kind: str, V: int, n: int) -> None:
    """P(N < n) exactly, a sum of positive terms; n e^{−42} where the fastest are waited for."""
    draft = draft_of(kind, V)
    latest = latest_win(draft, n)
    left = sum(naive.counts_of_arrivals(draft.tolist(), latest, n))
    assert 0.0 <= left <= n * np.exp(-42.0) * (1.0 + 1e-6)
    assert latest <= 42.0 / np.sort(draft)[-n] * (1.0 + 1e-12)


def test_many_equal_tokens_are_not_waited_for_one_by_one() -> None:
    """By Chernoff's bound: q·t stays small, which the expansion of the tail lives on."""
    for n in (2, 4, 8):
        latest = latest_win(draft_of("uniform", 3000), n)
        assert latest / 3000 < 0.05
        assert sum(naive.counts_of_arrivals([1 / 3000] * 3000, 0.6 * latest, n)) > 1e-17


@pytest.mark.parametrize("n", range(2, 9))
@pytest.mark.parametrize("V", [8, 9, 40, 151_936])
def test_win_times_integrate_the_time_of_the_last_win(n: int, V: int) -> None:
    """Of V equal clocks: the density of an order statistic, ∫ = 1, and E of e^{−its time}."""
    latest = latest_win(np.full(V, 1 / V), n)
    times, steps = win_times(latest, 1.0, n, n)
    rate = 1 / V
    assert (np.diff(times) > 0).all()
    assert times[-1] == pytest.approx(latest)
    density = n * comb(V, n) * rate * np.exp(-rate * (V - n + 1) * times)
    density *= (-np.expm1(-rate * times)) ** (n - 1)
    assert steps @ density == pytest.approx(1.0, abs=ROUNDING)
    ranks = np.arange(V - n + 1, V + 1)
    faster = np.prod(ranks / (ranks + 1.0))
    assert steps @ (density * np.exp(-rate * times)) == pytest.approx(faster, abs=ROUNDING)
