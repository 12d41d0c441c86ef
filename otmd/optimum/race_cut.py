"""The optimal cut of drafts without replacement, without a walk through every token.

Along the tokens by p/q both p(H) and g(H) are convex as functions of q(H) (Hu et al. 2025, Theorem 6). So
for the prefixes that end inside a block of tokens p lies above the line with the block's smallest
ratio and g below its chord: p − g is at least the smaller of its bounds at the two ends. Blocks that can
hold the minimum are split, down to single ratios.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otmd.drafts.exponential_race import POWERS
from otmd.drafts.subset_race import RATE_UNIT, SubsetRace
from otmd.drafts.without_replacement import WithoutReplacement
from otmd.kernels.race_prefixes import block_moments
from otmd.kernels.ratio_cut import SLACK
from otmd.kernels.ratio_groups import (
    MANTISSA_BITS,
    NUM_GROUPS,
    fill_ratios,
    group_by_ratio,
    group_edges,
    tokens_of_groups,
)
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.ratio_histogram import RatioHistogram

# Into how many parts the tokens at issue are split, before they are taken one by one.
_PARTS = 256


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Consecutive tokens by p/q: the smallest ratio (K,), whether there is no other, and sums.

    The sums (K, 2 + R) are of p, of the times alone, and of the powers 0 … R − 1 of q in units of the race's
    end; the powers leave out the heavy tokens, and q itself stands where the power 0 would.
    """

    low: FloatArray
    single: BoolArray
    sums: FloatArray


