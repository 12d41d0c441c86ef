"""Random clocks on the winners of an exponential race: the integrals of the optimal rule without replacement.

Token i arrives at rate q_i, and the first n to arrive are the drafts. A factor ℓ_i(s) = E[e^{−s w_i}]
is the probability that the token's clock is silent until s. At one (s, t) the state of a set of tokens is
two series: G[m], m of them have arrived by t, all silent; and D[m], one arrives at t and m have arrived
before, all silent. Every term is positive, so nothing cancels.
"""

import numpy as np
from numba import njit

# Among nodes and between them; each step between two nodes gains a digit or more.
_MOST_MOVES = 20
_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE, error_model="numpy")
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


@njit(cache=True, nogil=True)
def add_moments(rates, count, lower, share, moments):
    """moments[g, a, r] += Σ count share^a q^r over the tokens between nodes g and g + 1.

    Powers q^r below 1e-20 are left out.
    """
    most = moments.shape[2]
    for y in range(rates.size):
        own = moments[lower[y]]
        power = 1.0
        for r in range(most):
            value = power * count[y]
            for a in range(moments.shape[1]):
                own[a, r] += value
                value *= share[y]
            power *= rates[y]
            if power < 1e-20:
                break


@njit(cache=True, nogil=True)
def _at_rate(rate, terms, out):
    """Σ_r terms[a, r] q^r as coefficients of share^a; powers of q below 1e-15 of the first are left out."""
    needed = terms.shape[1]
    if rate < 1e-8:
        needed = min(needed, 3)
    elif rate < 1e-5:
        needed = min(needed, 4)
    elif rate < 5e-4:
        needed = min(needed, 6)
    elif rate < 5e-3:
        needed = min(needed, 8)
    for a in range(terms.shape[0]):
        value = terms[a, needed - 1]
        for r in range(needed - 2, -1, -1):
            value = value * rate + terms[a, r]
        out[a] = value


@njit(cache=True, nogil=True)
def _polynomial(x, coefficients):
    value = coefficients[-1]
    for a in range(coefficients.size - 2, -1, -1):
        value = value * x + coefficients[a]
    return value


@njit(cache=True, nogil=True)
def token_values(rates, lower, share, below, above, values):
    """What each token is chosen with, its share of the node below and the rest of the one above.

    ``below`` and ``above`` (G − 1, A, R) are coefficients of share^a q^r.
    """
    of_low = np.empty(below.shape[1])
    of_high = np.empty(below.shape[1])
    for y in range(rates.size):
        _at_rate(rates[y], below[lower[y]], of_low)
        _at_rate(rates[y], above[lower[y]], of_high)
        s = share[y]
        values[y] = s * _polynomial(s, of_low) + (1.0 - s) * _polynomial(s, of_high)


@njit(cache=True, nogil=True)
def locate(place, nodes, lower, share):
    """Fill the node below each place, and its share: how near it is, beside the node above."""
    last = nodes.size - 2
    for y in range(place.size):
        g = min(max(np.searchsorted(nodes, place[y], side="right") - 1, 0), last)
        lower[y] = g
        part = (nodes[g + 1] - place[y]) / (nodes[g + 1] - nodes[g])
        share[y] = min(max(part, 0.0), 1.0)


@njit(cache=True, nogil=True)
def split_targets(wanted, low, high, lower, share, mass):
    """Add what each token wants to its nodes' mass, in proportion to what it has of them."""
    for y in range(wanted.size):
        part_low = share[y] * low[y]
        part_high = (1.0 - share[y]) * high[y]
        both = part_low + part_high
        if both > 0.0:
            mass[lower[y]] += wanted[y] * (part_low / both)
            mass[lower[y] + 1] += wanted[y] * (part_high / both)


@njit(cache=True, nogil=True)
def move_tokens(rates, wanted, below, above, nodes, least, lower, share, low_value, high_value):
    """Move each token to where it is chosen with what it wants, and fill its values there.

    ``below`` and ``above`` are those of :func:`token_values`. A token stays at ``least`` or above. Where two
    nodes are worth the same its place between them does not matter; what even the last node
    cannot give moves there whole, lest the class below answer for it.
    """
    last = nodes.size - 2
    of_low = np.empty(below.shape[1])
    of_high = np.empty(below.shape[1])
    for y in range(wanted.size):
        g, s = lower[y], share[y]
        _at_rate(rates[y], below[g], of_low)
        _at_rate(rates[y], above[g], of_high)
        low, high = _polynomial(s, of_low), _polynomial(s, of_high)
        for _ in range(_MOST_MOVES):
            if g == last and wanted[y] > high and high > 0.0:
                moved = 0.0
            elif (high - low) * nodes[g + 1] > 1e-3 * high * (nodes[g + 1] - nodes[g]):
                moved = s - (wanted[y] - (s * low + (1.0 - s) * high)) / (high - low)
            else:
                break
            lowest = (nodes[g + 1] - max(least, nodes[g])) / (nodes[g + 1] - nodes[g])
            step = abs(moved - s)
            if moved < 0.0 and g < last:
                g, s = g + 1, 1.0
            elif moved > 1.0 and g > 0 and nodes[g] > least:
                g, s = g - 1, 0.0
            else:
                s = min(max(moved, 0.0), lowest)
                low, high = _polynomial(s, of_low), _polynomial(s, of_high)
                if step < 1e-9 or moved != s:
                    break
                continue
            _at_rate(rates[y], below[g], of_low)
            _at_rate(rates[y], above[g], of_high)
            low, high = _polynomial(s, of_low), _polynomial(s, of_high)
        lower[y], share[y] = g, s
        low_value[y], high_value[y] = low, high
