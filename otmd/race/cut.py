"""The optimal cut of drafts without replacement, without a scan of every token.

Along the tokens by p/q both p(H) and g(H) are convex as functions of q(H) (Hu et al. 2025, Theorem 6). So
for the prefixes that end inside a block of tokens p lies above the line with the block's smallest
ratio and g below its chord: p − g is at least the smaller of its bounds at the two ends. Only blocks that
may hold the minimum are split, down to single ratios.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray

from otmd.curve.ratio_cut import SLACK, cut_tokens
from otmd.curve.ratio_groups import (
    AT_A_TIME,
    MANTISSA_BITS,
    NUM_GROUPS,
    fill_groups,
    fill_ratios,
    group_edges,
    group_of,
    ratios_of,
    tokens_of_groups,
)
from otmd.curve.ratio_histogram import RatioHistogram
from otmd.curve.search import fill_blocks
from otmd.probabilities import BoolArray, FloatArray
from otmd.race.block_sums import DRAFT, POWER, TARGET, add_tokens
from otmd.race.containment import ExponentialRace

# The tokens of open blocks are split into so many parts, before they are taken one by one.
_PARTS = 256
# The first group and the last one are beyond all others.
_GROUPS_PER_OCTAVE = 1 << MANTISSA_BITS


class Groups(NamedTuple):
    """The group of each token by p/q (V,), and sums over each group, (NUM_GROUPS, S).

    See :mod:`otmd.curve.ratio_groups` and :mod:`otmd.race.block_sums`.
    """

    group: NDArray[np.int16]
    sums: FloatArray

    @classmethod
    def empty(cls, size: int, width: int = POWER) -> Self:
        """Arrays for this many tokens, whose groups are not filled in yet."""
        return cls(np.empty(size, np.int16), np.zeros((NUM_GROUPS, width)))


class _Blocks(NamedTuple):
    """Consecutive tokens by p/q: the smallest ratio (K,), whether there is no other, and sums (K, S)."""

    low: FloatArray
    single: BoolArray
    sums: FloatArray


@dataclass(frozen=True, eq=False)
class RaceCut:
    """The best cut, and the blocks of tokens that it was found on.

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
        inside = self._blocks.sums[: self.size, TARGET].sum()
        return 1.0 + float(inside - self.contained[self.size])

    def tokens_around(self, low: float, high: float) -> NDArray[np.int32]:
        """All tokens of the groups from that of one ratio to that of the other, ascending, shape (T,)."""
        wanted = np.zeros(NUM_GROUPS, dtype=bool)
        wanted[group_of(low) : group_of(high) + 1] = True
        return tokens_of_groups(self.group, wanted, self.target.size)

    @cached_property
    def histogram(self) -> RatioHistogram:
        """The tokens by p/q, in blocks that are fine where the minimum lies."""
        low, single, sums = self._blocks
        masses = sums[:, TARGET].copy(), sums[:, DRAFT].copy()
        tokens = self.group, self.target, self.draft
        return RatioHistogram(np.append(low, np.inf), *masses, single, *tokens)


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
    return race_cuts(target, ExponentialRace(draft, num_drafts), [num_drafts])[0]


