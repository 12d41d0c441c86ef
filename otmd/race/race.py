"""Counts of arrivals in an exponential race, at all nodes of a quadrature in time at once.

Token i arrives at rate q_i, so by time t it has with probability b = 1 − e^{−q_i t}. The state of a set
of tokens is P(m of them have arrived) for m < n at every node, and a token updates it for all nodes in
loops that vectorise: a series serves the early nodes, where q_i t is small, and the library's exponential
the few late ones. Every term is positive, so nothing cancels.
"""

import numpy as np
from numba import njit

# e^x − 1 to eleventh order is exact in double precision up to here.
_SERIES = 0.125
# How many products e^{q t} are chained before e^{−λt} is computed anew.
_REFRESH = 2048

# 1/k!, named one by one so that the kernel multiplies where it would divide.
_C3, _C4, _C5, _C6, _C7 = 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040
_C8, _C9, _C10, _C11 = 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800

_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE, error_model="numpy")
def _growth(rate, times, first_late, growth):
    """growth[j] = e^{q t_j} − 1 for the early nodes j < first_late."""
    for j in range(first_late):
        x = rate * times[j]
        s = _C8 + x * (_C9 + x * (_C10 + x * _C11))
        s = _C4 + x * (_C5 + x * (_C6 + x * (_C7 + x * s)))
        growth[j] = x * (1.0 + x * (0.5 + x * (_C3 + x * s)))


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE, error_model="numpy")
def _early_chances(rate, times, first_late, absent, present):
    _growth(rate, times, first_late, present)
    for j in range(first_late):
        absent[j] = 1.0 / (1.0 + present[j])
        present[j] *= absent[j]


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE, error_model="numpy")
def _chances(rate, times, first_late, absent, present):
    """A = e^{−q t} and b = 1 − e^{−q t} at every node."""
    _early_chances(rate, times, first_late, absent, present)
    for j in range(first_late, times.size):
        x = rate * times[j]
        absent[j] = np.exp(-x)
        present[j] = -np.expm1(-x)


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _count_one_more(count, absent, present, stop):
    """One more token, at the nodes before ``stop``."""
    for m in range(count.shape[0] - 1, 0, -1):
        here, below = count[m], count[m - 1]
        for j in range(stop):
            here[j] = here[j] * absent[j] + below[j] * present[j]
    none = count[0]
    for j in range(stop):
        none[j] *= absent[j]


@njit(cache=True, nogil=True)
def _first_late(rate, times, limit):
    return np.searchsorted(times, limit / rate, side="right") if rate > 0.0 else times.size


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def prefix_counts(rates, outside, times, weights, out):
    """out[m, k] = Σ_j w_j e^{−λ_k t_j} P(m of the first k tokens have arrived by t_j), 2 ≤ m < n.

    λ_k = outside[k] is the rate of the tokens after the first k; out has shape (n, V + 1).
    """
    num_counts, num_nodes = out.shape[0], times.size
    absent, present = np.empty(num_nodes), np.empty(num_nodes)
    count = np.zeros((num_counts, num_nodes))
    count[0] = 1.0
    scale = weights * np.exp(-outside[0] * times)
    for k in range(rates.size):
        rate = rates[k]
        if rate > 0.0:
            late = _first_late(rate, times, _SERIES)
            _chances(rate, times, late, absent, present)
            _count_one_more(count, absent, present, num_nodes)
            for j in range(late):
                scale[j] /= absent[j]
            start = 0 if k % _REFRESH == 0 else late
            for j in range(start, num_nodes):
                scale[j] = weights[j] * np.exp(-outside[k + 1] * times[j])
        for m in range(2, num_counts):
            row = count[m]
            total = 0.0
            for j in range(num_nodes):
                total += scale[j] * row[j]
            out[m, k + 1] = total
