"""The optimal plan for drafts drawn independently: with replacement, or one from each stratum.

A curve is all tokens by p/q, or those of a stratum, and is drawn from as often as it has copies: n times, or
once. Its tokens are put into classes (:mod:`otmd.choice.plan`), which are drawn as they are. A rule that
gives every class its share of p gives every token its p.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from otmd.choice import plan
from otmd.choice.weights import begin_search, move_weights
from otmd.curve._kernels import power
from otmd.curve.blocks import BlockedCurve
from otmd.drafts import Stratified, WithReplacement
from otmd.kernel import kernel
from otmd.optimum.stratified import stratified_cut
from otmd.probabilities import BoolArray, FloatArray, IntArray

# The tolerance is shared by two sides, and on each side by the classes and the weights.
_OF_SIDE, _OF_CLASSES = 0.25, 0.2


class IndependentCut(NamedTuple):
    """The best cut of R curves of independent drafts.

    ``copies`` (R,) tells how many drafts are drawn from each curve. By token (V,): the ``number`` of its
    curve, ``draft``, its q in the distribution of that curve, ``ratio``, its p/q, and ``subset``, H*.
    ``value`` is p(H*) − g(H*).
    """

    curves: list[plan.CutCurve]
    copies: IntArray
    number: np.ndarray
    draft: FloatArray
    ratio: FloatArray
    subset: BoolArray
    value: float


class RatioClasses(NamedTuple):
    """The classes of a side, whose tokens are classed by their curve and p/q.

    ``nodes`` (G,) are nodes of the ratio, ascending for each curve, and ``starts`` (R + 1,) where those of
    each curve begin. ``rates`` (G,) are the chosen masses in units of the classes' draft masses.
    """

    nodes: FloatArray
    rates: FloatArray
    starts: IntArray
    cut: IndependentCut

    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """See :class:`Side`."""
        lower, share = np.empty(tokens.size, np.int64), np.empty(tokens.size)
        for r, (first, end) in enumerate(pairwise(self.starts)):
            own = self.cut.number[tokens] == r
            below, share[own] = plan.locate(self.nodes[first:end], self.cut.ratio[tokens[own]])
            lower[own] = first + below
        # A class is chosen in proportion to q, and a token's ratio is the mean of its classes' nodes.
        upper = np.minimum(lower + 1, self.nodes.size - 1)
        rates = share * self.rates[lower] + (1.0 - share) * self.rates[upper]
        return lower, share, self.cut.draft[tokens] * rates


def plan_independent(
    target: FloatArray, law: WithReplacement | Stratified, tol: float
) -> plan.ChoicePlan:
    """The optimal plan for drafts with replacement, or one from each stratum, at a single position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. ``tol`` is how much
    acceptance may be lost; never correctness.
    """
    tol *= _OF_SIDE
    cut = _best_cut(target, law)
    ends = [
        (0, curve.cut, max(curve.cut, curve.edge_at(float(count))))
        for curve, count in zip(cut.curves, cut.copies, strict=True)
    ]
    chosen = plan.choose_nodes(cut.curves, ends, cut.copies, cut.value, _OF_CLASSES * tol)
    pairs = list(zip(cut.curves, chosen, strict=True))
    inside = [plan.split_masses(x, k[k <= x.cut], 0, x.cut) for x, k in pairs]
    outside = [plan.split_masses(x, k[k >= x.cut], x.cut, x.single.size) for x, k in pairs]
    within = np.array([curve.draft_before[curve.cut] for curve in cut.curves])
    inner = _solve_side(cut, inside, np.zeros(within.size), max(0.0, -cut.value), tol)
    outer = _solve_side(cut, outside, within, None, tol)
    return plan.ChoicePlan(target, cut.subset, 1.0 + cut.value, inner, outer)


def _best_cut(target: FloatArray, law: WithReplacement | Stratified) -> IndependentCut:
    """The curves of the law, fine near its best cut."""
    if isinstance(law, Stratified):
        strata = law.position_strata
        found = stratified_cut(target, strata)
        curves = [
            plan.cut_curve(*curve) for curve in zip(found.curves, found.sizes.tolist(), strict=True)
        ]
        copies = np.ones(law.num_drafts, np.int64)
        tokens = strata.number, strata.inclusion, found.ratio, found.subset
        return IndependentCut(curves, copies, *tokens, found.value)
    blocked = BlockedCurve(target, law.draft_probs, [law.num_drafts])
    (cut,) = blocked.smallest_cuts()
    ratio = blocked.ratios()
    tokens = np.zeros(ratio.size, np.int16), law.draft_probs, ratio, ratio < cut.end
    return IndependentCut(
        [plan.cut_curve(blocked, cut.size)], np.array([law.num_drafts]), *tokens, cut.value
    )


def _solve_side(
    cut: IndependentCut,
    classes: Sequence[tuple[FloatArray, FloatArray]],
    never: FloatArray,
    rejected: float | None,
    tol: float,
) -> plan.Side | None:
    """Find the weights of the classes on one side of the cut.

    ``classes`` are each curve's nodes and draft masses. ``never`` (R,) is q of tokens that may be drafted and
    are never chosen, ``rejected`` the mass to be rejected; None outside H*. None if no class can be chosen.
    """
    nodes, mass = (np.concatenate(each) for each in zip(*classes, strict=True))
    sizes = [own.size for own, _ in classes]
    curve = np.repeat(np.arange(len(sizes)), sizes)
    able = (mass > 0) & (nodes > 0)
    if not able.any():
        return None
    never = never + np.bincount(curve, np.where(nodes == 0, mass, 0.0))
    targets = mass[able] * nodes[able]
    if rejected:
        targets = np.append(targets, rejected)
    drafts = ClassDrafts(mass[able], curve[able], never, cut.copies)
    log_weights, found = class_weights(drafts, bool(rejected), targets, rejected is None, tol)
    weights, rates, size = np.zeros(able.size), np.zeros(able.size), np.count_nonzero(able)
    weights[able], rates[able] = np.exp(log_weights[:size]), found[:size] / mass[able]
    rejection = float(np.exp(log_weights[-1])) if rejected else 0.0
    quadrature = plan.quadrature_for_weights(log_weights, int(cut.copies.sum()))
    own = RatioClasses(nodes, rates, np.cumsum([0, *sizes]), cut)
    return plan.Side(weights, rejection, quadrature, own.locate)


class ClassDrafts(NamedTuple):
    """How G classes of R curves are drafted: their draft masses and curves (G,).

    ``never`` (R,) is each curve's mass of drafts that are never chosen, ``copies`` (R,) how many drafts are
    drawn from each curve.
    """

    masses: FloatArray
    curve: IntArray
    never: FloatArray
    copies: IntArray


@kernel()
def class_weights(drafts, with_rejection, targets, capped, tol):
    """The loop of :func:`otmd.choice.weights.balance` with :func:`choice_rates`, in compiled code."""
    size, num_drafts = targets.size, drafts.copies.sum()
    log_weights, rates, coupling = np.zeros(size), np.empty(size), np.empty((size, size))
    # A single draft is chosen, or rejected: the weight of the rejection is 1.
    likely = np.full(size, 1.0 if num_drafts > 1 else 2.0 * targets[-1])
    for g in range(drafts.masses.size):
        likely[g] = drafts.masses[g] * drafts.copies[drafts.curve[g]]
    search = begin_search(targets, likely, capped, tol, log_weights)
    moved = True
    while moved:
        times, steps = plan.quadrature_for_weights(log_weights, num_drafts)
        choice_rates(np.exp(log_weights), drafts, with_rejection, times, steps, rates, coupling)
        moved = move_weights(search, log_weights, rates, coupling)
    return log_weights, rates


@kernel()
def choice_rates(weights, drafts, with_rejection, times, steps, rates, coupling):
    """Fill the rates of all classes, and −∂rates/∂log weights off the diagonal.

    With a rejection ``weights``, ``rates`` and ``coupling`` have one more entry, for it.
    """
    masses, curve, never, copies = drafts
    size, count = masses.size, weights.size
    rates[:] = 0.0
    coupling[:] = 0.0
    rings, mix = np.empty(count), np.empty(copies.size)
    for j in range(times.size):
        s = times[j]
        # The probability that one draft of each curve is silent until s, and then that all drafts are.
        for r in range(copies.size):
            mix[r] = never[r]
        for g in range(size):
            rings[g] = masses[g] * np.exp(-s * weights[g])
            mix[curve[g]] += rings[g]
        density = steps[j]
        for r in range(copies.size):
            density *= power(mix[r], copies[r])
        if with_rejection:
            density *= np.exp(-s * weights[size])
            rings[size] = weights[size]
        if density <= 0.0:
            continue
        # How fast each class rings if all drafts are silent until then.
        for g in range(size):
            # The quotient first: a factor over a mix near zero would overflow.
            rings[g] = rings[g] / mix[curve[g]] * copies[curve[g]] * weights[g]
        for g in range(count):
            part = density * rings[g]
            rates[g] += part
            part *= s
            for h in range(g):
                coupling[g, h] += part * rings[h]
    for g in range(size):
        others = (copies[curve[g]] - 1.0) / copies[curve[g]]
        for h in range(g):
            # Two drafts of one curve are not the same draft.
            coupling[g, h] *= others if curve[g] == curve[h] else 1.0
    for g in range(count):
        for h in range(g):
            coupling[h, g] = coupling[g, h]
