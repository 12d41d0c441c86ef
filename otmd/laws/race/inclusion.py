"""The probability of each token to be among the first n arrivals of an exponential race.

Let N₋(t) be the number of other tokens that have arrived by t. A token is drafted with probability
q ∫ e^{−qt} P(N₋(t) < n) dt. For a slow token, the generating function of N₋ is that of the count of all
tokens, divided by the token's own factor e^{−qt}(1 + z(e^{qt} − 1)). An expansion in q gives one polynomial
that serves all slow tokens. Heavy tokens, those with a larger q, are treated one by one.
"""

import numpy as np

from otmd.curve._kernels import copy_numbers
from otmd.kernel import REASSOCIATE, kernel
from otmd.laws.race import quadrature
from otmd.laws.race.containment import count_one_more, first_nodes, power_sums
from otmd.probabilities import FloatArray

# The integral starts at the time by which this many arrivals are expected: the rest is below rounding.
_EARLIEST = 1e-18
# Rates are cut off at this multiple of 1/(end of the race): a faster token is drafted almost surely.
_FASTEST = 1e100
# Counts at so many nodes fit the processor's cache.
_NODES_AT_ONCE = 128


def race_inclusion(draft: FloatArray, num_drafts: int) -> FloatArray:
    """Probability that each token is among the first n ≥ 2 arrivals, shape (V,).

    More than n tokens of the draft distribution (V,) have mass.
    """
    latest = quadrature.latest_win(draft, num_drafts, quadrature.RATE_UNIT)
    step = quadrature.quadrature_step(num_drafts)
    slow = quadrature.RATE_UNIT * draft
    np.minimum(slow, _FASTEST / latest, out=slow)
    first = np.log(_EARLIEST) - np.log(latest) - np.log(slow.sum())
    parts = np.exp(np.arange(int(-first / step) + 2)[::-1] * -step)
    weights = step * parts
    heavy = np.flatnonzero(slow > quadrature.HEAVY / latest)
    slow *= latest
    fast = slow[heavy]
    slow[heavy] = 0.0
    # P(k of the slow tokens have arrived), k < n, by Newton's identities, shape (n, T).
    moments = power_sums(slow, quadrature.POWERS)
    powers = parts ** np.arange(quadrature.POWERS)[:, None]
    growth = [
        quadrature.growth_series(m, quadrature.POWERS) for m in range(min(num_drafts, quadrature.POWERS))
    ]
    logs = np.stack([(series * moments) @ powers for series in growth])
    counts = quadrature.exponential_series(logs, np.exp(-moments[1] * parts), num_drafts)
    arrived = np.outer(fast, parts)
    absent, present = np.exp(-arrived), -np.expm1(-arrived)
    begin = first_nodes(moments[1] * parts + present.sum(axis=0), num_drafts)
    missed = np.empty(fast.size)
    _add_heavy(absent, present, begin, weights, counts, missed)
    # Coefficients of q^r, r < R, in the probability that a slow token is drafted.
    at_most = counts.cumsum(axis=0)
    coefficients = np.zeros(quadrature.POWERS)
    for m, series in enumerate(growth):
        integrals = (powers[:-1] * at_most[num_drafts - 1 - m]) @ weights
        coefficients[1:] += (-1) ** m * series[:-1] * integrals
    included = np.empty(draft.size)
    _fill_polynomials(slow, coefficients, included)
    included[heavy] = fast * missed
    return np.clip(included, 0.0, 1.0, out=included)


@kernel(fastmath=REASSOCIATE)
def _add_heavy(absent, present, first, weights, counts, missed):
    """Fill missed[i] = Σ_t w·a_i·P(fewer than n other tokens have arrived) for each heavy token i.

    ``absent`` and ``present`` (M, T) are the probability a_i that heavy token i has not arrived, and 1 − a_i.
    ``counts`` (n, T) are P(m slow tokens have arrived), and become those of all tokens; before the node
    first[m] they are 0. ``weights`` (T,) are the w.

    The heavy tokens are the leaves of a binary tree. Level d counts all tokens but those below the node of
    depth d over the leaf i, so it comes from level d − 1 by adding the tokens below the node's sibling.
    """
    num_heavy = absent.shape[0]
    depth = 0
    while 1 << depth < num_heavy:
        depth += 1
    missed[:] = 0.0
    levels = np.empty((depth + 1, counts.shape[0], _NODES_AT_ONCE))
    for start in range(0, counts.shape[1], _NODES_AT_ONCE):
        part = counts[:, start : start + _NODES_AT_ONCE]
        a, b = absent[:, start : start + part.shape[1]], present[:, start : start + part.shape[1]]
        w = weights[start : start + part.shape[1]]
        begin = np.maximum(first - start, 0)
        level = levels[:, :, : part.shape[1]]
        for m in range(counts.shape[0]):
            copy_numbers(part[m], level[0, m])
        for i in range(num_heavy):
            for d in range(1, depth + 1):
                shift = depth - d
                if i > 0 and i >> shift == (i - 1) >> shift:
                    continue
                for m in range(counts.shape[0]):
                    copy_numbers(level[d - 1, m], level[d, m])
                sibling = (i >> shift) ^ 1
                for j in range(sibling << shift, min((sibling + 1) << shift, num_heavy)):
                    count_one_more(level[d], a[j], b[j], begin)
            # Σ_t w a_i Σ_{m < n} P(m other tokens) : total
            total = 0.0
            for m in range(counts.shape[0]):
                others = level[depth, m]
                for t in range(begin[m], w.size):
                    total += w[t] * a[i, t] * others[t]
            missed[i] += total
        for i in range(num_heavy):
            count_one_more(part, a[i], b[i], begin)


@kernel()
def _fill_polynomials(rates, coefficients, out):
    """out[y] = Σ_r c_r q^r for tokens with q ≤ 0.1; powers below 1e-17 of the first are left out."""
    for y in range(rates.size):
        rate = rates[y]
        needed = coefficients.size
        if rate < 1e-8:
            needed = min(needed, 4)
        elif rate < 1e-4:
            needed = min(needed, 6)
        elif rate < 3e-3:
            needed = min(needed, 9)
        # Σ_r c_r q^r by Horner's rule : value
        value = coefficients[needed - 1]
        for r in range(needed - 2, -1, -1):
            value = value * rate + coefficients[r]
        out[y] = value
