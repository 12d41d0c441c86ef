"""How likely all of the first arrivals of an exponential race are to come from a set of tokens."""

import numpy as np

from otmd.drafts.exponential_race import POWERS, PrefixRace
from otmd.kernels.race_prefixes import power_sums
from otmd.kernels.replacement_rates import sum_where
from otmd.probabilities import BoolArray, FloatArray

# Rates are counted in this unit, so that the arrival times of subnormal masses are finite.
RATE_UNIT = 2.0**256


class SubsetRace:
    """What g(H) needs of a draft distribution, for every H and every number of drafts up to n.

    Parameters
    ----------
    draft : ndarray of float64, shape (V,)
        q.
    num_drafts : int
        n, the most drafts that will be asked for; at least as many tokens have mass.

    Attributes
    ----------
    alone : ndarray of float64, shape (V,)
        See :func:`times_alone`.
    race : PrefixRace or None
        Counts of two and more arrivals; none are needed for n ≤ 2.
    """

    def __init__(self, draft: FloatArray, num_drafts: int) -> None:
        self.draft, self.num_drafts = draft, num_drafts
        self.alone = times_alone(draft)
        self.race = PrefixRace(RATE_UNIT * draft, num_drafts) if num_drafts > 2 else None

    def containment(self, subset: BoolArray, num_drafts: int) -> float:
        """Return g of a subset (V,): 1 − λ ∫ e^{−λt} P(N(t) < n) dt, λ = q(V∖H)."""
        if num_drafts == 1:
            return float(self.draft[subset].sum())
        if np.count_nonzero(self.draft.astype(bool) & subset) < num_drafts:
            return 0.0
        outside = RATE_UNIT * sum_where(self.draft, ~subset)
        waits = 1.0 / RATE_UNIT + sum_where(self.alone, subset)
        if num_drafts > 2:
            waits += self._arrivals_of_several(subset, outside)[num_drafts - 3]
        return min(max(1.0 - outside * waits, 0.0), 1.0)

    def _arrivals_of_several(self, subset: BoolArray, outside: float) -> FloatArray:
        """∫ e^{−λt} P(2 ≤ N(t) < k) dt for k = 3 … n, in the unit of time."""
        assert self.race is not None
        moments = np.zeros((1, POWERS))
        moments[0, 1:] = power_sums(np.where(subset, self.race.small, 0.0), POWERS)[1:]
        heavy = np.flatnonzero(self.race.is_heavy & subset)
        block = np.zeros(heavy.size, np.int64)
        return self.race.arrivals(moments, heavy, block, np.full(2, outside))[:, 1]


def times_alone(draft: FloatArray) -> FloatArray:
    """∫ P(token i and no other has arrived) dt = q_i/(1 − q_i), in units of 1/RATE_UNIT, shape (V,)."""
    return draft / (RATE_UNIT * mass_of_others(draft))


def mass_of_others(draft: FloatArray) -> FloatArray:
    """1 − q_i for every token, summed over the others where the difference would cancel; inf for none."""
    others = 1.0 - draft
    for i in np.flatnonzero(draft > 0.5):
        others[i] = np.delete(draft, i).sum()
    others[others <= 0] = np.inf
    return others
