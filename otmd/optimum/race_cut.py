"""The optimal cut of drafts without replacement, without a walk through every token.

Along the tokens by p/q both p(H) and g(H) are convex as functions of q(H) (Hu et al. 2025, Theorem 6). So
for the prefixes that end inside a block of tokens p lies above the line with the block's smallest
ratio and g below its chord: p − g is at least the smaller of its bounds at the two ends. Blocks that can
hold the minimum are split, down to single ratios.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from otmd.drafts.subset_race import RATE_UNIT, SubsetRace
from otmd.drafts.without_replacement import WithoutReplacement
from otmd.kernels.race_blocks import (
    ALONE,
    DRAFT,
    POWER,
    TARGET,
    leave_distinct,
    sums_of_groups,
    sums_of_tokens,
    tokens_of_blocks,
)
from otmd.kernels.ratio_cut import SLACK, cut_tokens
from otmd.kernels.ratio_groups import (
    MANTISSA_BITS,
    NUM_GROUPS,
    fill_ratios,
    group_edges,
    ratios_of,
    tokens_of_groups,
)
from otmd.probabilities import BoolArray, FloatArray
from otmd.ratio_histogram import RatioHistogram

# Into how many parts the tokens at issue are split, before they are taken one by one.
_PARTS = 256


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Consecutive tokens by p/q: the smallest ratio (K,), whether there is no other, and sums.

    The sums (K, S) are those of :mod:`otmd.kernels.race_blocks`.
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

    def __init__(self, target: FloatArray, drafts: SubsetRace, counts: Sequence[int]) -> None:
        self.target, self.draft, self.counts = target, drafts.draft, counts
        self.race, self._drafts = drafts.race if max(counts) > 2 else None, drafts
        self.group = np.empty(target.size, np.int16)
        if self.race is not None:
            ratio = ratios_of(target, self.draft, self.race.heavy)
            self._heavy = np.argsort(ratio, kind="stable")
            self._heavy_ratio = ratio[self._heavy]

    def groups(self) -> _Blocks:
        """Group the tokens by the leading bits of p/q."""
        sums = np.zeros((NUM_GROUPS, self._width))
        sums_of_groups(self.target, self.draft, self._drafts.numbers, self.group, sums)
        return _Blocks(group_edges()[:-1], np.zeros(NUM_GROUPS, dtype=bool), sums)

    def split(
        self, blocks: _Blocks, chosen: BoolArray, tokens: NDArray[np.int32], parts: int
    ) -> _Blocks:
        """Split the chosen blocks, which hold these tokens, between ratios."""
        ratio = ratios_of(self.target, self.draft, tokens)
        ratio.sort()
        ratio = ratio[: leave_distinct(ratio)]
        every = max(1, ratio.size // parts)
        firsts = np.searchsorted(ratio, blocks.low[chosen])
        starts = np.union1d(np.arange(0, ratio.size, every), firsts[firsts < ratio.size])
        own, sums = ratio[starts], np.zeros((starts.size, self._width))
        sums_of_tokens(self.target, self.draft, tokens, own, self._drafts.numbers, sums)
        low = np.concatenate([blocks.low[~chosen], own])
        single = np.concatenate([blocks.single[~chosen], np.full(starts.size, every == 1)])
        sums = np.concatenate([blocks.sums[~chosen], sums])
        order = np.argsort(low, kind="stable")
        return _Blocks(low[order], single[order], sums[order])

    def containment(self, blocks: _Blocks) -> FloatArray:
        """G of the tokens before each block and of all, for each number of drafts, shape (N, K + 1)."""
        outside = RATE_UNIT * np.append(blocks.draft[::-1].cumsum()[::-1], 0.0)
        alone = 1.0 / RATE_UNIT + np.append(0.0, blocks.sums[:, ALONE].cumsum())
        waits = np.tile(alone, (len(self.counts), 1))
        if self.race is not None:
            block = np.searchsorted(blocks.low, self._heavy_ratio, side="right") - 1
            several = self.race.arrivals(blocks.sums[:, DRAFT:], self._heavy, block, outside)
            for own, count in zip(waits, self.counts, strict=True):
                own += several[count - 3] if count > 2 else 0.0
        return np.clip(1.0 - outside * waits, 0.0, 1.0)

    def bound(self, blocks: _Blocks) -> tuple[FloatArray, FloatArray, BoolArray]:
        """G and p − g before each block, shape (N, K + 1), and which blocks may hold a minimum (K,)."""
        contained = self.containment(blocks)
        values = np.append(0.0, blocks.target.cumsum()) - contained
        at_issue = np.zeros(blocks.low.size, dtype=bool)
        for own, rate in zip(contained, values, strict=True):
            at_issue |= _at_issue(blocks, own, rate)
        return contained, values, at_issue

    @property
    def _width(self) -> int:
        return POWER if self.race is None else self._drafts.width


@dataclass(frozen=True, eq=False)
class RaceCut:
    """The best cut, and the curve that it was found on.

    Attributes
    ----------
    target, draft : ndarray of float64, shape (V,)
        p and q.
    group : ndarray of int16, shape (V,)
        The group of each token by p/q, see :mod:`otmd.kernels.ratio_groups`.
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
        end = np.append(self._blocks.low, np.inf)[self.size : self.size + 1]
        cut_tokens(self.target, self.draft, end, subset, np.empty(1), np.empty(1))
        return subset[0]

    @property
    def rate(self) -> float:
        """1 + p(H) − g(H)."""
        return 1.0 + float(self._blocks.target[: self.size].sum() - self.contained[self.size])

    @cached_property
    def histogram(self) -> RatioHistogram:
        """The tokens by p/q, in blocks that are fine where the minimum lies."""
        ratio, blocks = np.empty(self.target.size), self._blocks
        fill_ratios(self.target, self.draft, ratio)
        edges = np.append(blocks.low, np.inf)
        masses = blocks.target.copy(), blocks.draft.copy()
        tokens = self.group, self.target, self.draft
        return RatioHistogram(ratio, edges, *masses, blocks.single, *tokens)


