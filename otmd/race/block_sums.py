"""Sums over blocks of tokens, from which g(H) of an exponential race is computed.

A row of sums (S,) is for one block. It holds Σ p, Σ q and Σ q/(1 − q) over its tokens. For three drafts and
more it also holds Σ (q·t)^r for r = 1, 2, …, over the light tokens of the block, t being the end of the race.
"""

from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import AT_A_TIME, copy_numbers, sum_of
from otmd.curve.blocks import DRAFT, TARGET
from otmd.kernel import REASSOCIATE, kernel

# Columns after p and q: the expected time during which one token alone has arrived, and the powers.
ALONE, POWER = 2, 3

# Smaller terms are left out: those of a whole vocabulary together are below rounding.
_INVISIBLE = 1e-20
# Of a smaller q·t, powers from the fifth on are below rounding; and powers from the seventh on.
_FAINT, _SMALL = 1e-4, 1e-3


class RaceScale(NamedTuple):
    """The numbers of a race that its kernels need.

    ``beside_most`` is the mass of all tokens but the one of more than half, see
    :func:`otmd.race.containment.mass_beside_most`. The tokens' rates are ``unit`` times q. ``end`` is the
    end of the race in the unit of time; 0 for two drafts, which need no powers. ``heaviest`` is the largest
    q of a light token.
    """

    beside_most: float
    unit: float
    end: float
    heaviest: float


@kernel(error_model="numpy")
def _fill_alone(q, scale, alone):
    """q/(1 − q) of some tokens, in the unit of time: ∫ P(by t the token has arrived, and no other) dt."""
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
    """Add tokens to the sums (K, S) of their blocks; ``scratch`` is of shape (2, T) or larger."""
    alone, rates = scratch[0, : q.size], scratch[1, : q.size]
    _fill_alone(q, scale, alone)
    for y in range(q.size):
        # Unsigned, or every index would be checked for counting from the end.
        k = np.uint64(block[y])
        sums[k, TARGET] += p[y]
        sums[k, DRAFT] += q[y]
        sums[k, ALONE] += alone[y]
    if sums.shape[1] == POWER:
        return
    _fill_small(q, scale, rates)
    for y in range(q.size):
        k, rate = np.uint64(block[y]), rates[y]
        square = rate * rate
        # Four powers of every token: a branch on each power would often be mispredicted.
        sums[k, POWER] += rate
        sums[k, POWER + 1] += square
        sums[k, POWER + 2] += rate * square
        sums[k, POWER + 3] += square * square
        if rate > _FAINT:
            power = square * square * rate
            sums[k, POWER + 4] += power
            sums[k, POWER + 5] += power * rate
            if rate > _SMALL:
                for r in range(POWER + 6, sums.shape[1]):
                    power *= rate
                    sums[k, r] += power * rate


@kernel(fastmath=REASSOCIATE)
def _fill_inside(q, subset, inside):
    """Fill q of the subset's tokens, 0 for others. Return how many are positive, and q of the others."""
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
        sums[DRAFT] += sum_of(own)
        _fill_alone(own, scale, values)
        sums[ALONE] += sum_of(values)
        if sums.size > POWER:
            _fill_small(own, scale, values)
            # add_powers overwrites its second argument.
            copy_numbers(values, own)
            add_powers(own, values, sums[POWER - 1 :])
    return count, outside


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
