"""The ratio curve of one position as blocks of tokens, refined where the optimal cut may lie.

A block holds consecutive tokens in the order of p/q. Along that order a law's containment g and the mass p(H)
are convex functions of q(H) (Hu et al. 2025, Theorem 6). So inside a block p lies above two lines, one
through each end with the smallest or the largest ratio as slope, and g below its chord. p − g is at least
the smallest of the bounds at the two ends and where the lines cross.

Only blocks that may hold the minimum are split: octaves of p/q, with which a coarse curve begins, into groups
of 1/32 octave, and these at once, or part by part where they hold many tokens, into single ratios.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, SLACK, fill_below, fill_ratios, power, ratios_of
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray

TARGET, DRAFT = 0, 1
"""Columns of the sums of a block: p and q. A subclass of BlockedCurve may add more."""

# Tokens share a group if they share the exponent and so many bits of the mantissa of p/q.
_GROUP_BITS = 5
_GROUP_SHIFT = 52 - _GROUP_BITS
# The groups: p/q = 0; below 2^−40; 32 an octave up to 2^40; all beyond, with the tokens never drafted.
_OCTAVES = 40
_OFFSET = ((1023 - _OCTAVES) << _GROUP_BITS) - 1
_LAST_INNER = 1 + (2 * _OCTAVES << _GROUP_BITS)
NUM_GROUPS = _LAST_INNER + 2
# Levels of blocks. Parts of a group have level 2, parts of such a part level 3, and so on.
_OCTAVE, _GROUP = 0, 1


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
def _fill_powers(blocks, counts, contained):
    """Fill q^n of the tokens before each block, and of all tokens, for the counts n, shape (N, K + 1)."""
    mass, sums = 0.0, blocks.sums
    for k in range(contained.shape[1]):
        for i in range(counts.size):
            contained[i, k] = power(min(mass, 1.0), counts[i])
        mass += sums[k, DRAFT] if k < len(sums) else 0.0


@kernel()
def tokens_of_groups(group, wanted):
    """The tokens whose group is wanted, ascending."""
    # Every token is written, and the index moves on past wanted ones only: no branch can be mispredicted.
    tokens = np.empty(group.size + 1, np.int32)
    k = np.uint64(0)
    for y in range(group.size):
        tokens[k] = y
        k += np.uint64(wanted[np.uint64(group[y])])
    return tokens[:k].copy()


@kernel()
def _divide(ratio, low, wanted, most_sorted, num_parts):
    """Divide the tokens of the wanted blocks, given by p/q ascending, into some ``num_parts`` parts or more.

    Few tokens are divided into single ratios, and a part of several has a quarter of its block's tokens at
    most. Returns the tokens' places, the part of each, and where among these each part begins and if it is
    ``single``. No part is of two blocks. The largest finite ratio is a part by itself: every ratio is below
    twice the last finite edge.
    """
    place, block = np.empty((2, ratio.size), np.int64)
    sizes, size, b = np.zeros(low.size, np.int64), 0, 0
    for i in range(ratio.size):
        while b + 1 < low.size and low[b + 1] <= ratio[i]:
            b += 1
        place[size], block[size] = i, b
        size += 1 if wanted[b] else 0
        sizes[b] += 1
    usual = 0 if size <= most_sorted else size // num_parts
    part, first = np.empty(size, np.int32), np.empty(size, np.int64)
    single, i, k = np.empty(size, np.bool_), 0, -1
    while i < size:
        own, end = ratio[place[i]], i + 1
        while end < size and ratio[place[end]] == own:
            end += 1
        largest = end == size or ratio[place[end]] == np.inf
        most = min(usual, sizes[block[i]] // 4)
        new = i == 0 or largest or block[i] != block[i - 1] or end - first[k] > most
        if new:
            k += 1
            first[k] = i
        single[k] = new
        part[i:end] = k
        i = end
    return place[:size], part, first[: k + 1], single[: k + 1]


@kernel()
def _mark_blocks(low, single, sums, contained, wanted):
    """Mark the blocks (K,) inside which the smallest minimiser of p − g may end, for one g at least.

    ``contained`` (N, K + 1) is each g of the tokens before each block, and of all tokens. Returns the
    smallest minimisers that end between blocks: how many blocks they hold (N,), and their p − g (N,). A block
    is marked if its bound is below the least p − g at the edges of blocks, or equal to it and the block lies
    before the first edge that attains it.
    """
    sizes, found = np.empty(len(contained), np.int64), np.empty(len(contained))
    values = np.empty(low.size + 1)
    for i in range(sizes.size):
        g, least, before = contained[i], np.inf, 0.0
        for k in range(values.size):
            values[k] = before - g[k]
            least = min(least, values[k])
            before += sums[k, TARGET] if k < low.size else 0.0
        best, before = -1, 0.0
        for k in range(low.size):
            best = k if best < 0 and values[k] <= least + SLACK else best
            p, q = sums[k, TARGET], sums[k, DRAFT]
            # Tokens that are never drafted come last. They only add to p(H).
            if not single[k] and q > 0.0:
                # Where the two lines of the module's bound cross.
                corner = q
                if k + 1 < low.size:
                    corner = min(max((low[k + 1] * q - p) / (low[k + 1] - low[k]), 0.0), q)
                bound = before + low[k] * corner - (g[k] + (g[k + 1] - g[k]) * (corner / q))
                wanted[k] |= min(bound, values[k]) <= least + (SLACK if best < 0 else -SLACK)
            before += p
        sizes[i] = low.size if best < 0 else best
        found[i] = values[sizes[i]]
    return sizes, found


class Blocks(NamedTuple):
    """K blocks of consecutive tokens in the order of p/q.

    No ratio of a block is below its ``low`` (K,), which ascend; all are ``low`` where it is ``single``.
    ``sums`` (K, S) are p, q, and further columns of a subclass. ``level`` is 0 for octaves, 1 for groups, 2
    and more for parts.
    """

    low: FloatArray
    single: BoolArray
    sums: FloatArray
    level: NDArray[np.int8]


@kernel()
def _replaced(blocks, wanted, split):
    """The blocks with those that are wanted replaced by what they were split into."""
    size = split.low.size
    for i in range(wanted.size):
        size += 0 if wanted[i] else 1
    low, single = np.empty(size), np.empty(size, np.bool_)
    sums, level = np.empty((size, split.sums.shape[1])), np.empty(size, np.int8)
    i, j = 0, 0
    for k in range(size):
        while i < wanted.size and wanted[i]:
            i += 1
        kept = j == split.low.size or (i < wanted.size and blocks.low[i] < split.low[j])
        source, y = (blocks, i) if kept else (split, j)
        low[k], single[k], level[k] = source.low[y], source.single[y], source.level[y]
        for r in range(sums.shape[1]):
            sums[k, r] = source.sums[y, r]
        i, j = (i + 1, j) if kept else (i, j + 1)
    return Blocks(low, single, sums, level)


class Cut(NamedTuple):
    """The smallest minimiser H of p(H) − g(H): the first ``size`` blocks, the tokens with p/q below ``end``.

    ``end`` is inf for all tokens; ``value`` is p(H) − g(H).
    """

    size: int
    end: float
    value: float


class BlockedCurve:
    """The ratio curve of one position, for drafts with replacement: g(H) = q(H)^n.

    Neither p nor q (V,) need sum to 1; ``counts`` are the numbers of drafts for which the cut is asked. A
    ``coarse`` curve begins with octaves, where many groups would cost more than one more split. A subclass
    serves another law of drafts: it overrides :meth:`containment`, and may add columns to the sums.
    """

    width = 2
    """How many columns the sums have."""

    smallest_grouped = 1025
    """The tokens of a smaller vocabulary are sorted without being grouped first, which is quicker.

    There :class:`~otmd.curve.RatioCurve` uses no blocks at all.
    """

    most_sorted, num_parts = 1024, 64
    """At most ``most_sorted`` tokens become blocks of one ratio. More become some ``num_parts`` parts."""

    def __init__(
        self, target: FloatArray, draft: FloatArray, counts: Sequence[int], coarse: bool = False
    ) -> None:
        self.target, self.draft = target, draft
        self.counts = [int(n) for n in counts]
        # The tokens of groups that were split, by p/q, and their p/q.
        self._opened = np.empty(0, np.int32), np.empty(0)
        if target.size < self.smallest_grouped:
            self._open(np.arange(target.size, dtype=np.int32))
            self.blocks = self._parts(np.zeros(1), np.ones(1, dtype=bool), _GROUP + 1)
            return
        self._group = np.empty(target.size, np.int16)
        self._group_sums = np.zeros((NUM_GROUPS, self.width))
        self.sum_groups(self._group, self._group_sums)
        sums, low = self._group_sums, GROUP_LOW
        if coarse:
            sums, low = np.add.reduceat(sums, _OCTAVE_STARTS), low[_OCTAVE_STARTS]
        used = np.flatnonzero(sums[:, TARGET] + sums[:, DRAFT])
        self.blocks = _blocks(low[used], sums[used], _OCTAVE if coarse else _GROUP)

    def sum_groups(self, group: NDArray[np.int16], sums: FloatArray) -> None:
        """Fill the group of each token (V,), and add all tokens to the groups' sums (NUM_GROUPS, S)."""
        sum_groups(self.target, self.draft, group, sums)

    def sum_tokens(
        self, tokens: NDArray[np.int32], block: NDArray[np.int32], sums: FloatArray
    ) -> None:
        """Add tokens (T,) to the sums of their blocks (K, S)."""
        _sum_tokens(self.target, self.draft, tokens, block, sums)

    def containment(self, blocks: Blocks) -> FloatArray:
        """For each number of drafts: g of the tokens before each block, and of all, shape (N, K + 1)."""
        contained = np.empty((len(self.counts), blocks.low.size + 1))
        _fill_powers(blocks, np.array(self.counts), contained)
        return contained

    def smallest_cuts(self) -> list[Cut]:
        """Refine the blocks until no block can hold a better cut; the cut for each number of drafts."""
        while True:
            blocks = self.blocks
            wanted, columns = np.zeros(len(blocks.low), dtype=bool), blocks[:3]
            sizes, values = _mark_blocks(*columns, self.containment(blocks), wanted)
            if not wanted.any():
                ends = np.append(blocks.low, np.inf)[sizes]
                return list(map(Cut, sizes.tolist(), ends.tolist(), values.tolist()))
            self.blocks = self.split(wanted)

    def subset(self, end: float) -> BoolArray:
        """The tokens with p/q below ``end``, shape (V,)."""
        subset = np.empty((1, self.target.size), dtype=bool)
        fill_below(self.target, self.draft, np.array([end]), subset)
        return subset[0]

    def split(self, wanted: BoolArray) -> Blocks:
        """Split the wanted blocks of the coarsest level among them."""
        blocks = self.blocks
        level = int(blocks.level[wanted].min())
        wanted = wanted & (blocks.level == level)
        first = np.searchsorted(GROUP_LOW, blocks.low[wanted])
        found = np.zeros(NUM_GROUPS, np.bool_)
        if level == _OCTAVE:
            used = self._group_sums[:, TARGET] + self._group_sums[:, DRAFT] > 0.0
            found[_OCTAVE_OF[first]] = True
            groups = used & found[_OCTAVE_OF]
            split = _blocks(GROUP_LOW[groups], self._group_sums[groups], _GROUP)
            return _replaced(blocks, wanted, split)
        if level == _GROUP:
            found[first] = True
            self._open(tokens_of_groups(self._group, found))
        return _replaced(blocks, wanted, self._parts(blocks.low, wanted, level + 1))

    def _open(self, tokens: NDArray[np.int32]) -> None:
        """Add tokens to those that are kept by p/q."""
        tokens = np.concatenate([self._opened[0], tokens])
        ratio = ratios_of(self.target, self.draft, tokens)
        order = np.argsort(ratio)
        self._opened = tokens[order], ratio[order]

    def _parts(self, low: FloatArray, wanted: BoolArray, level: int) -> Blocks:
        """The parts of the wanted blocks, which begin at ``low`` and whose tokens are kept by p/q."""
        tokens, ratio = self._opened
        sizes = self.most_sorted, self.num_parts
        place, part, first, single = _divide(ratio, low, wanted, *sizes)
        sums = np.zeros((first.size, self.width))
        self.sum_tokens(tokens[place], part, sums)
        return Blocks(ratio[place[first]], single, sums, np.full(first.size, level, np.int8))


def _blocks(low: FloatArray, sums: FloatArray, level: int) -> Blocks:
    """Blocks of one level. Of octaves and groups only the first has a single ratio, 0."""
    return Blocks(low, low == 0.0, sums, np.full(low.size, level, np.int8))


def _lowest_ratios() -> FloatArray:
    """The lower end of each group, shape (NUM_GROUPS,), ascending."""
    bits = (np.arange(NUM_GROUPS, dtype=np.int64) - 1 + _OFFSET) << _GROUP_SHIFT
    low = bits.view(np.float64)
    low[:2] = 0.0, np.finfo(float).smallest_subnormal
    return low


GROUP_LOW = _lowest_ratios()
# The octave of each group, and the first group of each: those at the ends are octaves of their own.
_OCTAVE_OF = 1 + (np.arange(NUM_GROUPS) + (1 << _GROUP_BITS) - 2 >> _GROUP_BITS)
_OCTAVE_OF[0] = 0
_OCTAVE_STARTS = np.flatnonzero(np.diff(_OCTAVE_OF, prepend=-1))
