"""How the preference rule takes tokens: which are accepted, how often, and what is left.

:mod:`otmd.verifiers.preference` defines a, c and s_j. An order is followed token by token. The default orders
of two laws are quicker.

With replacement, most tokens are taken in groups of similar p/q, in which all are accepted whole or all are
thinned. Only the tokens of the other groups are sorted.

With strata, tokens are taken in cells: tokens of one stratum with similar p/q_j. T_j = Π_{i≠j} s_i does not
change within a cell. So a(y) = min(p(y), T_j q_j(y)) in any order of its tokens, and s_j falls by Σ a(y)/T_j.
Nothing is sorted.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otmd.curve import blocks
from otmd.curve._kernels import AT_A_TIME, fill_ratios, power, ratios_of
from otmd.kernel import kernel
from otmd.laws import Slots
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.prepared import Choice, accept_prob

Order = Callable[[FloatArray, Slots], IntArray]

# Classes of p/q_j: one from 1 on, and half octaves below 1, with edges that are no ratios of round numbers.
_NUM_CLASSES = 11
_MOST_STEPS = 100
# How all tokens of a group are taken.
_WHOLE, _THINNED, _SORTED, _UNKNOWN = range(4)


class Taken(Choice):
    """The outcome of taking all tokens in order. ``left`` is Π_j s_j at the end."""

    left: float

    @cached_property
    def rate(self) -> float:
        return 1.0 - self.left

    @abstractmethod
    def preferred(self, tokens: IntArray) -> tuple[NDArray[Any], FloatArray]:
        """For tokens (m,) drafted together: numbers that ascend in the order of preference, and c."""

    def choice_probs(self, tokens: IntArray, /) -> FloatArray:
        rank, chance = self.preferred(tokens)
        chosen, left = np.empty(tokens.size), 1.0
        for i in np.argsort(rank, kind="stable"):
            chosen[i] = left * chance[i]
            left -= chosen[i]
        return chosen


def take_tokens(target: FloatArray, slots: Slots, order: Order | None) -> Taken:
    """Take the tokens of one position, with p (V,), in the given order or in the default order."""
    if order is not None:
        return _TakenInOrder(target, slots, order(target, slots))
    if slots.disjoint and slots.num_drafts == slots.copies.size:
        return take_strata(target, slots.token_probs, slots.number, slots.num_drafts)
    if slots.is_single and target.size >= blocks.BlockedCurve.smallest_grouped:
        return _TakenByRatio(target, slots)
    ratio = ratios_of(target, slots.dense.mean(axis=0), np.arange(target.size))
    return _TakenInOrder(target, slots, np.argsort(-ratio, kind="stable"))


class _TakenInOrder(Taken):
    """Tokens taken one after another, in any order."""

    def __init__(self, target: FloatArray, slots: Slots, order: IntArray) -> None:
        self._rank = np.empty(target.size, np.int64)
        self._rank[order] = np.arange(target.size)
        self._accepted, self._chance = np.zeros((2, target.size))
        self.left = _accept_in_order(
            order, target, slots.dense, slots.copies, self._accepted, self._chance
        )

    @cached_property
    def accepted(self) -> FloatArray:
        return self._accepted

    def preferred(self, tokens: IntArray) -> tuple[NDArray[Any], FloatArray]:
        return self._rank[tokens], self._chance[tokens]


def take_strata(
    target: FloatArray, draft: FloatArray, number: NDArray[np.int16], num_strata: int
) -> Taken:
    """Take the tokens of strata by the better of two walks through the cells.

    ``number`` (V,) is the stratum of each token, ``draft`` (V,) its q_j in this stratum.
    """
    cells = Cells(target, draft, number, num_strata)
    walks = (cells.liked_first(), cells.by_class()) if num_strata > 1 else (cells.by_class(),)
    return min((TakenInCells(cells, walk) for walk in walks), key=lambda taken: taken.left)


class Cells:
    """Tokens by classes of p/q_j, from the largest, and in each class by strata from the tail to the head.

    ``of_token`` (V,) is the cell of each token. ``grouped`` (2, V) are p and q_j, cell by cell; each cell
    begins at its entry of ``starts``.
    """

    def __init__(
        self, target: FloatArray, draft: FloatArray, number: NDArray[np.int16], num_strata: int
    ) -> None:
        self.target, self.draft, self.num_strata = target, draft, num_strata
        num_classes = _NUM_CLASSES if num_strata > 1 else 1
        # Wide enough for ten thousand strata.
        self.of_token = np.empty(target.size, np.int32)
        sizes = np.zeros(num_strata * num_classes, np.int64)
        _fill_cells(target, draft, number, num_classes, num_strata, self.of_token, sizes)
        self.starts = np.concatenate([[0], sizes.cumsum()])
        self.grouped = np.empty((2, target.size))
        _group_tokens(self.of_token, self.starts[:-1].copy(), target, draft, self.grouped)

    def by_class(self) -> IntArray:
        """All cells, class by class."""
        return np.arange(self.starts.size - 1)

    def liked_first(self) -> IntArray:
        """The cells of the first class, p ≥ q_j, and then all others stratum by stratum."""
        classes = self.by_class().reshape(-1, self.num_strata)
        return np.concatenate([classes[0], classes[1:].T.ravel()])


class TakenInCells(Taken):
    """Tokens taken cell by cell, in the order of a walk."""

    def __init__(self, cells: Cells, walk: IntArray) -> None:
        self._cells, self._rank = cells, np.argsort(walk)
        self._others, self.left = _take_cells(*cells.grouped, cells.starts, walk, cells.num_strata)

    @cached_property
    def accepted(self) -> FloatArray:
        return np.minimum(
            self._cells.target, self._others[self._cells.of_token] * self._cells.draft
        )

    def preferred(self, tokens: IntArray) -> tuple[NDArray[Any], FloatArray]:
        cell = self._cells.of_token[tokens]
        most = self._others[cell] * self._cells.draft[tokens]
        return self._rank[cell], accept_prob(self._cells.target[tokens], most)


class _TakenByRatio(Taken):
    """Tokens taken by p/q descending, for drafts with replacement; by id in groups that are not sorted."""

    def __init__(self, target: FloatArray, slots: Slots) -> None:
        draft = slots.probs
        group, sums = np.zeros(target.size, np.int16), np.zeros((blocks.NUM_GROUPS, 2))
        self._known = group, target, draft, slots.num_drafts
        self._how, self._before = np.full(blocks.NUM_GROUPS, _UNKNOWN), np.empty(blocks.NUM_GROUPS)
        blocks.sum_groups(target, draft, group, sums)
        unsure = np.ones(blocks.NUM_GROUPS, np.bool_)
        while unsure.any():
            sort = self._how == _SORTED
            tokens = blocks.tokens_of_groups(group, sort)
            # The sort is stable, since the order of equal ratios may change the rate.
            descending = np.argsort(-ratios_of(target, draft, tokens), kind="stable")
            self._tokens = tokens[descending]
            self.left = _take_groups(
                sums, self._how, self._before, self._tokens, *self._known, unsure
            )
            self._how[unsure] = _SORTED

    @cached_property
    def _each(self) -> tuple[FloatArray, FloatArray]:
        """For each token, a and Π_j s_j before it, both (V,)."""
        accepted, before = np.zeros((2, self._known[0].size))
        _take_each(self._how, self._before, self._tokens, *self._known, accepted, before)
        return accepted, before

    @cached_property
    def accepted(self) -> FloatArray:
        return self._each[0]

    def preferred(self, tokens: IntArray) -> tuple[NDArray[Any], FloatArray]:
        _, _, draft, num_drafts = self._known
        accepted, before = (each[tokens] for each in self._each)
        # The c with a = Π s − Π (s − c q). The product only falls, so it gives the order of preference, too.
        part = np.divide(accepted, before, out=np.zeros(accepted.size), where=before > 0.0)
        with np.errstate(divide="ignore"):
            step = -np.expm1(np.log1p(-np.minimum(part, 1.0)) / num_drafts)
        chance = before ** (1.0 / num_drafts) * step / draft[tokens]
        return -before, np.minimum(chance, 1.0)


@kernel(error_model="numpy")
def _fill_cells(target, draft, number, num_classes, num_strata, cell, sizes):
    """Fill the cell of each token (V,) and the sizes of the cells."""
    ratio = np.empty(AT_A_TIME)
    bits = ratio.view(np.int64)
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME]
        own = cell[start : start + AT_A_TIME]
        fill_ratios(p, q, ratio)
        for y in range(p.size):
            # The exponent of √2 (p/q)² is the number of the half octave.
            ratio[y] = np.sqrt(2.0) * ratio[y] * ratio[y] if ratio[y] < 1.0 else np.inf
        for y in range(p.size):
            level = min(max(1024 - (bits[y] >> 52), 0), num_classes - 1)
            own[y] = level * num_strata + num_strata - 1 - number[start + y]
        for y in range(p.size):
            sizes[np.uint64(own[y])] += 1


@kernel()
def _group_tokens(cell, places, target, draft, grouped):
    """Fill p and q_j (2, V), grouped by cell; ``places`` is where each cell begins, and is overwritten."""
    for y in range(cell.size):
        c = np.uint64(cell[y])
        i = np.uint64(places[c])
        grouped[0, i], grouped[1, i] = target[y], draft[y]
        places[c] += 1


@kernel(error_model="numpy")
def _take_cells(target, draft, starts, walk, num_strata):
    """Take the tokens (V,), grouped by cell; return T_j of each cell, and Π_j s_j at the end."""
    others, s = np.ones(walk.size), np.ones(num_strata)
    for c in walk:
        own = num_strata - 1 - c % num_strata
        for j in range(num_strata):
            others[c] *= s[j] if j != own else 1.0
        mass = 0.0
        for i in range(starts[c], starts[c + 1]):
            mass += min(target[i], others[c] * draft[i])
        if others[c] > 0.0:
            s[own] = max(s[own] - mass / others[c], 0.0)
    return others, s.prod()


@kernel()
def _taken_whole(s, q, num_drafts):
    """s^n − (s − q)^n as a sum of positive terms, for q up to s."""
    rest, total, high = max(s - q, 0.0), 0.0, 1.0
    for _ in range(num_drafts):
        total = total * rest + high
        high *= s
    return total * min(q, s)


@kernel(error_model="numpy")
def _take(target, draft, left, s, num_drafts):
    """Take one token; return a, and Π_j s_j and s after it."""
    accepted = _taken_whole(s, draft, num_drafts)
    if accepted > target:
        left = max(left - target, 0.0)
        return target, left, left ** (1.0 / num_drafts)
    s = max(s - draft, 0.0)
    return accepted, power(s, num_drafts), s


@kernel(error_model="numpy")
def _take_groups(sums, how, before, tokens, group, target, draft, num_drafts, unsure):
    """Take the groups from the largest p/q down; return Π_j s_j at the end.

    Fills how each group is taken, Π_j s_j before it, and whether it is unsure: tokens that are accepted whole
    and tokens that are thinned may both occur in it.
    """
    left = s = 1.0
    i = 0
    for g in range(how.size - 1, -1, -1):
        p, q = sums[g, blocks.TARGET], sums[g, blocks.DRAFT]
        before[g], unsure[g] = left, False
        if how[g] == _SORTED:
            while i < tokens.size and group[tokens[i]] == g:
                y = tokens[i]
                i += 1
                if draft[y] > 0.0:
                    _, left, s = _take(target[y], draft[y], left, s, num_drafts)
            continue
        # A token that is accepted whole has an a of at most n q s^(n−1), and at least q times ``least``.
        rest = max(left - p, 0.0) ** (1.0 / num_drafts)
        least = max(
            num_drafts * power(max(rest - q, 0.0), num_drafts - 1), power(rest, num_drafts - 1)
        )
        if blocks.GROUP_LOW[g] >= num_drafts * power(s, num_drafts - 1):
            how[g], s = _WHOLE, max(s - q, 0.0)
            left = power(s, num_drafts)
        else:
            how[g], left, s = _THINNED, max(left - p, 0.0), rest
            unsure[g] = q > 0.0 and not (g + 1 < how.size and blocks.GROUP_LOW[g + 1] < least)
    return left


@kernel(error_model="numpy")
def _take_each(how, before, tokens, group, target, draft, num_drafts, accepted, before_token):
    """Fill a(y) and Π_j s_j before y, both (V,), from how the groups are taken."""
    left = before.copy()
    s = left ** (1.0 / num_drafts)
    for y in range(group.size):
        g = np.uint64(group[y])
        if how[g] == _SORTED or draft[y] == 0.0:
            continue
        before_token[y] = left[g]
        if how[g] == _THINNED:
            accepted[y] = target[y]
            left[g] = max(left[g] - target[y], 0.0)
        else:
            accepted[y] = min(_taken_whole(s[g], draft[y], num_drafts), target[y])
            left[g] = max(left[g] - accepted[y], 0.0)
            s[g] = max(s[g] - draft[y], 0.0)
    for i in range(tokens.size):
        y = tokens[i]
        g = np.uint64(group[y])
        before_token[y] = left[g]
        if draft[y] > 0.0:
            accepted[y], left[g], s[g] = _take(target[y], draft[y], left[g], s[g], num_drafts)


@kernel(error_model="numpy")
def _accept_in_order(order, target, probs, copies, accepted, chance):
    """Take the tokens in this order; fill a(y) and c(y), both (V,), and return Π_j s_j at the end."""
    left = np.ones(copies.size)
    total = 1.0
    for i in range(order.size):
        y = order[i]
        after = 1.0
        for r in range(copies.size):
            after *= power(max(left[r] - probs[r, y], 0.0), copies[r])
        c = 1.0
        if total - after > target[y]:
            c = _thinned(left, probs, copies, y, total, target[y])
            after = 1.0
            for r in range(copies.size):
                after *= power(max(left[r] - c * probs[r, y], 0.0), copies[r])
        for r in range(copies.size):
            left[r] = max(left[r] - c * probs[r, y], 0.0)
        accepted[y] = min(max(total - after, 0.0), target[y])
        chance[y] = c
        total = after
    return total


@kernel(error_model="numpy")
def _thinned(left, probs, copies, y, total, wanted):
    """The c with total − Π_r (s_r − c q_r(y))^m_r = wanted, in closed form or by Newton's method from 0."""
    if copies.size == 1:
        step = -np.expm1(np.log1p(-wanted / total) / copies[0])
        return min(left[0] * step / probs[0, y], 1.0)
    c = 0.0
    for _ in range(_MOST_STEPS):
        product, slope = 1.0, 0.0
        for r in range(copies.size):
            s = max(left[r] - c * probs[r, y], 0.0)
            product *= power(s, copies[r])
            slope += copies[r] * probs[r, y] / s
        # Rounding may bring c to where a slot has nothing left: all of the total is accepted.
        if product == 0.0:
            break
        step = (wanted - (total - product)) / (product * slope)
        c += max(step, 0.0)
        if not step > 1e-16 * c:
            break
    return min(c, 1.0)
