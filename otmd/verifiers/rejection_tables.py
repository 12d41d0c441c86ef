"""Tables that the bounds of recursive rejection are read from: the ratio curve and classes of draft mass.

The curve is W(C) = Σ (p − Cq)₊. Recursive rejection reads it at C = 0, C = 1 and an interval of larger C. No
such C separates two tokens that both have p/q up to 1, or both between 1 and the interval, or both beyond
it. These three groups are merged; only the tokens inside the interval are kept one by one, sorted by p/q.

A class holds tokens of similar draft mass. Within a class the tokens are merged and sorted in the same way.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, fill_ratios
from otmd.kernel import REASSOCIATE, kernel
from otmd.probabilities import FloatArray, IntArray

# The largest draft mass of a class is at most this many times the smallest.
_MOST_APART = 8.0
_SUMMED_AT_ONCE = 64


class Interval(NamedTuple):
    """Where tokens are kept: first < p/q ≤ last. ``one`` is C = 1 in the unit of C."""

    one: float
    first: float
    last: float


class Curve(NamedTuple):
    """Entries with ascending p/q, shape (K,), and the masses from each entry on, shape (K + 1,)."""

    ratio: FloatArray
    target_tail: FloatArray
    draft_tail: FloatArray


class Classes(NamedTuple):
    """Tokens in K classes of similar draft mass, largest masses first; the first four fields are (K,).

    Class c has the entries from ``starts[c]`` on, by ``ratio``. The masses before each entry, and after
    the last, are in ``target_before`` and ``draft_before`` from ``starts[c] + c`` on.
    """

    smallest: FloatArray
    largest: FloatArray
    total: FloatArray
    size: IntArray
    starts: IntArray
    ratio: FloatArray
    target_before: FloatArray
    draft_before: FloatArray


@kernel(fastmath=REASSOCIATE)
def _add_part(p, q, ratio, low, high, sums):
    """Add p and q of the tokens with low < p/q ≤ high to ``sums``. Returns how many there are."""
    count, p_sum, q_sum = 0, 0.0, 0.0
    for y in range(p.size):
        inside = low < ratio[y] <= high
        count += 1 if inside else 0
        p_sum += p[y] if inside else 0.0
        q_sum += q[y] if inside else 0.0
    sums[0] += p_sum
    sums[1] += q_sum
    return count


@kernel()
def merged_tokens(p, q, interval, merged):
    """The tokens with p/q inside the interval, ascending, as int32.

    Fills merged (3, 2) with p and q of the tokens up to 1, from there to the interval, and beyond it.
    """
    one, first, last = interval
    ratio, kept = np.empty(AT_A_TIME), np.zeros(2)
    count = 0
    for start in range(0, p.size, AT_A_TIME):
        here, there = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        fill_ratios(here, there, ratio)
        _add_part(here, there, ratio, -1.0, one, merged[0])
        _add_part(here, there, ratio, one, first, merged[1])
        _add_part(here, there, ratio, last, np.inf, merged[2])
        count += _add_part(here, there, ratio, first, last, kept)
    # Every token is written, and the index moves on only past one inside: this has no branch to mispredict.
    tokens, k = np.empty(count + 1, np.int32), 0
    for start in range(0, p.size, AT_A_TIME):
        here, there = p[start : start + AT_A_TIME], q[start : start + AT_A_TIME]
        fill_ratios(here, there, ratio)
        for i in range(here.size):
            tokens[k] = start + i
            k += first < ratio[i] <= last
    return tokens[:count]


@kernel()
def fill_tails(p, q, tokens, merged, p_tail, q_tail):
    """Masses from each entry on: two of merged tokens, ``tokens`` sorted by p/q, and one more merged."""
    k = tokens.size + 3
    p_tail[k] = q_tail[k] = 0.0
    p_tail[k - 1], q_tail[k - 1] = merged[2]
    for i in range(tokens.size - 1, -1, -1):
        p_tail[i + 2] = p_tail[i + 3] + p[tokens[i]]
        q_tail[i + 2] = q_tail[i + 3] + q[tokens[i]]
    for i in (1, 0):
        p_tail[i] = p_tail[i + 1] + merged[i, 0]
        q_tail[i] = q_tail[i + 1] + merged[i, 1]


def tables_of_classes(
    target: FloatArray,
    draft: FloatArray,
    kept: NDArray[np.int32],
    interval: Interval,
    middle: float,
    widest: float,
) -> Classes:
    """Put the tokens with draft mass into classes; ``kept`` are those inside the interval, by p/q."""
    mass = np.sort(draft)
    mass = mass[mass.size - np.count_nonzero(mass) :][::-1]
    ends = classes_of_mass(mass, widest)
    low, high = mass[ends[1:] - 1], mass[ends[:-1]]
    # As large as the vocabulary, and not needed below.
    del mass
    ascending, merged = low[::-1].copy(), np.zeros((low.size, 3, 2))
    count = masses_by_class(target, draft, interval, ascending, merged)
    starts = np.append(0, np.cumsum(1 + count))
    ratio, before = np.empty(starts[-1]), np.empty((2, starts[-1] + low.size))
    tokens_by_class(target, draft, kept, ascending, starts, merged, middle, ratio, *before)
    total = before[1][starts[1:] + np.arange(low.size)] + merged[:, 2, 1]
    return Classes(low, high, total, np.diff(ends), starts, ratio, *before)


@kernel()
def _too_wide(total, first, last, widest):
    """Whether a class of this mass and range is too wide. Smaller masses only make it wider."""
    # A product with the range would underflow for small masses.
    return first > last and (first > _MOST_APART * last or total > widest / (first - last))


@kernel(fastmath={"reassoc"})
def _sum(mass):
    total = 0.0
    for i in range(mass.size):
        total += mass[i]
    return total


@kernel()
def classes_of_mass(mass, widest):
    """Cut descending masses into classes of mass times range at most ``widest``: where each starts.

    A class spans at most a factor of eight: where most mass is rejected, the smallest tokens matter.
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
        # The sum in another order may round to what is not too wide: check the end of the array again.
        while i < mass.size and not _too_wide(total + mass[i], first, mass[i], widest):
            total += mass[i]
            i += 1
        if i == mass.size:
            break
        equal = i
        while mass[equal - 1] == mass[i]:
            equal -= 1
        if count + 1 == starts.size:
            longer = np.zeros(2 * starts.size, np.int64)
            for c in range(count):
                longer[c] = starts[c]
            starts = longer
        starts[count] = equal
        count += 1
        first, total = mass[i], mass[i] * (i - equal + 1)
        i += 1
    starts[count] = mass.size
    return starts[: count + 1].copy()


