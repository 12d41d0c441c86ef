"""The end of an exponential race, nodes for integrals over its time, and power series in the rates.

The race ends when the probability that fewer than n tokens have arrived is below rounding. Slow tokens, with
q·t ≤ ``HEAVY`` at that time t, enter by sums of powers of q·t. The others are heavy.
"""

from functools import cache
from math import factorial, lgamma, log

import numpy as np
from scipy.special import loggamma

from otmd.probabilities import FloatArray

# Rates are counted in this unit, so that the arrival times of subnormal masses are finite.
RATE_UNIT = 2.0**256
# Tokens with q·t above HEAVY at the end of the race are treated one by one; there are at most some hundreds.
# For the others, the first POWERS powers of q·t are exact to rounding.
HEAVY = 0.3
POWERS = 14
# e^{−42} is below half an ulp of 1.
_INVISIBLE = 42.0
# At least so many of the fastest tokens are looked at one by one to find the end of the race.
_FASTEST = 64
# Values are laid out in so many rows to find the largest.
_ROWS = 64
# The bisection for the end of the race stops at this part of its upper bound.
_SHORTEST = 1e-12
# The step of the rule in log t for the most drafts at one position, which is above this.
_SMALLEST_STEP = 5e-3


def latest_win(draft: FloatArray, num_drafts: int, unit: float = 1.0) -> float:
    """A time by which n ≥ 2 tokens have arrived, except with a probability below rounding.

    At least n tokens of the draft distribution (V,) have mass; rates are ``unit`` times q. The result is the
    earlier of two times. By the first, the n fastest tokens have arrived. By the second, any n tokens have,
    by Chernoff's bound P(N < n) ≤ e^{−μ}(eμ/(n − 1))^{n−1}, where μ is a lower bound of the mean of N.
    """
    size = min(draft.size, max(_FASTEST, num_drafts))
    fast = unit * np.sort(_largest(draft, size))
    others = max(0.0, unit * float(draft.sum()) - float(fast.sum())) if size < draft.size else 0.0
    lost = num_drafts - 1
    latest = _INVISIBLE / float(fast[-num_drafts])
    early = 0.0
    late = latest
    # Five per cent are precise enough: a later end only costs a few more nodes.
    while late > 1.05 * early and late > latest * _SHORTEST:
        time = 0.5 * (early + late)
        # If a product overflows, the token has arrived.
        with np.errstate(over="ignore"):
            arrived = -np.expm1(-fast * time)
        mean = float(arrived.sum())
        if others > 0.0 and fast[0] > 0.0:
            # 1 − e^{−qt} is concave in q, so it is above its chord up to the slowest of the fast tokens.
            mean += others * float(arrived[0] / fast[0])
        over = mean > lost and mean - lost * (1.0 + log(mean / lost)) > _INVISIBLE
        if over:
            late = time
        else:
            early = time
    return late


def _largest(values: FloatArray, count: int) -> FloatArray:
    """The ``count`` largest of the values, in no order."""
    rows = values[: values.size // _ROWS * _ROWS].reshape(_ROWS, -1)
    if count < rows.shape[1]:
        # The largest values lie in the columns with the largest maxima, and beyond the rows.
        columns = np.argpartition(rows.max(axis=0), -count)[-count:]
        values = np.append(rows[:, columns], values[rows.size :])
    return np.partition(values, -count)[-count:]


def win_times(
    latest: float, total_rate: float, num_drafts: int, least_arrivals: int
) -> tuple[FloatArray, FloatArray]:
    """Nodes and steps (T,) of an integral over the time of a race, by the trapezoidal rule in log t.

    The last node is ``latest``, the end of the race; ``total_rate`` is the sum of all rates in the same unit
    of time. The rule is exact to rounding for up to ``num_drafts`` arrivals. Before the first node, the
    probability that ``least_arrivals`` tokens have arrived is below rounding.
    """
    step = quadrature_step(num_drafts)
    first = (lgamma(least_arrivals + 1) - _INVISIBLE) / least_arrivals - log(total_rate)
    log_times = np.arange(int((log(latest) - first) / step) + 2)[::-1] * -step
    # In two factors: the first node may be e^{−750} times the last, which would underflow.
    root = np.exp(0.5 * log_times)
    times = (latest * root) * root
    return times, step * times


@cache
def quadrature_step(num_drafts: int) -> float:
    """The step of the trapezoidal rule in log t, for counts of up to n − 1 arrivals.

    The rule's error on the Erlang integrand t^n e^{−t} is 2|Γ(n + 2πi/h)|/Γ(n); h is the largest step
    that holds it under 1e-16.
    """
    step = 0.25
    while step > _SMALLEST_STEP:
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


def exponential_series(logs: FloatArray, constant: FloatArray, size: int = 0) -> FloatArray:
    """Coefficients of z^k in constant·exp(Σ (−1)^{m+1} z^m logs[m]/m), by Newton's identities.

    There are as many as ``logs``, or ``size`` of them with logs of 0 from there on.
    """
    series = np.empty((size or len(logs), *logs.shape[1:]))
    series[0] = constant
    for k in range(1, len(series)):
        terms = range(1, min(k + 1, len(logs)))
        series[k] = sum((-1) ** (m + 1) * logs[m] * series[k - m] for m in terms) / k
    return series


def product_of_series(first: FloatArray, second: FloatArray) -> FloatArray:
    """The product of two power series along the first axis, cut off at their length."""
    return np.stack([sum(first[m] * second[k - m] for m in range(k + 1)) for k in range(len(first))])
