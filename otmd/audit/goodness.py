"""The G-test, with a p-value that is exact for any number of samples."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import comb

import numpy as np
from scipy.special import gammaln, xlogy

from otmd.drafts.base import validate_rng
from otmd.probabilities import FloatArray, IntArray

_MOST_ENUMERATED = 20_000
_SMALLEST_LEVEL = 1e-6
_ENOUGH_EXTREME = 20
# Statistics closer than this, relatively, are ties: rounding must not decide, and ties count as extreme.
_TIE = 1e-9


def g_statistic(counts: IntArray, probs: FloatArray) -> FloatArray:
    """G = 2 Σ O log(O/E), twice the log-likelihood ratio of the frequencies against the law.

    Parameters
    ----------
    counts : ndarray of int64, shape (…, K)
        How often each cell occurred.
    probs : ndarray of float64, shape (K,)
        The cells' probabilities, positive.

    Returns
    -------
    ndarray of float64, shape (…)
    """
    total = counts.sum(axis=-1, keepdims=True)
    return 2.0 * xlogy(counts, counts / np.maximum(total, 1) / probs).sum(axis=-1)


def exact_p_value(
    counts: IntArray, probs: FloatArray, level: float, *, rng: np.random.Generator
) -> float:
    """P-value of G under the multinomial law of the counts, at most x with probability at most x.

    Every outcome is listed where there are few. Otherwise outcomes are drawn from the law, and
    the p-value is (1 + those at least as extreme)/(1 + drawn): exact, as the observed one is exchangeable
    with them. The drawing stops early once 20 are as extreme, and the p-value is then 20 over the number
    drawn (Besag & Clifford 1991).

    Parameters
    ----------
    counts : ndarray of int64, shape (K,)
        How often each cell occurred.
    probs : ndarray of float64, shape (K,)
        The cells' probabilities, positive, with sum 1.
    level : float
        The smallest p-value that must be told apart: at most 10/level outcomes are drawn.
    rng : numpy.random.Generator
        Equal seeds give equal p-values.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For a level below 1e-6, which would take too many draws.
    """
    validate_rng(rng)
    if level < _SMALLEST_LEVEL:
        raise ValueError(
            f"level: got {level:.1e}, wanted at least {_SMALLEST_LEVEL:.0e}: a p-value from draws cannot be "
            "smaller; SequentialAudit has no such limit"
        )
    total, cells = int(counts.sum()), probs.size
    observed = float(g_statistic(counts, probs)) * (1.0 - _TIE) - _TIE
    if comb(total + cells - 1, cells - 1) <= _MOST_ENUMERATED:
        every = np.array(list(every_count(total, cells)))
        extreme = every[g_statistic(every, probs) >= observed]
        return min(1.0, float(np.exp(_log_multinomial(extreme, probs)).sum()))
    return _p_value_by_draws(observed, total, probs, int(np.ceil(10 / level)), rng)


def _p_value_by_draws(
    observed: float, total: int, probs: FloatArray, most: int, rng: np.random.Generator
) -> float:
    """Stops at the draw that makes enough extreme ones, where the p-value is that part of the draws."""
    drawn, found, size = 0, 0, _ENOUGH_EXTREME
    while drawn < most:
        size = min(2 * size, most - drawn, 2_000_000 // probs.size)
        outcomes = rng.multinomial(total, probs / probs.sum(), size=size)
        extreme = np.cumsum(g_statistic(outcomes, probs) >= observed) + found
        if extreme[-1] >= _ENOUGH_EXTREME:
            return _ENOUGH_EXTREME / (drawn + int(np.argmax(extreme >= _ENOUGH_EXTREME)) + 1)
        drawn, found = drawn + size, int(extreme[-1])
    return (1 + found) / (1 + drawn)


def every_count(total: int, cells: int) -> Iterator[list[int]]:
    """All counts of so many samples in so many cells."""
    for bars in combinations(range(total + cells - 1), cells - 1):
        edges = [-1, *bars, total + cells - 1]
        yield [right - left - 1 for left, right in pairwise(edges)]


def _log_multinomial(counts: IntArray, probs: FloatArray) -> FloatArray:
    total = counts.sum(axis=-1)
    chances = xlogy(counts, probs).sum(axis=-1)
    return gammaln(total + 1.0) - gammaln(counts + 1.0).sum(axis=-1) + chances
