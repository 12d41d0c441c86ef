"""The best cut of independent drafts from several distributions: the minimiser of p(H) − Π_r q_r(H)^m_r.

Let x be the vector of all q_r(H*), and c_r the derivative of the product by x_r. The smallest minimiser is
the half-space H* = {y : p_y < Σ_r c_r q_r(y)} (Theorem 13 of docs/theory.md). Since c increases with x,
bounds of x decide tokens: those below the plane at the lower bounds are in H*, those above the plane at the
upper bounds are not. The decided tokens bound x again. The box that is left is split in two, unless no
subset in it can be better than the best one found: in a box, the product is at most a linear function of x.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otmd.curve.blocks import SLACK
from otmd.kernel import kernel
from otmd.laws.slots import Slots
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Sums over a vocabulary in another order differ by less. Where bounds of x contradict each other by more, H*
# is in another box.
_ROUNDING = 1e-9
# Bounds are tightened again while this share of the undecided tokens was decided by the last pass.
_WORTH_A_PASS = 0.1


class Box(NamedTuple):
    """The subsets that hold the tokens ``inside`` and some of the undecided ``tokens`` (F,).

    ``low`` and ``high`` (R,) bound q_r(H*). ``inside`` has p ``target_inside`` and q ``draft_inside`` (R,).
    ``largest`` (R,) are the largest q of undecided tokens, or more.
    """

    low: FloatArray
    high: FloatArray
    tokens: IntArray
    inside: tuple[IntArray, ...]
    target_inside: float
    draft_inside: FloatArray
    largest: FloatArray


def independent_cut(target: FloatArray, slots: Slots) -> tuple[BoolArray, float]:
    """The smallest best cut (V,) of one position, and p(H) − g(H); p (V,) need not sum to 1.

    Cuts whose values differ by no more than rounding (1e-13) count as equally good, and any of them may be
    returned: where p of a token is 1e-300, say, it may hold this token or not.
    """
    draft, row_of_slot = distinct_slots(slots)
    return half_space_cut(target, draft, np.bincount(row_of_slot))


def half_space_cut(
    target: FloatArray, draft: FloatArray, copies: IntArray, value: float = 0.0
) -> tuple[BoolArray, float]:
    """See :func:`independent_cut`, for ``copies`` (R,) drafts from each of the measures q_r, (V, R).

    Only cuts better than ``value`` count; without any, the cut is empty, and this is its value.
    """
    subset = np.zeros(target.size, dtype=bool)
    zero = np.zeros(copies.size)
    sums = np.empty(copies.size + 3)
    total = draft.sum(axis=0)
    boxes = [Box(zero, total, np.arange(target.size), (), 0.0, zero, total)]
    while boxes:
        box = _tightened(boxes.pop(), target, draft, copies)
        if box is None:
            continue
        plane = slopes(0.5 * (box.low + box.high), copies)
        chords = _chords(box, copies)
        below = _evaluate(target, draft, box.tokens, plane, chords, sums)
        x_inside, p_inside, short = np.split(sums, [copies.size, copies.size + 1])
        attained = box.target_inside + p_inside[0]
        attained -= np.prod((box.draft_inside + x_inside) ** copies)
        if attained < value - SLACK:
            value = float(attained)
            subset[:] = False
            subset[np.concatenate([*box.inside, below])] = True
        least = box.target_inside + short - np.prod(box.low**copies)
        least -= chords @ (box.draft_inside - box.low)
        if box.tokens.size and least.max() < value - SLACK:
            boxes += _parts(box, target, draft, copies)
    return subset, value


def distinct_slots(slots: Slots) -> tuple[FloatArray, IntArray]:
    """The different distributions of the slots (V, R), and the one that each draft is drawn from (n,)."""
    shape = slots.copies.size, slots.vocab_size
    is_dense = slots.probs.size == shape[0] * shape[1]
    dense = slots.probs.reshape(shape) if is_dense else slots.dense
    rows = [dense[row].tobytes() for row in slots.row_of_slot]
    first, row_of_slot = np.unique([rows.index(row) for row in rows], return_inverse=True)
    return np.ascontiguousarray(dense[slots.row_of_slot[first]].T), row_of_slot


def slopes(x: FloatArray, copies: IntArray) -> FloatArray:
    """The derivatives of Π_r x_r^m_r by each of the x (…, R)."""
    powers = x**copies
    others = _before(powers) * _before(powers[..., ::-1])[..., ::-1]
    return copies * x ** (copies - 1) * others


def _before(factors: FloatArray) -> FloatArray:
    """The products of the factors before each of the factors (…, R)."""
    ones = np.ones_like(factors[..., :1])
    return np.concatenate([ones, factors[..., :-1]], axis=-1).cumprod(axis=-1)


def _tightened(box: Box, target: FloatArray, draft: FloatArray, copies: IntArray) -> Box | None:
    """The box with more tokens decided and closer bounds; None if H* is not in it."""
    sums, p_inside = np.empty((3, copies.size)), np.empty(1)
    while True:
        planes = np.array([slopes(box.low, copies), slopes(box.high, copies)])
        inside, undecided = _decide(target, draft, box.tokens, planes, sums, p_inside)
        decided = box.tokens.size - undecided.size
        within = box.draft_inside + sums[0]
        low = np.maximum(box.low, within)
        high = np.minimum(box.high, within + sums[1])
        if (low > high + _ROUNDING).any():
            return None
        p_within = box.target_inside + p_inside[0]
        all_inside = (*box.inside, inside)
        high = np.maximum(low, high)
        box = Box(low, high, undecided, all_inside, p_within, within, sums[2].copy())
        if decided <= _WORTH_A_PASS * (decided + undecided.size):
            return box


@kernel()
def _decide(target, draft, tokens, planes, sums, p_inside):
    """The tokens below the lower of two planes (2, R), and those between them.

    ``sums`` (3, R) are filled with q of the first, q of the others, and the largest q of these; ``p_inside``
    (1,) with p of the first.
    """
    count = planes.shape[1]
    inside, undecided = np.empty_like(tokens), np.empty_like(tokens)
    size, left = np.uint64(0), np.uint64(0)
    sums[:] = 0.0
    p_inside[0] = 0.0
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        low, high = 0.0, 0.0
        for r in range(count):
            low += planes[0, r] * draft[y, r]
            high += planes[1, r] * draft[y, r]
        if target[y] < low:
            inside[size] = tokens[i]
            size += np.uint64(1)
            p_inside[0] += target[y]
            for r in range(count):
                sums[0, r] += draft[y, r]
        elif target[y] < high:
            undecided[left] = tokens[i]
            left += np.uint64(1)
            for r in range(count):
                sums[1, r] += draft[y, r]
                sums[2, r] = max(sums[2, r], draft[y, r])
    return inside[:size], undecided[:left]


@kernel()
def _evaluate(target, draft, tokens, plane, chords, sums):
    """The tokens below a plane (R,).

    ``sums`` (R + 3,) are filled with their q and p, and with Σ min(p − chord·q, 0) over all tokens for each
    of two ``chords`` (2, R).
    """
    count = plane.size
    below = np.empty_like(tokens)
    size = np.uint64(0)
    sums[:] = 0.0
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        middle, first, second = 0.0, target[y], target[y]
        for r in range(count):
            middle += plane[r] * draft[y, r]
            first -= chords[0, r] * draft[y, r]
            second -= chords[1, r] * draft[y, r]
        if target[y] < middle:
            below[size] = tokens[i]
            size += np.uint64(1)
            sums[count] += target[y]
            for r in range(count):
                sums[r] += draft[y, r]
        sums[count + 1] += min(first, 0.0)
        sums[count + 2] += min(second, 0.0)
    return below[:size]


def _chords(box: Box, copies: IntArray) -> FloatArray:
    """Slopes (2, R) of two linear functions that the product does not exceed in a box, from its low corner.

    One factor after another rises from its lower bound: those before are at most high, those after are low.
    """
    low, high = box.low**copies, box.high**copies
    width = box.high - box.low
    chord = np.divide(high - low, width, out=np.zeros(width.size), where=width > 0)
    rising = _before(high) * _before(low[::-1])[::-1]
    falling = _before(low) * _before(high[::-1])[::-1]
    return chord * np.array([rising, falling])


def _parts(box: Box, target: FloatArray, draft: FloatArray, copies: IntArray) -> list[Box]:
    """The box in two: without and with a token that is wider than the box; else in halves.

    The halves are those of the distribution whose bounds leave the most of g open. Halving alone would not
    end where x(H) jumps over a box, which may then be as narrow as rounding allows.
    """
    width = box.high - box.low
    widest = int(np.argmax(width * slopes(box.high, copies)))
    middle = 0.5 * (box.low[widest] + box.high[widest])
    if (box.largest <= width).all() and box.low[widest] < middle < box.high[widest]:
        low, high = box.low.copy(), box.high.copy()
        low[widest] = high[widest] = middle
        return [box._replace(low=low), box._replace(high=high)]
    of_tokens = draft[box.tokens]
    # Tokens in one direction are on the same side of every plane.
    columns = np.column_stack([target[box.tokens], of_tokens])
    columns /= columns.sum(axis=1, keepdims=True)
    index = int(np.argmax(of_tokens.max(axis=1)))
    alike = np.isclose(columns, columns[index], rtol=1e-12, atol=0.0).all(axis=1)
    without = box._replace(tokens=box.tokens[~alike])
    return [
        without._replace(
            inside=(*box.inside, box.tokens[alike]),
            target_inside=box.target_inside + target[box.tokens[alike]].sum(),
            draft_inside=box.draft_inside + of_tokens[alike].sum(axis=0),
        ),
        without,
    ]
