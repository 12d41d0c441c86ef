"""Recursive rejection without replacement: certain bounds over all paths of rejected tokens.

After k rejections the target is (p − Cq)₊/W(C) and the next draft comes from q/(1 − R) off the rejected
tokens. The next constant is C' = C + W(C)/(1 − R), token x is drawn and rejected with weight
(C'q(x) − max(p(x), Cq(x)))₊, which sums to W(C'), and the probability that all n drafts are rejected is
the mean of the last W(C') over the paths. C' is convex in C and increases with R: so where the tokens of a
path are known only up to a class, a range of q, the intervals of C and R that follow are certain.
"""

import numpy as np
from numba import njit

from otmd.kernels.curve import hockey_stick

# No C lies beyond it while the draft mass left is a normal float64.
_FARTHEST = 1.7e308
_ROUNDING = 1e-15
_MOST_APART = 8.0

# Columns of a node: the state before and after its next rejection, bounds of the mean below it, and the
# share-weighted sums over the children visited so far.
_C_LOW, _C_HIGH, _LEFT_LOW, _LEFT_HIGH = 0, 1, 2, 3
_NEXT_LOW, _NEXT_HIGH, _W_LOW, _W_HIGH = 4, 5, 6, 7
_LOW, _HIGH, _WEIGHT, _SHARE_LOW, _SHARE_HIGH, _LEAST, _MOST = 8, 9, 10, 11, 12, 13, 14
_SUMS = 15
_FIELDS = 21


@njit(cache=True)
def classes_of_mass(mass, widest, rank):
    """Cut descending masses into classes of mass times range at most ``widest``; how many there are.

    Where little mass is left the smallest tokens matter: they must not drown in the rounding of large ones.
    """
    count = 0
    first, total = mass[0], 0.0
    for i in range(mass.size):
        total += mass[i]
        if total * (first - mass[i]) > widest or first > _MOST_APART * mass[i]:
            count += 1
            first, total = mass[i], mass[i]
        rank[i] = count
    return count + 1


@njit(cache=True)
def mass_before_in_class(mass, starts, out):
    """Masses before each token of its class: class c fills out[starts[c] + c : starts[c + 1] + c + 1]."""
    for c in range(starts.size - 1):
        total = 0.0
        for i in range(starts[c], starts[c + 1]):
            out[i + c] = total
            total += mass[i]
        out[starts[c + 1] + c] = total


@njit(cache=True)
def two_draft_rejection(ratio, target_tail, draft_tail, target, draft, left_after):
    """P(both of two drafts are rejected), exactly: one term a token."""
    first = hockey_stick(ratio, target_tail, draft_tail, 1.0)
    if first == 0.0:
        return 0.0
    total = 0.0
    for x in range(draft.size):
        weight = draft[x] - target[x]
        if weight > 0.0 and left_after[x] > 0.0:
            C = min(1.0 + first / left_after[x], _FARTHEST)
            total += weight * hockey_stick(ratio, target_tail, draft_tail, C)
    return total / first


@njit(cache=True)
def rejection_bounds(curve, classes, num_drafts, negligible, most_nodes):
    """Lower and upper bound of P(all n ≥ 2 drafts are rejected), and how many nodes were looked at.

    A depth-first walk with one row of ``node`` a rejection, since Numba cannot cache a recursive function.
    A subtree whose bounds differ by at most ``negligible``, weighted, is not opened.
    """
    node = np.zeros((num_drafts, _FIELDS))
    used = np.full(num_drafts, -1, np.int64)
    depth = 0
    looked = 1
    node[0, _LEFT_LOW] = node[0, _LEFT_HIGH] = node[0, _WEIGHT] = 1.0
    _look(curve, classes, used, node, 0, num_drafts)
    while True:
        if used[depth] < 0 and (
            looked > most_nodes
            or node[depth, _WEIGHT] * (node[depth, _HIGH] - node[depth, _LOW]) <= negligible
        ):
            used[depth] = classes[0].size
        child = _next_child(classes, used, node, depth)
        if child:
            looked += 1
            if _enter(curve, classes, used, node, depth + 1, num_drafts):
                depth += 1
            continue
        _close(node, depth)
        if depth == 0:
            return node[0, _LOW], node[0, _HIGH], looked
        used[depth] = -1
        depth -= 1
        _add(node, depth, node[depth + 1, _LOW], node[depth + 1, _HIGH])


