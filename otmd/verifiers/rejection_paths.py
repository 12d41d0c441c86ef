"""Recursive rejection without replacement: certain bounds over all paths of rejected tokens.

After k rejections the target is (p − Cq)₊/W(C) and the next draft comes from q/(1 − R) off the rejected
tokens. The next constant is C' = C + W(C)/(1 − R), token x is drawn and rejected with weight
(C'q(x) − max(p(x), Cq(x)))₊, which sums to W(C'), and the probability that all n drafts are rejected is
the mean of the last W(C') over the paths. C' is convex in C and increases with R: so where the tokens of a
path are known only up to a class, a range of q, the intervals of C and R that follow are certain.
"""

import numpy as np
from numba import njit

from otmd.verifiers.rejection_node import (
    fill_deficits,
    fill_left,
    fill_shares,
    next_state,
    outlook,
    state_at,
)

# Columns of a node: the state after its next rejection, the draft mass left before it, bounds of the mean
# below it, and the share-weighted sums over the children visited so far.
_C_LOW, _C_HIGH, _W_HIGH, _W_LOW, _TAIL = 0, 1, 2, 3, 4
_LEFT_LOW, _LEFT_HIGH, _LOW, _HIGH, _WEIGHT = 5, 6, 7, 8, 9
_LEAST, _MOST, _SUMS = 10, 11, 12
_FIELDS = 18


@njit(cache=True, nogil=True)
def rejection_bounds(curve, classes, num_drafts, negligible, most_nodes):
    """Lower and upper bound of P(all n ≥ 2 drafts are rejected), and how many nodes were looked at.

    A depth-first walk with one row a rejection, after a row 0 for the start at C = 0, since Numba cannot
    cache a recursive function. A subtree whose bounds differ by at most ``negligible``, weighted, is not
    opened.
    """
    num_classes = classes[0].size
    node, used = np.zeros((num_drafts, _FIELDS)), np.full(num_drafts, -1, np.int64)
    deficit, share, left = np.zeros((3, num_drafts, num_classes, 2))
    times = np.zeros(num_classes, np.int64)
    ratio, target_tail, draft_tail = curve
    node[0, :_LEFT_LOW] = state_at(ratio, target_tail, draft_tail, 0.0, 0.0)
    row = looked = 1
    _look(curve, classes, times, node, row, 1.0, 1.0, 1.0)
    while True:
        here = node[row]
        if used[row] < 0:
            uncertain = here[_WEIGHT] * (here[_HIGH] - here[_LOW]) > negligible
            if looked > most_nodes or not uncertain or here[_W_HIGH] == 0.0:
                used[row] = num_classes
            else:
                _open(classes, times, node, row, deficit, share[row], left[row])
                if row == num_drafts - 1:
                    looked += _add_leaves(curve, here, share[row], left[row])
                    used[row] = num_classes
        c = used[row] = _next_class(share[row], used[row])
        if c < num_classes:
            looked += 1
            times[c] += 1
            weight = here[_WEIGHT] * share[row, c, 1]
            row += 1
            _look(
                curve, classes, times, node, row, weight, left[row - 1, c, 0], left[row - 1, c, 1]
            )
            continue
        _close(here)
        if row == 1:
            return here[_LOW], here[_HIGH], looked
        used[row] = -1
        row -= 1
        c = used[row]
        times[c] -= 1
        _add(node[row], share[row, c], here[_LOW], here[_HIGH])


@njit(cache=True, nogil=True)
def _look(curve, classes, times, node, row, weight, left_low, left_high):
    """Fill the row of a node: its next state, and bounds of the mean last W that need no opening."""
    before, here = node[row - 1], node[row]
    ratio, target_tail, draft_tail = curve
    state = next_state(ratio, target_tail, draft_tail, _state(before), left_low, left_high)
    here[_C_LOW], here[_C_HIGH], here[_W_HIGH], here[_W_LOW], here[_TAIL] = state
    here[_LEFT_LOW], here[_LEFT_HIGH], here[_WEIGHT] = left_low, left_high, weight
    steps = node.shape[0] - row
    here[_LOW], here[_HIGH] = outlook(curve, classes, times, steps, state, left_low, left_high)
    here[_LEAST], here[_MOST] = np.inf, -np.inf
    here[_SUMS:] = 0.0


@njit(cache=True, nogil=True)
def _state(here):
    return here[_C_LOW], here[_C_HIGH], here[_W_HIGH], here[_W_LOW], here[_TAIL]


@njit(cache=True, nogil=True)
def _open(classes, times, node, row, deficit, share, left):
    """Find the shares of the node's children, and the draft mass that each leaves."""
    before, here = node[row - 1], node[row]
    fill_deficits(classes, here[_C_LOW], here[_C_HIGH], deficit[row])
    earlier = before[_C_LOW], before[_C_HIGH]
    fill_shares(classes, times, earlier, _state(here), deficit[row - 1], deficit[row], share)
    fill_left(classes, times, here[_LEFT_LOW], here[_LEFT_HIGH], left)


@njit(cache=True, nogil=True)
def _next_class(share, c):
    """The next class after c that can be rejected; how many there are past the last."""
    c = min(c + 1, share.shape[0])
    while c < share.shape[0] and share[c, 1] == 0.0:
        c += 1
    return c


@njit(cache=True, nogil=True)
def _add_leaves(curve, here, share, left):
    """Add the children of a node after whose next rejection one is left; how many there are."""
    ratio, target_tail, draft_tail = curve
    state = _state(here)
    count = 0
    for c in range(share.shape[0]):
        if share[c, 1] > 0.0:
            last = next_state(ratio, target_tail, draft_tail, state, left[c, 0], left[c, 1])
            _add(here, share[c], last[3], last[2])
            count += 1
    return count


@njit(cache=True, nogil=True)
def _add(here, share, low, high):
    """Add a child with bounds of its share and of the mean below it."""
    here[_LEAST], here[_MOST] = min(here[_LEAST], low), max(here[_MOST], high)
    here[_SUMS] += share[0]
    here[_SUMS + 1] += share[1]
    here[_SUMS + 2] += share[0] * low
    here[_SUMS + 3] += share[0] * high
    here[_SUMS + 4] += share[1] * low
    here[_SUMS + 5] += share[1] * high


@njit(cache=True, nogil=True)
def _close(here):
    """Bounds of the mean over the children, whose shares are known up to intervals but sum to 1.

    Only what a child differs by from the least (or most) of them is weighted by an uncertain share.
    """
    least, most = here[_LEAST], here[_MOST]
    if here[_W_HIGH] == 0.0:
        here[_LOW] = here[_HIGH] = 0.0
    elif most >= 0.0:
        low_shares, high_shares, ll, lh, hl, hh = here[_SUMS:]
        low = max(least + ll - least * low_shares, most + hl - most * high_shares)
        high = min(least + hh - least * high_shares, most + lh - most * low_shares)
        low, high = max(here[_LOW], low), min(here[_HIGH], high)
        # Crossed bounds: no path of tokens follows that of the classes, whose share may be 0.
        here[_LOW], here[_HIGH] = min(low, high), max(low, high)
