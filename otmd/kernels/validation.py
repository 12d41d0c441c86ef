"""Distributions checked, copied to float64 and scaled, row by row."""

import numpy as np
from numba import njit

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
def check_rows(values, totals, negative):
    """Fill the sums of the rows of values (B, V), and their count of negative numbers, (B,)."""
    for b in range(values.shape[0]):
        totals[b], negative[b] = _check_row(values[b])


@njit(cache=True, nogil=True)
def scale_rows(values, totals, out):
    """Fill out (B, V) with the rows of values, divided by their totals (B,)."""
    for b in range(values.shape[0]):
        here, there, total = values[b], out[b], totals[b]
        for y in range(here.size):
            there[y] = here[y] / total
