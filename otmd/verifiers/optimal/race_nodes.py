"""Nodes of p/q for the tail of a race: a token with a ratio between two of them belongs to either class.

It does so at random, so that the expected node is its ratio. This replaces the curve of (q(H), p(H)) by its
tangents at the nodes. No acceptance is lost if no corner, where neighbouring tangents cross, lies below the
best cut. So nodes are added only where one does (docs/optimal_verifier.md).
"""

from typing import NamedTuple

import numpy as np

from otmd.curve.blocks import DRAFT, TARGET, BlockedCurve
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Intervals of ratios span at most a factor of two, but for the first and the last; the first may end here.
_LEAST_TOP = 2.0**-40
_LOWEST_RATIO = 1e-13
# The farthest that tokens may move beyond the highest ratio, relative to it.
_HEADROOM = 0.1
# Only rounding separates ratios above this multiple of the highest one from it.
_BELOW = 1.0 - 1e-9
MOST_NODES = 48
"""A search for nodes ends at so many: the time for their weights grows with the square."""


class CutCurve(NamedTuple):
    """Tokens grouped into K intervals of p/q, fine near the best cut; H* holds the tokens below edges[cut].

    Interval i holds the tokens with edges[i] ≤ p/q < edges[i + 1]; the last of the K + 1 edges is inf. An
    interval is ``single`` if all of its tokens have the ratio of its lower edge. ``target_before``,
    ``draft_before`` and ``contained`` (K + 1,) are p, q and g of the set of tokens below each edge.
    """

    edges: FloatArray
    target_mass: FloatArray
    draft_mass: FloatArray
    target_before: FloatArray
    draft_before: FloatArray
    contained: FloatArray
    single: BoolArray
    cut: int

    def edge_at(self, ratio: float) -> int:
        """The index of the first finite edge at or above the ratio, or else of the last finite edge."""
        last = self.single.size - int(np.isinf(self.edges[-1]))
        return min(int(np.searchsorted(self.edges, ratio)), last)


def cut_curve(curve: BlockedCurve, cut: int) -> CutCurve:
    """The part of a refined curve that the classes need; the first ``cut`` blocks of the curve are H*."""
    blocks = curve.blocks
    (contained,) = curve.containment(curve.blocks)
    # Tokens that are never drafted come last, and have no finite ratio.
    size = np.count_nonzero(blocks.sums[:, DRAFT])
    edges = blocks.low[:size]
    single = blocks.single[:size]
    p = blocks.sums[:size, TARGET]
    q = blocks.sums[:size, DRAFT]
    g = contained[: size + 1]
    # An empty interval is appended, so that a node can lie above all ratios.
    edges = np.append(edges, max(2.0 * edges[-1], _LEAST_TOP))
    single = np.append(single, True)
    p = np.append(p, 0.0)
    q = np.append(q, 0.0)
    g = np.append(g, g[-1])
    p_before = np.append(0.0, p.cumsum())
    q_before = np.append(0.0, q.cumsum())
    return CutCurve(np.append(edges, np.inf), p, q, p_before, q_before, g, single, cut)


def choose_nodes(curve: CutCurve, ends: tuple[int, int], limit: float) -> IntArray:
    """Choose nodes among the edges of the curve: the indices of the edges, ascending.

    The ``ends`` are always nodes, and no node lies outside them. At every corner p − g is at least ``limit``,
    with g linear between edges. The search ends early at about 48 nodes.
    """
    chosen = np.unique(ends)
    while chosen.size < MOST_NODES:
        first, last = chosen[:-1], chosen[1:]
        low, high = curve.edges[first], curve.edges[last]
        p = np.diff(curve.target_before[chosen])
        q = np.diff(curve.draft_before[chosen])
        # Where the tangents at two edges cross; no prefix that ends between is lower.
        left = np.clip((high * q - p) / (high - low), 0.0, q)
        contained = np.interp(curve.draft_before[first] + left, curve.draft_before, curve.contained)
        value = curve.target_before[first] + low * left - contained
        divided = (value < limit) & (last - first > 1)
        if not divided.any():
            break
        middle = np.searchsorted(curve.edges, 0.5 * (low + high)[divided])
        middle = np.clip(middle, first[divided] + 1, last[divided] - 1)
        chosen = np.union1d(chosen, middle)
    return chosen


def nodes_of_tail(
    curve: CutCurve, ratio: FloatArray, largest: float, most: float, inner: bool, tol: float
) -> FloatArray:
    """The nodes (G,), from 0 on, for the tokens of a race that are chosen nearly in proportion to q.

    The tokens of one side have p/q ``ratio`` (T,), and q up to ``largest``. No token can be chosen with more
    than ``most`` times its q.
    """
    if ratio.size == 0:
        return np.array([0.0, 1.0])
    lowest, highest = np.minimum([ratio.min(), ratio.max()], max(most, 1.0)).tolist()
    lowest = max(lowest, _LOWEST_RATIO)
    room = _HEADROOM * highest
    farthest = highest + room
    first = 0
    last = curve.cut
    if not inner:
        farthest = min(farthest, most)
        first = curve.cut
        last = max(curve.cut, curve.edge_at(min(highest, most)))
        if curve.cut == 0:
            # At equal weights, P(chosen)/q differs between tokens by a factor of about 1 − q.
            lowest *= 1.0 - min(4.0 * largest, _HEADROOM)
    best = float((curve.target_before - curve.contained).min())
    nodes = curve.edges[choose_nodes(curve, (first, last), best - tol)]
    # No node lies at the highest ratio: the last class must hold part of a token from the start, or no
    # token could move towards it.
    last_inner = _BELOW * highest if inner else min(farthest, highest)
    inside = nodes[(nodes > (0.0 if inner else lowest)) & (nodes < last_inner)]
    below = [0.0] if inner else [0.0, lowest]
    return np.unique(np.concatenate([below, inside, [max(farthest, lowest + room)]]))
