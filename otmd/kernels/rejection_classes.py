"""Tokens in classes of similar draft mass, and within a class by the ratio p/q."""

import numpy as np
from numba import njit

_MOST_APART = 8.0


@njit(cache=True, nogil=True)
def classes_of_mass(mass, widest, rank):
    """Cut descending masses into classes of mass times range at most ``widest``; where each starts.

    Where little mass is left the smallest tokens matter: they must not drown in the rounding of large ones.
    ``rank`` (V,) is filled with the class of each mass.
    """
    starts = np.empty(mass.size + 1, np.int64)
    starts[0] = count = 0
    first, total = mass[0], 0.0
    for i in range(mass.size):
        total += mass[i]
        if total * (first - mass[i]) > widest or first > _MOST_APART * mass[i]:
            count += 1
            starts[count] = i
            first, total = mass[i], mass[i]
        rank[i] = count
    starts[count + 1] = mass.size
    return starts[: count + 2].copy()


@njit(cache=True, nogil=True)
def tokens_by_class(level, starts, tokens, ratio, p_before, q_before):
    """Deal tokens that come by their ratio to their classes, in which they stay in that order.

    ``tokens`` are the ratio, p and q of each, and ``level`` its class. Class c fills
    ratio[starts[c] : starts[c + 1]], and one number more of the masses before each token within the class:
    p_before[starts[c] + c : starts[c + 1] + c + 1].
    """
    all_ratios, p, q = tokens
    place = starts[:-1].copy()
    for c in range(place.size):
        p_before[starts[c] + c] = q_before[starts[c] + c] = 0.0
    for i in range(level.size):
        c = level[i]
        k = place[c]
        place[c] = k + 1
        ratio[k] = all_ratios[i]
        p_before[k + c + 1] = p_before[k + c] + p[i]
        q_before[k + c + 1] = q_before[k + c] + q[i]
