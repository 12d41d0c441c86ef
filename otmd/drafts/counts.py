"""How many of a set of independent events occur: products of (a_i + z b_i), truncated in z.

a_i is the probability that event i does not occur and b_i that it does. The draft laws that draw
distinct tokens are mixtures (over the time of an exponential race) or conditionings of such counts.
Every term is positive, so nothing cancels.
"""

import numpy as np
from numba import njit

# Below this the Taylor series of 1 − e^{−x} to seventh order is exact in double precision.
_SERIES = 0.02
# A factor is divided out of a product only where b/a is at most this: the division then shrinks errors.
_DIVISIBLE = 0.25


@njit(cache=True, nogil=True, error_model="numpy")
def arrivals(rates, time, absent, present):
    """b_i = 1 − e^{−q_i t} and a_i = e^{−q_i t}: who has arrived in a race by time t."""
    for i in range(rates.size):
        x = rates[i] * time
        if x < _SERIES:
            b = 1.0 - x / 5.0 * (1.0 - x / 6.0 * (1.0 - x / 7.0))
            b = x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * b)))
            present[i] = b
            absent[i] = 1.0 - b
        else:
            present[i] = -np.expm1(-x)
            absent[i] = np.exp(-x)


@njit(cache=True, nogil=True)
def _multiply(coefficients, a, b):
    for m in range(coefficients.size - 1, 0, -1):
        coefficients[m] = coefficients[m] * a + coefficients[m - 1] * b
    coefficients[0] *= a


@njit(cache=True, nogil=True)
def add_prefix_counts(absent, present, weight, none_after, out):
    """out[m, k] += weight · P(m of the first k occur) · P(none of the others occurs).

    ``none_after`` is scratch of V + 1 numbers; out has shape (M, V + 1).
    """
    size = absent.size
    none_after[size] = 1.0
    for k in range(size - 1, -1, -1):
        none_after[k] = none_after[k + 1] * absent[k]
    most = out.shape[0]
    count = np.zeros(most)
    count[0] = 1.0
    out[0, 0] += weight * none_after[0]
    for k in range(size):
        a = absent[k]
        b = present[k]
        factor = weight * none_after[k + 1]
        for m in range(most - 1, 0, -1):
            count[m] = count[m] * a + count[m - 1] * b
            out[m, k + 1] += factor * count[m]
        count[0] *= a
        out[0, k + 1] += factor * count[0]


@njit(cache=True, nogil=True)
def counts(absent, present, out):
    """out[m] = P(m of the events occur), for m < out.size."""
    out[:] = 0.0
    out[0] = 1.0
    for i in range(absent.size):
        _multiply(out, absent[i], present[i])


@njit(cache=True, nogil=True)
def add_counts_of_others(absent, present, factor, weight, out):
    """out[m, y] += weight · factor[y] · P(m of the events other than y occur).

    Frequent events (b/a large) are left out one at a time by products from both sides, the rare ones
    by division: exact to rounding in both cases, O(V M + h M²) with h frequent events.
    """
    most = out.shape[0]
    frequent = np.flatnonzero(present > _DIVISIBLE * absent)
    rare_count = np.zeros(most)
    rare_count[0] = 1.0
    for i in range(absent.size):
        if present[i] <= _DIVISIBLE * absent[i]:
            _multiply(rare_count, absent[i], present[i])

    suffix = np.zeros((frequent.size + 1, most))
    suffix[frequent.size] = rare_count
    for h in range(frequent.size - 1, -1, -1):
        suffix[h] = suffix[h + 1]
        _multiply(suffix[h], absent[frequent[h]], present[frequent[h]])
    prefix = np.zeros(most)
    prefix[0] = 1.0
    for h in range(frequent.size):
        y = frequent[h]
        for m in range(most):
            total = 0.0
            for j in range(m + 1):
                total += prefix[j] * suffix[h + 1, m - j]
            out[m, y] += weight * factor[y] * total
        _multiply(prefix, absent[y], present[y])

    everyone = suffix[0]
    for y in range(absent.size):
        a = absent[y]
        b = present[y]
        if b <= _DIVISIBLE * a:
            others = 0.0
            for m in range(most):
                others = (everyone[m] - b * others) / a
                out[m, y] += weight * factor[y] * others


@njit(cache=True, nogil=True)
def nth_largest_before(values, n, out):
    """out[k] = the n-th largest of the first k values, 0 while there are fewer; values ≥ 0."""
    largest = np.zeros(n)
    out[0] = 0.0
    for k in range(values.size):
        j = n
        while j > 0 and values[k] > largest[j - 1]:
            j -= 1
        if j < n:
            for i in range(n - 1, j, -1):
                largest[i] = largest[i - 1]
            largest[j] = values[k]
        out[k + 1] = largest[n - 1]
