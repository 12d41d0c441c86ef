"""Tokens around the cut of two drafts without replacement, see :mod:`otmd.choice.pair_cells`.

There the weights differ most: the nearest tokens are classes of their own, and the cells of others are finer.
"""

import numpy as np
from numba import njit

from otmd.choice.pair_cells import (
    BESIDE,
    CLOSE,
    COLUMNS,
    LARGEST,
    NEAR_FROM,
    NEAREST,
    NEARNESS,
    NUM_PARTS,
    PART_BITS,
    PARTS_FROM,
    add_to_cell,
    part_holding,
    part_of_ratio,
)


@njit(cache=True, nogil=True, error_model="numpy")
def tokens_near(target, draft, tokens, cut, most):
    """Those of the tokens nearer to the cut than ``most``·q, and how near in units of it."""
    near, apart, size = np.empty(tokens.size, np.int32), np.empty(tokens.size), 0
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        q = draft[y]
        if target[y] > 0.0 and q > 0.0:
            away = abs(target[y] / q - cut) / q
            if away < most:
                near[size], apart[size] = y, away
                size += 1
    return near[:size], apart[:size]


@njit(cache=True, nogil=True, error_model="numpy")
def split_cells(target, draft, tokens, single, cut, cells):
    """Tell the tokens around the cut apart by the side that they are on, and by how near they are.

    ``tokens`` are all of some groups. Those that are ``single`` are taken out of the cells.
    """
    broken, of_cut = _broken_parts(target, draft, tokens, single, cut), part_holding(cut)
    for part in range(NUM_PARTS):
        if broken[part]:
            for k in range(COLUMNS):
                cells[PARTS_FROM + part, k] = 0.0
    numbers = np.empty(1)
    bits = numbers.view(np.int64)
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        p, q = target[y], draft[y]
        ratio = p / q if q > 0.0 else 0.0
        numbers[0] = ratio
        part = part_of_ratio(bits[0])
        if not broken[part] or single[y] or q > LARGEST or not 0.0 < ratio < np.inf:
            continue
        over = ratio >= cut
        cell = BESIDE if over and part == of_cut else PARTS_FROM + part
        if abs(ratio - cut) < CLOSE * cut:
            numbers[0] = abs(ratio / cut - 1.0)
            near = min(1023 - (bits[0] >> 52), NEAREST) - PART_BITS - 1
            cell = NEAR_FROM + over * NEARNESS + max(near, 0)
        add_to_cell(cells, cell, p, q, q / (1.0 - q), ratio)


@njit(cache=True, nogil=True, error_model="numpy")
def _broken_parts(target, draft, tokens, single, cut):
    """Which parts do not hold just what they held: those close to the cut, and those of single tokens."""
    broken = np.zeros(NUM_PARTS, np.bool_)
    broken[part_holding((1.0 - CLOSE) * cut) : part_holding((1.0 + CLOSE) * cut) + 1] = True
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        if single[y]:
            broken[part_holding(target[y] / draft[y])] = True
    return broken
