"""Which of the fast tokens of an exponential race are among its first arrivals, one token at a time."""

import numpy as np
from numba import njit

_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def heavy_inclusion(absent, present, slow, weights, missed):
    """missed[k, i] = Σ_t w·a_i·P(at most k others have arrived by t), k < n; counts of all heavy ones.

    ``absent`` and ``present`` (M, T) are the probabilities a_i that heavy token i has not arrived and that it
    has, and slow[m] (T,) that at most m of the slow tokens have. Returns P(k heavy ones have arrived),
    shape (n, T).
    """
    size, num_heavy, num_nodes = slow.shape[0], absent.shape[0], weights.size
    after = np.empty((num_heavy + 1, size, num_nodes))
    after[num_heavy], after[num_heavy, 0] = 0.0, 1.0
    for i in range(num_heavy - 1, -1, -1):
        after[i] = after[i + 1]
        _add_event(after[i], absent[i], present[i])
    before, others = np.zeros((size, num_nodes)), np.empty((size, num_nodes))
    before[0] = 1.0
    for i in range(num_heavy):
        _product(before, after[i + 1], others)
        for k in range(size):
            total = 0.0
            for j in range(k + 1):
                here, rest, own = others[j], slow[k - j], absent[i]
                for t in range(num_nodes):
                    total += weights[t] * own[t] * here[t] * rest[t]
            missed[k, i] = total
        _add_event(before, absent[i], present[i])
    return before


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _add_event(counts, absent, present):
    """Count one more event, in place."""
    for k in range(counts.shape[0] - 1, -1, -1):
        here = counts[k]
        for t in range(here.size):
            here[t] *= absent[t]
        if k > 0:
            fewer = counts[k - 1]
            for t in range(here.size):
                here[t] += fewer[t] * present[t]


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _product(one, two, out):
    """The product of two series of counts."""
    for k in range(out.shape[0]):
        here = out[k]
        here[:] = 0.0
        for m in range(k + 1):
            left, right = one[m], two[k - m]
            for t in range(here.size):
                here[t] += left[t] * right[t]
