"""How often each class is chosen among the winners of an exponential race.

The few tokens with large q are multiplied one by one. For the others y = e^{q t} − 1 is small, and a
token's factor 1 + z y ℓ, z counting arrivals, enters through its logarithm: by sums of y^m ℓ^m. Expanded in
q t and in the probability to be of the lower class these are moments Σ share^a q^r, so that what
a token of the tail is chosen with is a polynomial in its q and share, with coefficients that are
the same for all tokens between two nodes.
"""

from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np

from otmd.choice.weighted_race import silent_winners
from otmd.probabilities import FloatArray
from otmd.race.quadrature import exponential_series, growth_series, product_of_series


@dataclass(frozen=True, eq=False)
class RaceChoice:
    """What a choice of weights gives.

    Attributes
    ----------
    expected : ndarray of float64, shape (J,)
        E[Π ℓ] over the winners, at each time of the clocks.
    heavy : ndarray of float64, shape (J, M)
        Its derivative by ℓ of each heavy token.
    tail : ndarray of float64, shape (n, R, J)
        Its derivative by ℓ of a tail token is Σ tail[m, r] ℓ^m q^r.
    """

    expected: FloatArray
    heavy: FloatArray
    tail: FloatArray


@dataclass(frozen=True, eq=False)
class TimedRace:
    """A race, integrated over the time of the last win.

    Attributes
    ----------
    heavy_rates : ndarray of float64, shape (M,)
        q of the heavy tokens.
    blocked : float
        Rate of the tokens that must not arrive.
    times, steps : ndarray of float64, shape (T,)
        Nodes and weights of the integral.
    """

    heavy_rates: FloatArray
    blocked: float
    times: FloatArray
    steps: FloatArray

    @cached_property
    def chances(self) -> tuple[FloatArray, FloatArray]:
        """e^{−q t} and 1 − e^{−q t} of the heavy tokens, each of shape (M, T)."""
        growth = np.outer(self.heavy_rates, self.times)
        return np.exp(-growth), -np.expm1(-growth)

    def choice(
        self, heavy_silent: FloatArray, node_silent: FloatArray, moments: FloatArray
    ) -> RaceChoice:
        """Evaluate the race at the clocks' times.

        Parameters
        ----------
        heavy_silent : ndarray of float64, shape (J, M)
            ℓ of the heavy tokens.
        node_silent : ndarray of float64, shape (J, G)
            ℓ of the classes of the tail.
        moments : ndarray of float64, shape (G − 1, n + 1, R)
            Σ share^a q^r of the tail tokens between two nodes.

        Returns
        -------
        RaceChoice
        """
        order, most = moments.shape[1] - 1, moments.shape[2]
        powers = self.times ** np.arange(most)[:, None]
        sums = [tail_sums(m, node_silent, moments) for m in range(order + 1)]
        logs = np.zeros((order, node_silent.shape[0], self.times.size))
        last = np.empty_like(logs)
        for m in range(order):
            series = growth_series(m, most)
            if m:
                logs[m] = (sums[m] * series) @ powers
            last[m] = (-1) ** m * ((sums[m + 1][:, 1:] * series[:-1]) @ powers[:-1])
        everyone = np.exp(-(self.blocked + float(moments[:, 0, 1].sum())) * self.times)
        count = exponential_series(logs, everyone)
        ends = product_of_series(last, count)
        num_times = node_silent.shape[0]
        shape = (num_times, order, self.times.size)
        expected, slopes = np.empty(num_times), np.empty((num_times, self.heavy_rates.size))
        by_count, by_last = np.empty(shape), np.empty(shape)
        count, ends = np.moveaxis(count, 0, 1), np.moveaxis(ends, 0, 1)
        silent_winners(
            self.heavy_rates,
            heavy_silent,
            *self.chances,
            self.steps,
            np.ascontiguousarray(count),
            np.ascontiguousarray(ends),
            expected,
            slopes,
            by_count,
            by_last,
        )
        tail = _tail_slopes(count, ends, by_count, by_last, powers)
        return RaceChoice(expected, slopes, tail)


def mixture_powers(power: int, node_silent: FloatArray) -> FloatArray:
    """Coefficients of share^a in (share ℓ_g + (1 − share) ℓ_{g+1})^power, shape (J, G − 1, power + 1)."""
    above = node_silent[:, 1:]
    change = node_silent[:, :-1] - above
    return np.stack(
        [comb(power, a) * change**a * above ** (power - a) for a in range(power + 1)], axis=-1
    )


def tail_sums(power: int, node_silent: FloatArray, moments: FloatArray) -> FloatArray:
    """Σ ℓ^power q^r over the tail tokens, shape (J, R)."""
    mixed = mixture_powers(power, node_silent)
    own = moments[:, : power + 1]
    return mixed.reshape(len(mixed), -1) @ own.reshape(-1, own.shape[-1])


def _tail_slopes(
    count: FloatArray,
    ends: FloatArray,
    by_count: FloatArray,
    by_last: FloatArray,
    powers: FloatArray,
) -> FloatArray:
    """The derivative by a tail token's ℓ as coefficients of ℓ^m q^r, shape (n, R, J)."""
    order, most = count.shape[1], len(powers)
    slopes = np.zeros((order, most, count.shape[0]))
    for m in range(order):
        sign = (-1) ** m
        arrives_last = _inner(by_last[:, m:], count[:, : order - m])
        by_q = (sign * (m + 1) * arrives_last @ powers.T) * growth_series(m, most)
        slopes[m, 1:] += by_q.T[:-1]
        if m + 1 < order:
            kept = slice(None, order - m - 1)
            earlier = _inner(by_last[:, m + 1 :], ends[:, kept])
            earlier += _inner(by_count[:, m + 1 :], count[:, kept])
            slopes[m] += ((sign * earlier @ powers.T) * growth_series(m + 1, most)).T
    return slopes


def _inner(one: FloatArray, two: FloatArray) -> FloatArray:
    return (one * two).sum(axis=1)
