"""A lossless plan at one position: classes of tokens with similar p/q, and random clocks that choose a draft.

Each class has a node, a value of p/q. A token with a ratio between two nodes belongs to either class at
random, so that the expected node is its ratio. This replaces the curve of (q(H), p(H)) by its tangents at the
nodes. No acceptance is lost if no combination of corners, where neighbouring tangents cross, lies below the
best cut. So nodes are added only where a combination does (docs/optimal_verifier.md).

The clock of a draft of class g rings after an exponential time of rate w_g, the weight of the class, and that
of the rejection after one of rate w_0. Whichever rings first is chosen, so each is chosen with probability
proportional to its weight. A quadrature integrates over the time s of the first ring.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from otmd.curve.blocks import DRAFT, TARGET, BlockedCurve
from otmd.kernel import kernel
from otmd.optimum.stratified_cut import Ends, corner, scan
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Intervals of ratios span at most a factor of two, but for the first and the last; the first may end here.
_LEAST_TOP = 2.0**-40
_LOWEST_RATIO = 1e-13
# The farthest that tokens may move beyond the highest ratio, relative to it.
_HEADROOM = 0.1
# Only rounding separates ratios above this multiple of the highest one from it.
_BELOW = 1.0 - 1e-9
_MORE_NODES = 16
_SPACING = 0.25
# e^{−45} is below the rounding of 1.
_SILENT = 45.0


MOST_NODES = 128
MOST_NODES_OF_RACE = 48
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

    def between(self, first: int, end: int) -> Self:
        """The intervals from one edge to another, as a curve of their own without H*."""
        edges = slice(first, end + 1)
        intervals = slice(first, end)
        return type(self)(
            self.edges[edges],
            self.target_mass[intervals],
            self.draft_mass[intervals],
            self.target_before[edges],
            self.draft_before[edges],
            self.contained[edges],
            self.single[intervals],
            cut=0,
        )


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


@kernel(error_model="numpy")
def locate_one(nodes, first, end, ratio):
    """The lower class of a token with this ratio, among ``first`` to ``end``, and its probability."""
    lower = first
    size = end - first
    while size > 1:
        half = size // 2
        # A factor, since a branch could be mispredicted.
        lower += half * (nodes[lower + half] <= ratio)
        size -= half
    if lower + 1 == end:
        return lower, 1.0
    # A token below the first node belongs to the first class alone.
    return lower, min((nodes[lower + 1] - ratio) / (nodes[lower + 1] - nodes[lower]), 1.0)


@kernel()
def locate(nodes, ratio):
    """The lower class of each token with these ratios (T,), and its probability."""
    lower = np.empty(ratio.size, np.int64)
    share = np.empty(ratio.size)
    for i in range(ratio.size):
        lower[i], share[i] = locate_one(nodes, 0, nodes.size, ratio[i])
    return lower, share


def choose_nodes(
    curves: Sequence[CutCurve],
    ends: Sequence[Sequence[int]],
    copies: IntArray,
    value: float,
    tol: float,
    linear: bool = False,
    most: int = MOST_NODES,
) -> list[IntArray]:
    """Choose nodes among the edges of each of R curves: the indices of the edges, ascending.

    The ``ends`` of a curve are always nodes, and no node lies outside them. ``copies`` (R,) drafts are drawn
    from each curve. At every combination of corners p − g is at least ``value`` − ``tol``. If ``linear``,
    there is one curve, and g is linear between its edges; otherwise g is a product of powers of q. The
    search ends early at ``most`` nodes, and 16 more for each curve.
    """
    edges = np.concatenate([curve.edges for curve in curves])
    target_before = np.concatenate([curve.target_before for curve in curves])
    draft_before = np.concatenate([curve.draft_before for curve in curves])
    contained = np.concatenate([curve.contained for curve in curves])
    starts = np.cumsum([0, *(curve.edges.size for curve in curves)])
    chosen = np.zeros(starts[-1], np.bool_)
    for first, end_edges in zip(starts[:-1], ends, strict=True):
        chosen[first + np.array(end_edges)] = True
    most += _MORE_NODES * len(curves)
    refine_nodes(
        edges, target_before, draft_before, contained, starts, copies, value - tol, linear, most, chosen
    )  # fmt: skip
    return [np.flatnonzero(chosen[first:end]) for first, end in pairwise(starts)]


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
    once = np.ones(1, np.int64)
    ends = [(first, last)]
    (chosen,) = choose_nodes([curve], ends, once, best, tol, True, MOST_NODES_OF_RACE)
    nodes = curve.edges[chosen]
    # No node lies at the highest ratio: the last class must hold part of a token from the start, or no
    # token could move towards it.
    last_inner = _BELOW * highest if inner else min(farthest, highest)
    inside = nodes[(nodes > (0.0 if inner else lowest)) & (nodes < last_inner)]
    below = [0.0] if inner else [0.0, lowest]
    return np.unique(np.concatenate([below, inside, [max(farthest, lowest + room)]]))


def split_masses(
    curve: CutCurve, chosen: IntArray, first: int, last: int
) -> tuple[FloatArray, FloatArray]:
    """Split the draft mass of the intervals ``first`` to ``last`` among the chosen nodes.

    Returns the ratios and the draft masses of the nodes. A token's part is linear in its p and q, so the two
    masses of an interval are enough.
    """
    nodes = curve.edges[chosen]
    p, q = curve.target_mass[first:last], curve.draft_mass[first:last]
    lower, share = locate(nodes, curve.edges[first:last])
    upper = np.minimum(lower + 1, nodes.size - 1)
    part = share * q
    spread = ~curve.single[first:last] & (upper > lower)
    below = nodes[lower[spread]]
    above = nodes[upper[spread]]
    part[spread] = np.clip((above * q[spread] - p[spread]) / (above - below), 0.0, q[spread])
    mass = np.bincount(lower, part, nodes.size) + np.bincount(upper, q - part, nodes.size)
    return nodes, mass.astype(np.float64)


@kernel()
def _fill_corners(
    edges, target_before, draft_before, contained, starts, linear, chosen, ends, left, right
):
    """Fill the corners between chosen edges and the edges around each; return the number of corners."""
    k = 0
    for r in range(starts.size - 1):
        ends.starts[r] = k
        before = -1
        last = starts[r + 1] - 1
        for j in range(starts[r], last + 2):
            # Beyond the last node there is no corner, only the end of the curve.
            e = min(j, last)
            if not chosen[e] and (j != last or before < 0):
                continue
            p, q = target_before[e], draft_before[e]
            if before >= 0 and chosen[e] and j == e:
                p, q = corner(edges, target_before, draft_before, before, e)
            ends.target[k] = p
            ends.slope[k] = edges[e]
            ends.draft[k] = np.interp(q, draft_before, contained) if linear else q
            left[k] = before
            right[k] = e if chosen[e] else before
            before = e
            k += 1
    ends.starts[starts.size - 1] = k
    return k


@kernel()
def refine_nodes(
    edges, target_before, draft_before, contained, starts, copies, limit, linear, most, chosen
):
    """Mark edges as chosen until no combination of corners between them has p − g below ``limit``.

    The search ends as well once ``most`` edges are chosen.

    The arrays by edge hold one curve after another; curve r begins at ``starts[r]`` (R + 1,). The span
    between two chosen edges is halved if its corner takes part in a combination below the limit.
    """
    size = edges.size + copies.size
    ends = Ends(np.empty(size), np.empty(size), np.empty(size), np.empty(starts.size, np.int64))
    left, right = np.empty((2, size), np.int64)
    refined = True
    count = chosen.sum()
    while refined:
        refined = False
        k = _fill_corners(
            edges, target_before, draft_before, contained, starts, linear, chosen, ends, left, right
        )
        lowest = np.empty(k)
        scan(ends, copies, lowest)
        for i in range(k):
            if count < most and lowest[i] < limit and left[i] >= 0 and right[i] - left[i] > 1:
                first = left[i]
                last = right[i]
                middle_ratio = 0.5 * (edges[first] + edges[last])
                middle = first + np.searchsorted(edges[first:last], middle_ratio)
                chosen[min(max(middle, first + 1), last - 1)] = True
                count += 1
                refined = True


class Quadrature(NamedTuple):
    """Nodes and steps of ∫₀^∞ f(s) ds ≈ Σ steps·f(times), each of shape (J,)."""

    times: FloatArray
    steps: FloatArray


@kernel()
def clock_quadrature(slowest, fastest, spacing=_SPACING):
    """Nodes and steps to integrate sums of exponentials e^{−rs} with rates r from ``slowest`` to ``fastest``.

    The substitution s = exp(v − e^{−v}) makes the trapezoidal rule converge double exponentially at the
    early end (Takahasi and Mori 1974). At the default spacing the rule is exact to rounding.
    """
    latest = np.log(_SILENT * fastest / slowest)
    first = int(np.floor(-3.7 / spacing))
    last = int(np.ceil(latest / spacing))
    times = np.empty(last - first + 1)
    steps = np.empty(last - first + 1)
    # s = exp(v − e^{−v})/fastest : times, ds/dv dv : steps
    for k in range(times.size):
        v = (first + k) * spacing
        times[k] = np.exp(v - np.exp(-v)) / fastest
        steps[k] = spacing * times[k] * (1.0 + np.exp(-v))
    return Quadrature(times, steps)


@kernel()
def quadrature_for_weights(log_weights, num_drafts):
    """The quadrature for clocks with these log weights (G,), of which ``num_drafts`` may run at once."""
    return clock_quadrature(np.exp(log_weights.min()), np.exp(log_weights.max()) * num_drafts)


@dataclass(frozen=True, eq=False)
class Side:
    """Classes, weights and clocks that choose among the drafts on one side of the cut: in H*, or outside.

    ``weights`` (G,) are the rates of the classes' clocks. The ``tiers`` (G,) ascend: only the clocks of the
    highest tier among the drafts run. ``rejection`` is the rate of the clock that rejects all drafts, 0
    without one. The quadrature integrates over the time of the first ring. ``locate`` takes
    tokens (T,) of this side. It returns the lower class of each, the probability of that class (otherwise the
    token is of the next class), and the probability that the token is chosen, before thinning.
    """

    weights: FloatArray
    tiers: IntArray
    rejection: float
    quadrature: Quadrature
    locate: Callable[[IntArray], tuple[IntArray, FloatArray, FloatArray]]


@dataclass(frozen=True, eq=False)
class ChoicePlan:
    """A lossless verifier at one position: it chooses one of the drafts or none.

    If some drafts lie outside H*, one of them is chosen; otherwise one of the drafts or none is. A chosen
    draft is thinned, that is kept with a probability such that no token is accepted with more than its p.
    ``target`` (V,) is p, with a sum of at most 1. ``inside`` tells which of the given tokens (T,) are in H*.
    No lossless verifier exceeds the ``bound`` 1 + p(H*) − g(H*). A side is None if it accepts nothing.
    """

    target: FloatArray
    inside: Callable[[IntArray], BoolArray]
    bound: float
    inner: Side | None
    outer: Side | None

    @cached_property
    def subset(self) -> BoolArray:
        """H*, shape (V,)."""
        return self.inside(np.arange(self.target.size))

    @cached_property
    def accepted(self) -> FloatArray:
        """The probability that each token is accepted, at most p, shape (V,)."""
        mass = np.zeros(self.target.size)
        for side, members in ((self.inner, self.subset), (self.outer, ~self.subset)):
            if side is not None:
                tokens = np.flatnonzero(members)
                mass[tokens] = np.minimum(side.locate(tokens)[2], self.target[tokens])
        return mass

    @cached_property
    def rate(self) -> float:
        """The probability that a draft is accepted."""
        return float(self.accepted.sum())

    @property
    def residual_hit_bound(self) -> float:
        """An upper bound of P(no draft is accepted, and the token drawn from the residual is a draft)."""
        missing = np.maximum(self.target - self.accepted, 0.0)
        # If all drafts lie in H*, only the residual's mass in H* can be one of them. Otherwise a rejection
        # is rare, and is counted whole.
        target_inside, accepted_inside, missing_inside = (
            float(np.where(self.subset, mass, 0.0).sum())
            for mass in (self.target, self.accepted, missing)
        )
        contained = 1.0 + target_inside - self.bound
        rejected_inside = max(0.0, contained - accepted_inside)
        rejected_outside = max(0.0, 1.0 - contained - (self.rate - accepted_inside))
        drawn_inside = missing_inside / max(1.0 - self.rate, float(missing.sum()), 1e-300)
        bound = rejected_inside * drawn_inside + rejected_outside
        return min(max(self.bound - self.rate, 0.0), bound)

    def choice_probs(self, tokens: IntArray) -> FloatArray:
        """Probability that each of the drafts (n,) is accepted, given these drafts, shape (n,)."""
        inside = self.inside(tokens)
        side = self.inner if inside.all() else self.outer
        probs = np.zeros(tokens.size)
        if side is None:
            return probs
        drafts = np.flatnonzero(inside == inside.all())
        lower, share, offered = side.locate(tokens[drafts])
        highest = side.tiers[lower] == side.tiers[lower].max()
        lower = lower[highest]
        share = share[highest]
        offered = offered[highest]
        drafts = drafts[highest]
        accepted = np.minimum(offered, self.target[tokens[drafts]])
        kept = np.divide(accepted, offered, out=np.zeros(offered.size), where=offered > 0)
        chosen = np.empty(offered.size)
        times, steps = side.quadrature
        fill_choice_probs(lower, share, side.weights, side.rejection, times, steps, chosen)
        probs[drafts] = kept * chosen
        return probs


@kernel()
def fill_choice_probs(classes, shares, weights, rejection, times, steps, out):
    """Fill the probability that each draft is chosen, given the drafts.

    Draft i is of class classes[i] with probability shares[i], and otherwise of the next class. Class g has
    the weight weights[g]; ``rejection`` is the weight w_0, 0 without a rejection.
    """
    count = classes.size
    silent = np.empty(count)
    rings = np.empty(count)
    out[:] = 0.0
    # ∫ e^{−s w_0} ring_i(s) Π_{k≠i} silent_k(s) ds : out[i], with silent_i(s) = E[e^{−s w}] over the class of
    # draft i, and ring_i(s) = E[w e^{−s w}]
    for j in range(times.size):
        s = times[j]
        for i in range(count):
            g = classes[i]
            share = shares[i]
            silent[i] = share * np.exp(-s * weights[g])
            rings[i] = silent[i] * weights[g]
            if share < 1.0:
                silent_next = (1.0 - share) * np.exp(-s * weights[g + 1])
                silent[i] += silent_next
                rings[i] += silent_next * weights[g + 1]
        waiting = steps[j] * np.exp(-s * rejection)
        for i in range(count):
            chosen = waiting * rings[i]
            for k in range(count):
                if k != i:
                    chosen *= silent[k]
            out[i] += chosen
