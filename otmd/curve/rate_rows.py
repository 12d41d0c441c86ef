"""Rates in closed form at the positions of a batch, each of which reads a row of p and one of q.

All fill ``out`` (B, N): the rate at each position for each of N laws.
"""

import numpy as np
from numba import njit

from otmd.curve.ratio_cut import power
from otmd.curve.replacement_rates import (
    hit_rate,
    k_sequential_scales,
    least_sum_beside,
    recursive_rejection_chain,
)
from otmd.curve.search import likeliest


@njit(cache=True, nogil=True)
def recursive_rejection_rates(p, p_row, q, q_row, counts, out):
    """1 − W(C_{n+1}) of recursive rejection with replacement, for ``counts`` (N,) of drafts, ascending."""
    most = counts[-1]
    C, W = np.empty(most + 1), np.empty(most + 1)
    for b in range(p_row.size):
        recursive_rejection_chain(p[p_row[b]], q[q_row[b]], C, W)
        for i in range(counts.size):
            out[b, i] = 1.0 - W[counts[i]]


@njit(cache=True, nogil=True)
def k_sequential_rates(p, p_row, q, q_row, counts, edges, out):
    """1 − (1 − β)^n of K-SEQ, β = (1 − W(ρ*))/ρ*, for ``counts`` (N,) of drafts, ascending.

    ``edges`` are those of the groups.
    """
    most = counts[-1]
    scale, left = np.empty(most), np.empty(most)
    for b in range(p_row.size):
        k_sequential_scales(p[p_row[b]], q[q_row[b]], edges, scale, left)
        for i in range(counts.size):
            n = counts[i]
            accepted_once = (1.0 - left[n - 1]) / scale[n - 1]
            out[b, i] = 1.0 - power(1.0 - accepted_once, n)


@njit(cache=True, nogil=True)
def hit_rates(p, p_row, q, q_row, counts, out):
    """Σ p (1 − (1 − q)^n), for ``counts`` (N,) of drafts."""
    for b in range(p_row.size):
        for i in range(counts.size):
            out[b, i] = hit_rate(p[p_row[b]], q[q_row[b]], counts[i])


@njit(cache=True, nogil=True)
def rates_beside_likeliest(p, p_row, q, q_row, tops, out):
    """p(Top) + Σ min(p, q'), where Top are the m likeliest tokens of q and q' is what it leaves beside them.

    For each m of ``tops`` (N,), ascending.
    """
    for b in range(p_row.size):
        target, draft = p[p_row[b]], q[q_row[b]]
        best = likeliest(draft, tops[-1])
        for i in range(tops.size):
            forced = np.sort(best[: tops[i]])
            rate = least_sum_beside(target, draft, forced)
            for k in range(forced.size):
                rate += target[forced[k]]
            out[b, i] = rate
