"""The best cut of independent drafts from several distributions: the minimiser of p(H) − Π_r q_r(H)^m_r.

Let x be the vector of all q_r(H*), and c_r the derivative of the product by x_r. The smallest minimiser is
the half-space H* = {y : p_y < Σ_r c_r q_r(y)} (Theorem 13 of docs/theory.md). Since c increases with x,
bounds of x decide tokens: those below the plane at the lower bounds are in H*, those above the plane at the
upper bounds are not. The decided tokens bound x again. The box that is left is split in two, unless no
subset in it can be better than the best one found: in a box, the product is at most a linear function of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from otmd.curve.blocks import SLACK
from otmd.laws.structure import Slots
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Sums over a vocabulary in another order differ by less. Where bounds of x contradict each other by more, H*
# is in another box.
_ROUNDING = 1e-9
# Bounds are tightened again while this share of the undecided tokens was decided by the last pass.
_WORTH_A_PASS = 0.1


class Box(NamedTuple):
    """The subsets that hold the tokens ``inside`` and some of the undecided ones.

    ``low`` and ``high`` (R,) bound q_r(H*). ``tokens`` (F,) are undecided, with p ``target`` (F,) and q
    ``draft`` (R, F). ``inside`` has p ``target_inside`` and q ``draft_inside`` (R,).
    """

    low: FloatArray
    high: FloatArray
    tokens: IntArray
    target: FloatArray
    draft: FloatArray
    inside: tuple[IntArray, ...]
    target_inside: float
    draft_inside: FloatArray

    def decided(self, inside: BoolArray, undecided: BoolArray) -> Box:
        """The subsets that also hold the tokens of one mask (F,); only those of the other stay undecided."""
        return self._replace(
            tokens=self.tokens[undecided],
            target=self.target[undecided],
            draft=self.draft[:, undecided],
            inside=(*self.inside, self.tokens[inside]),
            target_inside=self.target_inside + self.target[inside].sum(),
            draft_inside=self.draft_inside + self.draft[:, inside].sum(axis=1),
        )


def independent_cut(target: FloatArray, slots: Slots) -> tuple[BoolArray, float]:
    """The smallest best cut (V,) of one position, and p(H) − g(H); p (V,) need not sum to 1.

    Cuts whose values differ by no more than rounding (1e-13) count as equally good, and any of them may be
    returned: where p of a token is 1e-300, say, it may hold this token or not.
    """
    draft, row_of_slot = distinct_slots(slots)
    return half_space_cut(target, draft, np.bincount(row_of_slot))


def half_space_cut(
    target: FloatArray, draft: FloatArray, copies: IntArray
) -> tuple[BoolArray, float]:
    """See :func:`independent_cut`, for ``copies`` (R,) drafts from each of the measures q_r (R, V)."""
    subset = np.zeros(target.size, dtype=bool)
    value = 0.0
    zero = np.zeros(copies.size)
    tokens = np.arange(target.size)
    boxes = [Box(zero, draft.sum(axis=1), tokens, target, draft, (), 0.0, zero)]
    while boxes:
        box = _tightened(boxes.pop(), copies)
        if box is None:
            continue
        below = box.target < slopes(0.5 * (box.low + box.high), copies) @ box.draft
        attained = box.target_inside + box.target[below].sum()
        attained -= np.prod((box.draft_inside + box.draft[:, below].sum(axis=1)) ** copies)
        if attained < value - SLACK:
            value = float(attained)
            subset[:] = False
            subset[np.concatenate([*box.inside, box.tokens[below]])] = True
        if box.tokens.size and _lower_bound(box, copies) < value - SLACK:
            boxes += _parts(box, copies)
    return subset, value


def distinct_slots(slots: Slots) -> tuple[FloatArray, IntArray]:
    """The different distributions of the slots (R, V), and the one that each draft is drawn from (n,)."""
    rows = [slots.dense[row].tobytes() for row in slots.row_of_slot]
    first, row_of_slot = np.unique([rows.index(row) for row in rows], return_inverse=True)
    return slots.dense[slots.row_of_slot[first]], row_of_slot


def slopes(x: FloatArray, copies: IntArray) -> FloatArray:
    """The derivatives of Π_r x_r^m_r, shape (R,)."""
    powers = x**copies
    others = [np.prod(np.delete(powers, r)) for r in range(x.size)]
    return copies * x ** (copies - 1) * others


def _tightened(box: Box, copies: IntArray) -> Box | None:
    """The box with more tokens decided and closer bounds; None if H* is not in it."""
    while True:
        inside = box.target < slopes(box.low, copies) @ box.draft
        undecided = ~inside & (box.target < slopes(box.high, copies) @ box.draft)
        decided = box.tokens.size - np.count_nonzero(undecided)
        box = box.decided(inside, undecided)
        low = np.maximum(box.low, box.draft_inside)
        high = np.minimum(box.high, box.draft_inside + box.draft.sum(axis=1))
        if (low > high + _ROUNDING).any():
            return None
        box = box._replace(low=low, high=np.maximum(low, high))
        if decided <= _WORTH_A_PASS * (decided + box.tokens.size):
            return box


def _lower_bound(box: Box, copies: IntArray) -> float:
    """Lower bound of p − g over the subsets in the box."""
    low = box.low**copies
    high = box.high**copies
    width = box.high - box.low
    chord = np.divide(high - low, width, out=np.zeros(width.size), where=width > 0)
    # One factor after another rises from its lower bound: those before are at most high, those after are low.
    orders: Sequence[IntArray] = [np.arange(width.size), np.arange(width.size)[::-1]]
    bounds = []
    for order in orders:
        before = np.concatenate([[1.0], high[order].cumprod()[:-1]])
        after = np.concatenate([low[order][::-1].cumprod()[::-1][1:], [1.0]])
        slopes = np.empty(width.size)
        slopes[order] = chord[order] * before * after
        outside = box.target - slopes @ box.draft
        bound = box.target_inside + np.minimum(outside, 0.0).sum()
        bounds.append(bound - np.prod(low) - slopes @ (box.draft_inside - box.low))
    return float(max(bounds))


def _parts(box: Box, copies: IntArray) -> list[Box]:
    """The box in two: without and with a token that is wider than the box; else in halves.

    The halves are those of the distribution whose bounds leave the most of g open. Halving alone would not
    end where x(H) jumps over a box, which may then be as narrow as rounding allows.
    """
    width = box.high - box.low
    widest = int(np.argmax(width * slopes(box.high, copies)))
    middle = 0.5 * (box.low[widest] + box.high[widest])
    if (box.draft > width[:, None]).any() or not box.low[widest] < middle < box.high[widest]:
        return _without_and_with(box, int(np.argmax(box.draft.max(axis=0))))
    low = box.low.copy()
    high = box.high.copy()
    low[widest] = high[widest] = middle
    return [box._replace(low=low), box._replace(high=high)]


def _without_and_with(box: Box, index: int) -> list[Box]:
    """The subsets without and with an undecided token, and all tokens on the same side of every plane."""
    columns = np.vstack([box.target, box.draft])
    columns /= columns.sum(axis=0)
    chosen = np.isclose(columns, columns[:, [index]], rtol=1e-12, atol=0.0).all(axis=0)
    return [box.decided(chosen, ~chosen), box.decided(np.zeros_like(chosen), ~chosen)]
