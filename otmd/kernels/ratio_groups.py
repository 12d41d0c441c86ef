"""Tokens grouped by the leading bits of p/q, in one pass without a sort."""

import numpy as np
from numba import njit

# Groups share their exponent and this many bits of the mantissa of p/q: 16 a factor of two.
MANTISSA_BITS = 4
# Ratios beyond 2^±40 are one group a side.
FARTHEST_OCTAVE = 40

_SHIFT = 52 - MANTISSA_BITS
_REACH = FARTHEST_OCTAVE << MANTISSA_BITS
_OFFSET = (1023 << MANTISSA_BITS) - _REACH
NUM_GROUPS = 2 * _REACH + 2


@njit(cache=True, error_model="numpy")
def group_by_ratio(p, q, ratio, group, target_mass, draft_mass):
    """Fill p/q (inf where q = 0) and the group of each token, and add its masses to its group's."""
    for y in range(p.size):
        ratio[y] = p[y] / q[y] if q[y] > 0.0 else np.inf
    # The bits of a positive float64 are ordered as the numbers are.
    bits = ratio.view(np.int64)
    for y in range(p.size):
        k = min(max((bits[y] >> _SHIFT) - _OFFSET, 0), NUM_GROUPS - 1)
        group[y] = k
        target_mass[k] += p[y]
        draft_mass[k] += q[y]


def group_edges():
    """The smallest ratio of each group, and inf: ascending, shape (NUM_GROUPS + 1,)."""
    bits = (np.arange(NUM_GROUPS, dtype=np.int64) + _OFFSET) << _SHIFT
    edges = np.append(bits.view(np.float64), np.inf)
    edges[0] = 0.0
    return edges


@njit(cache=True)
def tokens_of_groups(group, wanted, count):
    """The ``count`` tokens whose group is wanted, ascending."""
    tokens = np.empty(count, np.int64)
    k = 0
    for y in range(group.size):
        if wanted[group[y]]:
            tokens[k] = y
            k += 1
    return tokens[:k]
