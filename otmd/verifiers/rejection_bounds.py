"""Recursive rejection without replacement: guaranteed bounds over all paths of rejected tokens.

After k rejections the target is (p − Cq)₊/W(C), W(C) = Σ (p − Cq)₊, and the next draft comes from q off the
rejected tokens, divided by the mass left, 1 − R. The next constant is C' = C + W(C)/(1 − R). Token x is
drawn and rejected with weight (C'q(x) − max(p(x), Cq(x)))₊, which sums to W(C'). The probability that all n
drafts are rejected is the mean of the last W(C') over the paths.

Tokens are grouped into classes of similar draft mass, and paths of classes are followed. The masses along
such a path are known up to the range of each class, so C and R are known up to intervals. These hold,
because C' is convex in C and increases with R.
"""

from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import AT_A_TIME
from otmd.kernel import input_size, kernel
from otmd.laws import Race
from otmd.laws.race.containment import minority_mass
from otmd.laws.race.quadrature import RATE_UNIT
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.rejection_classes import FARTHEST, ONE, RejectionPosition

# Half a second at most for up to eight drafts. A node takes longer the more drafts are left below it.
_MOST_NODES = 3_000_000
# In units of the tolerance: the largest mass times range of the first classes, and the largest difference of
# the bounds of a path that is not followed further.
_WIDEST = 0.25
_UNOPENED = 1e-3
_ROUNDING = 1e-14
# Rounding of a draft mass left, relative.
_MASS_ROUNDING = 1e-15


def rejection_bounds(target: FloatArray, race: Race, tol: float) -> tuple[float, float]:
    """Guaranteed bounds of P(all drafts are rejected) without replacement, equal for n = 2.

    For more drafts, classes of tokens are refined until the bounds are ``tol`` apart or the work is too much.
    """
    num_drafts = race.num_drafts
    position = RejectionPosition(target, race)
    if num_drafts == 2:
        rejected = position.first
        if rejected > 0.0:
            minority = RATE_UNIT * minority_mass(race.probs)
            rejected = _two_rejected(position.curve, target, race.probs, rejected, minority)
        return rejected, rejected
    curve = position.curve
    low = 0.0
    high = 1.0
    work = 0
    count = 0
    widest = _WIDEST * tol
    negligible = _UNOPENED * tol
    while True:
        # One set of classes is held at a time: they are as large as the vocabulary.
        classes = None
        classes = position.classes(widest)
        equal = bool((classes.smallest == classes.largest).all())
        if classes.size.size == count and not equal:
            # No class was split.
            widest *= 2.0**-10
            continue
        count = classes.size.size
        # The work grows with the paths of classes, whatever the size of the vocabulary.
        with input_size(count ** (num_drafts - 3)):
            least, most, looked = walk_paths(curve, classes, num_drafts, negligible, _MOST_NODES - work)
        low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
        work += looked
        if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
            return low, high
        # A class of half the width has a quarter of the mass times range.
        widest /= 4.0
        negligible = 0.0 if equal else negligible / 2.0


@kernel(error_model="numpy")
def _two_rejected(curve, target, draft, first, minority):
    """P(both drafts are rejected): the mean of W over the first token.

    ``first`` is W(1), ``minority`` the mass of all tokens but the one of more than half, in the unit.
    """
    ratio = curve.ratio
    total = 0.0
    nearest = count_at_most(ratio, ONE * (1.0 + first), 0, ratio.size)
    for start in range(0, target.size, AT_A_TIME):
        p, q, part = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME], 0.0
        for y in range(p.size):
            mass = RATE_UNIT * q[y]
            # Without the cancellation of 1 − q where a token has more than half of q.
            C = ONE + first / (minority if q[y] > 0.5 else RATE_UNIT - mass)
            # Most tokens have so little mass that C is before the next entry.
            k = nearest if ratio[nearest] > C else count_at_most(ratio, C, nearest, ratio.size)
            part += max(ONE * mass - p[y], 0.0) * _hockey_stick_at(curve, C, k)
        total += part
    return total / first


class State(NamedTuple):
    """Bounds of C and W(C) after some rejections, and the draft mass of tokens with p/q above the least C."""

    C_low: float
    C_high: float
    W_low: float
    W_high: float
    draft_above: float


@kernel()
def count_at_most(ratio, C, start, stop):
    """The first place from ``start`` to ``stop`` whose ratio, in ascending order, is above C."""
    place = start
    left = stop - start
    while left > 0:
        half = (left + 1) >> 1
        place += half if ratio[place + half - 1] <= C else 0
        left -= half
    return place


@kernel()
def _hockey_stick_at(curve, C, k):
    """W(C); k entries of the curve have a ratio of at most C."""
    return min(max(curve.target_tail[k] - C * curve.draft_tail[k], 0.0), 1.0)


