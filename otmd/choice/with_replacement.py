"""The optimal plan for drafts with replacement: classes of tokens by p/q, few enough to solve for.

A token whose ratio p/q lies between two nodes is of the class of either node, with probabilities such that
its ratio is their mean. Draft by draft the classes are drawn with replacement, as the tokens are, with masses
of their own. A rule that gives every class its share of p gives every token its p. Spreading the tokens
over the nodes lowers the curve of (q(H), p(H)) to its tangents at the nodes. Nothing is lost as long as no
corner of the tangents lies below the best cut, so nodes are added only where a corner does.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from otmd.choice.plan import ChoicePlan, Quadrature, Side, quadrature_for_weights
from otmd.choice.weights import begin_search, move_weights
from otmd.curve._kernels import power
from otmd.curve.blocks import DRAFT, TARGET, BlockedCurve, Cut
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray, IntArray

# The tolerance is shared by two sides, and on each side by the classes and the weights.
_OF_SIDE, _OF_CLASSES = 0.25, 0.2
# No block but the first and the last group spans more than a factor of two; the first one ends here.
_LEAST_TOP = 2.0**-40
# A draft that is rejected so rarely is always accepted.
_CERTAIN = 1e-18


class CutCurve(NamedTuple):
    """Tokens grouped into K intervals of p/q, ascending, fine near the best cut.

    Attributes
    ----------
    edges : ndarray of float64, shape (K + 1,)
        Interval i holds the tokens with edges[i] ≤ p/q < edges[i + 1]; the last edge is inf.
    target_mass, draft_mass : ndarray of float64, shape (K,)
        p and q of each interval.
    target_before, draft_before, contained : ndarray of float64, shape (K + 1,)
        p, q and g of the tokens below each edge.
    single : ndarray of bool, shape (K,)
        Whether all tokens of the interval have the ratio of its lower edge.
    cut : int
        H* holds the tokens below edges[cut].
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


def cut_curve(curve: BlockedCurve, cut: Cut) -> CutCurve:
    """What the classes need of a refined curve for a single number of drafts, and of its cut."""
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
    return CutCurve(np.append(edges, np.inf), p, q, *before, g, single, cut.size)


class RatioClasses(NamedTuple):
    """Classes at the nodes of the ratio, for the tokens of one side of the cut.

    Attributes
    ----------
    nodes : ndarray of float64, shape (G,)
        Ascending ratios; class g has the target mass nodes[g]·mass[g].
    mass : ndarray of float64, shape (G,)
        The classes' draft mass.
    """

    nodes: FloatArray
    mass: FloatArray

    def locate(self, ratio: FloatArray) -> tuple[IntArray, FloatArray]:
        """The lower class of tokens with these ratios (T,), and the probability to be of it."""
        last = self.nodes.size - 1
        lower = np.clip(np.searchsorted(self.nodes, ratio, side="right") - 1, 0, last)
        upper = np.minimum(lower + 1, last)
        width = self.nodes[upper] - self.nodes[lower]
        share = np.ones(ratio.shape)
        np.divide(self.nodes[upper] - ratio, width, out=share, where=lower < last)
        return lower, share


