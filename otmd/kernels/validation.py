"""Distributions checked, copied to float64 and scaled, row by row."""

import numpy as np
from numba import njit

_REASSOCIATE = {"reassoc", "contract", "nsz"}
# One long chain of additions would drift: a sum of sums does not.
_SUMMED_AT_ONCE = 1024


@njit(cache=True, nogil=True, fastmath=_REASSOCIATE)
def _copy_row(values, out):
    """Copy a row; its sum, not finite where a number is not, and how many numbers are negative."""
    total, negative = 0.0, 0
    for start in range(0, values.size, _SUMMED_AT_ONCE):
        here, there = values[start : start + _SUMMED_AT_ONCE], out[start : start + _SUMMED_AT_ONCE]
        part = 0.0
        for y in range(here.size):
            value = np.float64(here[y])
            there[y] = value
            part += value
            negative += 1 if value < 0.0 else 0
        total += part
    return total, negative


@njit(cache=True, nogil=True)
def scaled_rows(values, out, totals, negative):
    """Fill out (B, V) with rows of sum 1; the rows' sums, and their count of negative numbers, (B,).

    Rows whose sum is not positive and finite are copied as they are.
    """
    for b in range(values.shape[0]):
        totals[b], negative[b] = _copy_row(values[b], out[b])
        if totals[b] > 0.0 and totals[b] < np.inf and totals[b] != 1.0:
            row, total = out[b], totals[b]
            for y in range(row.size):
                row[y] = row[y] / total