@kernel()
def state_between(curve, C_low, C_high):
    """The state between two values of C."""
    size = curve.ratio.size
    k = count_at_most(curve.ratio, C_low, 0, size)
    W_high = W_low = _hockey_stick_at(curve, C_low, k)
    if C_high > C_low:
        W_low = _hockey_stick_at(curve, C_high, count_at_most(curve.ratio, C_high, k, size))
    return State(C_low, C_high, W_low, W_high, curve.draft_tail[k])


@kernel()
def _step(C, W, left):
    """C + W/left; no C is larger than the farthest."""
    return C + W / left if left > 0.0 else FARTHEST


@kernel()
def _next_state(curve, state, left_low, left_high):
    """The state of the least and the largest C + W(C)/left over intervals of C and of the mass left."""
    C_low, C_high, W_low, W_high, above = state
    # Convex in C: largest at an end, and least where the draft mass above C falls to what is left.
    high = max(_step(C_low, W_high, left_low), _step(C_high, W_low, left_low))
    if above > left_high:
        tail = curve.draft_tail
        k = tail.size - np.searchsorted(tail[::-1], left_high, side="right")
        C_low = min(curve.ratio[k - 1], C_high)
        W_high = state_between(curve, C_low, C_low).W_high
    return state_between(curve, _step(C_low, W_high, left_high), high)


@kernel()
def _mass_left(classes, times):
    """Bounds of the draft mass without ``times`` (K,) tokens of each class."""
    low, high = 0.0, 0.0
    for c in range(times.size):
        some = classes.size[c] - times[c]
        if some > 0:
            smallest, largest, total = classes.smallest[c], classes.largest[c], classes.total[c]
            low += max(total - times[c] * largest, some * smallest)
            high += min(total - times[c] * smallest, some * largest)
    return low, high


@kernel()
def _largest_tokens(classes, num_drafts):
    """The mass of the 0, 1, … n − 1 largest tokens, and the least mass that is left without them."""
    heads = np.zeros(num_drafts)
    floors = np.empty(num_drafts)
    c = 0
    times = np.zeros(classes.size.size, np.int64)
    floors[0], _ = _mass_left(classes, times)
    for k in range(1, num_drafts):
        while times[c] == classes.size[c]:
            c += 1
        times[c] += 1
        heads[k] = heads[k - 1] + classes.largest[c]
        floors[k], _ = _mass_left(classes, times)
    return heads, floors


@kernel()
def _fill_deficits(classes, C, deficit):
    """Σ over each class of (C q − p)₊, shape (K,)."""
    for c in range(deficit.size):
        starts = classes.starts
        place = c + count_at_most(classes.ratio, C, starts[c], starts[c + 1])
        deficit[c] = C * classes.draft_before[place] - classes.target_before[place]


@kernel()
def _fill_shares(classes, times, before, state, deficit_before, deficit, share):
    """Bounds of the probability that the next token rejected is of each class, shape (K, 2).

    ``deficit`` (2, K) is that at both ends of C in ``state``, and ``deficit_before`` in the state ``before``.
    """
    most, least = state.C_high - before.C_low, max(state.C_low - before.C_high, 0.0)
    for c in range(times.size):
        low = deficit[0, c] - deficit_before[1, c]
        high = deficit[1, c] - deficit_before[0, c]
        if times[c] > 0:
            low -= times[c] * (most * classes.largest[c])
            high -= times[c] * (least * classes.smallest[c])
        share[c, 0] = share[c, 1] = 0.0
        # Where C is so large that a difference is not a number, the share may be anything.
        if not high <= 0.0 and times[c] < classes.size[c]:
            share[c, 0] = low / state.W_high if low > 0.0 else 0.0
            share[c, 1] = high / state.W_low if high < state.W_low else 1.0


@kernel()
def _fill_left(classes, times, left_low, left_high, left):
    """Bounds of the draft mass that is left after one more token of each class, shape (K, 2)."""
    for c in range(times.size):
        left[c, 0], left[c, 1] = left_low - classes.largest[c], left_high - classes.smallest[c]
        # The difference would cancel.
        if left[c, 0] <= 0.5 * left_low:
            times[c] += 1
            left[c, 0], left[c, 1] = _mass_left(classes, times)
            times[c] -= 1


@kernel()
def _fill_values(curve, state, share, left, heads, floors, value):
    """Bounds of the mean last W below each child, shape (K, 2), without children; how many children.

    The ``heads`` and ``floors`` (k + 1,) are those of the k rejections below a child: the masses rejected
    are the largest, or 0.
    """
    count = 0
    for c in range(share.shape[0]):
        if share[c, 1] > 0.0:
            count += 1
            last = _next_state(curve, state, left[c, 0], left[c, 1])
            for k in range(1, heads.size):
                least = left[c, 0] * (1.0 - k * _MASS_ROUNDING) - heads[k]
                last = _next_state(curve, last, max(least, floors[k]), left[c, 1])
            value[c, 0], value[c, 1] = last.W_low, last.W_high
    return count


