"""The exponential race behind drafts without replacement: when it is over, and its small rates.

Token i arrives at rate q_i, and the first n to arrive are the drafts. Times are counted in units of the end
of the race, after which fewer than n arrivals are too unlikely to be seen.
"""

from functools import cache
from math import factorial, lgamma, log

import numpy as np
from scipy.special import loggamma

from otmd.probabilities import FloatArray

# Tokens with a larger q·t at the end of the race are few, and treated one by one. For the others powers
# of q·t up to this order leave out what is below rounding.
HEAVY, POWERS = 0.5, 18
# e^{−42} is below half an ulp of 1.
_INVISIBLE = 42.0
_FASTEST = 2048


def latest_win(draft: FloatArray, num_drafts: int) -> float:
    """A time by which n tokens have arrived, but for a probability below the rounding of 1.

    Parameters
    ----------
    draft : ndarray of float64, shape (V,)
        q, the tokens' rates; at least n are positive.
    num_drafts : int
        n ≥ 2.

    Returns
    -------
    float
        The earlier of the time at which the n fastest have surely arrived, and of that at which Chernoff's
        bound P(N < n) ≤ e^{−μ}(eμ/(n − 1))^{n−1} is invisible, μ being at most the mean number of arrivals.
    """
    size = min(draft.size, max(_FASTEST, num_drafts))
    fast = np.sort(np.partition(draft, draft.size - size)[draft.size - size :])
    others = max(0.0, float(draft.sum() - fast.sum())) if size < draft.size else 0.0
    slowest = float(fast[-num_drafts])
    early, late = 0.0, _INVISIBLE / slowest
    for _ in range(60):
        time = 0.5 * (early + late)
        mean = float(-np.expm1(-fast * time).sum())
        if others > 0.0 and fast[0] > 0.0:
            # 1 − e^{−qt} is concave in q, so above its chord up to the slowest of the fast tokens.
            mean += others * float(-np.expm1(-fast[0] * time)) / float(fast[0])
        lost = num_drafts - 1
        over = mean > lost and mean - lost * (1.0 + log(mean / lost)) > _INVISIBLE
        early, late = (early, time) if over else (time, late)
    return late


def win_times(latest: float, num_drafts: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and steps of the integral over the time of the last win, in units of ``latest``.

    The trapezoidal rule in log t, from where t^n/n! is invisible.
    """
    step = quadrature_step(num_drafts)
    first = (lgamma(num_drafts + 1) - _INVISIBLE) / num_drafts - log(latest)
    log_times = np.arange(min(first, -1.0), step, step)
    times = np.exp(log_times)
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
