"""One rejection on a path: the state after it, and what the classes that may come next weigh.

A state is (the least and the largest C, W at either, and the draft mass of the tokens above the least C):
what is read off the curve at one rejection is what the next one starts from.
"""

from numba import njit

from otmd.curve.search import count_at_most

# No C lies beyond it while the draft mass left is a normal float64.
FARTHEST = 1.7e308
_ROUNDING = 1e-15


@njit(cache=True, nogil=True)
def state_at(ratio, target_tail, draft_tail, C_low, C_high):
    """The state between two values of C."""
    k = count_at_most(ratio, C_low)
    most, tail = min(max(target_tail[k] - C_low * draft_tail[k], 0.0), 1.0), draft_tail[k]
    least = most
    if C_high != C_low:
        k = count_at_most(ratio, C_high)
        least = min(max(target_tail[k] - C_high * draft_tail[k], 0.0), 1.0)
    return C_low, C_high, most, least, tail


@njit(cache=True, nogil=True)
def next_state(ratio, target_tail, draft_tail, state, left_low, left_high):
    """The state of the least and the largest C + W(C)/left over intervals of C and of the draft mass left."""
    C_low, C_high, most, least, tail = state
    high = _step(C_low, most, left_low)
    if C_high != C_low:
        # Convex in C: largest at an end, and least where the draft mass above C falls to what is left.
        high = max(high, _step(C_high, least, left_low))
        if tail > left_high:
            above = _first_at_most(draft_tail, left_high)
            C_low = min(ratio[above - 1], C_high)
            most = state_at(ratio, target_tail, draft_tail, C_low, C_low)[2]
    return state_at(ratio, target_tail, draft_tail, _step(C_low, most, left_high), high)


@njit(cache=True, nogil=True)
def outlook(curve, classes, times, steps, state, left_low, left_high):
    """Bounds of the last W that need no children, so many rejections after ``state``.

    From below as if the largest masses not yet rejected came first, from above as if rejected tokens had
    no mass.
    """
    ratio, target_tail, draft_tail = curve
    q_high, size = classes[1], classes[3]
    rounding = _ROUNDING * left_low
    c = 0
    copies = 0
    for _ in range(steps):
        while c < q_high.size and (copies >= size[c] or (size[c] == 1 and times[c] > 0)):
            c += 1
            copies = 0
        if c < q_high.size:
            left_low -= q_high[c] + rounding
            copies += 1
        state = next_state(ratio, target_tail, draft_tail, state, left_low, left_high)
    return state[3], state[2]


@njit(cache=True, nogil=True)
def fill_deficits(classes, C_low, C_high, deficit):
    """Σ over each class of (C q − p)₊ at both C, shape (classes, 2)."""
    _, _, _, _, starts, ratio, target_mass, draft_mass = classes
    for c in range(deficit.shape[0]):
        own = ratio[starts[c] : starts[c + 1]]
        place = starts[c] + c + count_at_most(own, C_low)
        deficit[c, 0] = deficit[c, 1] = C_low * draft_mass[place] - target_mass[place]
        if C_high != C_low:
            place = starts[c] + c + count_at_most(own, C_high)
            deficit[c, 1] = C_high * draft_mass[place] - target_mass[place]


@njit(cache=True, nogil=True)
def fill_shares(classes, times, before, state, deficit_before, deficit, share):
    """Bounds of the probability that the next token rejected is of each class, shape (classes, 2).

    ``before`` are the least and the largest C before the rejection, ``state`` follows it, and the deficits
    are those at either; ``times`` says how many tokens of each class were rejected earlier.
    """
    q_low, q_high, _, size, _, _, _, _ = classes
    C_low, C_high, W_high, W_low, _ = state
    most, least = C_high - before[0], max(C_low - before[1], 0.0)
    for c in range(share.shape[0]):
        low = deficit[c, 0] - deficit_before[c, 1]
        high = deficit[c, 1] - deficit_before[c, 0]
        if times[c] > 0:
            low -= times[c] * (most * q_high[c])
            high -= times[c] * (least * q_low[c])
        if high > 0.0 and times[c] < size[c]:
            share[c, 0] = max(low, 0.0) / W_high
            share[c, 1] = min(high / W_low, 1.0) if W_low > 0.0 else 1.0
        else:
            share[c] = 0.0


@njit(cache=True, nogil=True)
def fill_left(classes, times, left_low, left_high, left):
    """Bounds of the draft mass left after a token of each class as well, shape (classes, 2)."""
    q_low, q_high, _, _, _, _, _, _ = classes
    for c in range(left.shape[0]):
        left[c, 0] = left_low - q_high[c]
        left[c, 1] = left_high - q_low[c]
        if left[c, 0] <= 0.5 * left_low:
            # The difference would cancel.
            times[c] += 1
            left[c] = _mass_left(classes, times)
            times[c] -= 1


@njit(cache=True, nogil=True)
def _mass_left(classes, times):
    q_low, q_high, mass, size, _, _, _, _ = classes
    low = high = 0.0
    for c in range(mass.size):
        if times[c] < size[c]:
            low += max(mass[c] - times[c] * q_high[c], 0.0)
            high += mass[c] - times[c] * q_low[c]
    return low, high


@njit(cache=True, nogil=True)
def _step(C, W, left):
    return min(C + W / left, FARTHEST) if left > 0.0 else FARTHEST


@njit(cache=True, nogil=True)
def _first_at_most(descending, limit):
    low, high = 0, descending.size - 1
    while low < high:
        middle = (low + high) // 2
        if descending[middle] <= limit:
            high = middle
        else:
            low = middle + 1
    return low
