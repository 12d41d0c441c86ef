"""Tokens among the classes of two drafts without replacement: where each is chosen with its p, and the sums.

Let a share s of a token with odds β = q/(1 − q) be of the class of the node below, and the rest of that of
the node above. It is chosen with probability q·(s F + (1 − s) F' + 2β s(1 − s)·bend), where F at a node
is both + β·(first − 2 own): what has the node's weight is chosen as often beside all that may be drafted
with it, less what would be the token itself. ``terms`` (G, TERMS) has a row for each node.
"""

import numpy as np
from numba import njit

from otmd.choice.pair_cells import NUM_PARTS, part_holding, part_of_ratio

# Columns of the terms: Σ (a + b) w/(w + w') and Σ a w/(w + w') over all classes, a = q and b = q/(1 − q); and
# w/(w + w') of the node beside itself, of the node beside the next one, and of that one beside it.
BOTH, FIRST, OWN, UP, DOWN = range(5)
TERMS = 5
# Sums over the tokens between two nodes: of q and q s, with e = qβ of e, e s and e s², and of what tokens
# want more than they are given, of the node below and of the one above.
SUMS = 7
_AT_A_TIME = 256
_SIGNLESS = {"contract", "nsz"}
# A rise so small beside F is none.
_FLAT = 1e-12
# Of what a token wants so little is neither missing nor too much.
_ROUNDING = 1e-14


@njit(cache=True, nogil=True)
def effective_terms(terms):
    """What F is made of at the nodes, base + β·slope, and the bend between each and the next."""
    base, slope, bend = np.empty(len(terms)), np.empty(len(terms)), np.zeros(len(terms))
    for g in range(len(terms)):
        base[g], slope[g] = terms[g, BOTH], terms[g, FIRST] - 2.0 * terms[g, OWN]
        if g + 1 < len(terms):
            bend[g] = terms[g, OWN] + terms[g + 1, OWN] - terms[g, UP] - terms[g, DOWN]
    return base, slope, bend


@njit(cache=True, nogil=True)
def _starts(base, lowest):
    """Where the search for a ratio of each part begins: at a node that it reaches at β = 0."""
    starts, part = np.empty(NUM_PARTS, np.int32), 0
    for g in range(lowest, base.size - 1):
        # The last one holds whatever else there is.
        until = part_holding(base[g + 1]) + 1 if g < base.size - 2 else NUM_PARTS
        for k in range(part, until):
            starts[k] = g
        part = max(part, until)
    return starts


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SIGNLESS)
def _bracket(ratio, odds, starts, base, slope, lowest, lower, low, high):
    """Fill the node, not below ``lowest``, with F ≤ ratio < F' at the next one; and F and F'."""
    last, one = np.uint64(base.size - 2), np.uint64(1)
    bits = ratio.view(np.int64)
    for i in range(ratio.size):
        part = part_of_ratio(bits[i])
        # Unsigned, or every index would be asked whether it counts from the end.
        g = np.uint64(starts[part])
        f, above = base[g] + odds[i] * slope[g], base[g + one] + odds[i] * slope[g + one]
        while g < last and ratio[i] >= above:
            g += one
            f, above = above, base[g + one] + odds[i] * slope[g + one]
        # In this order: few tokens are below where the search begins, and many anywhere.
        while ratio[i] < f and g > lowest:
            g -= one
            f, above = base[g] + odds[i] * slope[g], f
        lower[i], low[i], high[i] = g, f, above


@njit(inline="always")
def bent_share(s, b):
    """The solution of s' = s + b s'(1 − s') for small b, up to b³, within 0 and 1."""
    both, turned = s * (1.0 - s), 1.0 - 2.0 * s
    s += b * both * (1.0 + b * (turned + b * (turned * turned - both)))
    return min(max(s, 0.0), 1.0)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SIGNLESS)
def _place(ratio, low, high, bent, share, value):
    """Fill the share of the class below with which tokens are chosen with q·ratio, or nearly; and by what.

    ``bent`` is 2β·bend, and ``value`` is in units of q.
    """
    for i in range(ratio.size):
        rise, r = high[i] - low[i], ratio[i]
        steep = rise > _FLAT * high[i]
        width = 1.0 / rise if steep else 0.0
        s = bent_share(min(max((high[i] - r) * width, 0.0), 1.0), bent[i] * width)
        # Where two nodes are worth the same the place between them does not matter.
        s = s if steep else (0.0 if r >= high[i] else 1.0)
        share[i] = s
        value[i] = s * low[i] + (1.0 - s) * (high[i] + s * bent[i])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SIGNLESS)
