"""The optimal plan for drafts drawn independently: with replacement, or one from each stratum.

A curve holds all tokens by p/q, and n drafts are drawn from it; or it holds those of one stratum, and one
draft is. Its tokens are grouped into classes (:mod:`otmd.verifiers.optimal.choice_plan`), so the classes of
the drafts are independent as well. A verifier that chooses each class with its share of p chooses each token
with its p.

Where cuts of a single curve are equally good, weights would have to be infinitely far apart. There the tokens
fall into tiers instead, and the choice is among the drafts of the highest tier.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import power, ratios_of
from otmd.curve.blocks import BlockedCurve
from otmd.kernel import kernel
from otmd.laws import Slots
from otmd.optimum.stratified_cut import are_below, stratified_cut
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.optimal import choice_plan
from otmd.verifiers.optimal.weights import begin_search, move_weights

# The parts of the tolerance for each side of the cut, and on each side for grouping tokens into classes.
_OF_SIDE = 0.25
_OF_CLASSES = 0.2
# Cuts that are worse than the best by no more than this, the rounding of p − g, are tight.
_TIGHT = 1e-13
# Ratios that differ by no more than this, relative to themselves, count as one.
_ALIKE = 1e-12


class IndependentCut(NamedTuple):
    """The best cut of R curves of independent drafts.

    ``copies`` (R,) is the number of drafts drawn from each curve. Arrays by token (V,): ``target`` is p,
    ``draft`` is q in the distribution of the token's curve, ``number`` is that curve. H* holds the tokens
    whose p/q is below the entry of ``ends`` (R,) for their curve. ``value`` is p(H*) − g(H*).
    """

    curves: list[choice_plan.CutCurve]
    copies: IntArray
    target: FloatArray
    draft: FloatArray
    number: np.ndarray
    ends: FloatArray
    value: float


def plan_independent(target: FloatArray, slots: Slots, tol: float) -> choice_plan.ChoicePlan:
    """The optimal plan for drafts from one distribution, or one from each of disjoint ones, at a position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. The rate may be ``tol`` below
    the optimum; the plan is lossless at every ``tol``.
    """
    tol *= _OF_SIDE
    cut = _best_cut(target, slots)
    inside = [curve.between(0, curve.cut) for curve in cut.curves]
    inner = _side(cut, [_solve_tier(inside, cut.copies, max(0.0, -cut.value), tol)])
    outer = _outer_side(cut, tol)
    holds = partial(are_below, target, cut.draft, cut.number, cut.ends)
    return choice_plan.ChoicePlan(target, holds, 1.0 + cut.value, inner, outer)


def _best_cut(target: FloatArray, slots: Slots) -> IndependentCut:
    """The best cut, and the curves of the slots, fine near this cut."""
    if slots.is_single:
        blocked = BlockedCurve(target, slots.probs, [slots.num_drafts])
        (cut,) = blocked.smallest_cuts()
        curves = [choice_plan.cut_curve(blocked, cut.size)]
        ends = np.array([cut.end])
        value = cut.value
    else:
        best = stratified_cut(target, slots)
        curves = list(map(choice_plan.cut_curve, best.curves, best.sizes.tolist()))
        ends = best.ends
        value = best.value
    return IndependentCut(
        curves, slots.copies, target, slots.token_probs, slots.number, ends, value
    )


@kernel(error_model="numpy")
def _locate_tokens(nodes, rates, starts, target, draft, number, tokens):
    """See ``locate`` of :class:`otmd.verifiers.optimal.choice_plan.Side`.

    ``nodes`` (G,) hold one curve after another, ascending; curve r begins at ``starts[r]`` (R + 1,).
    ``rates`` (G,) is the probability that each class is chosen over its draft mass.
    """
    lower = np.empty(tokens.size, np.int64)
    ratio = ratios_of(target, draft, tokens)
    share = np.empty(tokens.size)
    offered = np.empty(tokens.size)
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        r = np.uint64(number[y])
        g, lower_share = choice_plan.locate_one(
            nodes, starts[r], starts[r + np.uint64(1)], ratio[i]
        )
        # A class is chosen in proportion to q, and a token's ratio is the mean of its classes' nodes.
        rate = lower_share * rates[g] + (1.0 - lower_share) * rates[min(g + 1, nodes.size - 1)]
        lower[i] = g
        share[i] = lower_share
        offered[i] = draft[y] * rate
    return lower, share, offered


class Classes(NamedTuple):
    """Classes of one tier or several: nodes of p/q, weights, and the probability to be chosen over q, (G,).

    Curve r begins at ``starts[r]`` (R + 1,). ``rejection`` is the weight of the rejection, 0 without one.
    """

    nodes: FloatArray
    weights: FloatArray
    rates: FloatArray
    starts: IntArray
    rejection: float


def _tight_edges(cut: IndependentCut) -> IntArray:
    """The edges of a single curve at which the tiers outside H* begin, ascending."""
    (curve,) = cut.curves
    value = curve.target_before - curve.contained - cut.value
    # The last interval is empty.
    edges = np.arange(curve.cut + 1, curve.single.size - 1)
    return np.append(curve.cut, edges[value[edges] <= _TIGHT])


def _outer_side(cut: IndependentCut, tol: float) -> choice_plan.Side | None:
    """The choice among the drafts outside H*: tiers between tight cuts, each with weights of its own."""
    if len(cut.curves) > 1:
        outside = [curve.between(curve.cut, curve.single.size) for curve in cut.curves]
        return _side(cut, [_solve_tier(outside, cut.copies, None, tol)])
    (curve,) = cut.curves
    first = _tight_edges(cut)
    end = np.append(first[1:], curve.single.size)
    # Tokens of one ratio need no weights: whichever is drafted is chosen.
    low = curve.edges[first]
    high = curve.edges[end]
    simple = (end - first == 1) & curve.single[first] | (high <= (1.0 + _ALIKE) * low)
    nodes = np.append(low[simple], high[simple])
    rates = np.zeros(np.count_nonzero(simple))
    q_before = curve.draft_before[first[simple]]
    q_after = curve.draft_before[end[simple]]
    # Δg/Δq = (q_after^n − q_before^n)/(q_after − q_before), without cancellation : rates
    for exponent in range(cut.copies[0]):
        rates = rates * q_after + q_before**exponent
    alone = Classes(nodes, np.ones(nodes.size), np.tile(rates, 2), np.empty(0, np.int64), 0.0)
    others = np.flatnonzero(~simple)
    spans = [curve.between(first[i], end[i]) for i in others.tolist()]
    solved = [_solve_tier([span], cut.copies, None, tol / others.size) for span in spans]
    sizes = [classes.nodes.size for classes in solved]
    tiers = np.append(np.tile(np.flatnonzero(simple), 2), np.repeat(others, sizes))
    return _side(cut, [alone, *solved], tiers)


def _side(
    cut: IndependentCut, solved: Sequence[Classes], tiers: IntArray | None = None
) -> choice_plan.Side | None:
    """Join the classes of one tier, or of the ``tiers`` (G,) of one curve; None if none can be chosen."""
    nodes = np.concatenate([classes.nodes for classes in solved])
    weights = np.concatenate([classes.weights for classes in solved])
    rates = np.concatenate([classes.rates for classes in solved])
    starts = solved[0].starts
    rejection = solved[0].rejection
    if tiers is None:
        tiers = np.zeros(nodes.size, np.int64)
    else:
        order = np.argsort(tiers, kind="stable")
        nodes = nodes[order]
        weights = weights[order]
        rates = rates[order]
        tiers = tiers[order]
        starts = np.array([0, nodes.size])
    if not weights.any():
        return None
    running = np.append(weights[weights > 0.0], [rejection] * (rejection > 0.0))
    quadrature = choice_plan.quadrature_for_weights(np.log(running), int(cut.copies.sum()))
    locate = partial(_locate_tokens, nodes, rates, starts, cut.target, cut.draft, cut.number)
    return choice_plan.Side(weights, tiers, rejection, quadrature, locate)


def _spread_over_nodes(
    curves: Sequence[choice_plan.CutCurve], copies: IntArray, inside: bool, tol: float
) -> list[tuple[FloatArray, FloatArray]]:
    """The nodes of a tier and their draft masses, by curve; see :func:`_solve_tier`."""
    ends = []
    values = []
    for curve, count in zip(curves, copies.tolist(), strict=True):
        ends.append((0, curve.single.size if inside else curve.edge_at(float(count))))
    for edge in (0, -1):
        contained = [x.draft_before[edge] ** count for x, count in zip(curves, copies, strict=True)]
        values.append(float(sum(x.target_before[edge] for x in curves) - np.prod(contained)))
    chosen = choice_plan.choose_nodes(curves, ends, copies, min(values), _OF_CLASSES * tol)
    return [
        choice_plan.split_masses(curve, nodes, 0, curve.single.size)
        for curve, nodes in zip(curves, chosen, strict=True)
    ]


def _solve_tier(
    curves: Sequence[choice_plan.CutCurve], copies: IntArray, rejected: float | None, tol: float
) -> Classes:
    """Find the weights of the classes of one tier, from the intervals of each curve that it holds.

    Drafts below these are never chosen, and none is drafted above. ``rejected`` is the probability to reject
    all drafts; it is None outside H*.
    """
    spread = _spread_over_nodes(curves, copies, rejected is not None, tol)
    nodes = np.concatenate([curve_nodes for curve_nodes, _ in spread])
    mass = np.concatenate([curve_mass for _, curve_mass in spread])
    sizes = [curve_nodes.size for curve_nodes, _ in spread]
    curve = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.zeros(nodes.size)
    rates = np.zeros(nodes.size)
    rejection = 0.0
    able = (mass > 0) & (nodes > 0)
    if able.any():
        never = np.array([x.draft_before[0] for x in curves])
        never += np.bincount(curve, np.where(nodes == 0, mass, 0.0))
        targets = mass[able] * nodes[able]
        if rejected:
            targets = np.append(targets, rejected)
        drafts = ClassDrafts(mass[able], curve[able], never, copies)
        log_weights, chosen_rates = class_weights(
            drafts, bool(rejected), targets, rejected is None, tol
        )
        size = np.count_nonzero(able)
        weights[able] = np.exp(log_weights[:size])
        rates[able] = chosen_rates[:size] / mass[able]
        rejection = float(np.exp(log_weights[-1])) if rejected else 0.0
    return Classes(nodes, weights, rates, np.cumsum([0, *sizes]), rejection)


class ClassDrafts(NamedTuple):
    """Draft masses of G classes from R curves, with the curve of each class (G,).

    ``never`` (R,) is the draft mass of each curve that is never chosen. ``copies`` (R,) is the number of
    drafts drawn from each curve.
    """

    masses: FloatArray
    curve: IntArray
    never: FloatArray
    copies: IntArray


@kernel()
def class_weights(drafts, with_rejection, targets, capped, tol):
    """The loop of ``weights.balance`` with :func:`choice_rates`, in compiled code."""
    size = targets.size
    num_drafts = drafts.copies.sum()
    total = targets.sum()
    log_weights = np.zeros(size)
    rates = np.empty(size)
    coupling = np.empty((size, size))
    # A single draft competes with the rejection alone: this makes the weight of the rejection 1.
    likely = np.full(size, 1.0 if num_drafts > 1 else 2.0 * targets[-1])
    for g in range(drafts.masses.size):
        likely[g] = drafts.masses[g] * drafts.copies[drafts.curve[g]]
    # Tolerances of the search are for rates that sum to about 1.
    search = begin_search(targets / total, likely / total, capped, tol / total, log_weights)
    moved = True
    while moved:
        times, steps = choice_plan.quadrature_for_weights(log_weights, num_drafts)
        steps /= total
        choice_rates(np.exp(log_weights), drafts, with_rejection, times, steps, rates, coupling)
        moved = move_weights(search, log_weights, rates, coupling)
    return log_weights, rates * total


@kernel()
def choice_rates(weights, drafts, with_rejection, times, steps, rates, coupling):
    """Fill the rates of all classes, and in ``coupling`` −∂rates/∂log weights off the diagonal.

    With a rejection, ``weights``, ``rates`` and ``coupling`` have its entry last. One draft of curve r is
    silent until s with probability mix[r], all are with probability density/ds, and class g then rings at
    the rate rings[g]. So rates[g] = ∫ rings[g] density, coupling[g, h] = ∫ s rings[g] rings[h] density.
    """
    masses, curve, never, copies = drafts
    size = masses.size
    count = weights.size
    rates[:] = 0.0
    coupling[:] = 0.0
    rings = np.empty(count)
    mix = np.empty(copies.size)
    for j in range(times.size):
        s = times[j]
        for r in range(copies.size):
            mix[r] = never[r]
        for g in range(size):
            # Beyond 745 the exponential is 0; the library takes longer to find that out.
            rings[g] = masses[g] * np.exp(-s * weights[g]) if s * weights[g] < 745.0 else 0.0
            mix[curve[g]] += rings[g]
        density = steps[j]
        for r in range(copies.size):
            density *= power(mix[r], copies[r])
        if with_rejection:
            density *= np.exp(-s * weights[size])
            rings[size] = weights[size]
        if density <= 0.0:
            continue
        for g in range(size):
            # The quotient comes first: any other factor over a mix near zero would overflow.
            rings[g] = rings[g] / mix[curve[g]] * copies[curve[g]] * weights[g]
        for g in range(count):
            part = density * rings[g]
            rates[g] += part
            part *= s
            for h in range(g):
                coupling[g, h] += part * rings[h]
    for g in range(count):
        for h in range(g):
            # Of m drafts from one curve there are m (m − 1) ordered pairs, not m².
            if g < size and curve[g] == curve[h]:
                coupling[g, h] *= (copies[curve[g]] - 1.0) / copies[curve[g]]
            coupling[h, g] = coupling[g, h]
