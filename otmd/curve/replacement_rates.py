"""Rates for drafts with replacement in a few passes over the tokens, without a sort."""

import numpy as np
from numba import njit

from otmd.curve.ratio_cut import power
from otmd.curve.ratio_groups import NUM_GROUPS, group_by_ratio, split_groups, tokens_of_groups

_REASSOCIATE = {"reassoc", "contract", "nsz"}
# One long chain of additions would drift: a sum of sums does not.
_SUMMED_AT_ONCE = 1024


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def hockey_stick(p, q, C):
    """W(C) = Σ (p − C q)₊."""
    total = 0.0
    for start in range(0, p.size, _SUMMED_AT_ONCE):
        here, there = p[start : start + _SUMMED_AT_ONCE], q[start : start + _SUMMED_AT_ONCE]
        part = 0.0
        for y in range(here.size):
            part += max(here[y] - C * there[y], 0.0)
        total += part
    return min(total, 1.0)


@njit(cache=True, nogil=True)
def recursive_rejection_chain(p, q, C, W):
    """C_1 = 0, C_{k+1} = C_k + W(C_k); fills C (n + 1,) and W (n + 1,) with the chain and its values."""
    C[0], W[0] = 0.0, 1.0
    for k in range(1, C.size):
        C[k] = C[k - 1] + W[k - 1]
        W[k] = hockey_stick(p, q, C[k])


@njit(cache=True, nogil=True)
def _enough(W, scale, num_drafts):
    """Whether 1 − (1 − β)^n ≤ ρ β, β = (1 − W)/ρ: ρ is large enough to be lossless."""
    return power(1.0 - (1.0 - W) / scale, num_drafts) >= W


@njit(cache=True, nogil=True)
def _scale_between(p, q, tokens, p_above, q_above, low, high, num_drafts):
    """The smallest ρ in (low, high] that is enough, by bisection to the last bit, and W there.

    ``tokens`` have low ≤ p/q ≤ high, and those above have the masses p_above and q_above. Those that
    a half decides about are left out of the next one.
    """
    W_high = p_above - high * q_above
    for i in range(tokens.size):
        W_high += max(p[tokens[i]] - high * q[tokens[i]], 0.0)
    size = tokens.size
    while True:
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            return high, min(max(W_high, 0.0), 1.0)
        W = p_above - middle * q_above
        for i in range(size):
            W += max(p[tokens[i]] - middle * q[tokens[i]], 0.0)
        W = min(max(W, 0.0), 1.0)
        enough = _enough(W, middle, num_drafts)
        kept = 0
        for i in range(size):
            y = tokens[i]
            above = p[y] > middle * q[y]
            if above != enough:
                tokens[kept] = y
                kept += 1
            elif above:
                p_above += p[y]
                q_above += q[y]
        size = kept
        if enough:
            high, W_high = middle, W
        else:
            low = middle


@njit(cache=True, nogil=True)
def _brackets(edges, p_mass, q_mass, p_tail, q_tail, highest, above, wanted):
    """The first edge above 1 that is a large enough ρ for each n, 0 where 1 is; marks the blocks below them.

    Fills the masses from each edge on. Edges from ``highest`` (N,) on count as large enough, and it is
    lowered to the edges found: sums over finer blocks, rounded otherwise, must not leave those marked before.
    """
    p_tail[-1] = q_tail[-1] = 0.0
    for k in range(p_mass.size - 1, -1, -1):
        p_tail[k] = p_tail[k + 1] + p_mass[k]
        q_tail[k] = q_tail[k + 1] + q_mass[k]
    one = np.searchsorted(edges, 1.0)
    for i in range(above.size):
        # What is too small for one draft less is too small.
        k = max(one, above[i - 1]) if i > 0 else one
        while edges[k] < highest[i]:
            W = min(max(p_tail[k] - edges[k] * q_tail[k], 0.0), 1.0)
            if _enough(W, edges[k], i + 1):
                break
            k += 1
        above[i] = k if k > one else 0
        highest[i] = min(highest[i], edges[k])
        if k > one:
            wanted[k - 1] = True


