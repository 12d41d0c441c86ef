"""Tokens in classes of similar draft mass, and within a class by the ratio p/q.

As along the curve of :mod:`otmd.verifiers.rejection_curve`, tokens are merged outside an interval of ratios.
"""

import numpy as np
from numba import njit

from otmd.curve.ratio_groups import AT_A_TIME, fill_ratios
from otmd.curve.search import fill_blocks

_MOST_APART = 8.0
_SUMMED_AT_ONCE = 64


@njit(inline="always")
def _too_wide(total, first, last, widest):
    """Whether a class of this mass and range is too wide, as it then is with smaller masses as well."""
    return total * (first - last) > widest or first > _MOST_APART * last


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum(mass):
    total = 0.0
    for i in range(mass.size):
        total += mass[i]
    return total


@njit(cache=True, nogil=True)
def classes_of_mass(mass, widest):
    """Cut descending masses into classes of mass times range at most ``widest``; where each starts.

    Where little mass is left the smallest tokens matter: they must not drown in the rounding of large ones.
    Equal masses stay together, so that a class is an interval.
    """
    starts, count = np.zeros(64, np.int64), 1
    first, total, i = mass[0], 0.0, 0
    while i < mass.size:
        some = mass[i : i + _SUMMED_AT_ONCE]
        with_them = total + _sum(some)
        if not _too_wide(with_them, first, some[-1], widest):
            total = with_them
            i += some.size
            continue
        # Rounded otherwise, the sum may be too wide a little later.
        while i < mass.size and not _too_wide(total + mass[i], first, mass[i], widest):
            total += mass[i]
            i += 1
        if i == mass.size:
            break
        equal = i
        while mass[equal - 1] == mass[i]:
            equal -= 1
        if count + 1 == starts.size:
            starts = np.append(starts, np.empty_like(starts))
        starts[count] = equal
        count += 1
        first, total = mass[i], mass[i] * (i - equal + 1)
        i += 1
    starts[count] = mass.size
    return starts[: count + 1].copy()


@njit(cache=True, nogil=True)
def masses_by_class(p, q, interval, smallest, merged):
    """Masses of merged tokens by class, and how many others each class has.

    Classes come by their mass, descending; ``smallest`` (K,) are the smallest mass of each, ascending. Fills
    merged (K, 3, 2) with p and q of the tokens of ratio up to 1, from there to the interval, and beyond it.
    """
    last = smallest.size - 1
    kept = np.zeros(smallest.size, np.int64)
    ratio, level = np.empty(AT_A_TIME), np.empty(AT_A_TIME, np.uint64)
    for start in range(0, p.size, AT_A_TIME):
        target, draft = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        fill_ratios(target, draft, ratio)
        fill_blocks(smallest, draft, level)
        for y in range(draft.size):
            if draft[y] == 0.0:
                continue
            c = last - np.int64(level[y])
            if interval[0] < ratio[y] <= interval[1]:
                kept[c] += 1
            else:
                part = 2 if ratio[y] > interval[1] else 1 if ratio[y] > 1.0 else 0
                merged[c, part, 0] += target[y]
                merged[c, part, 1] += draft[y]
    return kept


@njit(cache=True, nogil=True)
def tokens_by_class(p, q, tokens, smallest, starts, merged, middle, ratio, p_before, q_before):
    """Deal tokens that come by their ratio to their classes, in which they stay in that order.

    Each class begins with its merged tokens, see :func:`masses_by_class`: those up to 1 in the masses before
    its first entry, those up to the interval in an entry of ratio ``middle``. Class c fills
    ratio[starts[c] : starts[c + 1]], and one number more of the masses before each entry within the class:
    p_before[starts[c] + c : starts[c + 1] + c + 1].
    """
    last = smallest.size - 1
    place = starts[:-1] + 1
    for c in range(last + 1):
        k = starts[c]
        ratio[k] = middle
        p_before[k + c], q_before[k + c] = merged[c, 0]
        p_before[k + c + 1] = merged[c, 0, 0] + merged[c, 1, 0]
        q_before[k + c + 1] = merged[c, 0, 1] + merged[c, 1, 1]
    draft, level = np.empty(AT_A_TIME), np.empty(AT_A_TIME, np.uint64)
    for start in range(0, tokens.size, AT_A_TIME):
        own = tokens[start : start + AT_A_TIME]
        for i in range(own.size):
            draft[i] = q[own[i]]
        fill_blocks(smallest, draft[: own.size], level)
        for i in range(own.size):
            if draft[i] == 0.0:
                continue
            c = last - np.int64(level[i])
            k, target = place[c], p[own[i]]
            place[c] = k + 1
            ratio[k] = target / draft[i]
            p_before[k + c + 1] = p_before[k + c] + target
            q_before[k + c + 1] = q_before[k + c] + draft[i]
