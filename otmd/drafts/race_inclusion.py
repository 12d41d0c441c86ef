"""Which tokens are among the first n arrivals of an exponential race.

With N₋ the number of others that have arrived, y is drafted with probability q ∫ e^{−qt} P(N₋(t) < n) dt.
Where y is one of the many slow tokens its factor e^{−qt}(1 + z(e^{qt} − 1)) is divided out of the counts'
series in z, and what remains is a polynomial in q, with the same coefficients for all of them.
"""

import numpy as np

from otmd.drafts.exponential_race import (
    HEAVY,
    POWERS,
    exponential_series,
    growth_series,
    latest_win,
    product_of_series,
    quadrature_step,
)
from otmd.kernels.race_prefixes import polynomials, power_sums
from otmd.probabilities import FloatArray

# ∫ from 0 to a time at which this part of a token has arrived is below the rounding of 1.
_EARLIEST = 1e-18
# Tokens this fast are all but certain to be drafted: fewer than n can be, by the end of the race.
_FASTEST = 1e100


def race_inclusion(rates: FloatArray, num_drafts: int) -> FloatArray:
    """Probability of each token to be among the first n arrivals.

    Parameters
    ----------
    rates : ndarray of float64, shape (V,)
        In any unit; more than n are positive.
    num_drafts : int
        n ≥ 2.

    Returns
    -------
    ndarray of float64, shape (V,)
    """
    latest, step = latest_win(rates, num_drafts), quadrature_step(num_drafts)
    rates = np.minimum(rates, _FASTEST / latest)
    first = np.log(_EARLIEST) - np.log(latest) - np.log(rates.sum())
    parts = np.exp(np.arange(int(-first / step) + 2)[::-1] * -step)
    heavy = np.flatnonzero(rates > HEAVY / latest)
    small = rates * latest
    fast, small[heavy] = small[heavy], 0.0
    slow = _slow_counts(power_sums(small, POWERS), parts, num_drafts)
    before, after = _heavy_counts(fast, parts, num_drafts)
    weights = step * parts
    included = np.empty(rates.size)
    polynomials(
        small, _coefficients(product_of_series(before[:, -1], slow), parts, weights), included
    )
    others = product_of_series(before[:, :-1], after[:, 1:])
    # Fewer than n others: so many heavy ones, and at most as many slow ones as are left.
    at_most = slow.cumsum(axis=0)[::-1]
    missed = np.einsum("kit,kt->it", others, at_most) * np.exp(-np.outer(fast, parts))
    included[heavy] = fast * (missed @ weights)
    return np.clip(included, 0.0, 1.0)


def _slow_counts(moments: FloatArray, parts: FloatArray, size: int) -> FloatArray:
    """P(k of the slow tokens have arrived), k < n, by Newton's identities, shape (n, T)."""
    powers = parts ** np.arange(POWERS)[:, None]
    logs = [(growth_series(m, POWERS) * moments) @ powers for m in range(size)]
    return exponential_series(np.stack(logs), np.exp(-moments[1] * parts))


def _heavy_counts(fast: FloatArray, parts: FloatArray, size: int) -> tuple[FloatArray, FloatArray]:
    """P(k of the first i heavy tokens have arrived), and of all from i on, shape (n, M + 1, T)."""
    growth = np.outer(fast, parts)
    absent, present = np.exp(-growth), -np.expm1(-growth)
    before, after = np.zeros((2, size, fast.size + 1, parts.size))
    before[0, 0] = after[0, -1] = 1.0
    for i in range(fast.size):
        before[:, i + 1] = before[:, i] * absent[i]
        before[1:, i + 1] += before[:-1, i] * present[i]
    for i in range(fast.size - 1, -1, -1):
        after[:, i] = after[:, i + 1] * absent[i]
        after[1:, i] += after[:-1, i + 1] * present[i]
    return before, after


def _coefficients(counts: FloatArray, parts: FloatArray, weights: FloatArray) -> FloatArray:
    """Coefficients of q^r, r < R, in the probability to be drafted of a slow token."""
    size = len(counts)
    powers = parts ** np.arange(POWERS - 1)[:, None]
    at_most = counts.cumsum(axis=0)[::-1]
    coefficients = np.zeros(POWERS)
    for m in range(size):
        integrals = (powers * at_most[m]) @ weights
        coefficients[1:] += (-1) ** m * growth_series(m, POWERS)[:-1] * integrals
    return coefficients
