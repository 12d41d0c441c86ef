"""Tokens among the classes of two drafts without replacement: where each is chosen with its p, and the sums.

Let a share s of a token with odds β = q/(1 − q) be of the class of the node below, and the rest of that of
the node above. It is chosen with probability q·(s F + (1 − s) F' + 2β s(1 − s)·bend), where F at a node
is both + β·(first − 2 own): what has the node's weight is chosen as often beside all that may be drafted
with it, less what would be the token itself. ``terms`` (G, TERMS) has a row for each node.
"""

import numpy as np
from numba import njit

# Columns of the terms: Σ (a + b) w/(w + w') and Σ a w/(w + w') over all classes, a = q and b = q/(1 − q); and
# w/(w + w') of the node beside itself, of the node beside the next one, and of that one beside it.
BOTH, FIRST, OWN, UP, DOWN = range(5)
TERMS = 5
# Sums over the tokens between two nodes: of q and q s, with e = qβ of e, e s and e s², and of what tokens
# want more than they are given, of the node below and of the one above.
SUMS = 7
# A part of the ratios has an exponent and so many bits of the mantissa; those beyond 2^±REACH are one.
PART_BITS, REACH = 6, 40
_PART_SHIFT = 52 - PART_BITS
_PART_OFFSET = (1023 - REACH) << PART_BITS
NUM_PARTS = (2 * REACH + 1) << PART_BITS
# Tokens that are alike in p/q are told apart by octaves of q below 2^−LARGEST, the last of which has no end.
# Those nearer to the cut than a part is wide are told apart by octaves of how near.
LARGEST, OCTAVES, NEAREST = 8, 4, 28
NEARNESS = NEAREST - PART_BITS
NUM_CELLS = 2 + NUM_PARTS + 2 * NEARNESS
_AT_A_TIME = 256
_SIGNLESS = {"contract", "nsz"}
# A rise so small beside F is none.
_FLAT = 1e-12


def part_edges():
    """The smallest ratio of each part, ascending, shape (NUM_PARTS,)."""
    bits = (np.arange(NUM_PARTS, dtype=np.int64) + _PART_OFFSET) << _PART_SHIFT
    edges = bits.view(np.float64)
    edges[0] = 0.0
    return edges


@njit(inline="always")
def _part(bits):
    """The part of a ratio with these bits: those of a positive float64 are ordered as the numbers are."""
    return min(max((bits >> _PART_SHIFT) - _PART_OFFSET, 0), NUM_PARTS - 1)


@njit(cache=True, nogil=True, error_model="numpy")
def tail_cells(target, draft, ratio, single, cut, cells, inner, outer):
    """Sums over the light tokens that are alike in p/q and q.

    ``cells`` (NUM_CELLS, OCTAVES, 3) takes the sums of q, p and q²/(1 − q): first of tokens with p = 0 or
    with q too small for a ratio, then part by part, that of the ratio ``cut`` once for either side of it,
    and last of tokens near the cut, those below it before the others. Fills q and p/q of the light tokens
    of other cells than the first, those below the cut and those from it on; returns how many there are, and
    how far their places may reach: what a token does not meet of itself moves it by less than q/(1 − q).
    """
    (inner_draft, inner_ratio), (outer_draft, outer_ratio) = inner, outer
    numbers = np.empty(3)
    bits = numbers.view(np.int64)
    below, beside = 0, 0
    highest, farthest = 0.0, 0.0
    for y in range(draft.size):
        q = draft[y]
        if q > 0.0 and not single[y]:
            chosen, over = 0.0 < ratio[y] < np.inf, ratio[y] >= cut
            numbers[0], numbers[1], numbers[2] = q, abs(ratio[y] / cut - 1.0), ratio[y]
            octave = min(max(1023 - LARGEST - (bits[0] >> 52), 0), OCTAVES - 1)
            near = min(1023 - (bits[1] >> 52), NEAREST) - PART_BITS - 1
            cell = _part(bits[2]) + 1 + over if chosen else 0
            if near >= 0 and chosen:
                cell = NUM_PARTS + 2 + over * NEARNESS + near
            own = cells[cell, octave]
            own[0] += q
            own[1] += target[y]
            own[2] += q * q / (1.0 - q)
            # Written in any case and counted if wanted: a branch would be guessed wrongly over and over.
            inner_draft[below], inner_ratio[below] = q, ratio[y]
            outer_draft[beside], outer_ratio[beside] = q, ratio[y]
            below += chosen and not over
            beside += chosen and over
            if chosen:
                reach = ratio[y] + 2.0 * q / (1.0 - q)
                farthest = max(farthest, reach)
                highest = highest if over else max(highest, reach)
    return (below, beside), (highest, farthest)


@njit(cache=True, nogil=True)
def _effective(terms):
    """What F is made of at the nodes, base + β·slope, and the bend between each and the next."""
    slope = terms[:, FIRST] - 2.0 * terms[:, OWN]
    bend = np.zeros(len(terms))
    bend[:-1] = terms[:-1, OWN] + terms[1:, OWN] - terms[:-1, UP] - terms[:-1, DOWN]
    return terms[:, BOTH].copy(), slope, bend


