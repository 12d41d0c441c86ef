"""The best cut of drafts that are drawn independently from strata: the minimiser of p(H) − Π_j q_j(H ∩ G_j).

In each stratum H is a prefix of the tokens by p/q_j ascending. Let x be the q_j-mass of a prefix. For a given
t > 0, the best prefix takes the tokens for which t (log x_after − log x_before) exceeds their p. So the best
prefixes for all t are nested, and one scan of t over all strata meets the best cut (Theorem 10 of
docs/theory.md).

Few tokens are sorted. Each stratum is a curve of blocks (:mod:`otmd.curve.blocks`). A second scan is over the
corners where the tangents at the ends of blocks cross. Where it finds less than the scan over the ends of
blocks, the blocks of these corners are split.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import fill_ratios
from otmd.curve.blocks import DRAFT, SLACK, TARGET, BlockedCurve, Blocks
from otmd.kernel import kernel
from otmd.laws.slots import Slots
from otmd.probabilities import BoolArray, FloatArray, IntArray

# The largest finite t; inf is kept for tokens that are never taken.
_LAST = 1e300


class Ends(NamedTuple):
    """The E places where prefixes of R curves may end, one curve after another, ascending in each.

    ``target`` and ``draft`` (E,) are p and q of the curve's tokens up to each end; the scan begins at the
    first end of each curve. ``slope`` (E,) is p/q of the tokens between an end and the next. The ends of
    curve r begin at ``starts[r]`` (R + 1,).
    """

    target: FloatArray
    draft: FloatArray
    slope: FloatArray
    starts: IntArray


def stratified_cut(target: FloatArray, slots: Slots) -> tuple[BoolArray, float]:
    """The smallest minimiser H (V,) of p(H) − Π_j q_j(H ∩ G_j), and its value; p (V,) need not sum to 1.

    There is one draft from each of the slots, which are disjoint. H is a prefix by p/q_j in each stratum.
    """
    grouped = target[slots.tokens]
    curves = [
        BlockedCurve(grouped[first:end], slots.probs[first:end], [1]) for first, end in pairwise(slots.starts)
    ]
    while True:
        ends, value, unsure = _scan_blocks([curve.blocks for curve in curves])
        if not any(blocks.any() for blocks in unsure):
            break
        for curve, blocks in zip(curves, unsure, strict=True):
            if blocks.any():
                curve.blocks = curve.split(blocks)
    below = map(BlockedCurve.subset, curves, ends.tolist())
    subset = np.zeros(target.size, dtype=bool)
    subset[slots.tokens] = np.concatenate(list(below))
    return subset, value


def _scan_blocks(blocks: list[Blocks]) -> tuple[FloatArray, float, list[BoolArray]]:
    """The best cut between blocks, and the blocks of each curve inside which a better one may end.

    Returns the ratio below which the best cut ends in each curve, (n,), its p − g, and a mask of blocks for
    each curve.
    """
    starts = np.cumsum([0, *(x.low.size + 1 for x in blocks)])
    low, single, sums = (np.concatenate(parts) for parts in zip(*(x[:3] for x in blocks), strict=True))
    ends, edges, single = _ends_of(low, single, sums, starts)
    lowest = np.empty(edges.size)
    best = scan(ends, lowest)
    least = lowest.min()
    scan(corners_of(edges, ends.target, ends.draft, single, starts), lowest)
    marked = lowest <= least - SLACK
    for first, end in zip(starts[:-1], best, strict=True):
        # Inside the cut, a block is split if a smaller cut that is as good may end in it.
        marked[first : end + 1] = lowest[first : end + 1] <= least + SLACK
    # The ends of a curve are its start, and then the end of each block.
    unsure = [
        marked[first + 1 : end] & ~x.single for (first, end), x in zip(pairwise(starts), blocks, strict=True)
    ]
    value = float(ends.target[best].sum() - ends.draft[best].prod())
    return edges[best], value, unsure


@kernel()
def _ends_of(low, single, sums, starts):
    """The ends of R curves from their blocks (K,), the ratio at each end, and whether its block is single."""
    size, ratio = starts[-1], np.empty(low.size)
    edges, slope, alone = np.full(size, np.inf), np.full(size, np.inf), np.ones(size, np.bool_)
    target, draft = np.zeros(size), np.zeros(size)
    fill_ratios(sums[:, TARGET].copy(), sums[:, DRAFT].copy(), ratio)
    for r in range(starts.size - 1):
        for k in range(starts[r], starts[r + 1] - 1):
            # Each curve has one end more than it has blocks.
            i = k - r
            edges[k], slope[k], alone[k] = low[i], ratio[i], single[i]
            target[k + 1], draft[k + 1] = target[k] + sums[i, TARGET], draft[k] + sums[i, DRAFT]
    return Ends(target, draft, slope, starts), edges, alone


@kernel()
def corner(edges, target_before, draft_before, first, last):
    """P and q of the corner, where the tangents at two edges cross; no prefix that ends between is lower."""
    p = target_before[last] - target_before[first]
    q = draft_before[last] - draft_before[first]
    left = q
    if edges[last] < np.inf:
        left = (edges[last] * q - p) / (edges[last] - edges[first])
    left = min(max(left, 0.0), q)
    return target_before[first] + edges[first] * left, draft_before[first] + left


@kernel()
def corners_of(edges, target_before, draft_before, single, starts):
    """The start of each curve, and then the corners of the tangents at neighbouring edges, as ends."""
    target, draft = np.empty(edges.size), np.empty(edges.size)
    for r in range(starts.size - 1):
        for k in range(starts[r], starts[r + 1]):
            target[k], draft[k] = target_before[k], draft_before[k]
            if k > starts[r] and not single[k - 1]:
                target[k], draft[k] = corner(edges, target_before, draft_before, k - 1, k)
    # The line from a corner to the next is the tangent at the edge between them.
    return Ends(target, draft, edges, starts)


@kernel()
def scan(ends, lowest):
    """Scan the prefixes of R curves for the least p − Π_r q_r.

    Fills ``lowest`` (E,), the least value that the scan meets while a curve is at each end. Returns the ends
    (R,) of the first prefixes whose value is the least, up to rounding.
    """
    at = ends.starts[:-1].copy()
    entry = np.zeros(at.size)
    best = at.copy()
    best_value = np.inf
    least = np.inf
    for k in range(lowest.size):
        lowest[k] = np.inf
    for r in range(at.size):
        entry[r] = _entry(ends, at[r], ends.starts[r + 1])
    while True:
        target, contained, following = 0.0, 1.0, -1
        for r in range(at.size):
            target += ends.target[at[r]]
            contained *= min(ends.draft[at[r]], 1.0)
            if entry[r] < np.inf and (following < 0 or entry[r] < entry[following]):
                following = r
        value = target - contained
        least = min(least, value)
        better = best_value > least + SLACK
        for r in range(at.size):
            lowest[at[r]] = min(lowest[at[r]], value)
            best[r] = at[r] if better else best[r]
        best_value = value if better else best_value
        if following < 0:
            return best
        at[following] += 1
        entry[following] = _entry(ends, at[following], ends.starts[following + 1])


@kernel(error_model="numpy")
def _entry(ends, k, stop):
    """The t from which on the tokens between an end and the next are taken; inf after the last end."""
    if k + 1 == stop:
        return np.inf
    return _entry_time(ends.slope[k], ends.draft[k], ends.draft[k + 1] - ends.draft[k])


@kernel(error_model="numpy")
def _entry_time(ratio, before, mass):
    """The t from which on tokens with this p/q and q ``mass`` are taken, after tokens with q ``before``."""
    if before <= 0.0:
        return 0.0
    # x/log(1 + x) is 1 where rounding loses q of these tokens, so that no token of little q stops the scan.
    x = max(mass, 0.0) / before
    growth = x / np.log1p(x) if x > 0.0 else 1.0
    return min(ratio * before * growth, _LAST)


@kernel()
def entry_times(ratio, draft):
    """The t from which on each token (K,) of a stratum by p/q ascending is taken; inf where q is 0."""
    entry, before, latest = np.empty(draft.size), 0.0, 0.0
    for k in range(draft.size):
        # Rounding may put an entry below the one before it.
        latest = max(latest, _entry_time(ratio[k], before, draft[k])) if draft[k] > 0.0 else np.inf
        entry[k] = latest
        before += draft[k]
    return entry
