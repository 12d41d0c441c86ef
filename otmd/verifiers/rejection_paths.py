"""Recursive rejection without replacement: certain bounds over all paths of rejected tokens.

After k rejections the target is (p − Cq)₊/W(C), W(C) = Σ (p − Cq)₊, and the next draft comes from q off the
rejected tokens, divided by the mass left, 1 − R. The next constant is C' = C + W(C)/(1 − R). Token x is
drawn and rejected with weight (C'q(x) − max(p(x), Cq(x)))₊, which sums to W(C'). The probability that all n
drafts are rejected is the mean of the last W(C') over the paths. C' is convex in C and increases with R.
So where a path is known only by the classes of its tokens, each a range of q, the intervals of C and R that
follow are certain.

Draft masses are counted in units of 1/RATE_UNIT, and C accordingly: C is finite where the mass left is
subnormal. C is read at 0, at 1 and in an interval of larger values. No such C separates two tokens that both
have p/q up to 1, or between 1 and the interval, or beyond it. Only those inside are kept one by one.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, fill_ratios, hockey_stick
from otmd.drafts import WithoutReplacement
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.quadrature import RATE_UNIT

# Above 0, where the walk starts and no token is left out yet, and below C = 1.
_FIRST = np.finfo(float).tiny
# More than the rounding of the largest C.
_MARGIN = 1e-9
ONE = 1.0 / RATE_UNIT
# Larger than any C, which is at most n·2¹⁰⁷⁴/RATE_UNIT.
FARTHEST = 2.0**1000
# Rounding of a draft mass left, relative; children of nodes looked at together, to hold few numbers.
_MASS_ROUNDING, _TOGETHER = 1e-15, 4096

Bounds = tuple[FloatArray, FloatArray]


class Curve(NamedTuple):
    """Entries with ascending p/q, shape (K,), and the masses from each entry on, shape (K + 1,)."""

    ratio: FloatArray
    target_tail: FloatArray
    draft_tail: FloatArray

    def at(self, C: FloatArray, k: IntArray | None = None) -> FloatArray:
        """W(C); k entries have a ratio of at most C."""
        k = np.searchsorted(self.ratio, C, side="right") if k is None else k
        return np.clip(self.target_tail[k] - C * self.draft_tail[k], 0.0, 1.0)

    def state(self, C_low: FloatArray, C_high: FloatArray) -> "State":
        """The state between two values of C."""
        k = np.searchsorted(self.ratio, C_low, side="right")
        return State(C_low, C_high, self.at(C_high), self.at(C_low, k), self.draft_tail[k])

    def next_state(self, state: "State", left_low: FloatArray, left_high: FloatArray) -> "State":
        """The state of the least and the largest C + W(C)/left over intervals of C and of the mass left."""
        C_low, C_high, W_low, W_high, above = state
        # Convex in C: largest at an end, and least where the draft mass above C falls to what is left.
        high = np.maximum(_step(C_low, W_high, left_low), _step(C_high, W_low, left_low))
        bent = above > left_high
        if bent.any():
            k = self.draft_tail.size - np.searchsorted(self.draft_tail[::-1], left_high, "right")
            C_low = np.where(bent, np.minimum(self.ratio[k - 1], C_high), C_low)
            W_high = np.where(bent, self.at(C_low), W_high)
        return self.state(_step(C_low, W_high, left_high), high)


class State(NamedTuple):
    """Bounds of C and W(C) after some rejections, and the draft mass of tokens with p/q above the least C."""

    C_low: FloatArray
    C_high: FloatArray
    W_low: FloatArray
    W_high: FloatArray
    draft_above: FloatArray


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

    def mass_left(self, times: IntArray) -> tuple[FloatArray, FloatArray]:
        """Bounds of the draft mass (…) without so many tokens of each class (…, K)."""
        some = self.size - times
        low = np.maximum(self.total - times * self.largest, some * self.smallest)
        high = np.minimum(self.total - times * self.smallest, some * self.largest)
        return low.sum(axis=-1, where=some > 0), high.sum(axis=-1, where=some > 0)


class Nodes(NamedTuple):
    """Paths of m rejections, by class, and the states before and after the next one.

    ``deficit`` (m, 2, K) is Σ over each class of (C q − p)₊ at both ends of C before. ``times`` (m, K) tokens
    of each class were rejected, with at most the probability ``weight``.
    """

    before: State
    state: State
    deficit: FloatArray
    left_low: FloatArray
    left_high: FloatArray
    times: IntArray
    weight: FloatArray


class RejectionPaths:
    """The curve and the classes of one position, with C and q in units of 1/RATE_UNIT.

    They serve as many drafts as the law has, and fewer. ``widest`` is what the last classes were made for.
    """

    def __init__(self, target: FloatArray, law: WithoutReplacement) -> None:
        self.target, self.law, self.widest = target, law, np.inf
        self._classes: Classes | None = None
        # W(1).
        self.first = float(hockey_stick(target, law.draft_probs, 1.0))
        # A ratio between C = 1 and the next C, far enough from both for their rounding.
        self._middle = ONE * (1.0 + 0.5 * self.first)
        # Where C = 1 is, and tokens are kept: above the second and up to the third.
        self.interval = ONE, ONE * (1.0 + self.first), self._farthest(law)

    @property
    def draft(self) -> FloatArray:
        """The draft masses in the unit; not kept, as it is as large as the vocabulary."""
        return RATE_UNIT * self.law.draft_probs

    def _farthest(self, law: WithoutReplacement) -> float:
        """A bound of every C: W falls, so each step is at most W over the mass the largest token leaves."""
        q, count = law.draft_probs, law.num_drafts - 1
        left = 1.0 - float(q.max()) * np.arange(1, count + 1) - _MARGIN
        if count == 0 or left[-1] <= 0.0:
            return FARTHEST
        steps = np.full(count, hockey_stick(self.target, q, 1.0 + self.first))
        steps[0] = self.first
        return ONE * (1.0 + float((steps / left).sum())) * (1.0 + _MARGIN)

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int32], FloatArray]:
        """The tokens inside the interval, sorted by p/q, and the ratios of the curve's entries."""
        (_, first, last), ratio = self.interval, np.empty(self.target.size)
        fill_ratios(self.target, self.draft, ratio)
        tokens = np.flatnonzero((ratio > first) & (ratio <= last)).astype(np.int32)
        tokens = tokens[np.argsort(ratio[tokens])]
        return tokens, np.concatenate([[_FIRST, self._middle], ratio[tokens], [np.inf]])

    @cached_property
    def curve(self) -> Curve:
        """The ratio curve with merged tokens, exact at C = 0, C = 1 and inside the interval."""
        (tokens, ratio), merged, draft = self._kept, np.zeros((1, 3, 2)), self.draft
        masses_by_class(self.target, draft, self.interval, np.zeros(1), merged)
        merged[0, 2, 0] += self.target[draft == 0.0].sum()
        tails = np.zeros((2, ratio.size + 1))
        for tail, mass, part in zip(tails, (self.target, draft), merged[0].T, strict=True):
            tail[:2], tail[2:-2], tail[-2] = part[:2], mass[tokens], part[2]
            np.cumsum(tail[::-1], out=tail[::-1])
        return Curve(ratio, *tails)

    def classes(self, widest: float) -> Classes:
        """Tokens in classes of similar draft mass; total mass times range of q is at most ``widest``."""
        if self._classes and widest == self.widest:
            return self._classes
        self._classes, self.widest = None, widest
        ends = classes_of_mass(mass := np.sort(draft := self.draft), widest * RATE_UNIT * RATE_UNIT)
        low, high, size = mass[ends[1:]], mass[ends[:-1] - 1], -np.diff(ends)
        # As large as the vocabulary, and not needed below.
        del mass
        ascending, merged = low[::-1].copy(), np.zeros((low.size, 3, 2))
        count = masses_by_class(self.target, draft, self.interval, ascending, merged)
        starts = np.append(0, np.cumsum(1 + count))
        ratios, before = np.empty(starts[-1]), np.empty((2, starts[-1] + low.size))
        known = self.target, draft, self._kept[0], ascending, starts, merged, self._middle
        tokens_by_class(*known, ratios, *before)
        total = before[1][starts[1:] + np.arange(low.size)] + merged[:, 2, 1]
        self._classes = Classes(low, high, total, size, starts, ratios, *before)
        return self._classes


