"""Which tokens are among the first n arrivals of an exponential race.

With N₋ the number of others that have arrived, y is drafted with probability q ∫ e^{−qt} P(N₋(t) < n) dt.
Where y is one of the many slow tokens its factor e^{−qt}(1 + z(e^{qt} − 1)) is divided out of the counts'
series in z, and what remains is a polynomial in q, with the same coefficients for all of them.
"""

from collections.abc import Sequence

import numpy as np

from otmd.probabilities import FloatArray
from otmd.race.exponential_race import (
    HEAVY,
    POWERS,
    exponential_series,
    growth_series,
    latest_win,
    product_of_series,
    quadrature_step,
)
from otmd.race.heavy_inclusion import heavy_inclusion
from otmd.race.race_prefixes import polynomials, power_sums, weighted_power_sums

# ∫ from 0 to a time at which this part of a token has arrived is below the rounding of 1.
_EARLIEST = 1e-18
# Tokens this fast are all but certain to be drafted: fewer than n can be, by the end of the race.
_FASTEST = 1e100


class RaceInclusion:
    """An exponential race, prepared for every number of first arrivals up to n.

    Parameters
    ----------
    draft : ndarray of float64, shape (V,)
        q; more than n are positive.
    num_drafts : int
        n ≥ 2.
    unit : float
        The tokens' rates are ``unit`` times q.
    """

    def __init__(self, draft: FloatArray, num_drafts: int, unit: float = 1.0) -> None:
        latest, step = latest_win(draft, num_drafts, unit), quadrature_step(num_drafts)
        self._small = unit * draft
        np.minimum(self._small, _FASTEST / latest, out=self._small)
        first = np.log(_EARLIEST) - np.log(latest) - np.log(self._small.sum())
        self._parts = np.exp(np.arange(int(-first / step) + 2)[::-1] * -step)
        self._weights = step * self._parts
        self._heavy = np.flatnonzero(self._small > HEAVY / latest)
        self._small *= latest
        fast, self._small[self._heavy] = self._small[self._heavy], 0.0
        slow = _slow_counts(power_sums(self._small, POWERS), self._parts, num_drafts)
        growth = np.outer(fast, self._parts)
        chances, missed = (np.exp(-growth), -np.expm1(-growth)), np.empty((num_drafts, fast.size))
        counts = heavy_inclusion(*chances, slow.cumsum(axis=0), self._weights, missed)
        self._at_most = product_of_series(counts, slow).cumsum(axis=0)
        self._heavy_drafted = np.clip(fast * missed, 0.0, 1.0)

    def probs(self, num_drafts: int) -> FloatArray:
        """Probability of each token to be among the first ``num_drafts`` arrivals, shape (V,)."""
        included = np.empty(self._small.size)
        polynomials(self._small, self._coefficients(num_drafts), included)
        included[self._heavy] = self._heavy_drafted[num_drafts - 1]
        return np.clip(included, 0.0, 1.0, out=included)

    def hit_rates(self, target: FloatArray, counts: Sequence[int]) -> list[float]:
        """P(a token of the target (V,) is among the first arrivals), for these numbers of arrivals."""
        sums, heavy = weighted_power_sums(self._small, target, POWERS), target[self._heavy]
        return [
            float(self._coefficients(n) @ sums + self._heavy_drafted[n - 1] @ heavy) for n in counts
        ]

    def _coefficients(self, num_drafts: int) -> FloatArray:
        """Coefficients of q^r, r < R, in the probability that a slow token is drafted."""
        powers = self._parts ** np.arange(POWERS - 1)[:, None]
        coefficients = np.zeros(POWERS)
        for m in range(num_drafts):
            integrals = (powers * self._at_most[num_drafts - 1 - m]) @ self._weights
            coefficients[1:] += (-1) ** m * growth_series(m, POWERS)[:-1] * integrals
        return coefficients


def _slow_counts(moments: FloatArray, parts: FloatArray, size: int) -> FloatArray:
    """P(k of the slow tokens have arrived), k < n, by Newton's identities, shape (n, T)."""
    powers = parts ** np.arange(POWERS)[:, None]
    logs = [(growth_series(m, POWERS) * moments) @ powers for m in range(size)]
    return exponential_series(np.stack(logs), np.exp(-moments[1] * parts))
