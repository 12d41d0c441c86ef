"""The optimal cut of drafts without replacement, without a walk through every token.

Along the tokens by p/q both p(H) and g(H) are convex as functions of q(H) (Hu et al. 2025, Theorem 6). So
for the prefixes that end inside a block of tokens p lies above the line with the block's smallest
ratio and g below its chord: p − g is at least the smaller of its bounds at the two ends. Blocks that can
hold the minimum are split, down to single ratios.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from otmd.curve.ratio_cut import SLACK, cut_tokens
from otmd.curve.ratio_groups import (
    NUM_GROUPS,
    group_edges,
    group_of,
    ratios_of,
    tokens_of_groups,
)
from otmd.curve.ratio_histogram import RatioHistogram
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.race_blocks import (
    DRAFT,
    POWER,
    TARGET,
    leave_distinct,
    sums_of_groups,
    tokens_of_blocks,
)
from otmd.race.race_bounds import (
    bound_blocks,
    fill_outside,
    octaves,
    open_octaves,
    split_blocks,
)
from otmd.race.subset_race import RATE_UNIT, SubsetRace

# Into how many parts the tokens at issue are split, before they are taken one by one.
_PARTS = 256


class Groups(NamedTuple):
    """The group of each token by p/q (V,), and sums over each group, (NUM_GROUPS, S).

    See :mod:`otmd.curve.ratio_groups` and :mod:`otmd.race.race_blocks`.
    """

    group: NDArray[np.int16]
    sums: FloatArray

    @classmethod
    def empty(cls, size: int, width: int = POWER) -> Self:
        """Those of no token yet, of so many."""
        return cls(np.empty(size, np.int16), np.zeros((NUM_GROUPS, width)))


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Consecutive tokens by p/q: the smallest ratio (K,), whether there is no other, and sums.

    The sums (K, S) are those of :mod:`otmd.race.race_blocks`.
    """

    low: FloatArray
    single: BoolArray
    sums: FloatArray

    @property
    def target(self) -> FloatArray:
        """P of each block, shape (K,)."""
        return self.sums[:, TARGET]

    @property
    def draft(self) -> FloatArray:
        """Q of each block, shape (K,)."""
        return self.sums[:, DRAFT]


class _Race:
    """A position, its race, and the numbers of drafts that are asked for."""

    def __init__(
        self, target: FloatArray, drafts: SubsetRace, counts: Sequence[int], groups: Groups | None
    ) -> None:
        self.target, self.draft, self.counts = target, drafts.draft, counts
        self.race, self._numbers = drafts.race if max(counts) > 2 else None, drafts.numbers
        if groups is None:
            groups = Groups.empty(target.size, POWER if self.race is None else drafts.width)
            sums_of_groups(target, self.draft, self._numbers, *groups)
        self.group, self._sums = groups
        if self.race is not None:
            ratio = ratios_of(target, self.draft, self.race.heavy)
            self._heavy = np.argsort(ratio, kind="stable")
            self._heavy_ratio = ratio[self._heavy]

    def opened(self) -> tuple[_Blocks, IntArray]:
        """The groups of octaves that may hold the minimum, and other octaves whole.

        The second answer is the number of each block's group, −1 for an octave.
        """
        sums, low = self._sums, group_edges()[:-1]
        whole = octaves(low, sums)
        at_issue = self.bound(_Blocks(whole[0], np.zeros(whole[0].size, dtype=bool), whole[1]))[2]
        low, sums, group = open_octaves(low, sums, *whole, at_issue)
        return _Blocks(low, np.zeros(low.size, dtype=bool), sums), group

    def split(
        self, blocks: _Blocks, chosen: BoolArray, tokens: NDArray[np.int32], parts: int
    ) -> _Blocks:
        """Split the chosen blocks, which hold these tokens, between ratios."""
        ratios = ratios_of(self.target, self.draft, tokens)
        ratios.sort()
        ratios = ratios[: leave_distinct(ratios)]
        known = blocks.low, blocks.single, blocks.sums, chosen
        inside = self.target, self.draft, self._numbers, tokens, ratios
        return _Blocks(*split_blocks(*known, *inside, parts))

    def bound(self, blocks: _Blocks) -> tuple[FloatArray, FloatArray, BoolArray]:
        """G and p − g before each block, shape (N, K + 1), and which blocks may hold a minimum (K,)."""
        size = len(self.counts), blocks.low.size + 1
        outside, several = np.empty(size[1]), np.zeros(size)
        fill_outside(blocks.sums, RATE_UNIT, outside)
        if self.race is not None:
            block = np.searchsorted(blocks.low, self._heavy_ratio, side="right") - 1
            arrivals = self.race.arrivals(blocks.sums[:, DRAFT:], self._heavy, block, outside)
            for own, count in zip(several, self.counts, strict=True):
                own[:] = arrivals[count - 3] if count > 2 else 0.0
        contained, values = np.empty(size), np.empty(size)
        known = blocks.low, blocks.single, blocks.sums, outside, several, RATE_UNIT
        return contained, values, bound_blocks(*known, contained, values)


