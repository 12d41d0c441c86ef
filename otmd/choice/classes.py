"""Classes of tokens by p/q, at few nodes of the ratio, that lose no acceptance.

A token whose ratio lies between two nodes of its curve is of the class of either node, with probabilities
such that its ratio is their mean. Spreading the tokens over the nodes lowers the curve of (q(H), p(H)) to its
tangents at the nodes. Nothing is lost as long as no combination of the tangents' corners lies below the best
cut, so nodes are added only where one does.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from otmd.curve.blocks import DRAFT, TARGET, BlockedCurve
from otmd.kernel import kernel
from otmd.optimum.stratified import Ends, corner, scan
from otmd.probabilities import BoolArray, FloatArray, IntArray

# No block but the first and the last group spans more than a factor of two; the first one ends here.
_LEAST_TOP = 2.0**-40


class CutCurve(NamedTuple):
    """Tokens grouped into K intervals of p/q, fine near the best cut; H* holds the tokens below edges[cut].

    Interval i holds the tokens with edges[i] ≤ p/q < edges[i + 1]; the last of the K + 1 edges is inf. It is
    ``single`` if all of them have the ratio of its lower edge. ``target_before``, ``draft_before`` and
    ``contained`` (K + 1,) are p, q and g of the tokens below each edge.
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
        """The first finite edge that is not below the ratio, or the last one."""
        return min(int(np.searchsorted(self.edges, ratio)), self.single.size - 1)


def cut_curve(curve: BlockedCurve, cut: int) -> CutCurve:
    """What the classes need of a refined curve, whose first ``cut`` blocks are H*."""
    blocks, (contained,) = curve.blocks, curve.containment(curve.blocks)
    # Tokens that are never drafted come last, and have no finite ratio.
    size = np.count_nonzero(blocks.sums[:, DRAFT])
    edges, single = blocks.low[:size], blocks.single[:size]
    p, q, g = blocks.sums[:size, TARGET], blocks.sums[:size, DRAFT], contained[: size + 1]
    # An empty interval above the last block, so that a node can lie above all ratios.
    edges = np.append(edges, max(2.0 * edges[-1], _LEAST_TOP))
    single, p, q = np.append(single, True), np.append(p, 0.0), np.append(q, 0.0)
    g = np.append(g, g[-1])
    before = np.append(0.0, p.cumsum()), np.append(0.0, q.cumsum())
    return CutCurve(np.append(edges, np.inf), p, q, *before, g, single, cut)


def locate(nodes: FloatArray, ratio: FloatArray) -> tuple[IntArray, FloatArray]:
    """The lower class of tokens with these ratios (T,), and the probability to be of it."""
    last = nodes.size - 1
    lower = np.clip(np.searchsorted(nodes, ratio, side="right") - 1, 0, last)
    upper = np.minimum(lower + 1, last)
    width = nodes[upper] - nodes[lower]
    share = np.ones(ratio.shape)
    np.divide(nodes[upper] - ratio, width, out=share, where=lower < last)
    # Below the first node all of a token is of its class.
    return lower, np.minimum(share, 1.0)


def choose_nodes(
    curves: Sequence[CutCurve],
    ends: Sequence[Sequence[int]],
    copies: IntArray,
    value: float,
    tol: float,
    linear: bool = False,
) -> list[IntArray]:
    """The nodes of R curves: indices of their edges, ascending, for each curve.

    ``ends`` are nodes in any case, none lies outside them, and ``copies`` (R,) drafts are drawn from each
    curve. At no combination of the tangents' corners is p − g further than ``tol`` below ``value``. If
    ``linear``, g is linear between the edges of the only curve, and not a product of powers of q.
    """
    names = "edges", "target_before", "draft_before", "contained"
    columns = [np.concatenate([getattr(curve, name) for curve in curves]) for name in names]
    starts = np.cumsum([0, *(curve.edges.size for curve in curves)])
    chosen = np.zeros(starts[-1], np.bool_)
    for first, own in zip(starts[:-1], ends, strict=True):
        chosen[first + np.array(own)] = True
    refine_nodes(*columns, starts, copies, value - tol, linear, chosen)
    return [np.flatnonzero(chosen[first:end]) for first, end in pairwise(starts)]


def split_masses(
    curve: CutCurve, chosen: IntArray, first: int, last: int
) -> tuple[FloatArray, FloatArray]:
    """Split the draft mass of the tokens between two edges among the nodes: their ratios and draft masses.

    The part of each token is linear in its p and q, so that the two masses of an interval are enough.
    """
    nodes = curve.edges[chosen]
    p, q = curve.target_mass[first:last], curve.draft_mass[first:last]
    # All tokens of a single interval have the ratio of its lower edge.
    lower, share = locate(nodes, curve.edges[first:last])
    upper = np.minimum(lower + 1, nodes.size - 1)
    part = share * q
    spread = ~curve.single[first:last] & (upper > lower)
    below, above = nodes[lower[spread]], nodes[upper[spread]]
    part[spread] = np.clip((above * q[spread] - p[spread]) / (above - below), 0.0, q[spread])
    mass = np.zeros(nodes.size)
    mass += np.bincount(lower, part, nodes.size)
    mass += np.bincount(upper, q - part, nodes.size)
    return nodes, mass


@kernel()
def _chord(places, values, place):
    """The value at a place, linear between ascending places."""
    k = np.searchsorted(places, place)
    if k == 0 or k == places.size:
        return values[min(k, places.size - 1)]
    width = places[k] - places[k - 1]
    return values[k - 1] + (values[k] - values[k - 1]) * ((place - places[k - 1]) / width)


@kernel()
def refine_nodes(
    edges, target_before, draft_before, contained, starts, copies, limit, linear, chosen
):
    """Mark edges as chosen until no combination of corners between them has p − g below ``limit``.

    The columns hold one curve after another, ``starts`` (R + 1,). A span between two chosen edges is halved
    where its corner takes part in such a combination.
    """
    size = edges.size + copies.size
    ends = Ends(np.empty(size), np.empty(size), np.empty(size), np.empty(starts.size, np.int64))
    left, right = np.empty(size, np.int64), np.empty(size, np.int64)
    halved = True
    while halved:
        halved, k = False, 0
        for r in range(copies.size):
            ends.starts[r], before = k, -1
            for e in range(starts[r], starts[r + 1]):
                # After the last node no corner is left, but all tokens are.
                if not chosen[e] and (e + 1 < starts[r + 1] or before < 0):
                    continue
                p, q = target_before[e], draft_before[e]
                if before >= 0 and chosen[e]:
                    p, q = corner(edges, target_before, draft_before, before, e)
                ends.target[k], ends.slope[k] = p, edges[e]
                ends.draft[k] = _chord(draft_before, contained, q) if linear else q
                left[k], right[k] = before, e if chosen[e] else before
                before = e
                k += 1
        ends.starts[copies.size] = k
        lowest = np.empty(k)
        scan(ends, copies, lowest)
        for i in range(k):
            if lowest[i] < limit and left[i] >= 0 and right[i] - left[i] > 1:
                first, last = left[i], right[i]
                # A search among the edges of one curve, which ascend.
                half = 0.5 * (edges[first] + edges[last])
                middle = first + np.searchsorted(edges[first:last], half)
                chosen[min(max(middle, first + 1), last - 1)] = True
                halved = True
