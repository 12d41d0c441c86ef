"""How likely all of the first arrivals of an exponential race are to come from a set of tokens."""

import numpy as np

from otmd.curve.replacement_rates import sum_where
from otmd.probabilities import BoolArray, FloatArray
from otmd.race.exponential_race import POWERS, PrefixRace
from otmd.race.race_blocks import ALONE, DRAFT, POWER, sums_of_subset

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
    race : PrefixRace or None
        Counts of two and more arrivals; none are needed for n ≤ 2.
    numbers : tuple of float
        What the kernels need to know of the race, see :mod:`otmd.race.race_blocks`.
    width : int
        How many sums a block of tokens has there.
    """

    def __init__(self, draft: FloatArray, num_drafts: int) -> None:
        self.draft, self.num_drafts = draft, num_drafts
        self.race, self.width, pace = None, POWER, (0.0, 0.0)
        if num_drafts > 2:
            self.race, self.width = PrefixRace(draft, num_drafts, RATE_UNIT), DRAFT + POWERS
            pace = self.race.end, self.race.heaviest
        self.numbers = (mass_beside_most(draft), RATE_UNIT, *pace)

    def containment(self, subset: BoolArray, num_drafts: int) -> float:
        """Return g of a subset (V,): 1 − λ ∫ e^{−λt} P(N(t) < n) dt, λ = q(V∖H)."""
        if num_drafts == 1:
            return float(sum_where(self.draft, subset))
        sums = np.empty(self.width if num_drafts > 2 else POWER)
        drafted, outside = sums_of_subset(self.draft, subset, self.numbers, sums)
        if drafted < num_drafts:
            return 0.0
        outside *= RATE_UNIT
        waits = 1.0 / RATE_UNIT + sums[ALONE]
        if num_drafts > 2:
            waits += self._arrivals_of_several(subset, sums, outside)[num_drafts - 3]
        return float(min(max(1.0 - outside * waits, 0.0), 1.0))

    def _arrivals_of_several(
        self, subset: BoolArray, sums: FloatArray, outside: float
    ) -> FloatArray:
        """∫ e^{−λt} P(2 ≤ N(t) < k) dt for k = 3 … n, in the unit of time."""
        assert self.race is not None
        heavy = np.flatnonzero(subset[self.race.heavy])
        block = np.zeros(heavy.size, np.int64)
        return self.race.arrivals(sums[None, DRAFT:], heavy, block, np.full(2, outside))[:, 1]


def times_alone(draft: FloatArray) -> FloatArray:
    """∫ P(token i and no other has arrived) dt = q_i/(1 − q_i), in units of 1/RATE_UNIT, shape (V,)."""
    times = 1.0 - draft
    # Where the difference would cancel.
    times[draft > 0.5] = mass_beside_most(draft)
    times *= RATE_UNIT
    return np.divide(draft, times, out=times)


def mass_beside_most(draft: FloatArray) -> float:
    """The mass of all tokens but the one of more than half; inf where there is none, or no other."""
    top = int(draft.argmax())
    if draft[top] <= 0.5:
        return np.inf
    return float(draft[:top].sum() + draft[top + 1 :].sum()) or np.inf
