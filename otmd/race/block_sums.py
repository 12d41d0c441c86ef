"""What the race needs of a block of tokens: sums over them, filled in one pass.

A row of sums (S,) holds p, q and q/(1 − q) of the block's tokens. For three drafts and more it also holds
the powers 1, 2, … of q·t at the end of the race, over the light tokens of the block.
"""

from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import AT_A_TIME
from otmd.curve.blocks import DRAFT, TARGET
from otmd.kernel import REASSOCIATE, kernel

# Columns of a row of sums after p and q: the time for which a token alone has arrived, and powers.
ALONE, POWER = 2, 3

# What so many tokens lack together is below rounding.
_INVISIBLE = 1e-20
# The fifth power of what is smaller is below 1e-20, as are all that follow.
_FAINT = 1e-4
_OF_FAINT = 4


class RaceScale(NamedTuple):
    """The numbers of a race that its kernels need.

    Attributes
    ----------
    beside_most : float
        The mass of all tokens but the one of more than half, see
        :func:`otmd.race.containment.mass_beside_most`.
    unit : float
        The tokens' rates are ``unit`` times q.
    end : float
        The end of the race, in the unit of time. 0 for two drafts, which need no powers.
    heaviest : float
        The largest q of a light token.
    """

    beside_most: float
    unit: float
    end: float
    heaviest: float


@kernel(error_model="numpy")
def _fill_alone(q, scale, alone):
    """q/(1 − q) of some tokens, in the unit of time: ∫ P(the token and no other has arrived by t) dt."""
    for y in range(q.size):
        left = scale.beside_most if q[y] > 0.5 else 1.0 - q[y]
        alone[y] = q[y] / (scale.unit * left)


@kernel()
def _fill_small(q, scale, small):
    """q·t of light tokens at the end of the race, 0 for heavy ones."""
    for y in range(q.size):
        # In this order: the product of unit and end may be infinite.
        small[y] = (scale.unit * q[y]) * scale.end if q[y] <= scale.heaviest else 0.0


@kernel()
def add_tokens(p, q, block, scale, scratch, sums):
    """Add tokens to the sums (K, S) of their blocks; ``scratch`` has room for a number per token."""
    values = scratch[: q.size]
    _fill_alone(q, scale, values)
    for y in range(q.size):
        row = sums[block[y]]
        row[TARGET] += p[y]
        row[ALONE] += values[y]
        row[DRAFT] += q[y]
    if sums.shape[1] == POWER:
        return
    _fill_small(q, scale, values)
    for y in range(q.size):
        row, rate = sums[block[y]], values[y]
        power = rate
        # The same number for every token: a branch on each power would often be mispredicted.
        for r in range(POWER, POWER + _OF_FAINT):
            row[r] += power
            power *= rate
        if rate > _FAINT:
            for r in range(POWER + _OF_FAINT, row.size):
                row[r] += power
                power *= rate


@kernel(fastmath=REASSOCIATE)
def _total(values):
    total = 0.0
    for y in range(values.size):
        total += values[y]
    return total


@kernel(fastmath=REASSOCIATE)
def _fill_inside(q, subset, inside):
    """Masses of the subset's tokens, 0 for others; how many are positive, and the mass of the others."""
    count, outside = 0, 0.0
    for y in range(q.size):
        inside[y] = q[y] if subset[y] else 0.0
        outside += 0.0 if subset[y] else q[y]
        count += 1 if inside[y] > 0.0 else 0
    return count, outside


@kernel()
def sums_of_subset(q, subset, scale, sums):
    """Fill the row of sums of a subset, all but p.

    Returns how many tokens with mass are in the subset, and the mass of all tokens outside it.
    """
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
        _fill_alone(own, scale, values)
        sums[ALONE] += _total(values)
        if sums.size > POWER:
            _fill_small(own, scale, values)
            # Its rates, for values are overwritten.
            _copy(values, own)
            add_powers(own, values, sums[POWER - 1 :])
    return count, outside


@kernel()
def _copy(values, out):
    """Copy numbers; Numba takes seconds to compile an assignment of arrays."""
    for y in range(values.size):
        out[y] = values[y]


@kernel()
def power_sums(rates, weights, most):
    """Σ w·q^r for r = 1 … most − 1, and 0 for r = 0; w is 1 where ``weights`` is None."""
    sums, power = np.zeros(most), np.empty(AT_A_TIME)
    for start in range(0, rates.size, AT_A_TIME):
        own = rates[start : start + AT_A_TIME]
        for y in range(own.size):
            power[y] = own[y] if weights is None else own[y] * weights[start + y]
        add_powers(own, power[: own.size], sums)
    return sums


@kernel(fastmath=REASSOCIATE)
def add_powers(rates, power, sums):
    """sums[r] += Σ power·q^{r−1} from r = 1; powers of q below 1e-20 are left out. Overwrites ``power``."""
    largest = 0.0
    for y in range(rates.size):
        largest = rates[y] if rates[y] > largest else largest
    reach = largest
    for r in range(1, sums.size):
        total = 0.0
        for y in range(rates.size):
            total += power[y]
            power[y] *= rates[y]
        sums[r] += total
        reach *= largest
        if reach < _INVISIBLE:
            break
