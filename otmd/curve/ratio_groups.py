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
# A group may be split by so many further bits; those at both ends hold many octaves, and are not.
_PART_BITS = 8
NUM_PARTS = 1 << _PART_BITS
_PART_SHIFT = _SHIFT - _PART_BITS
# How many tokens a pass holds at a time.
AT_A_TIME = 1024


@njit(cache=True, nogil=True, error_model="numpy")
def fill_ratios(p, q, ratio):
    """p/q of each token, inf where q = 0."""
    for y in range(p.size):
        ratio[y] = p[y] / q[y] if q[y] > 0.0 else np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def ratios_of(p, q, tokens):
    """p/q of the tokens, inf where q = 0."""
    ratio = np.empty(tokens.size)
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        ratio[i] = p[y] / q[y] if q[y] > 0.0 else np.inf
    return ratio


@njit(inline="always")
def _group_of_bits(bits):
    """The group of a ratio with these bits: those of a positive float64 are ordered as the numbers are."""
    return min(max((bits >> _SHIFT) - _OFFSET, 0), NUM_GROUPS - 1)


@njit(cache=True, nogil=True)
def fill_groups(p, q, ratio, group):
    """Fill the group of each of some tokens, and the first of ``ratio`` with their p/q."""
    fill_ratios(p, q, ratio)
    bits = ratio.view(np.int64)
    for y in range(p.size):
        group[y] = _group_of_bits(bits[y])


@njit(cache=True, nogil=True)
def group_by_ratio(p, q, group, target_mass, draft_mass):
    """Fill the group of each token, and add its masses to its group's."""
    # Some ratios at a time: fresh memory for all of them would cost more than to compute them.
    ratio = np.empty(AT_A_TIME)
    for start in range(0, p.size, AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        here, there, groups = p[own], q[own], group[own]
        fill_groups(here, there, ratio, groups)
        for y in range(here.size):
            # Unsigned, or every index would be asked whether it counts from the end.
            own_group = np.uint64(groups[y])
            target_mass[own_group] += here[y]
            draft_mass[own_group] += there[y]


@njit(cache=True, nogil=True)
def part_of(bits, group):
    """The part of its group that a ratio with these bits is in."""
    inner = 0 < group < NUM_GROUPS - 1
    return (bits >> _PART_SHIFT) & (NUM_PARTS - 1) if inner else 0


@njit(cache=True, nogil=True)
def part_edge(group, part):
    """The smallest ratio of a part, ascending; the parts that hold nothing end their group."""
    bits = np.empty(1, np.int64)
    inner = 0 < group < NUM_GROUPS - 1
    if group == 0 and part == 0:
        return 0.0
    if not inner and part > 0:
        group, part = group + 1, 0
    if group >= NUM_GROUPS:
        return np.inf
    bits[0] = ((group + _OFFSET) << _SHIFT) + (part << _PART_SHIFT)
    return bits.view(np.float64)[0]


@njit(cache=True, nogil=True)
def tokens_of_groups(group, wanted, count):
    """The ``count`` tokens whose group is wanted, ascending."""
    # Written in any case and counted if wanted: a branch would be guessed wrongly over and over.
    tokens = np.empty(count + 1, np.int32)
    k = np.uint64(0)
    for y in range(group.size):
        tokens[k] = y
        k += np.uint64(wanted[np.uint64(group[y])])
    return tokens[:k]


@njit(cache=True, nogil=True)
def split_groups(p, q, group, edges, p_mass, q_mass, wanted):
    """Split the wanted groups into parts.

    Returns the edges and masses of the blocks that result, the tokens of the split groups, the ratios of
    these and their blocks.
    """
    start = np.empty(NUM_GROUPS, np.int64)
    size = 0
    for g in range(NUM_GROUPS):
        start[g] = size
        size += NUM_PARTS if wanted[g] else 1
    finer, p_block, q_block = np.empty(size + 1), np.zeros(size), np.zeros(size)
    for g in range(NUM_GROUPS):
        if wanted[g]:
            for part in range(NUM_PARTS):
                finer[start[g] + part] = part_edge(g, part)
        else:
            finer[start[g]] = edges[g]
            p_block[start[g]] = p_mass[g]
            q_block[start[g]] = q_mass[g]
    finer[size] = np.inf
    tokens = tokens_of_groups(group, wanted, p.size)
    blocks = np.empty(tokens.size, np.uint64)
    ratio = ratios_of(p, q, tokens)
    bits = ratio.view(np.int64)
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        own_group = np.uint64(group[y])
        block = np.uint64(start[own_group] + part_of(bits[i], group[y]))
        p_block[block] += p[y]
        q_block[block] += q[y]
        blocks[i] = block
    return finer, p_block, q_block, tokens, ratio, blocks


@njit(cache=True, nogil=True, error_model="numpy")
def span_vertex(edges, target_before, draft_before, first, last):
    """Where the lines through the ends of a span of blocks cross: its p and its q.

    No prefix that ends inside the span lies below them.
    """
    p = target_before[last] - target_before[first]
    q = draft_before[last] - draft_before[first]
    left = q
    if edges[last] < np.inf:
        left = (edges[last] * q - p) / (edges[last] - edges[first])
    left = min(max(left, 0.0), q)
    return target_before[first] + edges[first] * left, draft_before[first] + left


def group_of(ratio):
    """The group that this ratio is in."""
    return int(_group_of_bits(np.float64(ratio).view(np.int64)))


def group_edges():
    """The smallest ratio of each group, and inf: ascending, shape (NUM_GROUPS + 1,)."""
    bits = (np.arange(NUM_GROUPS, dtype=np.int64) + _OFFSET) << _SHIFT
    edges = np.append(bits.view(np.float64), np.inf)
    edges[0] = 0.0
    return edges