class _Race:
    """A position, its race, and the numbers of drafts that are asked for."""

    def __init__(self, target: FloatArray, drafts: SubsetRace, counts: Sequence[int]) -> None:
        self.target, self.draft, self.counts = target, drafts.draft, counts
        self.alone, self.race = drafts.alone, drafts.race if max(counts) > 2 else None
        self.ratio, self.group = np.empty(target.size), np.empty(target.size, np.int16)
        self.heavy = np.empty(0, np.int64)

    def groups(self) -> _Blocks:
        """Group the tokens by the leading bits of p/q."""
        sums = np.zeros((NUM_GROUPS, 2 + POWERS))
        p, q, moments = np.zeros(NUM_GROUPS), np.zeros(NUM_GROUPS), np.zeros((NUM_GROUPS, POWERS))
        fill_ratios(self.target, self.draft, self.ratio)
        group_by_ratio(self.target, self.draft, self.group, p, q)
        if self.race is not None:
            heavy = np.flatnonzero(self.race.is_heavy)
            self.heavy = heavy[np.argsort(self.ratio[heavy], kind="stable")]
            block_moments(self.race.small, self.group, moments)
        sums[:, 0], sums[:, 2:], sums[:, 2] = p, moments, q
        sums[:, 1] = np.bincount(self.group, self.alone, NUM_GROUPS)
        return _Blocks(group_edges()[:-1], np.zeros(NUM_GROUPS, dtype=bool), sums)

    def split(self, blocks: _Blocks, chosen: BoolArray, tokens: IntArray, parts: int) -> _Blocks:
        """Split the chosen blocks, which hold these tokens in the order of p/q, between ratios."""
        ratio = self.ratio[tokens]
        runs = np.flatnonzero(np.concatenate([ratio[:1] >= 0, ratio[1:] != ratio[:-1]]))
        every = max(1, runs.size // parts)
        starts = np.union1d(runs[::every], np.searchsorted(ratio, blocks.low[chosen]))
        starts = starts[starts < tokens.size]
        sums, moments = np.zeros((starts.size, 2 + POWERS)), np.zeros((starts.size, POWERS))
        if self.race is not None:
            own = np.repeat(np.arange(starts.size), np.diff(starts, append=tokens.size))
            block_moments(self.race.small[tokens], own, moments)
        sums[:, 2:] = moments
        for column, values in enumerate((self.target, self.alone, self.draft)):
            sums[:, column] = np.add.reduceat(values[tokens], starts)
        low = np.concatenate([blocks.low[~chosen], ratio[starts]])
        alone = np.concatenate([blocks.single[~chosen], np.full(starts.size, every == 1)])
        sums = np.concatenate([blocks.sums[~chosen], sums])
        order = np.argsort(low, kind="stable")
        return _Blocks(low[order], alone[order], sums[order])

    def histogram(self, blocks: _Blocks) -> RatioHistogram:
        """The same blocks as a histogram."""
        return RatioHistogram(
            self.ratio,
            np.append(blocks.low, np.inf),
            blocks.sums[:, 0],
            blocks.sums[:, 2],
            blocks.single,
            self.group,
            self.target,
            self.draft,
        )

    def containment(self, blocks: _Blocks) -> FloatArray:
        """G of the tokens before each block and of all, for each number of drafts, shape (N, K + 1)."""
        draft, moments = blocks.sums[:, 2], blocks.sums[:, 2:].copy()
        moments[:, 0] = 0.0
        outside = RATE_UNIT * np.append(draft[::-1].cumsum()[::-1], 0.0)
        alone = 1.0 / RATE_UNIT + np.append(0.0, blocks.sums[:, 1].cumsum())
        waits = np.tile(alone, (len(self.counts), 1))
        if self.race is not None:
            block = np.searchsorted(blocks.low, self.ratio[self.heavy], side="right") - 1
            several = self.race.arrivals(moments, self.heavy, block, outside)
            for own, count in zip(waits, self.counts, strict=True):
                own += several[count - 3] if count > 2 else 0.0
        return np.clip(1.0 - outside * waits, 0.0, 1.0)

    def bound(self, blocks: _Blocks) -> tuple[FloatArray, FloatArray, BoolArray]:
        """G and p − g before each block, shape (N, K + 1), and which blocks may hold a minimum (K,)."""
        contained = self.containment(blocks)
        values = np.append(0.0, blocks.sums[:, 0].cumsum()) - contained
        at_issue = np.zeros(blocks.low.size, dtype=bool)
        for own, rate in zip(contained, values, strict=True):
            at_issue |= _at_issue(blocks, own, rate)
        return contained, values, at_issue


@dataclass(frozen=True, eq=False)
class RaceCut:
    """The best cut, and the curve that it was found on.

    Attributes
    ----------
    histogram : RatioHistogram
        The tokens by p/q, in blocks that are fine where the minimum lies.
    contained : ndarray of float64, shape (K + 1,)
        g of the tokens below each edge.
    size : int
        H holds the tokens below ``histogram.edges[size]``.
    """

    histogram: RatioHistogram
    contained: FloatArray
    size: int

    @property
    def subset(self) -> BoolArray:
        """H, shape (V,)."""
        return self.histogram.ratio < self.histogram.edges[self.size]

    @property
    def rate(self) -> float:
        """1 + p(H) − g(H)."""
        return 1.0 + float(self.histogram.target_before[self.size] - self.contained[self.size])


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
    tokens = tokens[np.argsort(race.ratio[tokens])]
    for parts in (_PARTS, target.size):
        blocks = race.split(blocks, open_blocks, tokens, parts)
        contained, values, open_blocks = race.bound(blocks)
        if not open_blocks.any():
            break
        place = np.searchsorted(blocks.low, race.ratio[tokens], side="right") - 1
        tokens = tokens[open_blocks[place]]
    histogram = race.histogram(blocks)
    sizes = [int(np.argmax(own <= own.min() + SLACK)) for own in values]
    return [RaceCut(histogram, own, size) for own, size in zip(contained, sizes, strict=True)]


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
    draft = blocks.sums[:, 2]
    # Tokens that are never drafted have no ratio, and come last.
    least = np.multiply(blocks.low, draft, out=np.zeros(draft.size), where=draft > 0)
    lowest = np.minimum(values[:-1], target[:-1] + least - contained[1:])
    best = values.min()
    before = np.arange(lowest.size) < int(np.argmax(values <= best + SLACK))
    at_issue = lowest <= np.where(before, best + SLACK, best - SLACK)
    return at_issue & ~blocks.single & (draft > 0)