@njit(cache=True)
def _look(curve, classes, used, node, depth, num_drafts):
    """The next state of a node, and bounds of the mean last W below it that need no opening."""
    here = node[depth]
    here[_NEXT_LOW], here[_NEXT_HIGH] = _advance(
        curve, here[_C_LOW], here[_C_HIGH], here[_LEFT_LOW], here[_LEFT_HIGH]
    )
    here[_W_HIGH] = _hockey_stick(curve, here[_NEXT_LOW])
    here[_W_LOW] = here[_W_HIGH]
    if here[_NEXT_HIGH] != here[_NEXT_LOW]:
        here[_W_LOW] = _hockey_stick(curve, here[_NEXT_HIGH])
    here[_LOW], here[_HIGH] = here[_W_LOW], here[_W_HIGH]
    remaining = num_drafts - depth
    if remaining > 1:
        here[_LOW], here[_HIGH] = _outlook(curve, classes, used, here, depth, remaining)
    here[_SUMS:] = 0.0
    here[_LEAST], here[_MOST] = np.inf, -np.inf


@njit(cache=True)
def _next_child(classes, used, node, depth):
    """Move to the node's next class that can be rejected, and set its share; False past the last."""
    q_low, q_high, starts = classes[0], classes[1], classes[3]
    here = node[depth]
    exact = here[_C_LOW] == here[_C_HIGH] and here[_NEXT_LOW] == here[_NEXT_HIGH]
    if here[_W_HIGH] == 0.0:
        return False
    while used[depth] + 1 < q_low.size:
        used[depth] += 1
        c = used[depth]
        times = _times_used(used, depth, c)
        if times >= starts[c + 1] - starts[c]:
            continue
        w_high = _deficit(classes, c, here[_NEXT_HIGH]) - _deficit(classes, c, here[_C_LOW])
        w_low = w_high
        if not exact:
            w_low = _deficit(classes, c, here[_NEXT_LOW]) - _deficit(classes, c, here[_C_HIGH])
        if times > 0:
            w_low -= times * ((here[_NEXT_HIGH] - here[_C_LOW]) * q_high[c])
            w_high -= times * (max(here[_NEXT_LOW] - here[_C_HIGH], 0.0) * q_low[c])
        if w_high > 0.0:
            here[_SHARE_LOW] = max(w_low, 0.0) / here[_W_HIGH]
            here[_SHARE_HIGH] = min(w_high / here[_W_LOW], 1.0) if here[_W_LOW] > 0.0 else 1.0
            return True
    used[depth] = q_low.size
    return False


@njit(cache=True)
def _enter(curve, classes, used, node, depth, num_drafts):
    """Look at the child in row ``depth``; add it to its parent and return False if it is a leaf."""
    parent, here = node[depth - 1], node[depth]
    here[_C_LOW], here[_C_HIGH] = parent[_NEXT_LOW], parent[_NEXT_HIGH]
    here[_WEIGHT] = parent[_WEIGHT] * parent[_SHARE_HIGH]
    here[_LEFT_LOW], here[_LEFT_HIGH] = _left(
        classes, used, depth, parent[_LEFT_LOW], parent[_LEFT_HIGH]
    )
    _look(curve, classes, used, node, depth, num_drafts)
    if depth == num_drafts - 1:
        _add(node, depth - 1, here[_LOW], here[_HIGH])
        return False
    return True


