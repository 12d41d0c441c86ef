"""The ratio curve of one position as blocks of tokens, refined where the optimal cut may lie.

A block holds consecutive tokens in the order of p/q. Along that order a law's containment g and the mass p(H)
are convex as functions of q(H) (Hu et al. 2025, Theorem 6). So for every prefix that ends inside a block, p
lies above two lines, through the ends of the block with its smallest and its largest ratio, and g lies below
its chord: p − g is at least the smallest of these bounds at the ends and where the lines cross. Only blocks
that may hold the minimum are split: octaves of p/q into groups of 1/16 octave, groups into 256 parts, parts
into single ratios. No other token is sorted.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, fill_ratios, power, ratios_of
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray, IntArray

TARGET, DRAFT = 0, 1
"""Columns of the sums of a block: p and q. A subclass of BlockedCurve may add more."""

SLACK = 1e-13
"""Rounding can make a prefix look better than a smaller one that is as good: so much better is not better."""

# Tokens share a group if they share the exponent and so many bits of the mantissa of p/q.
_GROUP_BITS = 4
_PART_BITS = 8
_NUM_PARTS = 1 << _PART_BITS
_GROUP_SHIFT = 52 - _GROUP_BITS
_PART_SHIFT = _GROUP_SHIFT - _PART_BITS
# The groups: p/q = 0; below 2^−40; 16 an octave up to 2^40; all beyond, with the tokens never drafted.
_OCTAVES = 40
_OFFSET = ((1023 - _OCTAVES) << _GROUP_BITS) - 1
_LAST_INNER = 1 + (2 * _OCTAVES << _GROUP_BITS)
NUM_GROUPS = _LAST_INNER + 2
# How a block may be split.
_OCTAVE, _GROUP, _PART, _SINGLE = range(4)


@kernel()
def fill_groups(target, draft, ratio, group):
    """Fill p/q and the group of some tokens, at most AT_A_TIME."""
    fill_ratios(target, draft, ratio)
    bits = ratio.view(np.int64)
    for y in range(target.size):
        # The bits of a positive float64 are ordered as the numbers are.
        inner = min(max((bits[y] >> _GROUP_SHIFT) - _OFFSET, 0), _LAST_INNER)
        group[y] = inner + (1 if bits[y] > 0 else 0)


@kernel()
def sum_groups(target, draft, group, sums):
    """Fill the group of each token (V,), and add the tokens to the groups' sums."""
    ratio = np.empty(AT_A_TIME)
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME]
        own = group[start : start + AT_A_TIME]
        fill_groups(p, q, ratio, own)
        for y in range(p.size):
            # Unsigned, or every index would be checked for counting from the end.
            g = np.uint64(own[y])
            sums[g, TARGET] += p[y]
            sums[g, DRAFT] += q[y]


@kernel()
def _sum_tokens(target, draft, tokens, block, sums):
    """Add tokens to the sums of their blocks."""
    for i in range(tokens.size):
        y, k = np.uint64(tokens[i]), np.uint64(block[i])
        sums[k, TARGET] += target[y]
        sums[k, DRAFT] += draft[y]


@kernel()
def tokens_of_groups(group, wanted):
    """The tokens whose group is wanted, ascending."""
    # Written in any case and counted if wanted: a branch would be mispredicted over and over.
    tokens = np.empty(group.size + 1, np.int32)
    k = np.uint64(0)
    for y in range(group.size):
        tokens[k] = y
        k += np.uint64(wanted[np.uint64(group[y])])
    return tokens[:k].copy()


@kernel()
def _fill_parts(tokens, ratio, group, rank, part, low, high):
    """Fill the part of each token of the ranked groups, and the smallest and largest ratio of each part."""
    bits = ratio.view(np.int64)
    for i in range(tokens.size):
        inside = (bits[i] >> _PART_SHIFT) & (_NUM_PARTS - 1)
        k = rank[group[tokens[i]]] * _NUM_PARTS + inside
        part[i] = k
        low[k] = min(low[k], ratio[i])
        high[k] = max(high[k], ratio[i])


