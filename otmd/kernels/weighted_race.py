"""Random clocks on the winners of an exponential race: the integrals of the optimal rule without replacement.

Token i arrives at rate q_i, and the first n to arrive are the drafts. A factor ℓ_i(s) = E[e^{−s w_i}]
is the probability that the token's clock is silent until s. At one (s, t) the state of a set of tokens is
two series: G[m], m of them have arrived by t, all silent; and D[m], one arrives at t and m have arrived
before, all silent. Every term is positive, so nothing cancels.
"""

import numpy as np
from numba import njit

_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, fastmath=_REASSOCIATE, error_model="numpy")
def silent_winners(
    rates,
    silent,
    absent,
    present,
    steps,
    start_count,
    start_last,
    expected,
    slopes,
    grad_count,
    grad_last,
):
    """E[Π ℓ over the winners] at each s, and its derivatives.

    Tokens with ``rates`` (M,) are multiplied one by one onto the series of all others at every
    (s, m, t), start_count and start_last of shape (J, n, T). ``silent`` is ℓ of shape (J, M), absent and
    present are e^{−q t} and 1 − e^{−q t}, shape (M, T), and steps the weights of ∫dt. Fills the
    expectation (J,), its derivative by each ℓ (J, M), and by the series that it started from.
    """
    num_times, order, num_nodes = start_count.shape
    size = rates.size
    count = np.empty((size + 1, order, num_nodes))
    last = np.empty((size + 1, order, num_nodes))
    by_count = np.empty((order, num_nodes))
    by_last = np.empty((order, num_nodes))
    for j in range(num_times):
        count[0] = start_count[j]
        last[0] = start_last[j]
        for i in range(size):
            ell, rate = silent[j, i], rates[i]
            a, b = absent[i], present[i]
            for m in range(order):
                for k in range(num_nodes):
                    stay, come = a[k], b[k] * ell
                    here = count[i, m, k]
                    c = here * stay
                    d = last[i, m, k] * stay + rate * stay * ell * here
                    if m > 0:
                        c += count[i, m - 1, k] * come
                        d += last[i, m - 1, k] * come
                    count[i + 1, m, k] = c
                    last[i + 1, m, k] = d
        total = 0.0
        for k in range(num_nodes):
            total += steps[k] * last[size, order - 1, k]
        expected[j] = total
        by_count[:] = 0.0
        by_last[:] = 0.0
        by_last[order - 1] = steps
        for i in range(size - 1, -1, -1):
            ell, rate = silent[j, i], rates[i]
            a, b = absent[i], present[i]
            slope = 0.0
            for m in range(order):
                for k in range(num_nodes):
                    slope += by_last[m, k] * rate * a[k] * count[i, m, k]
                    if m > 0:
                        slope += b[k] * (
                            by_count[m, k] * count[i, m - 1, k] + by_last[m, k] * last[i, m - 1, k]
                        )
            slopes[j, i] = slope
            for m in range(order):
                for k in range(num_nodes):
                    stay, come = a[k], b[k] * ell
                    c = by_count[m, k] * stay + by_last[m, k] * rate * stay * ell
                    d = by_last[m, k] * stay
                    if m + 1 < order:
                        c += by_count[m + 1, k] * come
                        d += by_last[m + 1, k] * come
                    by_count[m, k] = c
                    by_last[m, k] = d
        grad_count[j] = by_count
        grad_last[j] = by_last


@njit(cache=True)
def add_moments(rates, lower, share, latest, moments):
    """moments[g, a, r] += Σ share^a q^r over the tokens between nodes g and g + 1.

    Powers with (q t)^r below 1e-20 at the latest time are left out.
    """
    most = moments.shape[2]
    for y in range(rates.size):
        own = moments[lower[y]]
        power = 1.0
        reach = 1.0
        for r in range(most):
            value = power
            for a in range(moments.shape[1]):
                own[a, r] += value
                value *= share[y]
            power *= rates[y]
            reach *= rates[y] * latest
            if reach < 1e-20:
                break


@njit(cache=True)
def node_values(rates, lower, share, below, above, low_value, high_value):
    """What each token would be chosen with, were it wholly of the node below or above it.

    ``below`` and ``above`` (G − 1, A, R) are coefficients of share^a q^r. Powers of q below
    1e-25 of the first are left out.
    """
    most = below.shape[2]
    for y in range(rates.size):
        one = below[lower[y]]
        two = above[lower[y]]
        low = 0.0
        high = 0.0
        rate = rates[y]
        if rate < 1e-6:
            needed = min(most, 6)
        elif rate < 1e-3:
            needed = min(most, 10)
        else:
            needed = most
        for r in range(needed - 1, -1, -1):
            inner_low = 0.0
            inner_high = 0.0
            for a in range(one.shape[0] - 1, -1, -1):
                inner_low = inner_low * share[y] + one[a, r]
                inner_high = inner_high * share[y] + two[a, r]
            low = low * rates[y] + inner_low
            high = high * rates[y] + inner_high
        low_value[y] = low
        high_value[y] = high
