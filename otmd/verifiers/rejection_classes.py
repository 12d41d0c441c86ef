"""One position as recursive rejection without replacement reads it: its ratio curve, and classes of tokens.

The constants C of the algorithm (:mod:`otmd.verifiers.rejection_bounds`) are 0, 1 and numbers in an interval
of larger values. None of them separates two tokens that both have p/q up to 1, or between 1 and the
interval, or beyond it. So those tokens are merged, and only the tokens inside the interval are kept one by
one.

Draft masses are in units of 1/RATE_UNIT, and C accordingly, so that C is finite where the mass left is
subnormal.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, fill_ratios, hockey_stick
from otmd.kernel import kernel
from otmd.laws import Race
from otmd.laws.race.quadrature import RATE_UNIT
from otmd.probabilities import FloatArray, IntArray

# Above 0, where the walk starts and no token is left out yet, and below C = 1.
_FIRST = np.finfo(float).tiny
# More than the rounding of the largest C.
_MARGIN = 1e-9
ONE = 1.0 / RATE_UNIT
# Larger than any C, which is at most n·2¹⁰⁷⁴/RATE_UNIT.
FARTHEST = 2.0**1000

# The last two of the four parts of a class, see :func:`masses_by_class`.
INSIDE = 2
BEYOND = 3


class Curve(NamedTuple):
    """Entries with ascending p/q, shape (K,), and the masses from each entry on, shape (K + 1,)."""

    ratio: FloatArray
    target_tail: FloatArray
    draft_tail: FloatArray


class Classes(NamedTuple):
    """Tokens in K classes of similar draft mass, largest masses first; the first four fields are (K,).

    Class c has the entries from ``starts[c]`` on, by ``ratio``. The masses before each entry, and after
    the last, are in ``target_before`` and ``draft_before`` from ``starts[c] + c`` on.
    """

    smallest: FloatArray
    largest: FloatArray
    total: FloatArray
    size: IntArray
    starts: IntArray
    ratio: FloatArray
    target_before: FloatArray
    draft_before: FloatArray


class RejectionPosition:
    """The curve and the classes of one position, with C and q in units of 1/RATE_UNIT."""

    def __init__(self, target: FloatArray, race: Race) -> None:
        self.target = target
        self.race = race
        # W(1).
        self.first = float(hockey_stick(target, race.probs, 1.0))
        # A ratio between C = 1 and the next C, far enough from both for their rounding.
        self._middle = ONE * (1.0 + 0.5 * self.first)
        # Where C = 1 is, and tokens are kept: above the second and up to the third.
        self.interval = ONE, ONE * (1.0 + self.first), self._farthest(race)

    @property
    def draft(self) -> FloatArray:
        """The draft masses in the unit; not kept, as it is as large as the vocabulary."""
        return RATE_UNIT * self.race.probs

    def _farthest(self, race: Race) -> float:
        """A bound of every C. W falls, so a step is at most W over the mass left by the largest tokens."""
        q = race.probs
        count = race.num_drafts - 1
        left = 1.0 - float(q.max()) * np.arange(1, count + 1) - _MARGIN
        if left[-1] <= 0.0:
            return FARTHEST
        steps = np.full(count, hockey_stick(self.target, q, 1.0 + self.first))
        steps[0] = self.first
        return ONE * (1.0 + float((steps / left).sum())) * (1.0 + _MARGIN)

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int32], FloatArray]:
        """The tokens inside the interval, sorted by p/q, and the ratios of the curve's entries."""
        (_, first, last) = self.interval
        ratio = np.empty(self.target.size)
        fill_ratios(self.target, self.draft, ratio)
        tokens = np.flatnonzero((ratio > first) & (ratio <= last)).astype(np.int32)
        tokens = tokens[np.argsort(ratio[tokens])]
        return tokens, np.concatenate([[_FIRST, self._middle], ratio[tokens], [np.inf]])

    @cached_property
    def curve(self) -> Curve:
        """The ratio curve with merged tokens, exact at C = 0, C = 1 and inside the interval."""
        (tokens, ratio) = self._kept
        merged = np.zeros((1, 4, 2))
        draft = self.draft
        masses_by_class(self.target, draft, self.interval, np.zeros(1), merged)
        merged[0, BEYOND, 0] += self.target[draft == 0.0].sum()
        tails = np.zeros((2, ratio.size + 1))
        for tail, mass, part in zip(tails, (self.target, draft), merged[0].T, strict=True):
            tail[:2], tail[2:-2], tail[-2] = part[:2], mass[tokens], part[BEYOND]
            np.cumsum(tail[::-1], out=tail[::-1])
        return Curve(ratio, *tails)

    def classes(self, widest: float) -> Classes:
        """Tokens in classes of similar draft mass; total mass times range of q is at most ``widest``."""
        ends = classes_of_mass(mass := np.sort(draft := self.draft), widest * RATE_UNIT * RATE_UNIT)
        low, high, size = mass[ends[1:]], mass[ends[:-1] - 1], -np.diff(ends)
        # As large as the vocabulary, and not needed below.
        del mass
        ascending = low[::-1].copy()
        merged = np.zeros((low.size, 4, 2))
        count = masses_by_class(self.target, draft, self.interval, ascending, merged)
        starts = np.append(0, np.cumsum(1 + count))
        ratios = np.empty(starts[-1])
        before = np.empty((2, starts[-1] + low.size))
        tokens_by_class(
            self.target,
            draft,
            self._kept[0],
            ascending,
            starts,
            merged,
            self._middle,
            ratios,
            *before,
        )
        total = before[1][starts[1:] + np.arange(low.size)] + merged[:, BEYOND, 1]
        return Classes(low, high, total, size, starts, ratios, *before)