@njit(cache=True, nogil=True)
def k_sequential_scales(p, q, edges, scale, W):
    """ρ* of K-SEQ for n = 1 … N drafts and W there, the smallest ρ in [1, n] with (1 − (1 − W)/ρ)^n ≥ W.

    The upper end of the last bracket is returned: every ρ ≥ ρ* is lossless, none below it is. ``edges`` are
    those of the groups.
    """
    group = np.empty(p.size, np.int16)
    p_mass, q_mass = np.zeros(NUM_GROUPS), np.zeros(NUM_GROUPS)
    group_by_ratio(p, q, group, p_mass, q_mass)
    above, wanted = np.zeros(scale.size, np.int64), np.zeros(NUM_GROUPS, np.bool_)
    p_tail, q_tail = np.empty(NUM_GROUPS + 1), np.empty(NUM_GROUPS + 1)
    # A single draft needs ρ = 1, and n drafts at most n.
    highest = np.arange(1.0, scale.size + 1.0)
    _brackets(edges, p_mass, q_mass, p_tail, q_tail, highest, above, wanted)
    edges, p_mass, q_mass, tokens, _, blocks = split_groups(
        p, q, group, edges, p_mass, q_mass, wanted
    )
    closer = np.zeros(p_mass.size, np.bool_)
    p_tail, q_tail = np.empty(edges.size), np.empty(edges.size)
    _brackets(edges, p_mass, q_mass, p_tail, q_tail, highest, above, closer)
    kept = tokens_of_groups(blocks, closer, blocks.size)
    tokens, blocks = tokens[kept], blocks[kept]
    one = np.searchsorted(edges, 1.0)
    for i in range(scale.size):
        k = above[i]
        if k == 0:
            scale[i], W[i] = 1.0, min(max(p_tail[one] - q_tail[one], 0.0), 1.0)
        else:
            own = tokens[blocks == k - 1]
            ends = edges[k - 1], min(edges[k], float(i + 1)), i + 1
            scale[i], W[i] = _scale_between(p, q, own, p_tail[k], q_tail[k], *ends)


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def inclusion_probs(q, num_drafts, out):
    """1 − (1 − q)^n as q Σ (1 − q)^i, i < n: every term is positive."""
    for start in range(0, q.size, _SUMMED_AT_ONCE):
        here, there = q[start : start + _SUMMED_AT_ONCE], out[start : start + _SUMMED_AT_ONCE]
        # All tokens in step vectorise.
        for y in range(here.size):
            there[y] = 1.0
        for _ in range(num_drafts - 1):
            for y in range(here.size):
                there[y] = 1.0 + (1.0 - here[y]) * there[y]
        for y in range(here.size):
            there[y] = min(here[y] * there[y], 1.0)


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def hit_rate(p, q, num_drafts):
    """Σ p (1 − (1 − q)^n)."""
    total, included = 0.0, np.empty(_SUMMED_AT_ONCE)
    for start in range(0, p.size, _SUMMED_AT_ONCE):
        here, there = p[start : start + _SUMMED_AT_ONCE], q[start : start + _SUMMED_AT_ONCE]
        inclusion_probs(there, num_drafts, included)
        part = 0.0
        for y in range(here.size):
            part += here[y] * included[y]
        total += part
    return total


@njit(cache=True, nogil=True)
def least_sum_beside(p, q, tokens):
    """Σ min(p, q'), where q' is what q leaves beside these tokens, which ascend, renormalised."""
    left, start = 0.0, 0
    for i in range(tokens.size + 1):
        end = tokens[i] if i < tokens.size else q.size
        left += _sum(q[start:end])
        start = end + 1
    total, start = 0.0, 0
    for i in range(tokens.size + 1):
        end = tokens[i] if i < tokens.size else q.size
        total += _scaled_least_sum(p[start:end], q[start:end], left)
        start = end + 1
    return total


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _sum(values):
    total = 0.0
    for start in range(0, values.size, _SUMMED_AT_ONCE):
        here, part = values[start : start + _SUMMED_AT_ONCE], 0.0
        for y in range(here.size):
            part += here[y]
        total += part
    return total


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE, error_model="numpy")
def _scaled_least_sum(p, q, scale):
    """Σ min(p, q/scale), 0 where scale is."""
    total = 0.0
    if scale == 0.0:
        return total
    for start in range(0, p.size, _SUMMED_AT_ONCE):
        here, there = p[start : start + _SUMMED_AT_ONCE], q[start : start + _SUMMED_AT_ONCE]
        part = 0.0
        for y in range(here.size):
            part += min(here[y], there[y] / scale)
        total += part
    return total


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def sum_where(values, subset):
    """Σ of the values in the subset."""
    total = 0.0
    for start in range(0, values.size, _SUMMED_AT_ONCE):
        own, inside = (
            values[start : start + _SUMMED_AT_ONCE],
            subset[start : start + _SUMMED_AT_ONCE],
        )
        part = 0.0
        for y in range(own.size):
            part += own[y] if inside[y] else 0.0
        total += part
    return total