@kernel()
def classes_of_mass(mass, widest):
    """Cut ascending masses into classes, from ends[c + 1] on: mass times range is at most ``widest``.

    They span a factor of eight at most: where most mass is rejected, the smallest tokens matter. Equal masses
    stay together, and zeros are in no class.
    """
    ends, count = np.empty(mass.size + 1, np.int32), 1
    i = ends[0] = alike = mass.size
    total = 0.0
    while i > 0 and mass[i - 1] > 0.0:
        own, most = mass[i - 1], mass[ends[count - 1] - 1]
        # ``alike`` is where the masses equal to this one end.
        alike = alike if alike > i and mass[alike - 1] == own else i
        total += own
        # A product with the range would underflow for small masses.
        if own == most or (most <= 8.0 * own and total <= widest / (most - own)):
            i -= 1
        else:
            ends[count], total, i, count = alike, 0.0, alike, count + 1
    if i < ends[count - 1]:
        ends[count], count = i, count + 1
    return ends[:count].astype(np.int64)


class RejectionWalk:
    """A walk over paths, depth first, that bounds P(all n ≥ 3 drafts are rejected).

    No node is opened whose bounds differ by at most ``negligible``, weighted, and none after ``most_nodes``.
    """

    def __init__(
        self, curve: Curve, classes: Classes, num_drafts: int, negligible: float, most_nodes: int
    ) -> None:
        self.curve, self.classes, self.num_drafts = curve, classes, num_drafts
        self.negligible, self.most_nodes, self.looked = negligible, most_nodes, 1
        # The mass of the k largest tokens, and what is left without them.
        numbers = np.arange(classes.size.size)
        heads = np.repeat(numbers, np.minimum(classes.size, num_drafts))[: num_drafts - 1]
        self._heads = np.append(0.0, classes.largest[heads].cumsum())
        times = np.append(np.zeros((1, numbers.size)), heads[:, None] == numbers, axis=0)
        self._floors, _ = classes.mass_left(times.cumsum(axis=0).astype(np.int64))

    def bounds(self) -> tuple[float, float]:
        """Bounds of the probability that all drafts are rejected."""
        none, whole = np.zeros((1, self.classes.size.size), np.int64), np.array([RATE_UNIT])
        with np.errstate(all="ignore"):
            start = self.curve.state(np.zeros(1), np.zeros(1))
            state = self.curve.next_state(start, whole, whole)
            if state.W_high == 0.0:
                return 0.0, 0.0
            deficit = np.zeros((1, 2, none.size))
            root = Nodes(start, state, deficit, whole, whole, none, np.ones(1))
            low, high = self._means(1, root)
        return float(low[0]), float(high[0])

    def _outlook(
        self, row: int, state: State, left_low: FloatArray, left_high: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds of the last W, without children: the next masses rejected are the largest, or 0."""
        for k in range(1, self.num_drafts - row + 1):
            least = left_low * (1.0 - k * _MASS_ROUNDING) - self._heads[k]
            least = np.maximum(least, self._floors[row - 1 + k])
            state = self.curve.next_state(state, least, left_high)
        return state.W_low, state.W_high

    def _means(self, row: int, nodes: Nodes) -> Bounds:
        """Bounds of the mean last W below some nodes, after whose next rejection ``row`` tokens are gone."""
        deficit = np.empty(nodes.deficit.shape)
        fill_deficits(np.stack(nodes.state[:2], axis=1), *self.classes[4:], deficit)
        shares, left = self._shares(nodes, deficit), self._left(nodes)
        before = State(*(each[:, None] for each in nodes.state))
        state, possible = self.curve.next_state(before, *left), shares[1] > 0.0
        low, high = state.W_low, state.W_high
        self.looked += int(np.count_nonzero(possible))
        if row < self.num_drafts - 1:
            low, high = self._outlook(row + 1, state, *left)
            weight = nodes.weight[:, None] * shares[1]
            wide = (weight * (high - low) > self.negligible) & (state.W_high > 0.0)
            own, size = np.flatnonzero(wide), max(1, _TOGETHER // self.classes.size.size)
            for some in np.split(own, range(size, own.size, size)):
                if some.size == 0 or self.looked > self.most_nodes:
                    break
                i, c = at = np.unravel_index(some, wide.shape)
                times = nodes.times[i]
                times[np.arange(i.size), c] += 1
                earlier, new = State(*(x[i] for x in nodes.state)), State(*(x[at] for x in state))
                masses = left[0][at], left[1][at]
                child = Nodes(earlier, new, deficit[i], *masses, times, weight[at])
                least, most = self._means(row + 1, child)
                # They cross only on paths that no tokens follow, whose share may be 0.
                ends = np.maximum(least, low[at]), np.minimum(most, high[at])
                low[at], high[at] = np.minimum(*ends), np.maximum(*ends)
        return _mean(shares, (low, high), possible)

    def _shares(self, nodes: Nodes, deficit: FloatArray) -> Bounds:
        """Bounds of the probability that the next token rejected is of each class, (m, K)."""
        before, state, classes, times = nodes.before, nodes.state, self.classes, nodes.times
        most = (state.C_high - before.C_low)[:, None] * classes.largest
        least = np.maximum(state.C_low - before.C_high, 0.0)[:, None] * classes.smallest
        low = deficit[:, 0] - nodes.deficit[:, 1] - np.where(times > 0, times * most, 0.0)
        high = deficit[:, 1] - nodes.deficit[:, 0] - np.where(times > 0, times * least, 0.0)
        possible = ~(high <= 0.0) & (times < classes.size)
        # Where C is so large that a difference is not a number, the share may be anything.
        low = np.fmax(low, 0.0) / state.W_high[:, None]
        high = np.fmin(high / state.W_low[:, None], 1.0)
        return np.where(possible, low, 0.0), np.where(possible, high, 0.0)

    def _left(self, nodes: Nodes) -> Bounds:
        """Bounds of the draft mass left after a token of each class as well, (m, K)."""
        low = nodes.left_low[:, None] - self.classes.largest
        high = nodes.left_high[:, None] - self.classes.smallest
        # The difference would cancel.
        i, c = np.nonzero(low <= 0.5 * nodes.left_low[:, None])
        times = nodes.times[i]
        times[np.arange(i.size), c] += 1
        low[i, c], high[i, c] = self.classes.mass_left(times)
        return low, high


def _step(C: FloatArray, W: FloatArray, left: FloatArray) -> FloatArray:
    return np.where(left > 0.0, C + W / left, FARTHEST)


def _mean(shares: Bounds, values: Bounds, possible: BoolArray) -> Bounds:
    """Bounds of the mean over the children (m, K), whose shares are known up to intervals but sum to 1.

    An uncertain share multiplies only what a child differs by from the least, or the most, of them.
    """
    low, high = values
    least = low.min(axis=1, where=possible, initial=np.inf)[:, None]
    most = high.max(axis=1, where=possible, initial=-np.inf)[:, None]

    def mean(end: FloatArray, share: FloatArray, value: FloatArray) -> FloatArray:
        return end[:, 0] + (share * (value - end)).sum(axis=1, where=possible)

    at_least = np.maximum(mean(least, shares[0], low), mean(most, shares[1], low))
    at_most = np.minimum(mean(least, shares[1], high), mean(most, shares[0], high))
    some = possible.any(axis=1)
    return np.where(some, at_least, 0.0), np.where(some, at_most, 1.0)


@kernel()
def fill_deficits(C, starts, ratio, target_before, draft_before, deficit):
    """Σ over each class of (C q − p)₊ at several C (m, 2), shape (m, 2, K); see :class:`Classes`."""
    for i in range(C.shape[0]):
        for c in range(starts.size - 1):
            for e in range(2):
                place, left = starts[c], starts[c + 1] - starts[c]
                while left > 0:
                    half = (left + 1) >> 1
                    place += half if ratio[place + half - 1] <= C[i, e] else 0
                    left -= half
                deficit[i, e, c] = C[i, e] * draft_before[place + c] - target_before[place + c]


@kernel()
def masses_by_class(p, q, interval, smallest, merged):
    """Fill merged (K, 3, 2) by class; returns how many tokens each has inside. ``smallest`` (K,) ascends."""
    one, first, farthest = interval
    last = smallest.size - 1
    kept, sums = np.zeros(smallest.size, np.int64), np.zeros((smallest.size, 4, 2))
    ratio, level = np.empty(AT_A_TIME), np.empty(AT_A_TIME, np.uint64)
    for start in range(0, p.size, AT_A_TIME):
        target, draft = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        fill_ratios(target, draft, ratio)
        fill_blocks(smallest, draft, level)
        for y in range(draft.size):
            # No branch, which would often be mispredicted. Part 2 is inside, or never drafted.
            c, drafted = np.uint64(last) - level[y], np.uint64(draft[y] > 0.0)
            part = np.uint64(ratio[y] > one) + np.uint64(ratio[y] > first)
            part += drafted & np.uint64(ratio[y] > farthest)
            sums[c, part, 0] += target[y]
            sums[c, part, 1] += draft[y]
            kept[c] += drafted & np.uint64(part == 2)
    merged[:, :2] += sums[:, :2]
    merged[:, 2] += sums[:, 3]
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
    draft, level = np.empty(AT_A_TIME), np.empty(AT_A_TIME, np.uint64)
    for start in range(0, tokens.size, AT_A_TIME):
        own = tokens[start : start + AT_A_TIME]
        for i in range(own.size):
            draft[i] = q[own[i]]
        fill_blocks(smallest, draft[: own.size], level)
        for i in range(own.size):
            if draft[i] == 0.0:
                continue
            c = last - np.int64(level[i])
            k, target = place[c], p[own[i]]
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
