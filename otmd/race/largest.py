"""The largest of many numbers, without a copy of all."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def largest(values, count):
    """The ``count`` largest values, in no order."""
    kept = np.empty(2 * count)
    size, least = 0, -np.inf
    for y in range(values.size):
        if values[y] > least:
            kept[size] = values[y]
            size += 1
            if size == kept.size:
                kept[:] = np.partition(kept, count)[::-1]
                size, least = count, kept[:count].min()
    return np.partition(kept[:size], size - count)[size - count :]
