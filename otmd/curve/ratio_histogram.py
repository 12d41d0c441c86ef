"""Masses of p and q over intervals of the ratio p/q: the ratio curve without a sort.

The tokens are grouped by the leading bits of p/q, and only the intervals that a question depends on are
resolved to single ratios. Between the ends of an interval the curve of (q(H), p(H)) lies above two
lines with the slopes of the interval's edges: where these cross bounds every prefix inside.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from otmd.curve.ratio_groups import (
    NUM_GROUPS,
    fill_ratios,
    group_by_ratio,
    group_edges,
    ratios_of,
    tokens_of_groups,
)
from otmd.probabilities import BoolArray, FloatArray


@dataclass(frozen=True, eq=False)
class RatioHistogram:
    """The two masses over K intervals of p/q, ascending; the last one has no upper end.

    Attributes
    ----------
    edges : ndarray of float64, shape (K + 1,)
        Interval i holds the tokens with edges[i] ≤ p/q < edges[i + 1].
    target_mass, draft_mass : ndarray of float64, shape (K,)
        p and q of the tokens in each interval.
    single : ndarray of bool, shape (K,)
        Whether every token of the interval has the ratio of its lower edge.
    group : ndarray of int16, shape (V,)
        The group of each token, see :mod:`otmd.curve.ratio_groups`.
    """

    edges: FloatArray
    target_mass: FloatArray
    draft_mass: FloatArray
    single: BoolArray
    group: NDArray[np.int16]
    _target: FloatArray
    _draft: FloatArray

    @classmethod
    def of(cls, target: FloatArray, draft: FloatArray) -> Self:
        """Group the tokens of a single position, 16 intervals a factor of two.

        Parameters
        ----------
        target, draft : ndarray of float64, shape (V,)
            Masses p and q ≥ 0; neither need sum to 1.

        Returns
        -------
        RatioHistogram
        """
        group, masses = (
            np.empty(target.size, np.int16),
            (np.zeros(NUM_GROUPS), np.zeros(NUM_GROUPS)),
        )
        group_by_ratio(target, draft, group, *masses)
        single = np.zeros(NUM_GROUPS, dtype=bool)
        return cls(group_edges(), *masses, single, group, target, draft)

    @cached_property
    def ratio(self) -> FloatArray:
        """p/q of each token, inf where q = 0, shape (V,)."""
        ratio = np.empty(self.group.size)
        fill_ratios(self._target, self._draft, ratio)
        return ratio

    @cached_property
    def target_before(self) -> FloatArray:
        """P of the tokens below each edge, shape (K + 1,)."""
        return np.concatenate([[0.0], self.target_mass.cumsum()])

    @cached_property
    def draft_before(self) -> FloatArray:
        """Q of the tokens below each edge, shape (K + 1,)."""
        return np.concatenate([[0.0], self.draft_mass.cumsum()])

    def resolve(self, intervals: BoolArray) -> Self:
        """Give every ratio that occurs in the chosen groups (K,) an interval of its own.

        Only a histogram that was not resolved before can be.
        """
        assert not self.single.any()
        tokens = tokens_of_groups(self.group, intervals, self.group.size)
        ratio = ratios_of(self._target, self._draft, tokens)
        order = np.argsort(ratio)
        tokens, ratio = tokens[order], ratio[order]
        starts = np.flatnonzero(np.concatenate([ratio[:1] >= 0, ratio[1:] != ratio[:-1]]))
        lows = ratio[starts]
        # The groups' own edges stay, without mass, so that their neighbours reach no further than before.
        group = self.group[tokens[starts]]
        at_edge = group[lows == self.edges[group]]
        kept = np.ones(intervals.size, dtype=bool)
        kept[at_edge] = False
        lows = np.concatenate([self.edges[:-1][kept], lows])
        order = np.argsort(lows)
        masses = []
        for whole, mass in ((self.target_mass, self._target), (self.draft_mass, self._draft)):
            own = np.add.reduceat(mass[tokens], starts) if starts.size else np.empty(0)
            others = np.where(intervals, 0.0, whole)[kept]
            masses.append(np.concatenate([others, own])[order])
        single = np.concatenate([intervals[kept], np.ones(group.size, dtype=bool)])
        return replace(
            self,
            edges=np.append(lows[order], np.inf),
            target_mass=masses[0],
            draft_mass=masses[1],
            single=single[order],
        )
