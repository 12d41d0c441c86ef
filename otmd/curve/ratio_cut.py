"""The optimal cut of drafts with replacement: tokens grouped by p/q, and finer where the cut may lie.

Inside a block of tokens, whose ratios lie between two edges, the curve of (q(H), p(H)) lies above two lines
with these slopes, and p − q^n above its value where they cross. Blocks that this shows to hold no
better cut are left whole.
"""

import numpy as np
from numba import njit

from otmd.curve.ratio_groups import (
    NUM_GROUPS,
    fill_ratios,
    group_by_ratio,
    split_groups,
    tokens_of_groups,
)

# Rounding can make a prefix look better than a smaller one that is as good.
SLACK = 1e-13

_REASSOCIATE = {"reassoc", "contract", "nsz"}
# One long chain of additions would drift: a sum of sums does not.
_SUMMED_AT_ONCE = 1024


@njit(cache=True, nogil=True)
def power(x, n):
    """x^n for whole n ≥ 1, by squaring."""
    result = 1.0
    while n > 0:
        if n & 1:
            result *= x
        x *= x
        n >>= 1
    return result


@njit(cache=True, nogil=True)
def mark_blocks(edges, p_mass, q_mass, num_drafts, wanted):
    """Mark the blocks (K,) between ``edges`` (K + 1,) in which the smallest best cut for n drafts may end.

    Those are marked that may hold less than every prefix that ends between blocks, or as little as the
    least of these before the first that does.
    """
    least, p, q = 0.0, 0.0, 0.0
    values = np.zeros(p_mass.size + 1)
    for k in range(p_mass.size):
        p += p_mass[k]
        q += q_mass[k]
        values[k + 1] = p - power(q, num_drafts) if q_mass[k] > 0.0 else values[k] + p_mass[k]
        least = min(least, values[k + 1])
    before, p, q = True, 0.0, 0.0
    for k in range(p_mass.size):
        before = before and values[k] > least + SLACK
        enough = least + SLACK if before else least - SLACK
        # With all of its q and none of its p a block is lowest of all.
        if q_mass[k] > 0.0 and values[k + 1] - p_mass[k] <= enough + SLACK:
            left = q_mass[k]
            if edges[k + 1] < np.inf:
                left = (edges[k + 1] * q_mass[k] - p_mass[k]) / (edges[k + 1] - edges[k])
                left = min(max(left, 0.0), q_mass[k])
            lowest = p + edges[k] * left - power(q + left, num_drafts)
            if lowest <= enough:
                wanted[k] = True
        p += p_mass[k]
        q += q_mass[k]


@njit(cache=True, nogil=True)
def _candidates(p, q, edges, p_mass, q_mass, tokens, ratio, blocks, wanted):
    """Prefixes between blocks, and in wanted blocks between ratios: where they end, their p and q."""
    kept = tokens_of_groups(blocks, wanted, blocks.size)
    kept = kept[np.argsort(ratio[kept])]
    tokens, ratio = tokens[kept], ratio[kept]
    most = p_mass.size + kept.size
    ends, p_before, q_before = np.empty(most), np.empty(most), np.empty(most)
    p_sum, q_sum = 0.0, 0.0
    size, used = 0, 0
    for k in range(p_mass.size):
        ends[size], p_before[size], q_before[size] = edges[k], p_sum, q_sum
        size += 1
        if not wanted[k]:
            p_sum += p_mass[k]
            q_sum += q_mass[k]
            continue
        last = k + 1 == p_mass.size
        while used < kept.size and (last or ratio[used] < edges[k + 1]):
            if ratio[used] > ends[size - 1]:
                ends[size], p_before[size], q_before[size] = ratio[used], p_sum, q_sum
                size += 1
            p_sum += p[tokens[used]]
            q_sum += q[tokens[used]]
            used += 1
    return ends[:size], p_before[:size], q_before[:size]


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _least_difference(p, q):
    """The minimum of p(H) − q(H), which the tokens of p < q attain."""
    total = 0.0
    for start in range(0, p.size, _SUMMED_AT_ONCE):
        here, there = p[start : start + _SUMMED_AT_ONCE], q[start : start + _SUMMED_AT_ONCE]
        part = 0.0
        for y in range(here.size):
            part += min(here[y] - there[y], 0.0)
        total += part
    return total


@njit(cache=True, nogil=True)
def smallest_cuts(p, q, first, last, edges, ends, values):
    """The smallest best cuts H for n = first … last drafts with replacement, without a sort of the tokens.

    ``edges`` are those of the groups. H holds the tokens with p/q < ends[i], and p(H) − q(H)^n = values[i].
    """
    if last == 1:
        least = _least_difference(p, q)
        ends[0], values[0] = (1.0, least) if least < -SLACK else (0.0, 0.0)
        return
    group = np.empty(p.size, np.int16)
    p_mass, q_mass = np.zeros(NUM_GROUPS), np.zeros(NUM_GROUPS)
    group_by_ratio(p, q, group, p_mass, q_mass)
    wanted = np.zeros(NUM_GROUPS, np.bool_)
    for n in range(first, last + 1):
        mark_blocks(edges, p_mass, q_mass, n, wanted)
    finer, p_block, q_block, tokens, ratio, blocks = split_groups(
        p, q, group, edges, p_mass, q_mass, wanted
    )
    closer = np.zeros(p_block.size, np.bool_)
    for n in range(first, last + 1):
        mark_blocks(finer, p_block, q_block, n, closer)
    found, p_before, q_before = _candidates(
        p, q, finer, p_block, q_block, tokens, ratio, blocks, closer
    )
    contained, prefix = np.empty(found.size), np.empty(found.size)
    for k in range(found.size):
        contained[k] = power(q_before[k], first)
    for i in range(last - first + 1):
        for k in range(found.size):
            prefix[k] = p_before[k] - contained[k]
            contained[k] *= q_before[k]
        k, least = 0, prefix.min()
        while prefix[k] > least + SLACK:
            k += 1
        ends[i], values[i] = found[k], prefix[k]


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _cut_some(target, draft, ratio, end, inside):
    """Fill ``inside`` with the tokens of p/q below ``end``; their p and q."""
    p_part, q_part = 0.0, 0.0
    for y in range(target.size):
        below = ratio[y] < end
        inside[y] = below
        p_part += target[y] if below else 0.0
        q_part += draft[y] if below else 0.0
    return p_part, q_part


@njit(cache=True, nogil=True)
def cut_tokens(p, q, ends, subsets, p_sums, q_sums):
    """Fill ``subsets`` (N, V) with the tokens of p/q below each end (N,); their p and q, (N,)."""
    p_sums[:], q_sums[:] = 0.0, 0.0
    ratio = np.empty(_SUMMED_AT_ONCE)
    for start in range(0, p.size, _SUMMED_AT_ONCE):
        own = slice(start, start + _SUMMED_AT_ONCE)
        target, draft = p[own], q[own]
        fill_ratios(target, draft, ratio)
        for i in range(ends.size):
            p_part, q_part = _cut_some(target, draft, ratio, ends[i], subsets[i, own])
            p_sums[i] += p_part
            q_sums[i] += q_part