@dataclass(frozen=True, eq=False)
class RatioSide(Side):
    """A side whose tokens are classed by p/q alone.

    Attributes
    ----------
    nodes : ndarray of float64, shape (G,)
        The nodes of the ratio.
    rates : ndarray of float64, shape (G,)
        Chosen mass in units of the class's draft mass.
    ratio, draft : ndarray of float64, shape (V,)
        p/q and q.
    """

    nodes: FloatArray
    rates: FloatArray
    ratio: FloatArray
    draft: FloatArray

    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`Side`."""
        return RatioClasses(self.nodes, self.rates).locate(self.ratio[tokens])

    def offered(self, tokens: IntArray) -> FloatArray:
        """See :class:`Side`."""
        # A class is chosen in proportion to q, and a token's ratio is the mean of its classes' nodes.
        return self.draft[tokens] * np.interp(self.ratio[tokens], self.nodes, self.rates)


def plan_with_replacement(
    target: FloatArray, draft: FloatArray, num_drafts: int, tol: float
) -> ChoicePlan:
    """Find the optimal plan for drafts with replacement.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p. It may sum to less than 1; no draft is accepted for the rest.
    draft : ndarray of float64, shape (V,)
        q, of sum 1.
    num_drafts : int
        n.
    tol : float
        How much acceptance may be lost; never correctness.

    Returns
    -------
    ChoicePlan
    """
    tol *= _OF_SIDE
    blocked = BlockedCurve(target, draft, [num_drafts])
    (best,) = blocked.smallest_cuts()
    curve, cut, ratio = cut_curve(blocked, best), best.size, blocked.ratios()
    inner = outer = None
    if cut > 0:
        nodes = nodes_between(curve, num_drafts, 0, cut, _OF_CLASSES * tol)
        classes = split_masses(curve, nodes, 0, cut)
        side = ReplacementSide(classes, num_drafts, 0.0, max(0.0, -best.value))
        inner = side.solve(ratio, draft, tol)
    if best.end < np.inf:
        last = max(cut, curve.edge_at(num_drafts))
        nodes = nodes_between(curve, num_drafts, cut, last, _OF_CLASSES * tol)
        classes = split_masses(curve, nodes, cut, curve.single.size)
        side = ReplacementSide(classes, num_drafts, float(curve.draft_before[cut]), None)
        outer = side.solve(ratio, draft, tol)
    return ChoicePlan(target, ratio < best.end, 1.0 + best.value, inner, outer)


class ReplacementSide(NamedTuple):
    """One side of the cut, as the search for its weights sees it.

    Attributes
    ----------
    classes : RatioClasses
        The classes and their draft masses.
    num_drafts : int
        n.
    never : float
        q of the tokens of the other side that may be drafted and are never chosen.
    rejected : float or None
        The mass to be rejected; None outside H*, where nothing is.
    """

    classes: RatioClasses
    num_drafts: int
    never: float
    rejected: float | None

    def solve(self, ratio: FloatArray, draft: FloatArray, tol: float) -> RatioSide | None:
        """Find the weights of the classes; None where no class can be chosen."""
        nodes, mass = self.classes
        able = (mass > 0) & (nodes > 0)
        if not able.any():
            return None
        never = self.never + float(mass[nodes == 0].sum())
        targets = mass[able] * nodes[able]
        if self.rejected:
            targets = np.append(targets, self.rejected)
        drafts = mass[able], self.num_drafts, never, bool(self.rejected)
        log_weights, found = class_weights(*drafts, targets, self.rejected is None, tol)
        weights, rates, size = np.zeros(able.size), np.zeros(able.size), np.count_nonzero(able)
        weights[able], rates[able] = np.exp(log_weights[:size]), found[:size] / mass[able]
        rejection = float(np.exp(log_weights[-1])) if self.rejected else 0.0
        quadrature = Quadrature(*quadrature_for_weights(log_weights, self.num_drafts))
        return RatioSide(weights, rejection, quadrature, nodes, rates, ratio, draft)


def nodes_between(
    curve: CutCurve, num_drafts: int, first: int, last: int, tol: float
) -> FloatArray:
    """Choose the nodes of the tokens between two edges.

    Parameters
    ----------
    curve : CutCurve
        Fine where the best cut lies.
    num_drafts : int
        n where g is the n-th power of the draft mass; 0 where g is taken to be linear between edges.
    first, last : int
        Indices of the edges that the nodes reach from and to.
    tol : float
        How far a corner of the tangents may lie below the best cut.

    Returns
    -------
    ndarray of float64, shape (G,)
        Ascending.
    """
    sums = curve.target_before, curve.draft_before, curve.contained
    return curve.edges[choose_nodes(curve.edges, *sums, num_drafts, first, last, tol)]


def split_masses(curve: CutCurve, nodes: FloatArray, first: int, last: int) -> RatioClasses:
    """Split the draft mass of the tokens between two edges among the nodes, which are edges as well.

    The part of each token is linear in its p and q. So the two masses of an interval tell how much of it
    goes to the node below and to the one above.
    """
    p, q = curve.target_mass[first:last], curve.draft_mass[first:last]
    # All tokens of a single interval have the ratio of its lower edge.
    lower, share = RatioClasses(nodes, nodes).locate(curve.edges[first:last])
    upper = np.minimum(lower + 1, nodes.size - 1)
    part = share * q
    spread = ~curve.single[first:last] & (upper > lower)
    below, above = nodes[lower[spread]], nodes[upper[spread]]
    part[spread] = np.clip((above * q[spread] - p[spread]) / (above - below), 0.0, q[spread])
    mass = np.zeros(nodes.size)
    mass += np.bincount(lower, part, nodes.size)
    mass += np.bincount(upper, q - part, nodes.size)
    return RatioClasses(nodes, mass)


@kernel()
def corner(edges, target_before, draft_before, first, last):
    """Where the tangents at two edges cross: its p and its q. No prefix that ends between lies below."""
    p = target_before[last] - target_before[first]
    q = draft_before[last] - draft_before[first]
    left = q
    if edges[last] < np.inf:
        left = (edges[last] * q - p) / (edges[last] - edges[first])
    left = min(max(left, 0.0), q)
    return target_before[first] + edges[first] * left, draft_before[first] + left


@kernel()
def _count_below(ascending, limit):
    low, high = 0, ascending.size
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@kernel()
def _chord(places, values, place):
    """The value at a place, linear between ascending places."""
    k = _count_below(places, place)
    if k == 0 or k == places.size:
        return values[min(k, places.size - 1)]
    width = places[k] - places[k - 1]
    return values[k - 1] + (values[k] - values[k - 1]) * ((place - places[k - 1]) / width)


@kernel()
def choose_nodes(edges, target_before, draft_before, contained, num_drafts, first, last, tol):
    """Indices of edges from ``first`` to ``last`` with no corner between two of them below the best cut.

    A span whose corner p − g lies lower than every prefix by more than ``tol`` is halved. At the edges g is
    ``contained`` (K + 1,). Between them it is the power of q for ``num_drafts`` ≥ 1, and else linear in q.
    """
    least = np.inf
    for k in range(contained.size):
        least = min(least, target_before[k] - contained[k])
    chosen = np.zeros(edges.size, np.bool_)
    chosen[first] = chosen[last] = True
    lefts, rights = np.empty(edges.size, np.int64), np.empty(edges.size, np.int64)
    lefts[0], rights[0], waiting = first, last, 1
    while waiting > 0:
        waiting -= 1
        left, right = lefts[waiting], rights[waiting]
        if right - left <= 1:
            continue
        p, q = corner(edges, target_before, draft_before, left, right)
        g = power(q, num_drafts) if num_drafts else _chord(draft_before, contained, q)
        if p - g < least - tol:
            middle = _count_below(edges, 0.5 * (edges[left] + edges[right]))
            middle = min(max(middle, left + 1), right - 1)
            chosen[middle] = True
            lefts[waiting], rights[waiting] = left, middle
            lefts[waiting + 1], rights[waiting + 1] = middle, right
            waiting += 2
    nodes, size = np.empty(edges.size, np.int64), 0
    for k in range(edges.size):
        if chosen[k]:
            nodes[size] = k
            size += 1
    return nodes[:size].copy()


@kernel()
def class_weights(masses, num_drafts, never, with_rejection, targets, capped, tol):
    """Find log weights with which the classes are chosen with ``targets``; return them and the rates.

    This is the loop of :func:`otmd.choice.weights.balance` in compiled code. The arguments are those of that
    function and of :func:`choice_rates`.
    """
    size = targets.size
    log_weights, rates, coupling = np.zeros(size), np.empty(size), np.empty((size, size))
    if num_drafts == 1 and with_rejection:
        # A single draft of ratio r is accepted with probability r: w/(w + 1) = r.
        for g in range(masses.size):
            missing = max(masses[g] - targets[g], _CERTAIN * masses[g])
            log_weights[g] = np.log(targets[g] / missing)
    search = begin_search(targets, capped, tol, num_drafts == 1, log_weights)
    moved = True
    while moved:
        times, steps = quadrature_for_weights(log_weights, num_drafts)
        known = masses, num_drafts, never, with_rejection, times, steps
        choice_rates(np.exp(log_weights), *known, rates, coupling)
        moved = move_weights(search, log_weights, rates, coupling)
    return log_weights, rates


@kernel()
def _others_silent(mix, num_drafts):
    """Probability that all drafts but one are silent; drafts of different laws would each have a mix."""
    return mix ** (num_drafts - 1)


@kernel()
def choice_rates(weights, masses, num_drafts, never, with_rejection, times, steps, rates, coupling):
    """Fill the probability that each class is chosen, for drafts with replacement.

    ``masses`` are the classes' draft masses and ``never`` that of the drafts that are never chosen. With
    a rejection ``weights``, ``rates`` and ``coupling`` have one more entry, for it. ``coupling`` gets
    −∂rates/∂log weights off the diagonal.
    """
    size, count = masses.size, weights.size
    rates[:] = 0.0
    coupling[:] = 0.0
    chosen = np.empty(count)
    for j in range(times.size):
        s = times[j]
        # The probability that one draft is silent until s.
        mix = never
        for g in range(size):
            chosen[g] = masses[g] * np.exp(-s * weights[g])
            mix += chosen[g]
        if mix <= 0.0:
            continue
        waiting = np.exp(-s * weights[size]) if with_rejection else 1.0
        density = steps[j] * _others_silent(mix, num_drafts) * waiting
        for g in range(size):
            chosen[g] *= num_drafts * weights[g]
            rates[g] += density * chosen[g]
        pair = density * s / mix
        both = pair * (num_drafts - 1) / num_drafts
        if with_rejection:
            chosen[size] = weights[size] * mix
            rates[size] += density * chosen[size]
            for h in range(size):
                coupling[size, h] += pair * chosen[size] * chosen[h]
        for g in range(size):
            for h in range(g):
                coupling[g, h] += both * chosen[g] * chosen[h]
    for g in range(count):
        for h in range(g):
            coupling[h, g] = coupling[g, h]