@kernel()
def classes_of_mass(mass, widest):
    """Cut ascending masses into classes, from ends[c + 1] on: mass times range is at most ``widest``.

    They span a factor of eight at most: where most mass is rejected, the smallest tokens matter. Equal masses
    stay together, and zeros are in no class.
    """
    ends = np.empty(mass.size + 1, np.int32)
    count = 1
    i = ends[0] = alike = mass.size
    total = 0.0
    while i > 0 and mass[i - 1] > 0.0:
        least = mass[i - 1]
        most = mass[ends[count - 1] - 1]
        # ``alike`` is where the masses equal to this one end.
        alike = alike if alike > i and mass[alike - 1] == least else i
        total += least
        # A product with the range would underflow for small masses.
        if least == most or (most <= 8.0 * least and total <= widest / (most - least)):
            i -= 1
        else:
            ends[count] = i = alike
            total = 0.0
            count += 1
    if i < ends[count - 1]:
        ends[count] = i
        count = count + 1
    return ends[:count].astype(np.int64)


@kernel()
def masses_by_class(p, q, interval, smallest, merged):
    """Fill p and q of the tokens by class, merged (K, 4, 2); returns the number of each class that is INSIDE.

    The four parts of a class are the tokens with p/q up to 1, from there to the interval, INSIDE it and
    BEYOND it. Tokens that are never drafted count as INSIDE. ``smallest`` (K,) ascends.
    """
    unit, first, farthest = interval
    last = smallest.size - 1
    kept = np.zeros(smallest.size, np.int64)
    ratio = np.empty(AT_A_TIME)
    level = np.empty(AT_A_TIME, np.uint64)
    for start in range(0, p.size, AT_A_TIME):
        target, draft = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        fill_ratios(target, draft, ratio)
        fill_blocks(smallest, draft, level)
        for y in range(draft.size):
            # No branch, which would often be mispredicted.
            c = np.uint64(last) - level[y]
            drafted = np.uint64(draft[y] > 0.0)
            part = np.uint64(ratio[y] > unit) + np.uint64(ratio[y] > first)
            part += drafted & np.uint64(ratio[y] > farthest)
            merged[c, part, 0] += target[y]
            merged[c, part, 1] += draft[y]
            kept[c] += drafted & np.uint64(part == INSIDE)
    return kept


@kernel()
def tokens_by_class(p, q, tokens, smallest, starts, merged, middle, ratio, p_before, q_before):
    """Fill the entries of :class:`Classes` from tokens by p/q; the first has ratios up to the interval."""
    last = smallest.size - 1
    place = starts[:-1] + 1
    for c in range(last + 1):
        k = starts[c]
        ratio[k] = middle
        p_before[k + c], q_before[k + c] = merged[c, 0]
        p_before[k + c + 1] = merged[c, 0, 0] + merged[c, 1, 0]
        q_before[k + c + 1] = merged[c, 0, 1] + merged[c, 1, 1]
    draft = np.empty(AT_A_TIME)
    level = np.empty(AT_A_TIME, np.uint64)
    for start in range(0, tokens.size, AT_A_TIME):
        part = tokens[start : start + AT_A_TIME]
        for i in range(part.size):
            draft[i] = q[part[i]]
        fill_blocks(smallest, draft[: part.size], level)
        for i in range(part.size):
            if draft[i] == 0.0:
                continue
            c = last - np.int64(level[i])
            k = place[c]
            target = p[part[i]]
            place[c] = k + 1
            ratio[k] = target / draft[i]
            p_before[k + c + 1] = p_before[k + c] + target
            q_before[k + c + 1] = q_before[k + c] + draft[i]


@kernel()
def fill_blocks(low, values, block):
    """The block of each value, by their ascending starts (K,); unsigned, in step, so that it vectorises."""
    block[: values.size] = 0
    left = low.size
    while left > 1:
        half = np.uint64(left >> 1)
        for i in range(values.size):
            block[i] += half if low[block[i] + half] <= values[i] else np.uint64(0)
        left -= left >> 1