@njit(cache=True)
def _add(node, depth, low, high):
    here = node[depth]
    here[_LEAST], here[_MOST] = min(here[_LEAST], low), max(here[_MOST], high)
    share_low, share_high = here[_SHARE_LOW], here[_SHARE_HIGH]
    here[_SUMS] += share_low
    here[_SUMS + 1] += share_high
    here[_SUMS + 2] += share_low * low
    here[_SUMS + 3] += share_low * high
    here[_SUMS + 4] += share_high * low
    here[_SUMS + 5] += share_high * high


@njit(cache=True)
def _close(node, depth):
    """Bounds of the mean over the children, whose shares are known up to intervals but sum to 1.

    Only what a child differs by from the least (or most) of them is weighted by an uncertain share.
    """
    here = node[depth]
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


@njit(cache=True)
def _hockey_stick(curve, C):
    return hockey_stick(curve[0], curve[1], curve[2], C)


@njit(cache=True)
def _step(curve, C, left):
    if left <= 0.0:
        return _FARTHEST
    return min(C + _hockey_stick(curve, C) / left, _FARTHEST)


@njit(cache=True)
def _advance(curve, C_low, C_high, left_low, left_high):
    """The least and the largest C + W(C)/left over intervals of C and of the draft mass left."""
    if C_low == C_high:
        return _step(curve, C_low, left_high), _step(curve, C_high, left_low)
    # Convex in C: largest at an end, and least where the draft mass above C falls to what is left.
    k = _first_at_most(curve[2], left_high)
    flattest = min(curve[0][k - 1], C_high) if k > 0 else 0.0
    next_low = _step(curve, max(flattest, C_low), left_high)
    return next_low, max(_step(curve, C_low, left_low), _step(curve, C_high, left_low))


@njit(cache=True)
def _first_at_most(descending, limit):
    low, high = 0, descending.size - 1
    while low < high:
        middle = (low + high) // 2
        if descending[middle] <= limit:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def _outlook(curve, classes, used, here, depth, remaining):
    """Bounds of the last W that need no children.

    From below as if the largest masses not yet rejected came first, from above as if rejected tokens had
    no mass.
    """
    q_high, starts = classes[1], classes[3]
    C_low, C_high = here[_C_LOW], here[_C_HIGH]
    left_low, left_high = here[_LEFT_LOW], here[_LEFT_HIGH]
    rounding = _ROUNDING * left_low
    c = 0
    copies = 0
    for _ in range(remaining):
        C_low, C_high = _advance(curve, C_low, C_high, left_low, left_high)
        while c < q_high.size and (
            copies >= starts[c + 1] - starts[c]
            or (starts[c + 1] - starts[c] == 1 and _times_used(used, depth, c) > 0)
        ):
            c += 1
            copies = 0
        if c < q_high.size:
            left_low -= q_high[c] + rounding
            copies += 1
    return _hockey_stick(curve, C_high), _hockey_stick(curve, C_low)


@njit(cache=True)
def _times_used(used, depth, c):
    times = 0
    for i in range(depth):
        if used[i] == c:
            times += 1
    return times


@njit(cache=True)
def _left(classes, used, depth, left_low, left_high):
    """Draft mass left after one more rejection, summed anew where the difference would cancel."""
    q_low, q_high, mass, starts = classes[0], classes[1], classes[2], classes[3]
    newest = used[depth - 1]
    low, high = left_low - q_high[newest], left_high - q_low[newest]
    if low > 0.5 * left_low:
        return low, high
    low = high = 0.0
    for c in range(mass.size):
        times = _times_used(used, depth, c)
        if times == 0:
            low += mass[c]
            high += mass[c]
        elif times < starts[c + 1] - starts[c]:
            low += max(mass[c] - times * q_high[c], 0.0)
            high += mass[c] - times * q_low[c]
    return low, high


@njit(cache=True)
def _deficit(classes, c, C):
    """Σ over the class of (C q − p)₊."""
    starts, ratio, target_mass, draft_mass = classes[3], classes[4], classes[5], classes[6]
    k = np.searchsorted(ratio[starts[c] : starts[c + 1]], C)
    place = starts[c] + c + k
    return C * draft_mass[place] - target_mass[place]