@kernel()
def _mean(share, value):
    """Bounds of the mean over the children, whose shares (K, 2) are known up to intervals but sum to 1.

    An uncertain share multiplies only the difference of a child's value from the least value, or the largest.
    """
    least, most = np.inf, -np.inf
    for c in range(share.shape[0]):
        if share[c, 1] > 0.0:
            least, most = min(least, value[c, 0]), max(most, value[c, 1])
    if most < least:
        return 0.0, 1.0
    low, high, low_from_most, high_from_most = least, least, most, most
    for c in range(share.shape[0]):
        if share[c, 1] > 0.0:
            low += share[c, 0] * (value[c, 0] - least)
            high += share[c, 1] * (value[c, 1] - least)
            low_from_most += share[c, 1] * (value[c, 0] - most)
            high_from_most += share[c, 0] * (value[c, 1] - most)
    return max(low, low_from_most), min(high, high_from_most)


class Walk(NamedTuple):
    """The state of a walk along its current path, row by row.

    The node of row r is the path's first r − 1 rejected tokens; each child adds one token of a class.
    ``times`` (K,) says how many tokens of each class are on the path. ``deficit`` (n, 2, K) is that of the
    node at both ends of C. For the children of a node, ``share``, ``left`` and ``value`` (n, K, 2) bound the
    probability of the child, the draft mass left and the mean last W. ``heads`` and ``floors`` (n,) are those
    of :func:`_largest_tokens`.
    """

    times: IntArray
    deficit: FloatArray
    share: FloatArray
    left: FloatArray
    value: FloatArray
    heads: FloatArray
    floors: FloatArray


@kernel()
def _new_walk(classes, num_drafts):
    """A walk that has not begun."""
    size = classes.size.size
    times = np.zeros(size, np.int64)
    deficit = np.zeros((num_drafts, 2, size))
    shape = num_drafts, size, 2
    share = np.zeros(shape)
    left = np.zeros(shape)
    value = np.zeros(shape)
    heads, floors = _largest_tokens(classes, num_drafts)
    return Walk(times, deficit, share, left, value, heads, floors)


@kernel()
def _open(curve, classes, walk, row, before, state, left_low, left_high):
    """Fill the row of a node, whose draft mass left is between two bounds; how many children it has."""
    deficit, share, left = walk.deficit[row], walk.share[row], walk.left[row]
    _fill_deficits(classes, state.C_low, deficit[0])
    _fill_deficits(classes, state.C_high, deficit[1])
    _fill_shares(classes, walk.times, before, state, walk.deficit[row - 1], deficit, share)
    _fill_left(classes, walk.times, left_low, left_high, left)
    heads, floors = walk.heads[: walk.heads.size - row], walk.floors[row:]
    return _fill_values(curve, state, share, left, heads, floors, walk.value[row])


@kernel()
def _next_wide(weight, share, value, c, negligible):
    """The first child from c on that is worth opening, or how many there are."""
    while c < share.shape[0]:
        if weight * share[c, 1] * (value[c, 1] - value[c, 0]) > negligible:
            break
        c += 1
    return c


@kernel()
def walk_paths(curve, classes, num_drafts, negligible, most_nodes):
    """Bounds of P(all n ≥ 3 drafts are rejected), and how many nodes were looked at; depth first.

    No node is opened whose bounds differ by at most ``negligible``, weighted, and none after ``most_nodes``.
    """
    walk = _new_walk(classes, num_drafts)
    times, share, left, value = walk.times, walk.share, walk.left, walk.value
    weight = np.ones(num_drafts)
    chosen = np.zeros(num_drafts, np.int64) - 1
    states = [state_between(curve, 0.0, 0.0)] * num_drafts
    states[1] = _next_state(curve, states[0], RATE_UNIT, RATE_UNIT)
    if states[1].W_high == 0.0:
        return 0.0, 0.0, 1
    # No literal: Numba would compile what is called with it once more.
    row = np.int64(1)
    looked = 1 + _open(curve, classes, walk, row, states[0], states[1], RATE_UNIT, RATE_UNIT)
    while True:
        c = times.size
        if row < num_drafts - 1 and looked <= most_nodes:
            c = _next_wide(weight[row], share[row], value[row], chosen[row] + 1, negligible)
        if c < times.size:
            low, high = left[row, c, 0], left[row, c, 1]
            weight[row + 1] = weight[row] * share[row, c, 1]
            states[row + 1] = _next_state(curve, states[row], low, high)
            chosen[row] = c
            chosen[row + 1] = -1
            times[c] += 1
            row += 1
            looked += _open(curve, classes, walk, row, states[row - 1], states[row], low, high)
            continue
        low, high = _mean(share[row], value[row])
        row -= 1
        if row == 0:
            return low, high, looked
        c = chosen[row]
        times[c] -= 1
        low, high = max(low, value[row, c, 0]), min(high, value[row, c, 1])
        # Bounds cross only below a path of classes that may have no path of tokens. Its share may be 0.
        value[row, c, 0], value[row, c, 1] = min(low, high), max(low, high)
