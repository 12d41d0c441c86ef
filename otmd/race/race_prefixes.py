"""Arrivals of growing prefixes in an exponential race, block of tokens by block of tokens."""

import numpy as np
from numba import njit

from otmd.curve.ratio_groups import AT_A_TIME

_REASSOCIATE = {"reassoc", "contract", "nsz"}
# What so many blocks lack together is below rounding.
_INVISIBLE = 1e-20


@njit(cache=True, nogil=True)
def power_sums(rates, most):
    """Σ q^r for r = 1 … most − 1, and 0 for r = 0, some tokens at a time."""
    sums, power = np.zeros(most), np.empty(AT_A_TIME)
    for start in range(0, rates.size, AT_A_TIME):
        own = rates[start : start + AT_A_TIME]
        power[: own.size] = own
        add_powers(own, power[: own.size], sums)
    return sums


@njit(cache=True, nogil=True)
def weighted_power_sums(rates, weights, most):
    """Σ w·q^r for r = 1 … most − 1, and 0 for r = 0, some tokens at a time."""
    sums, power = np.zeros(most), np.empty(AT_A_TIME)
    for start in range(0, rates.size, AT_A_TIME):
        own = rates[start : start + AT_A_TIME]
        power[: own.size] = own * weights[start : start + AT_A_TIME]
        add_powers(own, power[: own.size], sums)
    return sums


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def add_powers(rates, power, sums):
    """sums[r] += Σ power·q^{r−1} from r = 1; powers of q below 1e-20 are left out, and ``power`` is lost."""
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


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE, error_model="numpy")
def prefix_arrivals(
    moments, series, powers, heavy_block, absent, present, outside, times, steps, out
):
    """out[k, b] = Σ_t step·e^{−λ_b t} P(2 ≤ N < 3 + k), N the arrivals by t among the first b blocks.

    λ_b = outside[b] is the rate of all other tokens, in the unit of ``times``; small rates and ``powers`` may
    be in another. ``moments`` (K, R) are power sums of the small rates of each block, whose column 0 is not
    read, ``series`` (n, R) the coefficients of (e^x − 1)^m, ``powers`` (R, T) those of the times; heavy
    tokens come in the order of their blocks, with e^{−q t} and 1 − e^{−q t} in absent and present (M, T).
    """
    order, most = series.shape
    num_nodes = times.size
    heavy = np.zeros((order, num_nodes))
    heavy[0] = 1.0
    light = 0.0
    logs = np.zeros((order, num_nodes))
    tail = np.zeros((order, num_nodes))
    used = 0
    out[:, 0] = 0.0
    for b in range(moments.shape[0]):
        light += moments[b, 1]
        # The rate of all tokens but the heavy ones so far: no light token changes it.
        stale = b == 0 or (used < heavy_block.size and heavy_block[used] == b)
        while used < heavy_block.size and heavy_block[used] == b:
            for m in range(order - 1, -1, -1):
                for k in range(num_nodes):
                    value = heavy[m, k] * absent[used, k]
                    if m > 0:
                        value += heavy[m - 1, k] * present[used, k]
                    heavy[m, k] = value
            used += 1
        for m in range(1, order):
            for r in range(m, most):
                weight = series[m, r] * moments[b, r]
                if weight < _INVISIBLE:
                    continue
                for k in range(num_nodes):
                    logs[m, k] += weight * powers[r, k]
        if stale:
            for k in range(num_nodes):
                exponent = outside[b + 1] * times[k] + light * powers[1, k]
                tail[0, k] = steps[k] * np.exp(-exponent)
        for m in range(1, order):
            tail[m] = 0.0
            for i in range(1, m + 1):
                sign = 1.0 if i % 2 == 1 else -1.0
                for k in range(num_nodes):
                    tail[m, k] += sign * logs[i, k] * tail[m - i, k]
            for k in range(num_nodes):
                tail[m, k] /= m
        total = 0.0
        for m in range(2, order):
            for i in range(m + 1):
                for k in range(num_nodes):
                    total += heavy[i, k] * tail[m - i, k]
            out[m - 2, b + 1] = total


@njit(cache=True, nogil=True)
def polynomials(rates, coefficients, out):
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
        value = coefficients[needed - 1]
        for r in range(needed - 2, -1, -1):
            value = value * rate + coefficients[r]
        out[y] = value
