"""Distributions checked, copied to float64 and scaled, row by row."""

import numpy as np
from numba import njit

# What a block of rows needs: nothing, to be divided by its sums, to be refused.
READY, OFF, WRONG = 0, 1, 2

_REASSOCIATE = {"reassoc", "contract", "nsz"}
# One long chain of additions would drift: a sum of sums does not.
_SUMMED_AT_ONCE = 1024


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _check_row(values):
    """The sum of a row, not finite where a number is not, and how many numbers are negative."""
    total, negative = 0.0, 0
    for start in range(0, values.size, _SUMMED_AT_ONCE):
        here = values[start : start + _SUMMED_AT_ONCE]
        part = 0.0
        for y in range(here.size):
            value = np.float64(here[y])
            part += value
            negative += 1 if value < 0.0 else 0
        total += part
    return total, negative


@njit(cache=True, nogil=True)
def check_rows(values, rounding, tolerance, totals):
    """Fill the sums (B,) of the rows of values (B, V), 1 where they are that but for ``rounding``.

    Returns WRONG if a row holds what is negative or not finite, or sums to what is further than
    ``tolerance`` from 1; else OFF if a sum was left other than 1, and READY if none was.
    """
    worst = READY
    for b in range(values.shape[0]):
        total, negative = _check_row(values[b])
        off = abs(total - 1.0)
        totals[b] = 1.0 if off <= rounding else total
        # A sum that is no number is within no tolerance.
        if negative > 0 or not off <= tolerance:
            worst = WRONG
        elif off > rounding:
            worst = max(worst, OFF)
    return worst


@njit(cache=True, nogil=True)
def scale_rows(values, totals, out):
    """Fill out (B, V) with the rows of values, divided by their totals (B,)."""
    for b in range(values.shape[0]):
        here, there, total = values[b], out[b], totals[b]
        for y in range(here.size):
            there[y] = here[y] / total
