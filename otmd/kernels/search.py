"""Places of numbers among ascending ones."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count_at_most(ascending, limit):
    """How many of the ascending numbers are at most ``limit``, by a search without branches."""
    first, left = 0, ascending.size
    while left > 1:
        half = left >> 1
        first += half if ascending[first + half - 1] <= limit else 0
        left -= half
    return first + (1 if left == 1 and ascending[first] <= limit else 0)


@njit(cache=True, nogil=True)
def fill_blocks(low, values, block):
    """The block of each value, whose blocks begin at ``low`` (K,), ascending; 0 for what is below all.

    Unsigned numbers, and all searches in step, vectorise.
    """
    block[: values.size] = 0
    left = low.size
    while left > 1:
        half = np.uint64(left >> 1)
        for i in range(values.size):
            block[i] += half if low[block[i] + half] <= values[i] else np.uint64(0)
        left -= left >> 1