@dataclass(frozen=True, eq=False)
class RaceCut:
    """The best cut, and the curve that it was found on.

    Attributes
    ----------
    target, draft : ndarray of float64, shape (V,)
        p and q.
    group : ndarray of int16, shape (V,)
        The group of each token by p/q, see :mod:`otmd.curve.ratio_groups`.
    contained : ndarray of float64, shape (K + 1,)
        g of the tokens below each edge of the histogram.
    size : int
        H holds the tokens below ``histogram.edges[size]``.
    """

    target: FloatArray
    draft: FloatArray
    group: NDArray[np.int16]
    contained: FloatArray
    size: int
    _blocks: _Blocks

    @property
    def subset(self) -> BoolArray:
        """H, shape (V,)."""
        subset = np.empty((1, self.target.size), dtype=bool)
        cut_tokens(self.target, self.draft, np.array([self.edge]), subset, np.empty(1), np.empty(1))
        return subset[0]

    @property
    def edge(self) -> float:
        """H holds the tokens of smaller p/q; inf for all that are drafted."""
        low = self._blocks.low
        return float(low[self.size]) if self.size < low.size else np.inf

    @property
    def rate(self) -> float:
        """1 + p(H) − g(H)."""
        return 1.0 + float(self._blocks.target[: self.size].sum() - self.contained[self.size])

    def tokens_around(self, low: float, high: float) -> NDArray[np.int32]:
        """All tokens of the groups that these ratios are in, and of those between, ascending, shape (T,)."""
        wanted = np.zeros(NUM_GROUPS, dtype=bool)
        wanted[group_of(low) : group_of(high) + 1] = True
        return tokens_of_groups(self.group, wanted, self.target.size)

    @cached_property
    def histogram(self) -> RatioHistogram:
        """The tokens by p/q, in blocks that are fine where the minimum lies."""
        blocks = self._blocks
        edges = np.append(blocks.low, np.inf)
        masses = blocks.target.copy(), blocks.draft.copy()
        tokens = self.group, self.target, self.draft
        return RatioHistogram(edges, *masses, blocks.single, *tokens)


def race_cut(target: FloatArray, draft: FloatArray, num_drafts: int) -> RaceCut:
    """The smallest prefix H of the ratio order that minimises p(H) − g(H).

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    draft : ndarray of float64, shape (V,)
        q.
    num_drafts : int
        n ≥ 2.

    Returns
    -------
    RaceCut
    """
    return race_cuts(target, SubsetRace(draft, num_drafts), [num_drafts])[0]


def race_cuts(
    target: FloatArray, drafts: SubsetRace, counts: Sequence[int], groups: Groups | None = None
) -> list[RaceCut]:
    """The cuts for several numbers of drafts, found on the same blocks.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    drafts : SubsetRace
        The race of the draft distribution.
    counts : sequence of int
        The numbers of drafts, each from 2 to the race's.
    groups : Groups, optional
        Where they are known.

    Returns
    -------
    list of RaceCut
    """
    race = _Race(target, drafts, counts, groups)
    blocks, group = race.opened()
    _, _, open_blocks = race.bound(blocks)
    open_blocks &= group >= 0
    wanted = np.zeros(NUM_GROUPS, dtype=bool)
    wanted[group[open_blocks]] = True
    tokens = tokens_of_groups(race.group, wanted, target.size)
    for parts in (_PARTS, target.size):
        blocks = race.split(blocks, open_blocks, tokens, parts)
        contained, values, open_blocks = race.bound(blocks)
        if not open_blocks.any():
            break
        tokens = tokens_of_blocks(target, drafts.draft, tokens, blocks.low, open_blocks)
    sizes = [int(np.argmax(own <= own.min() + SLACK)) for own in values]
    position = target, drafts.draft, race.group
    return [
        RaceCut(*position, own, size, blocks) for own, size in zip(contained, sizes, strict=True)
    ]
