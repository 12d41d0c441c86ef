"""The optimal plan for drafts drawn independently: with replacement, or one from each stratum.

A curve holds all tokens by p/q, and n drafts are drawn from it; or it holds those of one stratum, and one
draft is. Its tokens are grouped into classes (:mod:`otmd.choice.choice_plan`), so the classes of the drafts
are independent as well. A rule that chooses every class with its share of p chooses every token with its p.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from otmd.choice import choice_plan
from otmd.choice.weights import begin_search, move_weights
from otmd.curve._kernels import power, ratios_of
from otmd.curve.blocks import BlockedCurve
from otmd.drafts import Slots
from otmd.kernel import kernel
from otmd.optimum.stratified_cut import are_below, stratified_cut
from otmd.probabilities import FloatArray, IntArray

# The parts of the tolerance for each side of the cut, and on each side for grouping tokens into classes.
_OF_SIDE, _OF_CLASSES = 0.25, 0.2


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
    ends = [
        (0, curve.cut, max(curve.cut, curve.edge_at(float(count))))
        for curve, count in zip(cut.curves, cut.copies, strict=True)
    ]
    chosen = choice_plan.choose_nodes(cut.curves, ends, cut.copies, cut.value, _OF_CLASSES * tol)
    pairs = list(zip(cut.curves, chosen, strict=True))
    inside = [choice_plan.split_masses(x, k[k <= x.cut], 0, x.cut) for x, k in pairs]
    outside = [choice_plan.split_masses(x, k[k >= x.cut], x.cut, x.single.size) for x, k in pairs]
    within = np.array([curve.draft_before[curve.cut] for curve in cut.curves])
    inner = _solve_side(cut, inside, np.zeros(within.size), max(0.0, -cut.value), tol)
    outer = _solve_side(cut, outside, within, None, tol)
    holds = partial(are_below, target, cut.draft, cut.number, cut.ends)
    return choice_plan.ChoicePlan(target, holds, 1.0 + cut.value, inner, outer)


def _best_cut(target: FloatArray, slots: Slots) -> IndependentCut:
    """The best cut, and the curves of the slots, fine near this cut."""
    if slots.is_single:
        blocked = BlockedCurve(target, slots.probs, [slots.num_drafts])
        (cut,) = blocked.smallest_cuts()
        curves = [choice_plan.cut_curve(blocked, cut.size)]
        ends, value = np.array([cut.end]), cut.value
    else:
        best = stratified_cut(target, slots)
        curves = list(map(choice_plan.cut_curve, best.curves, best.sizes.tolist()))
        ends, value = best.ends, best.value
    tokens = target, slots.token_probs, slots.number
    return IndependentCut(curves, slots.copies, *tokens, ends, value)


@kernel(error_model="numpy")
def _locate_tokens(nodes, rates, starts, target, draft, number, tokens):
    """See ``locate`` of :class:`otmd.choice.choice_plan.Side`.

    ``nodes`` (G,) hold one curve after another, ascending; curve r begins at ``starts[r]`` (R + 1,).
    ``rates`` (G,) is the probability that each class is chosen over its draft mass.
    """
    lower, ratio = np.empty(tokens.size, np.int64), ratios_of(target, draft, tokens)
    share, offered = np.empty(tokens.size), np.empty(tokens.size)
    for i in range(tokens.size):
        y = np.uint64(tokens[i])
        r = np.uint64(number[y])
        g, own = choice_plan.locate_one(nodes, starts[r], starts[r + np.uint64(1)], ratio[i])
        # A class is chosen in proportion to q, and a token's ratio is the mean of its classes' nodes.
        rate = own * rates[g] + (1.0 - own) * rates[min(g + 1, nodes.size - 1)]
        lower[i], share[i], offered[i] = g, own, draft[y] * rate
    return lower, share, offered


def _solve_side(
    cut: IndependentCut,
    classes: Sequence[tuple[FloatArray, FloatArray]],
    never: FloatArray,
    rejected: float | None,
    tol: float,
) -> choice_plan.Side | None:
    """Find the weights of the classes on one side of the cut; None if no class can be chosen.

    ``classes`` are the nodes and draft masses of each curve. ``never`` (R,) is q of the tokens outside these
    classes that may be drafted and are never chosen. ``rejected`` is the probability to reject all drafts; it
    is None outside H*.
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
    quadrature = choice_plan.quadrature_for_weights(log_weights, int(cut.copies.sum()))
    tokens = cut.target, cut.draft, cut.number
    locate = partial(_locate_tokens, nodes, rates, np.cumsum([0, *sizes]), *tokens)
    return choice_plan.Side(weights, rejection, quadrature, locate)


class ClassDrafts(NamedTuple):
    """How G classes of R curves are drafted: the draft mass and the curve of each class (G,).

    ``never`` (R,) is the draft mass of each curve that is never chosen. ``copies`` (R,) is the number of
    drafts drawn from each curve.
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
    # A single draft competes with the rejection alone: this makes the weight of the rejection 1.
    likely = np.full(size, 1.0 if num_drafts > 1 else 2.0 * targets[-1])
    for g in range(drafts.masses.size):
        likely[g] = drafts.masses[g] * drafts.copies[drafts.curve[g]]
    search = begin_search(targets, likely, capped, tol, log_weights)
    moved = True
    while moved:
        times, steps = choice_plan.quadrature_for_weights(log_weights, num_drafts)
        choice_rates(np.exp(log_weights), drafts, with_rejection, times, steps, rates, coupling)
        moved = move_weights(search, log_weights, rates, coupling)
    return log_weights, rates


@kernel()
def choice_rates(weights, drafts, with_rejection, times, steps, rates, coupling):
    """Fill the rates of all classes, and in ``coupling`` −∂rates/∂log weights off the diagonal.

    With a rejection, ``weights``, ``rates`` and ``coupling`` have its entry last.
    """
    masses, curve, never, copies = drafts
    size, count = masses.size, weights.size
    rates[:] = 0.0
    coupling[:] = 0.0
    rings, mix = np.empty(count), np.empty(copies.size)
    for j in range(times.size):
        s = times[j]
        # ``mix`` is the probability that one draft of a curve is silent until s, ``density`` that all are.
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
        # The rate at which each class rings at s if all drafts are silent until then.
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
