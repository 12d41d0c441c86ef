"""W(C) = Σ (p − Cq)₊ at the C that recursive rejection visits: 0, 1, and those of an interval.

The interval begins with 1 + W(1). Tokens with p/q up to 1, from there to the interval, and beyond it stand
on the same side of every C: they are merged, and only the others are kept one by one, in the order of p/q.
"""

import numpy as np
from numba import njit

from otmd.curve.ratio_groups import AT_A_TIME, fill_ratios
from otmd.curve.search import count_at_most
from otmd.verifiers.rejection_node import FARTHEST

_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _add_part(p, q, ratio, low, high, sums):
    """Add p and q of the tokens with low < p/q ≤ high; how many there are."""
    count, p_sum, q_sum = 0, 0.0, 0.0
    for y in range(p.size):
        inside = low < ratio[y] <= high
        count += 1 if inside else 0
        p_sum += p[y] if inside else 0.0
        q_sum += q[y] if inside else 0.0
    sums[0] += p_sum
    sums[1] += q_sum
    return count


@njit(cache=True, nogil=True)
def merged_tokens(p, q, interval, merged):
    """The tokens with p/q in an interval above 1.

    Fills merged (3, 2) with p and q of the tokens up to 1, from there to the interval, and beyond it.
    """
    ratio, kept = np.empty(AT_A_TIME), np.zeros(2)
    first, last = interval
    count = 0
    for start in range(0, p.size, AT_A_TIME):
        here, there = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        fill_ratios(here, there, ratio)
        _add_part(here, there, ratio, -1.0, 1.0, merged[0])
        _add_part(here, there, ratio, 1.0, first, merged[1])
        _add_part(here, there, ratio, last, np.inf, merged[2])
        count += _add_part(here, there, ratio, first, last, kept)
    # Written in any case and counted if inside: a branch would be guessed wrongly over and over.
    tokens, k = np.empty(count + 1, np.int32), 0
    for start in range(0, p.size, AT_A_TIME):
        here, there = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        fill_ratios(here, there, ratio)
        for i in range(here.size):
            tokens[k] = start + i
            k += first < ratio[i] <= last
    return tokens[:count]


@njit(cache=True, nogil=True)
def fill_tails(p, q, tokens, merged, p_tail, q_tail):
    """Masses from each entry of the curve on: two of merged tokens, the others, one merged, and nothing."""
    k = tokens.size + 3
    p_tail[k] = q_tail[k] = 0.0
    p_tail[k - 1], q_tail[k - 1] = merged[2]
    for i in range(tokens.size - 1, -1, -1):
        p_tail[i + 2] = p_tail[i + 3] + p[tokens[i]]
        q_tail[i + 2] = q_tail[i + 3] + q[tokens[i]]
    for i in (1, 0):
        p_tail[i] = p_tail[i + 1] + merged[i, 0]
        q_tail[i] = q_tail[i + 1] + merged[i, 1]


@njit(cache=True, nogil=True)
def two_draft_rejection(curve, p, q, first, others):
    """P(both of two drafts are rejected), exactly: one term a token that is drafted.

    ``first`` is W(1), ``others`` the 1 − q of a token of more than half.
    """
    ratio, p_tail, q_tail = curve
    nearest = count_at_most(ratio, 1.0 + first)
    total = 0.0
    for start in range(0, q.size, AT_A_TIME):
        target, draft = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        part = 0.0
        for y in range(draft.size):
            weight = draft[y] - target[y]
            if weight <= 0.0:
                continue
            C = min(1.0 + first / (others if draft[y] > 0.5 else 1.0 - draft[y]), FARTHEST)
            # All but a few tokens are so unlikely that C stays where it would be without them.
            k = nearest
            if k < ratio.size and ratio[k] <= C:
                k += count_at_most(ratio[k:], C)
            part += weight * min(max(p_tail[k] - C * q_tail[k], 0.0), 1.0)
        total += part
    return total / first if first > 0.0 else 0.0