def race_cuts(
    target: FloatArray, race: ExponentialRace, counts: Sequence[int], groups: Groups | None = None
) -> list[RaceCut]:
    """The cuts for several numbers of drafts, found on the same blocks.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    race : ExponentialRace
        The race of the draft distribution.
    counts : sequence of int
        The numbers of drafts, each from 2 to the race's.
    groups : Groups, optional
        Where they are known.

    Returns
    -------
    list of RaceCut
    """
    draft = race.draft
    if groups is None:
        groups = Groups.empty(target.size, race.width if max(counts) > 2 else POWER)
        sums_of_groups(target, draft, race.scale, *groups)

    def bound(blocks: _Blocks) -> tuple[FloatArray, FloatArray, BoolArray]:
        """G and p − g before each block (N, K + 1), and which blocks may hold a minimum (K,)."""
        contained = race.contained(target, blocks.low, blocks.sums, counts)
        values = np.empty(contained.shape)
        return contained, values, _mark_blocks(blocks, contained, values)

    def split(blocks: _Blocks, chosen: BoolArray, tokens: NDArray[np.int32], parts: int) -> _Blocks:
        """Split the chosen blocks, which hold these tokens."""
        ratios = ratios_of(target, draft, tokens)
        ratios.sort()
        low, single = _new_edges(ratios, blocks.low[chosen], parts)
        sums = np.zeros((low.size, blocks.sums.shape[1]))
        sums_of_tokens(target, draft, tokens, low, race.scale, sums)
        return _replaced(blocks, chosen, _Blocks(low, np.full(low.size, single), sums))

    by_group = group_edges()[:-1], groups.sums
    octaves = _octaves(*by_group)
    blocks, group = _open_octaves(*by_group, octaves, bound(octaves)[2])
    chosen = bound(blocks)[2] & (group >= 0)
    wanted = np.zeros(NUM_GROUPS, dtype=bool)
    wanted[group[chosen]] = True
    tokens = tokens_of_groups(groups.group, wanted, target.size)
    for parts in (_PARTS, target.size):
        blocks = split(blocks, chosen, tokens, parts)
        contained, values, chosen = bound(blocks)
        if not chosen.any():
            break
        tokens = tokens_of_blocks(target, draft, tokens, blocks.low, chosen)
    sizes = [int(np.argmax(own <= own.min() + SLACK)) for own in values]
    return [
        RaceCut(target, draft, groups.group, own, size, blocks)
        for own, size in zip(contained, sizes, strict=True)
    ]


@njit(cache=True, nogil=True)
def _octave_of(group):
    """The octave of a group; the first and the last group are octaves alone."""
    return (group + _GROUPS_PER_OCTAVE - 1) // _GROUPS_PER_OCTAVE


@njit(cache=True, nogil=True)
def _octaves(low, sums):
    """The octaves as blocks, from the lower edges and the sums of the groups."""
    count = _octave_of(low.size - 1) + 1
    own, total = np.empty(count), np.zeros((count, sums.shape[1]))
    for k in range(low.size - 1, -1, -1):
        octave = _octave_of(k)
        own[octave] = low[k]
        for r in range(sums.shape[1]):
            total[octave, r] += sums[k, r]
    return _Blocks(own, np.zeros(count, np.bool_), total)


@njit(cache=True, nogil=True)
def _open_octaves(low, sums, whole, chosen):
    """Replace the chosen octaves by their groups; also the number of each block's group, −1 for an octave."""
    lows, rows, group = np.empty(low.size), np.empty(sums.shape), np.full(low.size, -1)
    size, last = 0, -1
    for k in range(low.size):
        octave = _octave_of(k)
        if not chosen[octave] and octave == last:
            continue
        last, lows[size] = octave, low[k]
        if chosen[octave]:
            group[size] = k
        for r in range(sums.shape[1]):
            rows[size, r] = sums[k, r] if chosen[octave] else whole.sums[octave, r]
        size += 1
    return _Blocks(lows[:size], np.zeros(size, np.bool_), rows[:size]), group[:size]


