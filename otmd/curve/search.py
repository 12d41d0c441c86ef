"""Places of numbers among ascending ones."""

import numpy as np
from numba import njit

_LOOKED_AT_ONCE = 1024


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


@njit(cache=True, nogil=True)
def _count_above(values, limit):
    count = 0
    for y in range(values.size):
        count += 1 if values[y] > limit else 0
    return count


@njit(cache=True, nogil=True)
def likeliest(probs, count):
    """The ``count`` largest entries' indices, largest first, ties to the lowest index."""
    best = np.full(count, -1, np.int64)
    least = -np.inf if count else np.inf
    for start in range(0, probs.size, _LOOKED_AT_ONCE):
        here = probs[start : start + _LOOKED_AT_ONCE]
        # Counting vectorises, and most often there is none.
        if _count_above(here, least) == 0:
            continue
        for y in range(here.size):
            if here[y] <= least:
                continue
            j = count - 1
            while j > 0 and (best[j - 1] < 0 or here[y] > probs[best[j - 1]]):
                best[j] = best[j - 1]
                j -= 1
            best[j] = start + y
            if best[count - 1] >= 0:
                least = probs[best[count - 1]]
    return best
