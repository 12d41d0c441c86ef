"""The ratio curve of one position as blocks of tokens, refined where the optimal cut may lie.

A block holds consecutive tokens in the order of p/q. Along that order a law's containment g and the mass p(H)
are convex functions of q(H) (Hu et al. 2025, Theorem 6). So inside a block p lies above two lines, one
through each end with the smallest or the largest ratio as slope, and g below its chord. p − g is at least
the smallest of the bounds at the two ends and where the lines cross.

Only blocks that may hold the minimum are split: octaves of p/q, with which a coarse curve begins, into groups
of 1/16 octave, groups into some 64 parts with about equal numbers of tokens, and parts of at most 64 tokens
into single ratios.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, fill_ratios, ratios_of
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray

TARGET, DRAFT = 0, 1
"""Columns of the sums of a block: p and q. A subclass of BlockedCurve may add more."""

SLACK = 1e-13
"""Values of p − g that differ by less count as equal: the difference may be rounding."""

# Tokens share a group if they share the exponent and so many bits of the mantissa of p/q.
_GROUP_BITS = 4
_GROUP_SHIFT = 52 - _GROUP_BITS
# The groups: p/q = 0; below 2^−40; 16 an octave up to 2^40; all beyond, with the tokens never drafted.
_OCTAVES = 40
_OFFSET = ((1023 - _OCTAVES) << _GROUP_BITS) - 1
_LAST_INNER = 1 + (2 * _OCTAVES << _GROUP_BITS)
NUM_GROUPS = _LAST_INNER + 2
# Levels of blocks. Parts of a group have level 2, parts of such a part level 3, and so on.
_OCTAVE, _GROUP = 0, 1
# Where parts begin is decided from the ratios of at most so many tokens.
_MOST_SAMPLED = 1024


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
    # Every token is written, and the index moves on past wanted ones only: no branch can be mispredicted.
    tokens = np.empty(group.size + 1, np.int32)
    k = np.uint64(0)
    for y in range(group.size):
        tokens[k] = y
        k += np.uint64(wanted[np.uint64(group[y])])
    return tokens[:k].copy()


@kernel()
def _fill_parts(ratio, starts, part, low, high):
    """Fill the part of each ratio and the smallest and largest ratio of each part.

    Part k holds the ratios from starts[k] on and below starts[k + 1].
    """
    for i in range(ratio.size):
        k, left = np.uint64(0), starts.size
        while left > 1:
            half = np.uint64(left >> 1)
            k += half if starts[k + half] <= ratio[i] else np.uint64(0)
            left -= left >> 1
        part[i] = k
        low[k] = min(low[k], ratio[i])
        high[k] = max(high[k], ratio[i])


@kernel()
def _mark_blocks(low, single, sums, contained, wanted):
    """Mark the blocks (K,) inside which the smallest minimiser of p − g may end.

    ``contained`` (K + 1,) is g of the tokens before each block, and of all tokens. A block is marked if its
    bound is below the least p − g at the edges of blocks, or equal to it and the block lies before the first
    edge that attains it.
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
        # Tokens that are never drafted come last. They only add to p(H).
        if not single[k] and q > 0.0:
            # Where the two lines of the module's bound cross.
            corner = q
            if k + 1 < low.size:
                corner = min(max((low[k + 1] * q - p) / (low[k + 1] - low[k]), 0.0), q)
            chord = contained[k] + (contained[k + 1] - contained[k]) * (corner / q)
            bound = min(before + low[k] * corner - chord, values[k])
            if bound <= (least - SLACK if first else least + SLACK):
                wanted[k] = True
        before += p


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

    @property
    def edges(self) -> FloatArray:
        """The lower ends of the blocks, and inf, shape (K + 1,)."""
        return np.append(self.low, np.inf)

    @property
    def ratio(self) -> FloatArray:
        """p/q of each block as a whole, inf where q = 0, shape (K,)."""
        ratio = np.empty(self.low.size)
        fill_ratios(self.sums[:, TARGET].copy(), self.sums[:, DRAFT].copy(), ratio)
        return ratio

    def before(self, column: int) -> FloatArray:
        """The sum of a column over all tokens before each block, and over all, shape (K + 1,)."""
        return np.concatenate([[0.0], self.sums[:, column].cumsum()])


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
    """The tokens of a smaller vocabulary are sorted without being grouped first, which is quicker."""

    most_sorted = num_parts = 64
    """At most ``most_sorted`` tokens are sorted at once. More are split into some ``num_parts`` parts."""

    def __init__(
        self, target: FloatArray, draft: FloatArray, counts: Sequence[int], coarse: bool = False
    ) -> None:
        self.target, self.draft = target, draft
        self.counts = [int(n) for n in counts]
        # The tokens of groups that were split, and their p/q.
        self._opened = np.empty(0, np.int32), np.empty(0)
        if target.size < self.smallest_grouped:
            tokens = np.arange(target.size, dtype=np.int32)
            self.blocks = self._open(tokens, np.zeros(1))
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
        self, tokens: NDArray[np.int32], block: NDArray[np.int16], sums: FloatArray
    ) -> None:
        """Add tokens (T,) to the sums of their blocks (K, S)."""
        _sum_tokens(self.target, self.draft, tokens, block, sums)

    def containment(self, blocks: Blocks) -> Iterable[FloatArray]:
        """For each number of drafts: g of the tokens before each block, and of all tokens, shape (K + 1,)."""
        mass = np.minimum(blocks.before(DRAFT), 1.0)
        return [mass**n for n in self.counts]

    def smallest_cuts(self) -> list[Cut]:
        """Refine the blocks until no block can hold a better cut; the cut for each number of drafts."""
        while True:
            blocks = self.blocks
            wanted, every = np.zeros(len(blocks.low), dtype=bool), list(self.containment(blocks))
            for contained in every:
                _mark_blocks(blocks.low, blocks.single, blocks.sums, contained, wanted)
            if not wanted.any():
                break
            self.blocks = self.split(wanted)
        edges, before = blocks.edges, blocks.before(TARGET)
        cuts = []
        for contained in every:
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

    def split(self, wanted: BoolArray) -> Blocks:
        """Split the wanted blocks of the coarsest level among them."""
        blocks = self.blocks
        level = int(blocks.level[wanted].min())
        wanted = wanted & (blocks.level == level)
        starts = blocks.low[wanted]
        first = np.searchsorted(GROUP_LOW, starts)
        if level == _OCTAVE:
            used = self._group_sums[:, TARGET] + self._group_sums[:, DRAFT] > 0.0
            groups = used & np.isin(_OCTAVE_OF, _OCTAVE_OF[first])
            split = _blocks(GROUP_LOW[groups], self._group_sums[groups], _GROUP)
        elif level == _GROUP:
            opened = np.zeros(NUM_GROUPS, dtype=bool)
            opened[first] = True
            split = self._open(tokens_of_groups(self._group, opened), starts)
        else:
            split = self._parts(*self._tokens_in(wanted), starts, level + 1)
        kept = [each[~wanted] for each in blocks]
        order = np.argsort(np.append(kept[0], split.low), kind="stable")
        columns: Any = (np.concatenate(pair)[order] for pair in zip(kept, split, strict=True))
        return Blocks(*columns)

    def _open(self, tokens: NDArray[np.int32], starts: FloatArray) -> Blocks:
        """The parts of tokens that no part held before."""
        ratio = ratios_of(self.target, self.draft, tokens)
        before, known = self._opened
        self._opened = np.append(before, tokens), np.append(known, ratio)
        return self._parts(tokens, ratio, starts, _GROUP + 1)

    def _tokens_in(self, wanted: BoolArray) -> tuple[NDArray[np.int32], FloatArray]:
        """The tokens of these parts, and their p/q."""
        tokens, ratio = self._opened
        # Where runs of wanted parts begin and end. Tokens that are never drafted belong to the last part.
        turns = self.blocks.edges[np.flatnonzero(np.diff(wanted, prepend=False, append=False))]
        turn = np.searchsorted(turns[turns < np.inf], ratio, side="right")
        inside = np.flatnonzero(turn & 1)
        return tokens[inside], ratio[inside]

    def _parts(
        self, tokens: NDArray[np.int32], ratio: FloatArray, starts: FloatArray, level: int
    ) -> Blocks:
        """Parts with about equal numbers of tokens, or single ratios of few tokens; ``starts`` are kept."""
        starts = np.append(starts, _quantiles(ratio, self.most_sorted, self.num_parts))
        starts.sort()
        # Compared, not subtracted: a difference of infinite ratios is NaN.
        starts = starts[np.append(True, starts[1:] != starts[:-1])]
        part, sums = np.empty(ratio.size, np.int16), np.zeros((starts.size, self.width))
        low, high = np.full(starts.size, np.inf), np.full(starts.size, -1.0)
        _fill_parts(ratio, starts, part, low, high)
        self.sum_tokens(tokens, part, sums)
        used = high >= 0.0
        parts = _blocks(low[used], sums[used], level)
        return parts._replace(single=parts.low == high[used])


def _quantiles(ratio: FloatArray, most_sorted: int, num_parts: int) -> FloatArray:
    """Ratios that split the tokens about evenly; all ratios of few tokens.

    The largest finite ratio begins a part of its own: every ratio is below twice the last finite edge.
    """
    if ratio.size <= most_sorted:
        return ratio
    some = np.sort(ratio[:: -(-ratio.size // _MOST_SAMPLED)])
    ends = np.arange(num_parts) * some.size // num_parts
    # A ratio that many tokens share is a part by itself: another part begins at the next larger ratio.
    often = some[ends[1:]][some[ends[1:]] == some[ends[:-1]]]
    after = np.searchsorted(some, often, side="right")
    finite = ratio[ratio < np.inf].max(initial=0.0)
    return np.concatenate([some[ends], some[after[after < some.size]], [finite, ratio.max()]])


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
