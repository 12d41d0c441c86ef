"""Which blocks of tokens may hold the best cut without replacement, and blocks opened and split.

A block begins at the ratio ``low`` and may be ``single``: have no other. A row of ``sums`` is that of
:mod:`otmd.race.race_blocks`.
"""

import numpy as np
from numba import njit

from otmd.curve.ratio_cut import SLACK
from otmd.curve.ratio_groups import MANTISSA_BITS
from otmd.race.race_blocks import ALONE, DRAFT, TARGET, sums_of_tokens

# Groups of a factor of two: the first group and the last one are beyond all others.
_AN_OCTAVE = 1 << MANTISSA_BITS


@njit(cache=True, nogil=True)
def fill_outside(sums, unit, outside):
    """Q of the tokens from each block on (K + 1,), in the unit of rates."""
    total = 0.0
    outside[-1] = 0.0
    for k in range(len(sums) - 1, -1, -1):
        total += sums[k, DRAFT]
        outside[k] = unit * total


@njit(cache=True, nogil=True)
def bound_blocks(low, single, sums, outside, several, unit, contained, values):
    """Mark the blocks (K,) that may hold the smallest minimiser of p − g for any number of drafts.

    ``several`` (N, K + 1) are times of more than one arrival, 0 for two drafts. Fills g and p − g before each
    block and of all, (N, K + 1). Marked are those that may hold less than every prefix known, or as little as
    the least before the first that does.
    """
    at_issue = np.zeros(low.size, np.bool_)
    target = np.empty(low.size + 1)
    target[0], alone = 0.0, 1.0 / unit
    for k in range(low.size + 1):
        if k > 0:
            target[k] = target[k - 1] + sums[k - 1, TARGET]
            alone += sums[k - 1, ALONE]
        for i in range(len(several)):
            contained[i, k] = min(max(1.0 - outside[k] * (alone + several[i, k]), 0.0), 1.0)
            values[i, k] = target[k] - contained[i, k]
    for i in range(len(several)):
        best, before = values[i].min(), True
        for k in range(low.size):
            before = before and values[i, k] > best + SLACK
            # Tokens that are never drafted have no ratio, and come last.
            if single[k] or sums[k, DRAFT] == 0.0:
                continue
            lowest = target[k] + low[k] * sums[k, DRAFT] - contained[i, k + 1]
            if min(values[i, k], lowest) <= (best + SLACK if before else best - SLACK):
                at_issue[k] = True
    return at_issue


@njit(inline="always")
def _octave_of(group):
    """The octave of a group, the first of which is the first group."""
    return (group + _AN_OCTAVE - 1) // _AN_OCTAVE


@njit(cache=True, nogil=True)
def octaves(low, sums):
    """Groups by octaves: where each begins, and its sums."""
    count = _octave_of(low.size - 1) + 1
    own, total = np.empty(count), np.zeros((count, sums.shape[1]))
    for k in range(low.size - 1, -1, -1):
        octave = _octave_of(k)
        own[octave] = low[k]
        for r in range(sums.shape[1]):
            total[octave, r] += sums[k, r]
    return own, total


@njit(cache=True, nogil=True)
def open_octaves(low, sums, own, total, at_issue):
    """Replace the octaves at issue by their groups; the number of each block's group, −1 for an octave."""
    lows, rows = np.empty(low.size), np.empty(sums.shape)
    group = np.empty(low.size, np.int64)
    size, last = 0, -1
    for k in range(low.size):
        octave = _octave_of(k)
        if not at_issue[octave] and octave == last:
            continue
        whole, last = not at_issue[octave], octave
        lows[size], group[size] = own[octave] if whole else low[k], -1 if whole else k
        for r in range(sums.shape[1]):
            rows[size, r] = total[octave, r] if whole else sums[k, r]
        size += 1
    return lows[:size], rows[:size], group[:size]


@njit(cache=True, nogil=True)
def split_blocks(low, single, sums, chosen, p, q, race, tokens, ratios, parts):
    """Split the chosen blocks, which hold these tokens, at some of their ``ratios``, ascending and distinct.

    Into about so many parts, each of which begins at a ratio; none reaches across two blocks.
    """
    every = max(1, ratios.size // parts)
    starts = np.zeros(ratios.size + 1, np.bool_)
    starts[: ratios.size : every] = True
    for k in range(low.size):
        if chosen[k]:
            starts[np.searchsorted(ratios, low[k])] = True
    own = ratios[starts[: ratios.size]]
    added = np.zeros((own.size, sums.shape[1]))
    sums_of_tokens(p, q, tokens, own, race, added)
    size = np.count_nonzero(~chosen) + own.size
    lows, alone, rows = np.empty(size), np.empty(size, np.bool_), np.empty((size, sums.shape[1]))
    k = i = 0
    for j in range(size):
        while k < low.size and chosen[k]:
            k += 1
        kept = i == own.size or (k < low.size and low[k] <= own[i])
        lows[j], alone[j] = (low[k], single[k]) if kept else (own[i], every == 1)
        for r in range(sums.shape[1]):
            rows[j, r] = sums[k, r] if kept else added[i, r]
        k, i = k + kept, i + (not kept)
    return lows, alone, rows
