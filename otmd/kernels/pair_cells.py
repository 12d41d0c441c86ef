"""Tokens of two drafts without replacement that are alike in p/q and q: cells, and the tokens told apart.

A part of the ratios has an exponent and so many bits of the mantissa; those beyond 2^±REACH are one. Tokens
that are alike in p/q are told apart by octaves of q below 2^−LARGEST, the last of which has no end. Those
nearer to the cut than a part is wide are told apart by octaves of how near.
"""

import numpy as np
from numba import njit

from otmd.kernels.ratio_groups import AT_A_TIME, fill_ratios

PART_BITS, REACH = 6, 40
_PART_SHIFT = 52 - PART_BITS
_PART_OFFSET = (1023 - REACH) << PART_BITS
NUM_PARTS = (2 * REACH + 1) << PART_BITS
LARGEST, OCTAVES, NEAREST = 8, 4, 28
NEARNESS = NEAREST - PART_BITS
# First the tokens that are never chosen, then the parts, that of the cut once for either side of it, then the
# near tokens, those below the cut before the others, and last what is no light token at all.
_PARTS_FROM = 1
_NEAR_FROM = _PARTS_FROM + NUM_PARTS + 1
NUM_CELLS = _NEAR_FROM + 2 * NEARNESS
# Columns of a cell: Σ q, Σ p and Σ q²/(1 − q).
CELL_SUMS = 3


@njit(inline="always")
def part_of_ratio(bits):
    """The part of a ratio with these bits: those of a positive float64 are ordered as the numbers are."""
    return min(max((bits >> _PART_SHIFT) - _PART_OFFSET, 0), NUM_PARTS - 1)


@njit(inline="always")
def bits_of_part(part):
    """The bits of the smallest ratio of a part, for the first one of what would be."""
    return (part + _PART_OFFSET) << _PART_SHIFT


@njit(cache=True, nogil=True, error_model="numpy")
def mark_heavy(target, draft, cut, heaviest, near, single):
    """Mark the tokens of larger q than ``heaviest``; those nearer to the cut than ``near``·q, how near."""
    ratio = np.empty(AT_A_TIME)
    tokens, apart, size = np.empty(draft.size, np.int32), np.empty(draft.size), 0
    for start in range(0, draft.size, AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        q = draft[own]
        fill_ratios(target[own], q, ratio)
        for i in range(q.size):
            single[start + i] = q[i] > heaviest
            # Both may be infinite, for tokens that are never drafted and a cut beyond all others.
            ratio[i] = abs(ratio[i] - cut) / q[i] if q[i] > 0.0 else np.inf
        for i in range(q.size):
            if ratio[i] < near:
                tokens[size], apart[size] = start + i, ratio[i]
                size += 1
    return tokens[:size], apart[:size]


@njit(cache=True, nogil=True, error_model="numpy")
def tail_cells(target, draft, single, cut, cells, tokens):
    """Sort the light tokens, those that are not ``single``, into cells and by the side of the cut.

    ``cells`` (NUM_CELLS + 1, OCTAVES, CELL_SUMS) is added to. ``tokens`` (V,) is filled with the light tokens
    that may be chosen: from the front those below the cut, and from the back those from it on. Tokens with
    p = 0 or with q too small for a ratio are never chosen. Returns how many there are, and how far
    their places may reach: what a token does not meet of itself moves it by less than q/(1 − q).
    """
    ratio, odds, nearness = np.empty(AT_A_TIME), np.empty(AT_A_TIME), np.empty(AT_A_TIME)
    reach, cell = np.empty(AT_A_TIME), np.empty(AT_A_TIME, np.int64)
    bits, near_bits = ratio.view(np.int64), nearness.view(np.int64)
    rows = cells.reshape(-1, CELL_SUMS)
    below, beside = np.uint64(0), np.uint64(0)
    highest, farthest = 0.0, 0.0
    for start in range(0, draft.size, AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        p, q, alone = target[own], draft[own], single[own]
        fill_ratios(p, q, ratio)
        draft_bits = q.view(np.int64)
        for i in range(q.size):
            odds[i] = q[i] / (1.0 - q[i])
            nearness[i] = abs(ratio[i] / cut - 1.0)
            reach[i] = ratio[i] + 2.0 * odds[i]
        for i in range(q.size):
            over = ratio[i] >= cut
            near = min(1023 - (near_bits[i] >> 52), NEAREST) - PART_BITS - 1
            of_part = part_of_ratio(bits[i]) + _PARTS_FROM + over
            own_cell = of_part if near < 0 else _NEAR_FROM + over * NEARNESS + near
            own_cell = own_cell if (ratio[i] > 0.0) & (ratio[i] < np.inf) else 0
            own_cell = NUM_CELLS if alone[i] | (q[i] == 0.0) else own_cell
            octave = min(max(1023 - LARGEST - (draft_bits[i] >> 52), 0), OCTAVES - 1)
            cell[i] = own_cell * OCTAVES + octave
        for i in range(q.size):
            row = rows[np.uint64(cell[i])]
            row[0] += q[i]
            row[1] += p[i]
            row[2] += q[i] * odds[i]
        for i in range(q.size):
            # Written in any case and counted if wanted: a branch would be guessed wrongly over and over.
            chosen = (cell[i] >= OCTAVES) & (cell[i] < NUM_CELLS * OCTAVES)
            over = chosen & (ratio[i] >= cut)
            tokens[below] = start + i
            tokens[np.uint64(draft.size - 1) - beside] = start + i
            below += np.uint64(chosen) - np.uint64(over)
            beside += np.uint64(over)
            farthest = max(farthest, reach[i] if chosen else 0.0)
            highest = max(highest, reach[i] if chosen ^ over else 0.0)
    return (below, beside), (highest, farthest)


@njit(cache=True, nogil=True)
def used_cells(cells, cut, outer):
    """The cells of a side that hold light tokens which may be chosen: Σ q, Σ p and Σ q²/(1 − q), (3, T).

    With them the sums over all of these, and over all other light tokens, (CELL_SUMS,); and between what p/q
    of the cells lies: a bound from below, and the largest mean, octaves taken together.
    """
    numbers = np.empty(1)
    numbers[0] = cut
    bits = numbers.view(np.int64)
    first_over = part_of_ratio(bits[0]) + _PARTS_FROM + 1
    used, size = np.empty((CELL_SUMS, np.count_nonzero(cells[:, :, 0]))), 0
    own, others = np.zeros(CELL_SUMS), np.zeros(CELL_SUMS)
    lowest, highest = np.inf, 0.0
    for cell in range(NUM_CELLS):
        near = cell >= _NEAR_FROM
        over = cell >= (_NEAR_FROM + NEARNESS if near else first_over)
        wanted = (cell > 0) & (over == outer)
        mass, p = 0.0, 0.0
        for octave in range(OCTAVES):
            if cells[cell, octave, 0] == 0.0:
                continue
            for k in range(CELL_SUMS):
                if wanted:
                    own[k] += cells[cell, octave, k]
                    used[k, size] = cells[cell, octave, k]
                else:
                    others[k] += cells[cell, octave, k]
            size += wanted
            mass += cells[cell, octave, 0]
            p += cells[cell, octave, 1]
        if wanted and mass > 0.0:
            highest = max(highest, p / mass)
            numbers[0] = 0.5 * cut
            part = cell - _PARTS_FROM - over
            if not near and part > 0:
                bits[0] = bits_of_part(part)
            elif not near:
                numbers[0] = 0.0
            lowest = min(lowest, max(numbers[0], cut) if over else numbers[0])
    return used[:, :size].copy(), own, others, lowest, highest
