"""The optimal cuts of a batch with replacement: where they end, what they weigh, and their tokens."""

import numpy as np
from numba import njit

from otmd.curve.ratio_cut import cut_tokens, power, smallest_cuts
from otmd.curve.ratio_groups import AT_A_TIME, fill_ratios

_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _sum_some(target, draft, ratio, end):
    """The p and q of the tokens of p/q below ``end``."""
    p_part, q_part = 0.0, 0.0
    for y in range(target.size):
        below = ratio[y] < end
        p_part += target[y] if below else 0.0
        q_part += draft[y] if below else 0.0
    return p_part, q_part


@njit(cache=True, nogil=True)
def cut_masses(p, q, ends, p_sums, q_sums):
    """Fill p and q (N,) of the tokens of p/q below each end (N,)."""
    p_sums[:], q_sums[:] = 0.0, 0.0
    ratio = np.empty(AT_A_TIME)
    for start in range(0, p.size, AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        target, draft = p[own], q[own]
        fill_ratios(target, draft, ratio)
        for i in range(ends.size):
            p_part, q_part = _sum_some(target, draft, ratio, ends[i])
            p_sums[i] += p_part
            q_sums[i] += q_part


@njit(cache=True, nogil=True)
def cut_rows(p, p_row, q, q_row, first, last, edges, ends, value, found):
    """Cuts H of positions, each a row of p (R, V) and one of q, for n = first … last: shapes (B, N).

    Fills the ratio that H ends below, p(H) − q(H)^n summed over H, and as the search found it.
    """
    size = last - first + 1
    p_sums, q_sums = np.empty(size), np.empty(size)
    for b in range(p_row.size):
        target, draft = p[p_row[b]], q[q_row[b]]
        smallest_cuts(target, draft, first, last, edges, ends[b], found[b])
        cut_masses(target, draft, ends[b], p_sums, q_sums)
        for i in range(size):
            value[b, i] = p_sums[i] - power(min(q_sums[i], 1.0), first + i)


@njit(cache=True, nogil=True)
def cut_subsets(p, p_row, q, q_row, first, ends, value, subset):
    """The tokens H (B, N, V) below the ``ends`` (B, N) of positions, and p(H) − q(H)^n summed over them."""
    size = ends.shape[1]
    p_sums, q_sums = np.empty(size), np.empty(size)
    for b in range(p_row.size):
        cut_tokens(p[p_row[b]], q[q_row[b]], ends[b], subset[b], p_sums, q_sums)
        for i in range(size):
            value[b, i] = p_sums[i] - power(min(q_sums[i], 1.0), first + i)
