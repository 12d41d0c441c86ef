"""The ratio curve: masses along an order of the tokens, and the hockey-stick divergence W(C)."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def mass_before(values, order, out):
    """out[k] = sum of values[order[:k]], by compensated summation (Neumaier 1974)."""
    total = 0.0
    lost = 0.0
    out[0] = 0.0
    for k in range(order.size):
        value = values[order[k]]
        new = total + value
        if total >= value:
            lost += (total - new) + value
        else:
            lost += (value - new) + total
        total = new
        out[k + 1] = total + lost


@njit(cache=True, nogil=True)
def mass_after(values, order, out):
    """out[k] = sum of values[order[k:]], summed from the far end so that small tails stay exact."""
    total = 0.0
    lost = 0.0
    out[order.size] = 0.0
    for k in range(order.size - 1, -1, -1):
        value = values[order[k]]
        new = total + value
        if total >= value:
            lost += (total - new) + value
        else:
            lost += (value - new) + total
        total = new
        out[k] = total + lost


@njit(cache=True, nogil=True)
def hockey_stick(ratio, target_tail, draft_tail, C):
    """W(C) = Σ_y (p(y) − C q(y))₊ from the tokens whose ratio exceeds C."""
    k = np.searchsorted(ratio, C, side="right")
    return min(max(target_tail[k] - C * draft_tail[k], 0.0), 1.0)


@njit(cache=True, nogil=True)
def recursive_rejection_chain(ratio, target_tail, draft_tail, C, W):
    """C_1 = 0, C_{k+1} = C_k + W(C_k); fills C[:n+1] and W[:n+1] with the chain and its values."""
    C[0] = 0.0
    W[0] = 1.0
    for k in range(1, C.size):
        C[k] = C[k - 1] + W[k - 1]
        W[k] = hockey_stick(ratio, target_tail, draft_tail, C[k])


@njit(cache=True, nogil=True)
def k_sequential_scale(ratio, target_tail, draft_tail, num_drafts):
    """The smallest ρ in [1, n] with (1 − (1 − W(ρ))/ρ)^n ≥ W(ρ), by bisection to the last bit.

    The upper end of the last bracket is returned: every ρ ≥ ρ* is lossless, none below it is.
    """
    low = 1.0
    high = float(num_drafts)
    W = hockey_stick(ratio, target_tail, draft_tail, low)
    if W**num_drafts >= W:
        return low
    while True:
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            return high
        W = hockey_stick(ratio, target_tail, draft_tail, middle)
        if (1.0 - (1.0 - W) / middle) ** num_drafts >= W:
            high = middle
        else:
            low = middle


@njit(cache=True, nogil=True)
def smallest_minimiser(target_mass, containment, slack):
    """The first k whose p(H_k) − g(H_k) lies within ``slack`` of the least value over all prefixes."""
    least = np.inf
    for k in range(target_mass.size):
        value = target_mass[k] - containment[k]
        if value < least:
            least = value
    for k in range(target_mass.size):
        if target_mass[k] - containment[k] <= least + slack:
            return k
    return 0
