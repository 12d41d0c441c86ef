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

# Columns of the sums of a block: p and q. A subclass of BlockedCurve may add more.
TARGET = 0
DRAFT = 1

# Tokens share a group if they share the exponent and so many bits of the mantissa of p/q.
_GROUP_BITS = 5
_GROUP_SHIFT = 52 - _GROUP_BITS
# The groups: p/q = 0; below 2^−40; 32 an octave up to 2^40; all beyond, with the tokens never drafted.
_OCTAVES = 40
_OFFSET = ((1023 - _OCTAVES) << _GROUP_BITS) - 1
_LAST_INNER = 1 + (2 * _OCTAVES << _GROUP_BITS)
NUM_GROUPS = _LAST_INNER + 2
# Levels of blocks. Parts of a group have level 2, parts of such a part level 3, and so on.
_OCTAVE = 0
_GROUP = 1


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
        group_part = group[start : start + AT_A_TIME]
        fill_groups(p, q, ratio, group_part)
        for y in range(p.size):
            # Unsigned, or every index would be checked for counting from the end.
            g = np.uint64(group_part[y])
            sums[g, TARGET] += p[y]
            sums[g, DRAFT] += q[y]


@kernel()
def _sum_tokens(target, draft, tokens, block, sums):
    """Add tokens to the sums of their blocks."""
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        k = np.uint64(block[i])
        sums[k, TARGET] += target[y]
        sums[k, DRAFT] += draft[y]


@kernel()
def _fill_powers(blocks, counts, contained):
    """Fill q^n of the tokens before each block, and of all tokens, for the counts n, shape (N, K + 1)."""
    mass = 0.0
    sums = blocks.sums
    for k in range(contained.shape[1]):
        for i in range(counts.size):
            # q(H)^n, H the tokens before block k : contained[i, k]
            contained[i, k] = power(min(mass, 1.0), counts[i])
        mass += sums[k, DRAFT] if k < len(sums) else 0.0


@kernel()
def tokens_of_groups(group, marked):
    """The tokens whose group is marked, ascending."""
    # Every token is written, and k advances past marked ones only: no branch can be mispredicted.
    tokens = np.empty(group.size + 1, np.int32)
    k = np.uint64(0)
    for y in range(group.size):
        tokens[k] = y
        k += np.uint64(marked[np.uint64(group[y])])
    return tokens[:k].copy()


