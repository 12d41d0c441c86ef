"""The exponential race behind drafts without replacement: when it is over, and its small rates.

Token i arrives at rate q_i, and the first n to arrive are the drafts. After the end of the race fewer than
n arrivals are too unlikely to be seen. Small rates are counted in units of it, so that their powers are
tame.
"""

from functools import cache
from math import factorial, lgamma, log

import numpy as np
from scipy.special import loggamma

from otmd.probabilities import FloatArray, IntArray
from otmd.race.largest import largest
from otmd.race.race_end import race_end
from otmd.race.race_prefixes import prefix_arrivals

# Tokens with a larger q·t at the end of the race, some hundreds at most, are treated one by one. For the
# others powers of q·t up to this order leave out what is below rounding wherever the race is not over.
HEAVY, POWERS = 0.1, 14
# e^{−42} is below half an ulp of 1.
_INVISIBLE = 42.0
_FASTEST = 256


def latest_win(draft: FloatArray, num_drafts: int, unit: float = 1.0) -> float:
    """A time by which n tokens have arrived, but for a probability below the rounding of 1.

    Parameters
    ----------
    draft : ndarray of float64, shape (V,)
        q; at least n are positive.
    num_drafts : int
        n ≥ 2.
    unit : float
        The tokens' rates are ``unit`` times q.

    Returns
    -------
    float
        The earlier of the time at which the n fastest have surely arrived, and of that at which Chernoff's
        bound P(N < n) ≤ e^{−μ}(eμ/(n − 1))^{n−1} is invisible, μ being at most the mean number of arrivals.
    """
    size = min(draft.size, max(_FASTEST, num_drafts))
    fast = unit * np.sort(largest(draft, size))
    others = max(0.0, unit * float(draft.sum()) - float(fast.sum())) if size < draft.size else 0.0
    return float(race_end(fast, others, num_drafts, _INVISIBLE))


def win_times(
    latest: float, total_rate: float, num_drafts: int, least_arrivals: int
) -> tuple[FloatArray, FloatArray]:
    """Nodes and steps of an integral over the time of a race, by the trapezoidal rule in log t.

    Parameters
    ----------
    latest : float
        The end of the race, in any unit of time.
    total_rate : float
        The tokens' rates together, in the same unit.
    num_drafts : int
        n: the rule is exact to rounding for up to n arrivals.
    least_arrivals : int
        k: before the first node, fewer than k have arrived but for what is below rounding.

    Returns
    -------
    times, steps : ndarray of float64, shape (T,)
    """
    step = quadrature_step(num_drafts)
    first = (lgamma(least_arrivals + 1) - _INVISIBLE) / least_arrivals - log(total_rate)
    # Laid out from the end of the race, which is the last node.
    log_times = np.arange(int((log(latest) - first) / step) + 2)[::-1] * -step
    times = latest * np.exp(log_times)
    return times, step * times


@cache
def quadrature_step(num_drafts: int) -> float:
    """Step of the trapezoidal rule in s = log t for counts up to n − 1.

    The rule's error on the Erlang integrand t^n e^{−t} is 2|Γ(n + 2πi/h)|/Γ(n); h is the largest step
    that holds it under 1e-16.
    """
    step = 0.25
    while step > 0.05:
        size = loggamma(num_drafts + 2j * np.pi / step).real - loggamma(num_drafts).real
        if size < np.log(0.5e-16):
            break
        step *= 0.97
    return step


@cache
def growth_series(power: int, most: int) -> FloatArray:
    """Coefficients of x^r, r < ``most``, in (e^x − 1)^power."""
    base = np.array([0.0] + [1.0 / factorial(r) for r in range(1, most)])
    series = np.zeros(most)
    series[0] = 1.0
    for _ in range(power):
        series = np.convolve(series, base)[:most]
    return series


def exponential_series(logs: FloatArray, constant: FloatArray) -> FloatArray:
    """Coefficients of z^k in constant·exp(Σ (−1)^{m+1} z^m logs[m]/m), by Newton's identities; same shape."""
    series = np.empty_like(logs)
    series[0] = constant
    for k in range(1, len(logs)):
        series[k] = sum((-1) ** (m + 1) * logs[m] * series[k - m] for m in range(1, k + 1)) / k
    return series


def product_of_series(one: FloatArray, two: FloatArray) -> FloatArray:
    """The product of two series along the first axis, as long as they are."""
    return np.stack([sum(one[m] * two[k - m] for m in range(k + 1)) for k in range(len(one))])


class PrefixRace:
    """Arrivals among growing sets of tokens.

    Parameters
    ----------
    draft : ndarray of float64, shape (V,)
        q.
    num_drafts : int
        n ≥ 3.
    unit : float
        The tokens' rates are ``unit`` times q.

    Attributes
    ----------
    end : float
        The end of the race, in the unit of time.
    heaviest : float
        The largest q of a light token; heavy ones are multiplied one by one.
    heavy : ndarray of int64, shape (M,)
        The heavy tokens.
    """

    def __init__(self, draft: FloatArray, num_drafts: int, unit: float = 1.0) -> None:
        self.end = latest_win(draft, num_drafts, unit)
        self.heaviest = HEAVY / self.end / unit
        self.heavy = np.flatnonzero(draft > self.heaviest)
        # Counts of two or more, once three tokens might have arrived.
        self.times, self.steps = win_times(self.end, unit * float(draft.sum()), num_drafts, 3)
        self._powers = (self.times / self.end) ** np.arange(POWERS)[:, None]
        self._series = np.stack([growth_series(m, POWERS) for m in range(num_drafts)])
        with np.errstate(over="ignore"):
            growth = np.outer(unit * draft[self.heavy], self.times)
        self._chances = np.exp(-growth), -np.expm1(-growth)

    def arrivals(
        self, moments: FloatArray, heavy: IntArray, block: IntArray, outside: FloatArray
    ) -> FloatArray:
        """∫ e^{−λt} P(2 ≤ N(t) < k) dt for k = 3 … n and the first 0, 1, … K blocks, shape (n − 2, K + 1).

        Parameters
        ----------
        moments : ndarray of float64, shape (K, R)
            Power sums of each block's light rates in units of the end, from column 1 on.
        heavy : ndarray of int64, shape (M,)
            Some of the heavy tokens, in the order of their blocks: their places among all of them.
        block : ndarray of int64, shape (M,)
            Those blocks.
        outside : ndarray of float64, shape (K + 1,)
            λ, the rate of all other tokens, in the unit of the rates.
        """
        found = np.empty((len(self._series) - 2, outside.size))
        absent, present = (chance[heavy] for chance in self._chances)
        heavy_chances, nodes = (block, absent, present), (outside, self.times, self.steps)
        prefix_arrivals(moments, self._series, self._powers, *heavy_chances, *nodes, found)
        return found