@kernel()
def masses_by_class(p, q, interval, smallest, merged):
    """Fill merged (K, 3, 2) by class; returns how many tokens of each class are inside the interval.

    ``smallest`` (K,) is ascending, while classes are counted from the largest mass on.
    """
    one, first, farthest = interval
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
            if first < ratio[y] <= farthest:
                kept[c] += 1
            else:
                part = 2 if ratio[y] > farthest else 1 if ratio[y] > one else 0
                merged[c, part, 0] += target[y]
                merged[c, part, 1] += draft[y]
    return kept


@kernel()
def tokens_by_class(p, q, tokens, smallest, starts, merged, middle, ratio, p_before, q_before):
    """Fill the entries of each class, see :class:`Classes`, from tokens sorted by p/q.

    A class's merged tokens up to 1 are before its first entry, which holds those from 1 to the interval.
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


@kernel()
def count_at_most(ascending, limit):
    """How many of the ascending numbers are at most ``limit``, by a search without branches."""
    first, left = 0, ascending.size
    while left > 1:
        half = left >> 1
        first += half if ascending[first + half - 1] <= limit else 0
        left -= half
    return first + (1 if left == 1 and ascending[first] <= limit else 0)


@kernel()
def fill_blocks(low, values, block):
    """The block of each value, by their ascending starts (K,); unsigned, in step, so that it vectorises."""
    block[: values.size] = 0
    left = low.size
    while left > 1:
        half = np.uint64(left >> 1)
        for i in range(values.size):
            block[i] += half if low[block[i] + half] <= values[i] else np.uint64(0)
        left -= left >> 1