def race_cut(target: FloatArray, law: WithoutReplacement) -> RaceCut:
    """The smallest prefix H of the ratio order that minimises p(H) − g(H).

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    law : WithoutReplacement
        A law without leading axes, of n ≥ 2 drafts.

    Returns
    -------
    RaceCut
    """
    counts = [law.num_drafts]
    return race_cuts(target, SubsetRace(law.draft_probs, law.num_drafts), counts)[0]


def race_cuts(target: FloatArray, drafts: SubsetRace, counts: Sequence[int]) -> list[RaceCut]:
    """The cuts for several numbers of drafts, found on the same blocks.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    drafts : SubsetRace
        The race of the draft distribution.
    counts : sequence of int
        The numbers of drafts, each from 2 to the race's.

    Returns
    -------
    list of RaceCut
    """
    race = _Race(target, drafts, counts)
    groups = race.groups()
    blocks, finest = _opened(race, groups)
    _, _, open_blocks = race.bound(blocks)
    open_blocks &= finest
    wanted = np.isin(groups.low, blocks.low[open_blocks])
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


def _opened(race: _Race, groups: _Blocks) -> tuple[_Blocks, BoolArray]:
    """The groups of octaves that may hold the minimum, and other octaves whole; which are groups (K,)."""
    starts = np.append(0, np.arange(1, groups.low.size, 2**MANTISSA_BITS))
    octaves = _Blocks(
        groups.low[starts], groups.single[starts], np.add.reduceat(groups.sums, starts)
    )
    _, _, at_issue = race.bound(octaves)
    inside = np.repeat(at_issue, np.diff(starts, append=groups.low.size))
    low = np.concatenate([octaves.low[~at_issue], groups.low[inside]])
    sums = np.concatenate([octaves.sums[~at_issue], groups.sums[inside]])
    order = np.argsort(low)
    blocks = _Blocks(low[order], np.zeros(low.size, dtype=bool), sums[order])
    return blocks, order >= np.count_nonzero(~at_issue)


def _at_issue(blocks: _Blocks, contained: FloatArray, values: FloatArray) -> BoolArray:
    """Which blocks may hold the smallest minimiser of p − g, whose values before each block are given.

    Those which may hold less than every prefix known, or as little as the least before the first that does.
    """
    target = values + contained
    draft = blocks.draft
    # Tokens that are never drafted have no ratio, and come last.
    least = np.multiply(blocks.low, draft, out=np.zeros(draft.size), where=draft > 0)
    lowest = np.minimum(values[:-1], target[:-1] + least - contained[1:])
    best = values.min()
    before = np.arange(lowest.size) < int(np.argmax(values <= best + SLACK))
    at_issue = lowest <= np.where(before, best + SLACK, best - SLACK)
    return at_issue & ~blocks.single & (draft > 0)
