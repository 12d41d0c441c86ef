"""Sums over blocks of tokens in a race, in one pass: what bounds the cuts that end inside or between them.

A row of sums (K, 3 + R) holds p, q/(1 − q) and q of a block's tokens, and the powers 1 … R of their rates;
R is 0 where no rates are asked for. A race is (others, unit, end, heaviest): the 1 − q of a token of more
than half, the unit in which rates are counted, the end of the race in the unit of time, and the largest q of
a light token. Times are in this unit too, and powers are of the light tokens' rates in units of the end.
"""

import numpy as np
from numba import njit

from otmd.curve.ratio_groups import AT_A_TIME, fill_groups, fill_ratios, ratios_of
from otmd.curve.search import fill_blocks
from otmd.race.race_prefixes import add_powers

# Columns of a row of sums.
TARGET, ALONE, DRAFT, POWER = 0, 1, 2, 3

_REASSOCIATE = {"reassoc", "contract", "nsz"}
# The fifth power of what is fainter is below 1e-20, as are all that follow.
_FAINT = 1e-4
_OF_FAINT = 4


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_alone(q, race, alone):
    """q/(1 − q) of some tokens, in the unit of time: how long each is the only one to have arrived."""
    others, unit, _, _ = race
    for y in range(q.size):
        left = others if q[y] > 0.5 else 1.0 - q[y]
        alone[y] = q[y] / (unit * left)


@njit(cache=True, nogil=True)
def _fill_small(q, race, small):
    """Rates of light tokens in units of the race's end, 0 for heavy ones."""
    _, unit, end, heaviest = race
    for y in range(q.size):
        # In this order: the product of the other two may be infinite.
        small[y] = (unit * q[y]) * end if q[y] <= heaviest else 0.0


@njit(cache=True, nogil=True)
def _add_tokens(p, q, block, race, scratch, sums):
    """Add some tokens to the sums of their blocks."""
    values = scratch[: q.size]
    _fill_alone(q, race, values)
    for y in range(q.size):
        row = sums[block[y]]
        row[TARGET] += p[y]
        row[ALONE] += values[y]
        row[DRAFT] += q[y]
    if sums.shape[1] == POWER:
        return
    _fill_small(q, race, values)
    for y in range(q.size):
        row, rate = sums[block[y]], values[y]
        power = rate
        # As many for every token: a branch on each power would be guessed wrongly over and over.
        for r in range(POWER, POWER + _OF_FAINT):
            row[r] += power
            power *= rate
        if rate > _FAINT:
            for r in range(POWER + _OF_FAINT, row.size):
                row[r] += power
                power *= rate


@njit(cache=True, nogil=True)
def sums_of_groups(p, q, race, group, sums):
    """Fill the group of each token by p/q, and add the tokens to the groups' sums."""
    ratio, scratch = np.empty(AT_A_TIME), np.empty(AT_A_TIME)
    for start in range(0, p.size, AT_A_TIME):
        own = slice(start, start + AT_A_TIME)
        fill_groups(p[own], q[own], ratio, group[own])
        _add_tokens(p[own], q[own], group[own], race, scratch, sums)


@njit(cache=True, nogil=True)
def sums_of_tokens(p, q, tokens, low, race, sums):
    """Add tokens to the sums of blocks, which begin at the ratios ``low`` (K,), ascending."""
    target, draft, ratio, scratch = np.empty((4, AT_A_TIME))
    block = np.empty(AT_A_TIME, np.uint64)
    for start in range(0, tokens.size, AT_A_TIME):
        own = tokens[start : start + AT_A_TIME]
        here, there = target[: own.size], draft[: own.size]
        for i in range(own.size):
            here[i], there[i] = p[own[i]], q[own[i]]
        fill_ratios(here, there, ratio)
        fill_blocks(low, ratio[: own.size], block)
        _add_tokens(here, there, block, race, scratch, sums)


@njit(cache=True, nogil=True)
def tokens_of_blocks(p, q, tokens, low, wanted):
    """Those of the tokens whose block is wanted; blocks begin at the ratios ``low`` (K,), ascending."""
    kept, block = np.empty(tokens.size + 1, np.int32), np.empty(AT_A_TIME, np.uint64)
    k = 0
    for start in range(0, tokens.size, AT_A_TIME):
        own = tokens[start : start + AT_A_TIME]
        fill_blocks(low, ratios_of(p, q, own), block)
        for i in range(own.size):
            kept[k] = own[i]
            k += wanted[block[i]]
    return kept[:k]


@njit(cache=True, nogil=True)
def leave_distinct(ascending):
    """Move the distinct numbers to the front; how many there are."""
    count = min(ascending.size, 1)
    for i in range(1, ascending.size):
        if ascending[i] != ascending[count - 1]:
            ascending[count] = ascending[i]
            count += 1
    return count


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _total(values):
    total = 0.0
    for y in range(values.size):
        total += values[y]
    return total


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _fill_inside(q, subset, inside):
    """Masses of the subset's tokens, 0 for others; how many are drafted, and the mass of the others."""
    count, outside = 0, 0.0
    for y in range(q.size):
        inside[y] = q[y] if subset[y] else 0.0
        outside += 0.0 if subset[y] else q[y]
        count += 1 if inside[y] > 0.0 else 0
    return count, outside


@njit(cache=True, nogil=True)
def sums_of_subset(q, subset, race, sums):
    """Fill a row of sums but for p; how many drafted tokens are in the subset, and q of all others."""
    inside, scratch = np.empty(AT_A_TIME), np.empty(AT_A_TIME)
    sums[:] = 0.0
    count, outside = 0, 0.0
    for start in range(0, q.size, AT_A_TIME):
        here, chosen = q[start : start + AT_A_TIME], subset[start : start + AT_A_TIME]
        own, values = inside[: here.size], scratch[: here.size]
        drafted, left = _fill_inside(here, chosen, own)
        count += drafted
        outside += left
        sums[DRAFT] += _total(own)
        _fill_alone(own, race, values)
        sums[ALONE] += _total(values)
        if sums.size > POWER:
            _fill_small(own, race, values)
            own[:] = values
            add_powers(own, values, sums[POWER - 1 :])
    return count, outside
