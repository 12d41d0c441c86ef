"""Classes of two drafts without replacement: their masses, how often they meet, what nodes are worth.

The first G classes are those of the nodes, between which tokens are spread, and the others single heavy
tokens. See :mod:`otmd.choice.pair_places` for the sums and the terms.
"""

from numba import njit

from otmd.choice.pair_places import BOTH, DOWN, FIRST, OWN, UP


@njit(cache=True, nogil=True)
def masses_at_nodes(sums, terms, first, square, own, shared, targets):
    """Split what lies between nodes (G − 1, SUMS), placed by ``terms``, among the nodes.

    Adds to Σ q, Σ q²/(1 − q), the same for shares with themselves, and the p that each node wants, in the
    first G entries; fills what two neighbours share of a token's q²/(1 − q), (G − 1,).
    """
    for k in range(shared.size):
        mass, low, every, below, both = sums[k, 0], sums[k, 1], sums[k, 2], sums[k, 3], sums[k, 4]
        shared[k] = below - both
        first[k] += low
        first[k + 1] += mass - low
        square[k] += below
        square[k + 1] += every - below
        own[k] += both
        own[k + 1] += every - below - shared[k]
        targets[k] += sums[k, 5] - 2.0 * shared[k] * terms[k, UP]
        targets[k + 1] += sums[k, 6] - 2.0 * shared[k] * terms[k, DOWN]
    for g in range(len(terms)):
        targets[g] += first[g] * terms[g, BOTH] + square[g] * terms[g, FIRST]
        targets[g] -= 2.0 * own[g] * terms[g, OWN]


@njit(cache=True, nogil=True)
def meetings(first, second, own, shared, able, among, alone):
    """How often able classes are drafted with each other and with the rest, and how often the rest is alone.

    ``among`` (A, A) says it twice for two tokens of one class.
    """
    idle = 0.0
    alone[:] = 0.0
    a = 0
    for g in range(first.size):
        b = 0
        for h in range(g + 1):
            met = first[g] * second[h] + first[h] * second[g]
            if g == h:
                met -= 2.0 * own[g]
            elif g == h + 1 and g <= shared.size:
                met -= 2.0 * shared[h]
            # What is left where a class is a single token's is rounding.
            met = max(met, 0.0)
            if able[g] and able[h]:
                among[a, b] = among[b, a] = met
            elif able[g]:
                alone[a] += met
            elif able[h]:
                alone[b] += met
            else:
                idle += 0.5 * met if g == h else met
            b += able[h]
        a += able[g]
    return idle


@njit(cache=True, nogil=True)
def node_terms(weights, rejection, first, second, terms):
    """Fill what tokens are chosen with at the nodes (G, TERMS), by the weights of all classes (C,)."""
    for g in range(len(terms)):
        w = weights[g]
        if w <= 0.0:
            continue
        for c in range(weights.size):
            win = w / (w + weights[c] + rejection)
            terms[g, FIRST] += win * first[c]
            terms[g, BOTH] += win * (first[c] + second[c])
        terms[g, OWN] = w / (w + w + rejection)
        if g + 1 < len(terms):
            terms[g, UP] = w / (w + weights[g + 1] + rejection)
        if g > 0:
            terms[g - 1, DOWN] = w / (w + weights[g - 1] + rejection)
