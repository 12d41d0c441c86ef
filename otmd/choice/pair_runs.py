"""Tokens of two drafts without replacement in runs: all of a run lie between the same two nodes.

What a part of the ratios holds (see :mod:`otmd.choice.pair_cells`) is in one run where the values of the
nodes leave no doubt; near them, and near the cut, tokens stand alone.
"""

import numpy as np
from numba import njit

from otmd.choice.pair_cells import (
    CELL_SUMS,
    COUNT,
    LARGER,
    LARGEST,
    NUM_CELLS,
    NUM_PARTS,
    PARTS_FROM,
    UNDRAFTED,
    beside_cut,
    part_holding,
    part_of_cell,
)
from otmd.choice.pair_places import SUMS, bent_share, effective_terms

# No run of a token that stands alone, and none of one that is beyond what any node gives.
ALONE, BEYOND = -1, -2
_MOST_ODDS = LARGEST / (1.0 - LARGEST)
_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True)
def parts_between(terms, lowest, ends, margin):
    """The first part of each run and the one after its last, (G, 2); in the last row those beyond.

    Run g is that between the nodes g and g + 1, of which none is below node ``lowest``. Only parts between
    the ``ends``, two ratios, are in runs, and none that holds a node's value, or would if that moved by the
    ``margin`` in units of it.
    """
    base, slope, _ = effective_terms(terms)
    parts, size = np.zeros((base.size, 2), np.int64), base.size
    least, most = np.full(size + 1, np.inf), np.zeros(size)
    for g in range(size):
        moved, below = _MOST_ODDS * slope[g], most[g - 1] if g > 0 else 0.0
        most[g] = max((1.0 + margin) * (base[g] + max(moved, 0.0)), below)
        least[g] = (1.0 - margin) * (base[g] + min(moved, 0.0))
    for g in range(size - 1, lowest - 1, -1):
        # Should values not ascend, a run is above all nodes before it and below all that follow.
        least[g] = min(least[g], least[g + 1])
        parts[g, 0] = part_holding(max(most[g], ends[0])) + 1
        parts[g, 1] = max(part_holding(min(least[g + 1], ends[1])), parts[g, 0])
    return parts


@njit(cache=True, nogil=True)
def fill_runs(parts, runs):
    """Fill the run of each part (NUM_PARTS,) that is in one."""
    last = len(parts) - 1
    for g in range(len(parts)):
        for part in range(parts[g, 0], parts[g, 1]):
            runs[part] = g if g < last else BEYOND


@njit(cache=True, nogil=True)
def count_runs(cells, cut, runs, counts, beyond):
    """Add up how many tokens of cells each run holds, and the sums of what is beyond, (2, CELL_SUMS).

    A row of the counts (2, R + 1) is a side's, H* first; the last of it are those that stand alone.
    """
    of_cut = part_holding(cut)
    for cell in range(PARTS_FROM, UNDRAFTED):
        if cells[cell, COUNT] == 0.0:
            continue
        side, part = int(beside_cut(cell, of_cut)), part_of_cell(cell)
        run = runs[part] if part >= 0 else ALONE
        if run == BEYOND:
            for k in range(CELL_SUMS):
                beyond[side, k] += cells[cell, k]
        else:
            counts[side, run] += int(cells[cell, COUNT])


@njit(cache=True, nogil=True, error_model="numpy")
def sort_tokens(target, draft, cell, cut, runs, starts, tokens):
    """Fill the ``tokens`` (T + 1,) of each run from its start on; the starts are laid out as the counts are.

    Left out are tokens whose ``cell`` is that of tokens which are never chosen or never drafted, and those
    beyond. The last entry is of no use.
    """
    width, left_out = starts.shape[1], np.uint64(starts.size)
    rows, place = _rows_of_cells(runs, cut, width), np.empty(starts.size + 1, np.uint64)
    for row in range(starts.size):
        place[row] = starts[row // width, row % width]
    # What is left out is written over and over where nothing else is.
    place[left_out] = tokens.size - 1
    for y in range(np.uint64(draft.size)):
        row = rows[np.uint64(cell[y])]
        if row > left_out:
            ratio = target[y] / draft[y]
            row = np.uint64(width - 1 + width * (ratio >= cut)) if ratio > 0.0 else left_out
        k = place[row]
        tokens[k] = y
        place[row] = k + np.uint64(row != left_out)


@njit(cache=True, nogil=True)
def _rows_of_cells(runs, cut, width):
    """The row of each cell's run where a side has so many; one too many for all where only p/q can tell."""
    left_out, of_cut = 2 * width, part_holding(cut)
    rows = np.full(NUM_CELLS, left_out, np.uint64)
    for part in range(NUM_PARTS):
        run = width - 1 if runs[part] == ALONE else runs[part]
        rows[PARTS_FROM + part] = left_out if run == BEYOND else run + width * (part > of_cut)
    rows[PARTS_FROM + of_cut] = rows[LARGER] = left_out + 1
    return rows


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_REASSOCIATE)
def _sum_run(target, draft, tokens, low, high, bend):
    """The sums of a run between nodes of these values, as in :mod:`otmd.choice.pair_places`."""
    mass, below, square, square_below, square_both = 0.0, 0.0, 0.0, 0.0, 0.0
    short, missing_below, missing = 0.0, 0.0, 0.0
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        q = draft[y]
        ratio, odds = target[y] / q, q / (1.0 - q)
        least, most = low[0] + odds * low[1], high[0] + odds * high[1]
        width, bent = 1.0 / (most - least), 2.0 * odds * bend
        s = bent_share((most - ratio) * width, bent * width)
        lost = q * (ratio - (s * least + (1.0 - s) * (most + s * bent)))
        e = q * odds
        mass += q
        below += q * s
        square += e
        square_below += e * s
        square_both += e * s * s
        short += max(lost, 0.0)
        missing += lost
        missing_below += lost * s
    sums = mass, below, square, square_below, square_both, missing_below, missing - missing_below
    return sums, short, short - missing


@njit(cache=True, nogil=True)
def sum_runs(target, draft, tokens, starts, terms, sums):
    """Place the tokens of runs, which begin at the ``starts`` (G,), and add up their masses.

    Returns the mass that tokens want and that their places do not give, and what these give too much;
    ``sums`` (G − 1, SUMS) is added to. See :mod:`otmd.choice.pair_places`.
    """
    base, slope, bend = effective_terms(terms)
    short, excess = 0.0, 0.0
    for g in range(len(sums)):
        own = tokens[starts[g] : starts[g + 1]]
        ends = (base[g], slope[g]), (base[g + 1], slope[g + 1])
        added, missing, spare = _sum_run(target, draft, own, *ends, bend[g])
        for k in range(SUMS):
            sums[g, k] += added[k]
        short, excess = short + missing, excess + spare
    return short, excess
