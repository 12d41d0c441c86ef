"""The walk over paths of rejected tokens that bounds recursive rejection without replacement.

:mod:`otmd.verifiers.rejection_paths` says what C, W and R are, and why the bounds are certain. The walk is
depth first. A path is known by the classes of its tokens (:mod:`otmd.verifiers.rejection_tables`).
"""

from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import AT_A_TIME
from otmd.kernel import kernel
from otmd.race.quadrature import RATE_UNIT
from otmd.verifiers.rejection_tables import count_at_most

_ONE = 1.0 / RATE_UNIT
# Larger than any C: masses are at least 2⁻¹⁰⁷⁴, so that C is at most n·2¹⁰⁷⁴/RATE_UNIT.
FARTHEST = 2.0**1000
# Rounding of a draft mass left, relative.
_MASS_ROUNDING = 1e-15


class State(NamedTuple):
    """Bounds of C and W(C) after some rejections, and the draft mass of tokens with p/q above the least C."""

    C_low: float
    C_high: float
    W_low: float
    W_high: float
    draft_above: float


# A node of the walk: the state after its next rejection, the draft mass left before it, bounds of the mean
# W below it, the product of the largest shares above it, and sums over the children visited so far: the
# least and the most mean of a child, and its share, at least or at most, alone and times its mean W.
_STATE = ["C_low", "C_high", "W_low", "W_high", "draft_above"]
_SUMS = ["share_low", "share_high", "low_low", "low_high", "high_low", "high_high"]
_FIELDS = [*_STATE, "left_low", "left_high", "low", "high", "weight", "least", "most", *_SUMS]
# np.record: plain Python reads the fields as attributes, too, as the compiled kernel does.
_NODE = np.dtype((np.record, [(name, np.float64) for name in _FIELDS]))


@kernel()
def two_draft_rejection(curve, p, q, first, beside_most):
    """P(both drafts are rejected). ``first`` is W(1), ``beside_most`` the rest of q if a token has most."""
    nearest = count_at_most(curve.ratio, _ONE * (1.0 + first))
    total = 0.0
    for start in range(0, q.size, AT_A_TIME):
        target, draft = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        part = 0.0
        for y in range(draft.size):
            weight = _ONE * draft[y] - target[y]
            if weight <= 0.0:
                continue
            left = beside_most if draft[y] > 0.5 * RATE_UNIT else RATE_UNIT - draft[y]
            C = _ONE + first / left
            # Most tokens have so little mass that C is before the next entry.
            k = nearest
            if k < curve.ratio.size and curve.ratio[k] <= C:
                k += count_at_most(curve.ratio[k:], C)
            part += weight * min(max(curve.target_tail[k] - C * curve.draft_tail[k], 0.0), 1.0)
        total += part
    return total / first if first > 0.0 else 0.0


@kernel()
def rejection_bounds(curve, classes, num_drafts, negligible, most_nodes):
    """Bounds of P(all n ≥ 2 drafts are rejected), and how many nodes were looked at.

    A row is a rejection; Numba cannot cache a recursive function. A subtree whose bounds differ by at
    most ``negligible``, weighted, is not opened.
    """
    num_classes = classes.size.size
    nodes, used = np.zeros(num_drafts, _NODE), np.full(num_drafts, -1, np.int64)
    deficit, share, left = np.zeros((3, num_drafts, num_classes, 2))
    times = np.zeros(num_classes, np.int64)
    _set_state(nodes[0], state_at(curve, 0.0, 0.0))
    # Not a literal 1, for which what it is passed to would be compiled anew.
    row = looked = np.int64(1)
    _look(curve, classes, times, nodes, row, 1.0, RATE_UNIT, RATE_UNIT)
    while True:
        here = nodes[row]
        if used[row] < 0:
            uncertain = here["weight"] * (here["high"] - here["low"]) > negligible
            if looked > most_nodes or not uncertain or here["W_high"] == 0.0:
                used[row] = num_classes
            else:
                _open(classes, times, nodes, row, deficit, share[row], left[row])
                if row == num_drafts - 1:
                    looked += _add_leaves(curve, here, share[row], left[row])
                    used[row] = num_classes
        c = used[row] = _next_class(share[row], used[row])
        if c < num_classes:
            looked += 1
            times[c] += 1
            weight = here["weight"] * share[row, c, 1]
            row += 1
            low, high = left[row - 1, c]
            _look(curve, classes, times, nodes, row, weight, low, high)
            continue
        _close(here)
        if row == 1:
            return here["low"], here["high"], looked
        used[row] = -1
        row -= 1
        times[used[row]] -= 1
        _add(nodes[row], share[row, used[row]], here["low"], here["high"])