@kernel()
def _containment(sums, num_drafts):
    """q(H)^n of the prefixes before each block and of all, (K + 1,)."""
    contained, mass = np.empty(len(sums) + 1), 0.0
    for k in range(contained.size):
        contained[k] = power(min(mass, 1.0), num_drafts)
        if k < len(sums):
            mass += sums[k, DRAFT]
    return contained


@kernel()
def _mark_blocks(low, single, sums, contained, wanted):
    """Mark the blocks (K,) inside which the smallest minimiser of p − g may end.

    ``contained`` (K + 1,) is g before each block and of all. A block is marked if it may hold less than
    every prefix that ends between blocks, or as little as the least of these before the first that does.
    """
    values, least, before = np.empty(low.size + 1), np.inf, 0.0
    for k in range(low.size + 1):
        values[k] = before - contained[k]
        least = min(least, values[k])
        if k < low.size:
            before += sums[k, TARGET]
    first, before = False, 0.0
    for k in range(low.size):
        first = first or values[k] <= least + SLACK
        p, q = sums[k, TARGET], sums[k, DRAFT]
        # Tokens that are never drafted come last, and no minimiser needs them.
        if not single[k] and q > 0.0:
            # Where the lines through the two ends cross, with the smallest and the largest ratio.
            corner = q
            if k + 1 < low.size:
                corner = min(max((low[k + 1] * q - p) / (low[k + 1] - low[k]), 0.0), q)
            chord = contained[k] + (contained[k + 1] - contained[k]) * (corner / q)
            bound = min(before + low[k] * corner - chord, values[k])
            if bound <= (least - SLACK if first else least + SLACK):
                wanted[k] = True
        before += p


@kernel()
def _replace_blocks(low, single, sums, level, key, wanted, split):
    """The columns of blocks of which the wanted ones are replaced by others, all in the order of ``low``."""
    size = low.size - np.count_nonzero(wanted) + split[0].size
    lows, singles, rows = np.empty(size), np.empty(size, np.bool_), np.empty((size, sums.shape[1]))
    levels, keys = np.empty(size, np.int8), np.empty(size, np.int64)
    k = j = 0
    for i in range(size):
        while k < low.size and wanted[k]:
            k += 1
        new = k == low.size or (j < split[0].size and split[0][j] < low[k])
        lows[i] = split[0][j] if new else low[k]
        singles[i] = split[1][j] if new else single[k]
        levels[i] = split[3][j] if new else level[k]
        keys[i] = split[4][j] if new else key[k]
        for r in range(sums.shape[1]):
            rows[i, r] = split[2][j, r] if new else sums[k, r]
        k, j = (k, j + 1) if new else (k + 1, j)
    return lows, singles, rows, levels, keys


class Blocks(NamedTuple):
    """Consecutive tokens in the order of p/q, K blocks of them.

    Attributes
    ----------
    low : ndarray of float64, shape (K,)
        No ratio of the block is below; ascending.
    single : ndarray of bool, shape (K,)
        Whether all ratios of the block are ``low``.
    sums : ndarray of float64, shape (K, S)
        p, q and what else a curve adds up.
    level : ndarray of int8, shape (K,)
        What the block is: an octave, a group, a part, or a single ratio.
    key : ndarray of int64, shape (K,)
        Which one of these it is.
    """

    low: FloatArray
    single: BoolArray
    sums: FloatArray
    level: NDArray[np.int8]
    key: IntArray

    @property
    def edges(self) -> FloatArray:
        """The lower ends of the blocks, and inf, shape (K + 1,)."""
        return np.append(self.low, np.inf)

    def before(self, column: int) -> FloatArray:
        """The sum of a column over all tokens before each block, and over all, shape (K + 1,)."""
        return np.concatenate([[0.0], self.sums[:, column].cumsum()])


class Cut(NamedTuple):
    """The smallest minimiser H of p(H) − g(H), a prefix of blocks.

    Attributes
    ----------
    size : int
        H holds the first blocks, as many.
    end : float
        H holds the tokens with p/q below; inf for all tokens.
    value : float
        p(H) − g(H).
    """

    size: int
    end: float
    value: float