@kernel()
def _divide(ratio, low, marked, most_sorted, num_parts):
    """Divide the tokens of the marked blocks, given by p/q ascending, into about ``num_parts`` parts or more.

    Few tokens are divided into single ratios, and a part of several has a quarter of its block's tokens at
    most. Returns the indices of these tokens, the part of each, the first of these tokens in each part, and
    whether the part is ``single``. No part is of two blocks. The largest finite ratio is a part by itself, so
    that every ratio is below twice the last finite edge.
    """
    index, block = np.empty((2, ratio.size), np.int64)
    sizes = np.zeros(low.size, np.int64)
    size = 0
    b = 0
    for i in range(ratio.size):
        while b + 1 < low.size and low[b + 1] <= ratio[i]:
            b += 1
        index[size] = i
        block[size] = b
        size += 1 if marked[b] else 0
        sizes[b] += 1
    usual = 0 if size <= most_sorted else size // num_parts
    part = np.empty(size, np.int32)
    first = np.empty(size, np.int64)
    single = np.empty(size, np.bool_)
    i = 0
    k = -1
    while i < size:
        edge = ratio[index[i]]
        end = i + 1
        while end < size and ratio[index[end]] == edge:
            end += 1
        largest = end == size or ratio[index[end]] == np.inf
        most = min(usual, sizes[block[i]] // 4)
        new = i == 0 or largest or block[i] != block[i - 1] or end - first[k] > most
        if new:
            k += 1
            first[k] = i
        single[k] = new
        part[i:end] = k
        i = end
    return index[:size], part, first[: k + 1], single[: k + 1]


@kernel()
def _mark_blocks(low, single, sums, contained, marked):
    """Mark the blocks (K,) inside which the smallest minimiser of p − g may end, for one g at least.

    ``contained`` (N, K + 1) is each g of the tokens before each block, and of all tokens. Returns the
    smallest minimisers that end between blocks: how many blocks they hold (N,), and their p − g (N,). A block
    is marked if its bound is below the least p − g at the edges of blocks, or equal to it and the block lies
    before the first edge that attains it.
    """
    sizes = np.empty(len(contained), np.int64)
    least_values = np.empty(len(contained))
    values = np.empty(low.size + 1)
    for i in range(sizes.size):
        g = contained[i]
        least = np.inf
        before = 0.0
        for k in range(values.size):
            # p(H) − g(H), H the tokens before block k : values[k]
            values[k] = before - g[k]
            least = min(least, values[k])
            before += sums[k, TARGET] if k < low.size else 0.0
        best = -1
        before = 0.0
        for k in range(low.size):
            best = k if best < 0 and values[k] <= least + SLACK else best
            p, q = sums[k, TARGET], sums[k, DRAFT]
            # Tokens that are never drafted come last. They only add to p(H).
            if not single[k] and q > 0.0:
                # q(H) where the two lines of the module's bound cross, from the start of the block : corner
                corner = q
                if k + 1 < low.size:
                    corner = min(max((low[k + 1] * q - p) / (low[k + 1] - low[k]), 0.0), q)
                bound = before + low[k] * corner - (g[k] + (g[k + 1] - g[k]) * (corner / q))
                marked[k] |= min(bound, values[k]) <= least + (SLACK if best < 0 else -SLACK)
            before += p
        sizes[i] = low.size if best < 0 else best
        least_values[i] = values[sizes[i]]
    return sizes, least_values


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
def _replaced(blocks, marked, split):
    """The blocks, the marked ones replaced by the parts that they were split into."""
    size = split.low.size
    for i in range(marked.size):
        size += 0 if marked[i] else 1
    low = np.empty(size)
    single = np.empty(size, np.bool_)
    sums = np.empty((size, split.sums.shape[1]))
    level = np.empty(size, np.int8)
    i = 0
    j = 0
    for k in range(size):
        while i < marked.size and marked[i]:
            i += 1
        kept = j == split.low.size or (i < marked.size and blocks.low[i] < split.low[j])
        source, y = (blocks, i) if kept else (split, j)
        low[k] = source.low[y]
        single[k] = source.single[y]
        level[k] = source.level[y]
        for r in range(sums.shape[1]):
            sums[k, r] = source.sums[y, r]
        if kept:
            i += 1
        else:
            j += 1
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

    Neither p nor q (V,) need sum to 1; ``counts`` are the numbers of drafts to find cuts for. A ``coarse``
    curve begins with octaves, where many groups would cost more than one more split. A subclass
    serves another law of drafts: it overrides :meth:`containment`, and may add columns to the sums.
    """

    width = 2
    """The number of columns of the sums."""

    smallest_grouped = 1025
    """The tokens of a smaller vocabulary are sorted without being grouped first, which is quicker.

    There :class:`~otmd.curve.RatioCurve` uses no blocks at all.
    """

    most_sorted = 1024
    """Up to so many tokens become blocks of one ratio each."""

    num_parts = 64
    """More tokens than ``most_sorted`` become about this many parts."""

    def __init__(
        self, target: FloatArray, draft: FloatArray, counts: Sequence[int], coarse: bool = False
    ) -> None:
        self.target = target
        self.draft = draft
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
        sums = self._group_sums
        low = GROUP_LOW
        if coarse:
            sums = np.add.reduceat(sums, _OCTAVE_STARTS)
            low = low[_OCTAVE_STARTS]
        used = np.flatnonzero(sums[:, TARGET] + sums[:, DRAFT])
        self.blocks = _blocks(low[used], sums[used], _OCTAVE if coarse else _GROUP)

    def sum_groups(self, group: NDArray[np.int16], sums: FloatArray) -> None:
        """Fill the group of each token (V,), and add all tokens to the groups' sums (NUM_GROUPS, S)."""
        sum_groups(self.target, self.draft, group, sums)

    def sum_tokens(self, tokens: NDArray[np.int32], block: NDArray[np.int32], sums: FloatArray) -> None:
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
            marked = np.zeros(len(blocks.low), dtype=bool)
            contained = self.containment(blocks)
            sizes, values = _mark_blocks(blocks.low, blocks.single, blocks.sums, contained, marked)
            if not marked.any():
                ends = np.append(blocks.low, np.inf)[sizes]
                return list(map(Cut, sizes.tolist(), ends.tolist(), values.tolist()))
            self.blocks = self.split(marked)

    def subset(self, end: float) -> BoolArray:
        """The tokens with p/q below ``end``, shape (V,)."""
        subset = np.empty((1, self.target.size), dtype=bool)
        fill_below(self.target, self.draft, np.array([end]), subset)
        return subset[0]

    def split(self, marked: BoolArray) -> Blocks:
        """Split those of the marked blocks that have the coarsest level among them."""
        blocks = self.blocks
        level = int(blocks.level[marked].min())
        marked = marked & (blocks.level == level)
        first = np.searchsorted(GROUP_LOW, blocks.low[marked])
        marked_groups = np.zeros(NUM_GROUPS, np.bool_)
        if level == _OCTAVE:
            used = self._group_sums[:, TARGET] + self._group_sums[:, DRAFT] > 0.0
            marked_groups[_OCTAVE_OF[first]] = True
            groups = used & marked_groups[_OCTAVE_OF]
            split = _blocks(GROUP_LOW[groups], self._group_sums[groups], _GROUP)
            return _replaced(blocks, marked, split)
        if level == _GROUP:
            marked_groups[first] = True
            self._open(tokens_of_groups(self._group, marked_groups))
        return _replaced(blocks, marked, self._parts(blocks.low, marked, level + 1))

    def _open(self, tokens: NDArray[np.int32]) -> None:
        """Add tokens to those that are kept by p/q."""
        tokens = np.concatenate([self._opened[0], tokens])
        ratio = ratios_of(self.target, self.draft, tokens)
        order = np.argsort(ratio)
        self._opened = tokens[order], ratio[order]

    def _parts(self, low: FloatArray, marked: BoolArray, level: int) -> Blocks:
        """The parts of the marked blocks, which begin at ``low`` and whose tokens are kept by p/q."""
        tokens, ratio = self._opened
        index, part, first, single = _divide(ratio, low, marked, self.most_sorted, self.num_parts)
        sums = np.zeros((first.size, self.width))
        self.sum_tokens(tokens[index], part, sums)
        return Blocks(ratio[index[first]], single, sums, np.full(first.size, level, np.int8))


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