@kernel()
def _look(curve, classes, times, nodes, row, weight, left_low, left_high):
    """Fill the row of a node: its next state, and bounds of the mean last W that need no opening."""
    here = nodes[row]
    state = _next_state(curve, _state(nodes[row - 1]), left_low, left_high)
    _set_state(here, state)
    here["left_low"], here["left_high"], here["weight"] = left_low, left_high, weight
    steps = nodes.size - row
    here["low"], here["high"] = _outlook(curve, classes, times, steps, state, left_low, left_high)
    here["least"], here["most"] = np.inf, -np.inf
    here["share_low"] = here["low_low"] = here["low_high"] = 0.0
    here["share_high"] = here["high_low"] = here["high_high"] = 0.0


@kernel()
def _state(node):
    return State(node["C_low"], node["C_high"], node["W_low"], node["W_high"], node["draft_above"])


@kernel()
def _set_state(node, state):
    node["C_low"], node["C_high"], node["W_low"], node["W_high"], node["draft_above"] = state


@kernel()
def state_at(curve, C_low, C_high):
    """The state between two values of C."""
    k = count_at_most(curve.ratio, C_low)
    above = curve.draft_tail[k]
    high = min(max(curve.target_tail[k] - C_low * above, 0.0), 1.0)
    low = high
    if C_high != C_low:
        k = count_at_most(curve.ratio, C_high)
        low = min(max(curve.target_tail[k] - C_high * curve.draft_tail[k], 0.0), 1.0)
    return State(C_low, C_high, low, high, above)


@kernel()
def _next_state(curve, state, left_low, left_high):
    """The state of the least and the largest C + W(C)/left over intervals of C and of the draft mass left."""
    C_low, W_high = state.C_low, state.W_high
    high = _step(C_low, W_high, left_low)
    if state.C_high != C_low:
        # Convex in C: largest at an end, and least where the draft mass above C falls to what is left.
        high = max(high, _step(state.C_high, state.W_low, left_low))
        if state.draft_above > left_high:
            k = _first_at_most(curve.draft_tail, left_high)
            C_low = min(curve.ratio[k - 1], state.C_high)
            W_high = state_at(curve, C_low, C_low).W_high
    return state_at(curve, _step(C_low, W_high, left_high), high)


@kernel()
def _step(C, W, left):
    return C + W / left if left > 0.0 else FARTHEST


@kernel()
def _first_at_most(descending, limit):
    low, high = 0, descending.size - 1
    while low < high:
        middle = (low + high) // 2
        if descending[middle] <= limit:
            high = middle
        else:
            low = middle + 1
    return low


@kernel()
def _outlook(curve, classes, times, steps, state, left_low, left_high):
    """Bounds of the last W, without children: the next masses rejected are the largest, or 0."""
    rounding = _MASS_ROUNDING * left_low
    c = copies = 0
    for _ in range(steps):
        while c < times.size and (
            copies >= classes.size[c] or (classes.size[c] == 1 and times[c] > 0)
        ):
            c += 1
            copies = 0
        if c < times.size:
            left_low -= classes.largest[c] + rounding
            copies += 1
        state = _next_state(curve, state, left_low, left_high)
    return state.W_low, state.W_high


@kernel()
def _open(classes, times, nodes, row, deficit, share, left):
    """Find the shares of the node's children, and the draft mass that each leaves."""
    before, here = nodes[row - 1], nodes[row]
    _fill_deficits(classes, here["C_low"], here["C_high"], deficit[row])
    _fill_shares(
        classes, times, _state(before), _state(here), deficit[row - 1], deficit[row], share
    )
    _fill_left(classes, times, here["left_low"], here["left_high"], left)