@njit(cache=True, nogil=True)
def _starts(base, lowest):
    """Where the search for a ratio of each part begins: at a node that it reaches at β = 0."""
    last = base.size - 2
    starts = np.empty(NUM_PARTS, np.int32)
    edge = np.empty(1)
    bits = edge.view(np.int64)
    g = lowest
    for part in range(NUM_PARTS):
        bits[0] = (part + _PART_OFFSET) << _PART_SHIFT
        while g < last and part > 0 and base[g + 1] <= edge[0]:
            g += 1
        starts[part] = g
    return starts


@njit(inline="always", error_model="numpy", fastmath=_SIGNLESS)
def _bracket(ratio, odds, starts, base, slope, lowest, lower, low, high):
    """Fill the node, not below ``lowest``, with F ≤ ratio < F' at the next one; and F and F'."""
    last, one = np.uint64(base.size - 2), np.uint64(1)
    bits = ratio.view(np.int64)
    for i in range(ratio.size):
        part = _part(bits[i])
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


@njit(inline="always", error_model="numpy", fastmath=_SIGNLESS)
def _place(ratio, low, high, bent, share, value):
    """Fill the share of the class below with which tokens are chosen with q·ratio, or nearly; and by what.

    ``bent`` is 2β·bend, and ``value`` is in units of q.
    """
    for i in range(ratio.size):
        rise, r = high[i] - low[i], ratio[i]
        steep = rise > _FLAT * high[i]
        width = 1.0 / rise if steep else 0.0
        s, b = min(max((high[i] - r) * width, 0.0), 1.0), bent[i] * width
        # The solution of s' = s + b s'(1 − s') for small b, up to b³.
        both, turned = s * (1.0 - s), 1.0 - 2.0 * s
        s += b * both * (1.0 + b * (turned + b * (turned * turned - both)))
        s = min(max(s, 0.0), 1.0)
        # Where two nodes are worth the same the place between them does not matter.
        s = s if steep else (0.0 if r >= high[i] else 1.0)
        share[i] = s
        value[i] = s * low[i] + (1.0 - s) * (high[i] + s * bent[i])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SIGNLESS)
def sum_places(mass, draft, ratio, nodes, terms, lowest, sums):
    """Place tokens, and add up their masses between two nodes.

    A token with this q stands for so much mass of its like; no place is below ``lowest``. Returns the
    mass that tokens want and that their places do not give, and what these give too much; ``sums``
    (G − 1, SUMS) is added to.
    """
    base, slope, bend = _effective(terms)
    starts = _starts(base, lowest)
    # One by one: of rows of a table the compiler would not know that they lie apart.
    odds, bent = np.empty(_AT_A_TIME), np.empty(_AT_A_TIME)
    low, high = np.empty(_AT_A_TIME), np.empty(_AT_A_TIME)
    share, value = np.empty(_AT_A_TIME), np.empty(_AT_A_TIME)
    lower = np.empty(_AT_A_TIME, np.uint64)
    short, excess = 0.0, 0.0
    for start in range(0, ratio.size, _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        own, wanted, q = mass[some], ratio[some], draft[some]
        for i in range(q.size):
            odds[i] = q[i] / (1.0 - q[i])
        _bracket(wanted, odds, starts, base, slope, lowest, lower, low, high)
        for i in range(q.size):
            bent[i] = 2.0 * odds[i] * bend[lower[i]]
        _place(wanted, low, high, bent, share, value)
        for i in range(q.size):
            g, s, square = lower[i], share[i], own[i] * odds[i]
            missing = own[i] * (wanted[i] - value[i])
            short += max(missing, 0.0)
            excess -= min(missing, 0.0)
            if s == 1.0 and g == lowest > 0 and missing < 0.0:
                # As little as the first of such tokens, lest they hold one another where they are.
                missing = own[i] * (nodes[g] - value[i])
            sums[g, 0] += own[i]
            sums[g, 1] += own[i] * s
            sums[g, 2] += square
            sums[g, 3] += square * s
            sums[g, 4] += square * s * s
            sums[g, 5] += missing * s
            sums[g, 6] += missing * (1.0 - s)
    return short, excess


@njit(cache=True, nogil=True, error_model="numpy")
def locate_pairs(draft, ratio, terms, lowest, lower, share):
    """Fill the node below each token (T,), and the token's share of it."""
    base, slope, bend = _effective(terms)
    low, high, value = np.empty((3, draft.size))
    found = np.empty(draft.size, np.uint64)
    odds = draft / (1.0 - draft)
    _bracket(ratio, odds, _starts(base, lowest), base, slope, lowest, found, low, high)
    _place(ratio, low, high, 2.0 * odds * bend[found], share, value)
    lower[:] = found


@njit(cache=True, nogil=True, error_model="numpy")
def pair_values(draft, lower, share, terms, values):
    """How often each token (T,) is chosen, from its place."""
    base, slope, bend = _effective(terms)
    for y in range(draft.size):
        g, s, odds = lower[y], share[y], draft[y] / (1.0 - draft[y])
        low, high = base[g] + odds * slope[g], base[g + 1] + odds * slope[g + 1]
        values[y] = draft[y] * (s * low + (1.0 - s) * (high + 2.0 * odds * s * bend[g]))