class BlockedCurve:
    """The ratio curve of one position, for drafts with replacement: g(H) = q(H)^n.

    Another law of drafts derives from it: it adds columns to the sums, and says what its g is.

    Parameters
    ----------
    target, draft : ndarray of float64, shape (V,)
        p and q; neither need sum to 1.
    counts : sequence of int
        The numbers of drafts n for which the cut is asked.

    Attributes
    ----------
    blocks : Blocks
        The tokens, refined by :meth:`smallest_cuts`.
    """

    width = 2
    """How many columns the sums have."""

    smallest_grouped = 1025
    """All tokens of a smaller vocabulary are sorted, which is quicker than to group them."""

    most_sorted = 16_384
    """So many tokens of groups are sorted at once; more are first split into parts."""

    def __init__(self, target: FloatArray, draft: FloatArray, counts: Sequence[int]) -> None:
        self.target, self.draft = target, draft
        self.counts = [int(n) for n in counts]
        if target.size < self.smallest_grouped:
            tokens = np.arange(target.size, dtype=np.int32)
            self.blocks = self._single_ratios(tokens, ratios_of(target, draft, tokens))
        else:
            self._group = np.empty(target.size, np.int16)
            self._group_sums = np.zeros((NUM_GROUPS, self.width))
            self.sum_groups(self._group, self._group_sums)
            # The tokens of all groups that were split, and the part of each.
            self._tokens, self._ratio = np.empty(0, np.int32), np.empty(0)
            self._part, self._num_parts = np.empty(0, np.int64), 0
            self.blocks = self._octaves()

    def sum_groups(self, group: NDArray[np.int16], sums: FloatArray) -> None:
        """Fill the group of each token (V,), and add all tokens to the groups' sums (NUM_GROUPS, S)."""
        sum_groups(self.target, self.draft, group, sums)

    def sum_tokens(self, tokens: NDArray[np.int32], block: IntArray, sums: FloatArray) -> None:
        """Add tokens (T,) to the sums of their blocks (K, S)."""
        _sum_tokens(self.target, self.draft, tokens, block, sums)

    def containment(self, blocks: Blocks) -> Iterable[FloatArray]:
        """G of the tokens before each block and of all, (K + 1,), for each number of drafts in turn."""
        return (_containment(blocks.sums, n) for n in self.counts)

    def smallest_cuts(self) -> list[Cut]:
        """Refine the blocks until no block can hold a better cut; the cut for each number of drafts."""
        while True:
            blocks = self.blocks
            wanted = np.zeros(len(blocks.low), dtype=bool)
            for contained in self.containment(blocks):
                _mark_blocks(blocks.low, blocks.single, blocks.sums, contained, wanted)
            if not wanted.any():
                break
            self.blocks = self.split(wanted)
        edges, before = blocks.edges, blocks.before(TARGET)
        cuts = []
        for contained in self.containment(blocks):
            values = before - contained
            size = int(np.argmax(values <= values.min() + SLACK))
            cuts.append(Cut(size, float(edges[size]), float(values[size])))
        return cuts

    def ratios(self) -> FloatArray:
        """p/q of each token, inf where q = 0, shape (V,)."""
        ratio = np.empty(self.target.size)
        fill_ratios(self.target, self.draft, ratio)
        return ratio

    def subset(self, end: float) -> BoolArray:
        """The tokens with p/q below ``end``, shape (V,)."""
        return self.ratios() < end

    def tokens_around(self, low: float, high: float) -> NDArray[np.int32]:
        """All tokens in the groups between these two ratios, theirs included, ascending, shape (T,)."""
        if self.target.size < self.smallest_grouped:
            return np.arange(self.target.size, dtype=np.int32)
        ends = np.empty(2, np.int16)
        fill_groups(np.array([low, high]), np.ones(2), np.empty(2), ends)
        wanted = np.zeros(NUM_GROUPS, dtype=bool)
        wanted[ends[0] : ends[1] + 1] = True
        return tokens_of_groups(self._group, wanted)

    def _octaves(self) -> Blocks:
        """All tokens, an octave of p/q a block; the first groups and the last one stand alone."""
        sums = np.add.reduceat(self._group_sums, _OCTAVE_STARTS)
        used = np.flatnonzero(sums[:, TARGET] + sums[:, DRAFT])
        return _blocks(GROUP_LOW[_OCTAVE_STARTS[used]], sums[used], _OCTAVE, used)

    def split(self, wanted: BoolArray) -> Blocks:
        """Split the wanted blocks of the coarsest level among them."""
        blocks = self.blocks
        level = blocks.level[wanted].min()
        wanted &= blocks.level == level
        keys = blocks.key[wanted]
        if level == _OCTAVE:
            chosen = np.zeros(_OCTAVE_STARTS.size, dtype=bool)
            chosen[keys] = True
            mass = self._group_sums[:, TARGET] + self._group_sums[:, DRAFT]
            used = np.flatnonzero(chosen[_OCTAVE_OF] & (mass > 0.0))
            split = _blocks(GROUP_LOW[used], self._group_sums[used], _GROUP, used)
        elif level == _GROUP:
            split = self._split_groups(keys)
        else:
            chosen = np.zeros(self._num_parts, dtype=bool)
            chosen[keys] = True
            inside = chosen[self._part]
            split = self._single_ratios(self._tokens[inside], self._ratio[inside])
        return Blocks(*_replace_blocks(*blocks, wanted, tuple(split)))

    def _split_groups(self, groups: IntArray) -> Blocks:
        """Split groups into parts; into single ratios where they hold few tokens, or more than an octave."""
        wanted = np.zeros(NUM_GROUPS, dtype=bool)
        wanted[groups] = True
        tokens = tokens_of_groups(self._group, wanted)
        ratio = ratios_of(self.target, self.draft, tokens)
        if tokens.size <= self.most_sorted or groups[0] <= 1 or groups[-1] == NUM_GROUPS - 1:
            return self._single_ratios(tokens, ratio)
        rank = np.zeros(NUM_GROUPS, np.int64)
        rank[groups] = np.arange(groups.size)
        part, size = np.empty(tokens.size, np.int64), groups.size * _NUM_PARTS
        low, high = np.full(size, np.inf), np.zeros(size)
        _fill_parts(tokens, ratio, self._group, rank, part, low, high)
        sums = np.zeros((size, self.width))
        self.sum_tokens(tokens, part, sums)
        used = np.flatnonzero(low < np.inf)
        self._tokens = np.append(self._tokens, tokens)
        self._ratio = np.append(self._ratio, ratio)
        self._part = np.concatenate([self._part, part + self._num_parts])
        keys = used + self._num_parts
        self._num_parts += size
        return _blocks(low[used], sums[used], _PART, keys, low[used] == high[used])

    def _single_ratios(self, tokens: NDArray[np.int32], ratio: FloatArray) -> Blocks:
        """A block for each distinct ratio of the tokens."""
        order = np.argsort(ratio)
        ascending = ratio[order]
        # A difference of infinite ratios would be NaN.
        starts = np.concatenate([[True], ascending[1:] != ascending[:-1]])
        low = ascending[starts[: ratio.size]]
        sums = np.zeros((low.size, self.width))
        self.sum_tokens(tokens[order], starts.cumsum() - 1, sums)
        return _blocks(low, sums, _SINGLE, np.arange(low.size), np.ones(low.size, dtype=bool))


def _blocks(
    low: FloatArray, sums: FloatArray, level: int, key: IntArray, single: BoolArray | None = None
) -> Blocks:
    """Blocks of one level; those of one ratio are single, which the first group is by its making."""
    alone = low == 0.0 if single is None else single
    return Blocks(low, alone, sums, np.full(low.size, level, np.int8), key)


def _lowest_ratios() -> FloatArray:
    """No ratio of a group is below: shape (NUM_GROUPS,), ascending."""
    bits = (np.arange(NUM_GROUPS, dtype=np.int64) - 1 + _OFFSET) << _GROUP_SHIFT
    low = bits.view(np.float64)
    low[:2] = 0.0, np.finfo(float).smallest_subnormal
    return low


GROUP_LOW = _lowest_ratios()
# The octave of each group, and the first group of each: those at the ends are octaves of their own.
_OCTAVE_OF = 1 + (np.arange(NUM_GROUPS) + (1 << _GROUP_BITS) - 2 >> _GROUP_BITS)
_OCTAVE_OF[0] = 0
_OCTAVE_STARTS = np.flatnonzero(np.diff(_OCTAVE_OF, prepend=-1))
