"""Tokens of two drafts without replacement that are alike in p/q: cells, from one pass over the vocabulary.

A part of the ratios has an exponent and so many bits of the mantissa; those beyond 2^±40 are one. Tokens
nearer to the cut than a part is wide are told apart by octaves of how near. Tokens of large q are in no cell.
"""

import numpy as np
from numba import njit

from otmd.curve.ratio_groups import (
    AT_A_TIME,
    FARTHEST_OCTAVE,
    MANTISSA_BITS,
    NUM_GROUPS,
    fill_ratios,
)
from otmd.race.block_sums import ALONE, DRAFT, TARGET

PART_BITS = 6
_PART_SHIFT = 52 - PART_BITS
_PART_OFFSET = (1023 - FARTHEST_OCTAVE) << PART_BITS
# A group of ratios, see :mod:`otmd.curve.ratio_groups`, consists of whole parts.
_GROUP_SHIFT = PART_BITS - MANTISSA_BITS
NUM_PARTS = (2 * FARTHEST_OCTAVE + 1) << PART_BITS
# Cells hold no token of larger q; there are fewer than so many of these.
LARGEST, MOST_LARGER = 2.0**-11, 2**11
# Tokens closer to the cut, in units of it, are near: a part is no wider.
CLOSE = 2.0**-PART_BITS
NEAREST = 28
NEARNESS = NEAREST - PART_BITS
# Those that are never chosen, as p = 0; the parts, and tokens from the cut on where the cut's own part is one
# of those beyond; near tokens, those below the cut first; last what is never drafted, and what is in no cell.
INERT, PARTS_FROM = 0, 1
BESIDE = PARTS_FROM + NUM_PARTS
NEAR_FROM = BESIDE + 1
UNDRAFTED = NEAR_FROM + 2 * NEARNESS
LARGER = UNDRAFTED + 1
NUM_CELLS = LARGER + 1
# Columns of a cell: Σ q, Σ p, Σ q²/(1 − q), how many tokens it holds, and how far their places may reach: by
# what it does not meet of itself a token is moved by less than 2q/(1 − q).
CELL_SUMS, COUNT, REACH, COLUMNS = 3, 3, 4, 5


@njit(inline="always")
def part_of_ratio(bits):
    """The part of a ratio with these bits: those of a positive float64 are ordered as the numbers are."""
    return min(max((bits >> _PART_SHIFT) - _PART_OFFSET, 0), NUM_PARTS - 1)


@njit(inline="always")
def bits_of_part(part):
    """The bits of the smallest ratio of a part, for the first one of what would be."""
    return (part + _PART_OFFSET) << _PART_SHIFT


@njit(inline="always")
def add_to_cell(cells, row, p, q, odds, ratio):
    """Add a token to a cell."""
    cells[row, 0] += q
    cells[row, 1] += p
    cells[row, 2] += q * odds
    cells[row, COUNT] += 1.0
    cells[row, REACH] = max(cells[row, REACH], ratio + 2.0 * odds)


@njit(cache=True, nogil=True, error_model="numpy")
def sum_cells(target, draft, group, cell, cells, larger):
    """Add tokens to the cells (NUM_CELLS, COLUMNS) of their parts; fill the group and the cell of each, (V,).

    ``larger`` (MOST_LARGER + 1,) is filled with those of larger q than cells hold. Returns how many.
    """
    ratio, odds = np.empty(AT_A_TIME), np.empty(AT_A_TIME)
    bits, count = ratio.view(np.int64), np.uint64(0)
    for start in range(0, draft.size, AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        p, q, groups, rows = target[own], draft[own], group[own], cell[own]
        fill_ratios(p, q, ratio)
        for i in range(q.size):
            odds[i] = q[i] / (1.0 - q[i])
        for i in range(q.size):
            part = part_of_ratio(bits[i])
            groups[i] = min(part >> _GROUP_SHIFT, NUM_GROUPS - 1)
            drafted = PARTS_FROM + part if ratio[i] > 0.0 else INERT
            drafted = drafted if ratio[i] < np.inf else UNDRAFTED
            rows[i] = drafted if q[i] <= LARGEST else LARGER
        for i in range(q.size):
            add_to_cell(cells, np.uint64(rows[i]), p[i], q[i], odds[i], ratio[i])
        for i in range(q.size):
            # Written in any case and counted if wanted: a branch would be guessed wrongly over and over.
            larger[count] = start + i
            count += np.uint64(q[i] > LARGEST)
    return count


@njit(cache=True, nogil=True)
def sum_groups(cells, unit, sums):
    """Add cells to the sums of their groups (NUM_GROUPS, 3), see :mod:`otmd.race.block_sums`."""
    for cell in range(UNDRAFTED + 1):
        group = min(max(cell - PARTS_FROM, 0) >> _GROUP_SHIFT, NUM_GROUPS - 1)
        sums[group, TARGET] += cells[cell, 1]
        sums[group, DRAFT] += cells[cell, 0]
        sums[group, ALONE] += (cells[cell, 0] + cells[cell, 2]) / unit


@njit(cache=True, nogil=True)
def part_holding(ratio):
    """The part that this ratio is in."""
    numbers = np.empty(1)
    numbers[0] = ratio
    return part_of_ratio(numbers.view(np.int64)[0])


@njit(cache=True, nogil=True)
def nearest_edge(ratio):
    """The nearer one of the ratios at which the part of this ratio begins and ends."""
    edges = np.empty(2)
    edges.view(np.int64)[0] = bits_of_part(part_holding(ratio))
    edges.view(np.int64)[1] = bits_of_part(part_holding(ratio) + 1)
    return edges[0] if ratio - edges[0] < edges[1] - ratio else edges[1]


@njit(inline="always")
def part_of_cell(cell):
    """The part that is this cell, or −1 where it is none."""
    return cell - PARTS_FROM if PARTS_FROM <= cell < BESIDE else -1


@njit(inline="always")
def beside_cut(cell, of_cut):
    """Whether the tokens of a cell are from the cut on, which is in this part."""
    return cell >= (NEAR_FROM + NEARNESS if cell >= NEAR_FROM else PARTS_FROM + of_cut + 1)


@njit(cache=True, nogil=True)
def used_cells(cells, cut, outer):
    """The cells of a side that hold tokens which may be chosen: Σ q, Σ p and Σ q²/(1 − q), (3, T).

    With them the sums over all other cells, (CELL_SUMS,), what p/q of the cells are not below, the largest
    mean of them, and how far places may reach.
    """
    edge, of_cut = np.empty(1), part_holding(cut)
    bits = edge.view(np.int64)
    used, size, others = np.empty((CELL_SUMS, NUM_CELLS)), 0, np.zeros(CELL_SUMS)
    lowest, highest, reach = np.inf, 0.0, 0.0
    for cell in range(UNDRAFTED):
        if cells[cell, 0] == 0.0:
            continue
        if cell == INERT or beside_cut(cell, of_cut) != outer:
            for k in range(CELL_SUMS):
                others[k] += cells[cell, k]
            continue
        for k in range(CELL_SUMS):
            used[k, size] = cells[cell, k]
        size += 1
        highest = max(highest, cells[cell, 1] / cells[cell, 0])
        reach = max(reach, cells[cell, REACH])
        part = part_of_cell(cell)
        bits[0] = bits_of_part(max(part, 0))
        lowest = min(lowest, edge[0] if part > 0 else 0.0 if part == 0 else (1.0 - CLOSE) * cut)
    return used[:, :size].copy(), others, max(lowest, cut) if outer else lowest, highest, reach