@kernel()
def _fill_deficits(classes, C_low, C_high, deficit):
    """Σ over each class of (C q − p)₊ at both C, shape (K, 2)."""
    for c in range(deficit.shape[0]):
        start = classes.starts[c]
        own = classes.ratio[start : classes.starts[c + 1]]
        place = start + c + count_at_most(own, C_low)
        deficit[c] = C_low * classes.draft_before[place] - classes.target_before[place]
        if C_high != C_low:
            place = start + c + count_at_most(own, C_high)
            deficit[c, 1] = C_high * classes.draft_before[place] - classes.target_before[place]


@kernel()
def _fill_shares(classes, times, before, state, deficit_before, deficit, share):
    """Bounds of the probability that the next token rejected is of each class, shape (K, 2).

    ``times`` tokens of each class were rejected before.
    """
    most, least = state.C_high - before.C_low, max(state.C_low - before.C_high, 0.0)
    for c in range(share.shape[0]):
        low = deficit[c, 0] - deficit_before[c, 1]
        high = deficit[c, 1] - deficit_before[c, 0]
        if times[c] > 0:
            low -= times[c] * (most * classes.largest[c])
            high -= times[c] * (least * classes.smallest[c])
        if high > 0.0 and times[c] < classes.size[c]:
            share[c, 0] = max(low, 0.0) / state.W_high
            share[c, 1] = min(high / state.W_low, 1.0) if state.W_low > 0.0 else 1.0
        else:
            share[c] = 0.0


@kernel()
def _fill_left(classes, times, left_low, left_high, left):
    """Bounds of the draft mass left after a token of each class as well, shape (K, 2)."""
    for c in range(left.shape[0]):
        left[c, 0] = left_low - classes.largest[c]
        left[c, 1] = left_high - classes.smallest[c]
        if left[c, 0] <= 0.5 * left_low:
            # The difference would cancel.
            times[c] += 1
            left[c, 0], left[c, 1] = _mass_left(classes, times)
            times[c] -= 1


@kernel()
def _mass_left(classes, times):
    low = high = 0.0
    for c in range(times.size):
        some = classes.size[c] - times[c]
        if some > 0:
            least, most = classes.smallest[c], classes.largest[c]
            low += max(classes.total[c] - times[c] * most, some * least)
            high += min(classes.total[c] - times[c] * least, some * most)
    return low, high


@kernel()
def _next_class(share, c):
    """The next class after c that can be rejected; the number of classes past the last."""
    c = min(c + 1, share.shape[0])
    while c < share.shape[0] and share[c, 1] == 0.0:
        c += 1
    return c


@kernel()
def _add_leaves(curve, here, share, left):
    """Add the children of a node after whose next rejection one is left. Returns how many there are."""
    state = _state(here)
    count = 0
    for c in range(share.shape[0]):
        if share[c, 1] > 0.0:
            last = _next_state(curve, state, left[c, 0], left[c, 1])
            _add(here, share[c], last.W_low, last.W_high)
            count += 1
    return count


@kernel()
def _add(here, share, low, high):
    """Add a child with bounds of its share and of the mean below it."""
    here["least"], here["most"] = min(here["least"], low), max(here["most"], high)
    here["share_low"] += share[0]
    here["share_high"] += share[1]
    here["low_low"] += share[0] * low
    here["low_high"] += share[0] * high
    here["high_low"] += share[1] * low
    here["high_high"] += share[1] * high


@kernel()
def _close(here):
    """Bounds of the mean over the children, whose shares are known up to intervals but sum to 1.

    An uncertain share multiplies only what a child differs by from the least, or the most, of them.
    """
    least, most = here["least"], here["most"]
    if here["W_high"] == 0.0:
        here["low"] = here["high"] = 0.0
    elif most >= 0.0:
        low = max(
            least + here["low_low"] - least * here["share_low"],
            most + here["high_low"] - most * here["share_high"],
        )
        high = min(
            least + here["high_high"] - least * here["share_high"],
            most + here["low_high"] - most * here["share_low"],
        )
        low, high = max(here["low"], low), min(here["high"], high)
        # Crossed bounds: no path of tokens follows that of the classes, whose share may be 0.
        here["low"], here["high"] = min(low, high), max(low, high)