@njit(cache=True, nogil=True)
def _new_edges(ratios, starts, parts):
    """Split blocks that begin at ``starts`` and hold these ratios, ascending, into about so many parts.

    Returns where the parts begin, at some of the ratios, and whether each part has a single ratio. No part
    reaches across two blocks. Overwrites ``ratios``.
    """
    count = 0
    for i in range(ratios.size):
        if count == 0 or ratios[i] != ratios[count - 1]:
            ratios[count] = ratios[i]
            count += 1
    every = max(1, count // parts)
    chosen = np.zeros(count + 1, np.bool_)
    chosen[:count:every] = True
    for start in starts:
        chosen[np.searchsorted(ratios[:count], start)] = True
    return ratios[:count][chosen[:count]], every == 1


@njit(cache=True, nogil=True)
def _replaced(blocks, chosen, parts):
    """Replace the chosen blocks by their parts."""
    size = np.count_nonzero(~chosen) + parts.low.size
    low, single = np.empty(size), np.empty(size, np.bool_)
    sums = np.empty((size, blocks.sums.shape[1]))
    k = i = 0
    for j in range(size):
        while k < chosen.size and chosen[k]:
            k += 1
        kept = i == parts.low.size or (k < chosen.size and blocks.low[k] <= parts.low[i])
        own, row = (blocks, k) if kept else (parts, i)
        low[j], single[j] = own.low[row], own.single[row]
        for r in range(sums.shape[1]):
            sums[j, r] = own.sums[row, r]
        k, i = k + kept, i + (not kept)
    return _Blocks(low, single, sums)


@njit(cache=True, nogil=True)
def _mark_blocks(blocks, contained, values):
    """Mark the blocks (K,) that may hold the smallest minimiser of p − g for any number of drafts.

    Fills ``values`` (N, K + 1), p − g before each block, from ``contained``, which is g. Marked are the
    blocks that may hold less than every prefix known, or as little as the least one before it.
    """
    marked, before = np.zeros(blocks.low.size, np.bool_), np.zeros(blocks.low.size + 1)
    for k in range(blocks.low.size):
        before[k + 1] = before[k] + blocks.sums[k, TARGET]
    values[:] = before - contained
    for i in range(len(values)):
        best, is_before = values[i].min(), True
        for k in range(blocks.low.size):
            is_before = is_before and values[i, k] > best + SLACK
            draft = blocks.sums[k, DRAFT]
            # Tokens that are never drafted have no ratio, and come last.
            if blocks.single[k] or draft == 0.0:
                continue
            lowest = before[k] + blocks.low[k] * draft - contained[i, k + 1]
            if min(values[i, k], lowest) <= (best + SLACK if is_before else best - SLACK):
                marked[k] = True
    return marked


@njit(cache=True, nogil=True)
def sums_of_groups(p, q, scale, group, sums):
    """Fill the group of each token by p/q, and add the tokens to the groups' sums."""
    ratio, scratch = np.empty(AT_A_TIME), np.empty(AT_A_TIME)
    for start in range(0, p.size, AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        fill_groups(p[own], q[own], ratio, group[own])
        add_tokens(p[own], q[own], group[own], scale, scratch, sums)


@njit(cache=True, nogil=True)
def sums_of_tokens(p, q, tokens, low, scale, sums):
    """Add tokens to the sums of blocks, which begin at the ratios ``low`` (K,), ascending."""
    target, draft, ratio, scratch = np.empty((4, AT_A_TIME))
    block = np.empty(AT_A_TIME, np.uint64)
    for start in range(0, tokens.size, AT_A_TIME):
        own = tokens[start : start + AT_A_TIME]
        here, there = target[: own.size], draft[: own.size]
        for i in range(own.size):
            here[i], there[i] = p[own[i]], q[own[i]]
        fill_ratios(here, there, ratio)
        fill_blocks(low, ratio[: own.size], block)
        add_tokens(here, there, block, scale, scratch, sums)


@njit(cache=True, nogil=True)
def tokens_of_blocks(p, q, tokens, low, wanted):
    """Those of the tokens whose block is wanted; blocks begin at the ratios ``low`` (K,), ascending."""
    kept, block = np.empty(tokens.size + 1, np.int32), np.empty(AT_A_TIME, np.uint64)
    k = 0
    for start in range(0, tokens.size, AT_A_TIME):
        own = tokens[start : start + AT_A_TIME]
        fill_blocks(low, ratios_of(p, q, own), block)
        for i in range(own.size):
            kept[k] = own[i]
            k += wanted[block[i]]
    return kept[:k]
