"""Drawing tokens: from a cumulative distribution, with or without the tokens drawn before."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def draw(cumulative, uniform):
    """The index whose interval of the cumulative distribution holds ``uniform`` of its total."""
    size = cumulative.size
    index = np.searchsorted(cumulative, uniform * cumulative[size - 1], side="right")
    if index == size:
        # uniform · total was rounded up to the total: the last index with mass.
        index = np.searchsorted(cumulative, cumulative[size - 1], side="left")
    return index


@njit(cache=True, nogil=True)
def draw_independent(cumulative, uniforms, out):
    """One index for each uniform number, shapes (S,)."""
    for s in range(uniforms.size):
        out[s] = draw(cumulative, uniforms[s])


@njit(cache=True, nogil=True)
def draw_distinct(cumulative, uniforms, out):
    """N distinct indices a row, each from the mass that the ones before it left; shapes (S, n).

    The mass left is summed gap by gap between the indices taken, so with masses in ascending order
    it keeps its relative accuracy however little of it there is.
    """
    size = cumulative.size
    num_rows, num_drafts = uniforms.shape
    taken = np.empty(num_drafts + 1, np.int64)
    for s in range(num_rows):
        for i in range(num_drafts):
            taken[i] = size
            remaining = 0.0
            start = 0
            for j in range(i + 1):
                remaining += _gap(cumulative, start, taken[j])
                start = taken[j] + 1
            wanted = uniforms[s, i] * remaining
            start = 0
            index = -1
            for j in range(i + 1):
                mass = _gap(cumulative, start, taken[j])
                if mass > 0.0:
                    if wanted < mass:
                        index = _within(cumulative, start, taken[j], wanted)
                        break
                    index = _within(cumulative, start, taken[j], mass)
                wanted -= mass
                start = taken[j] + 1
            out[s, i] = index
            j = i
            while j > 0 and taken[j - 1] > index:
                taken[j] = taken[j - 1]
                j -= 1
            taken[j] = index


@njit(cache=True, nogil=True)
def _gap(cumulative, start, stop):
    if stop <= start:
        return 0.0
    before = cumulative[start - 1] if start > 0 else 0.0
    return cumulative[stop - 1] - before


@njit(cache=True, nogil=True)
def _within(cumulative, start, stop, wanted):
    before = cumulative[start - 1] if start > 0 else 0.0
    gap = cumulative[start:stop]
    index = np.searchsorted(gap, before + wanted, side="right")
    if index == gap.size:
        index = np.searchsorted(gap, gap[gap.size - 1], side="left")
    return start + index


@njit(cache=True, nogil=True)
def draw_conditional_counts(present, counts_after, uniforms, out):
    """Sets of n events given that exactly n occur, one a row: events in turn, by the counts left.

    counts_after[i, m] = P(m of the events i, i + 1, … occur).
    """
    num_rows, num_drafts = out.shape
    size = present.size
    for s in range(num_rows):
        left = num_drafts
        used = 0
        for i in range(size):
            if left == 0:
                break
            chance = present[i] * counts_after[i + 1, left - 1] / counts_after[i, left]
            if uniforms[s, i] < chance:
                out[s, used] = i
                used += 1
                left -= 1


@njit(cache=True, nogil=True)
def counts_from_the_end(absent, present, out):
    """out[i, m] = P(m of the events i, i + 1, … occur); shape (V + 1, M)."""
    size = absent.size
    out[size, :] = 0.0
    out[size, 0] = 1.0
    for i in range(size - 1, -1, -1):
        out[i, 0] = out[i + 1, 0] * absent[i]
        for m in range(1, out.shape[1]):
            out[i, m] = out[i + 1, m] * absent[i] + out[i + 1, m - 1] * present[i]