def sum_places(target, mass, draft, tokens, nodes, terms, lowest, sums):
    """Place tokens, and add up their masses between two nodes.

    Each of the ``tokens`` stands for so much p and so much q of its like, of which a single one has the q of
    ``draft``; no place is below ``lowest``. Returns the mass that tokens want and that their places do not
    give, and what these give too much; ``sums`` (G − 1, SUMS) is added to.
    """
    base, slope, bend = effective_terms(terms)
    starts = _starts(base, lowest)
    # One by one: of rows of a table the compiler would not know that they lie apart.
    own, wanted = np.empty(_AT_A_TIME), np.empty(_AT_A_TIME)
    odds, bent = np.empty(_AT_A_TIME), np.empty(_AT_A_TIME)
    low, high = np.empty(_AT_A_TIME), np.empty(_AT_A_TIME)
    share, value = np.empty(_AT_A_TIME), np.empty(_AT_A_TIME)
    lower = np.empty(_AT_A_TIME, np.uint64)
    short, excess = 0.0, 0.0
    for start in range(0, tokens.size, _AT_A_TIME):
        some = tokens[start : start + _AT_A_TIME]
        for i in range(some.size):
            y = np.uint64(some[i])
            own[i], wanted[i], odds[i] = mass[y], target[y], draft[y]
        for i in range(some.size):
            wanted[i] /= own[i]
            odds[i] /= 1.0 - odds[i]
        _bracket(wanted[: some.size], odds, starts, base, slope, lowest, lower, low, high)
        for i in range(some.size):
            bent[i] = 2.0 * odds[i] * bend[lower[i]]
        _place(wanted[: some.size], low, high, bent, share, value)
        for i in range(some.size):
            g, s, square = lower[i], share[i], own[i] * odds[i]
            sums[g, 0] += own[i]
            sums[g, 1] += own[i] * s
            sums[g, 2] += square
            sums[g, 3] += square * s
            sums[g, 4] += square * s * s
            missing = wanted[i] - value[i]
            if abs(missing) > _ROUNDING * wanted[i]:
                missing *= own[i]
                short += max(missing, 0.0)
                excess -= min(missing, 0.0)
                if s == 1.0 and g == lowest > 0 and missing < 0.0:
                    # As little as the first of such tokens, lest they hold one another where they are.
                    missing = own[i] * (nodes[g] - value[i])
                sums[g, 5] += missing * s
                sums[g, 6] += missing * (1.0 - s)
    return short, excess


@njit(cache=True, nogil=True)
def place_beyond(beyond, terms, sums):
    """Place tokens of these Σ q, Σ p and Σ q²/(1 − q) at the last node; what they miss there."""
    mass, target, square = beyond
    last = len(terms) - 1
    missing = target - mass * terms[last, BOTH]
    missing -= square * (terms[last, FIRST] - 2.0 * terms[last, OWN])
    sums[last - 1, 0] += mass
    sums[last - 1, 2] += square
    sums[last - 1, 6] += missing
    return missing


@njit(cache=True, nogil=True, error_model="numpy")
def locate_pairs(draft, ratio, terms, lowest, lower, share):
    """Fill the node below each token (T,), and the token's share of it.

    Tokens of p/q = 0, which are never chosen, are at the first node.
    """
    base, slope, bend = effective_terms(terms)
    low, high, value = np.empty((3, draft.size))
    found = np.empty(draft.size, np.uint64)
    odds = draft / (1.0 - draft)
    _bracket(ratio, odds, _starts(base, lowest), base, slope, lowest, found, low, high)
    _place(ratio, low, high, 2.0 * odds * bend[found], share, value)
    for y in range(draft.size):
        lower[y] = found[y] if ratio[y] > 0.0 else 0
        share[y] = share[y] if ratio[y] > 0.0 else 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def pair_values(draft, lower, share, terms, values):
    """How often each token (T,) is chosen, from its place."""
    base, slope, bend = effective_terms(terms)
    for y in range(draft.size):
        g, s, odds = lower[y], share[y], draft[y] / (1.0 - draft[y])
        low, high = base[g] + odds * slope[g], base[g + 1] + odds * slope[g + 1]
        values[y] = draft[y] * (s * low + (1.0 - s) * (high + 2.0 * odds * s * bend[g]))
