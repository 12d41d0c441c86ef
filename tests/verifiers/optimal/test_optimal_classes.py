"""Classes of tokens lose nothing: the optimum over classes, the split of a token, and the weights."""

from __future__ import annotations

from collections.abc import Callable

import choice_twins
import numpy as np
import pytest
import reference
from strategies import KINDS, Array, instances

import otmd
from otmd.curve._kernels import ratios_of
from otmd.curve.blocks import BlockedCurve
from otmd.laws import Slots
from otmd.optimum.stratified_cut import corner
from otmd.verifiers.optimal import plan_independent
from otmd.verifiers.optimal.choice_plan import (
    CutCurve,
    choose_nodes,
    cut_curve,
    locate,
    split_masses,
)
from otmd.verifiers.optimal.weights import balance

ROUNDING = 1e-12
TOLERANCES = (1e-10, 1e-6, 1e-3, 0.3)
Pair = tuple[Array, Array, int]


def language_pair(V: int, seed: int) -> Pair:
    """p and q from logits like those of a language model, q near p or far from it, and a number of drafts."""
    rng = np.random.default_rng([23, V, seed])
    logits = rng.choice([0.5, 2.5, 5.0]) * rng.standard_normal(V)
    noise = rng.choice([1e-3, 0.1, 0.5, 1.0, 3.0]) * rng.standard_normal(V)
    temperature = float(rng.choice([0.3, 0.6, 1.0, 2.0]))
    p, q = (otmd.probs_from_logits(x, temperature) for x in (logits, logits + noise))
    return p, q, int(rng.choice([1, 2, 3, 4, 8]))


PAIRS: list[Pair] = [
    *((np.array(x.p), np.array(x.q), x.num_drafts) for x in instances(100, seed=91)),
    *(language_pair(V, seed) for V in (40, 150, 600, 5000) for seed in range(25)),
]


def curve_of(pair: Pair) -> tuple[CutCurve, Array]:
    """The tokens by p/q, fine near the best cut, and p/q of each."""
    p, q, n = pair
    blocked = BlockedCurve(p, q, [n])
    (cut,) = blocked.smallest_cuts()
    return cut_curve(blocked, cut.size), ratios_of(p, q, np.arange(p.size))


def nodes_between(
    curve: CutCurve, n: int, ends: tuple[int, int], tol: float, linear: bool = False
) -> Array:
    """Indices of the nodes that are chosen from one edge to another."""
    least = float((curve.target_before - curve.contained).min())
    copies = np.array([1 if linear else n])
    return choose_nodes([curve], [ends], copies, least, tol, linear)[0]


def sides(pair: Pair, tol: float) -> list[tuple[Array, Array, float, float, float]]:
    """For each side of the cut: nodes, draft masses, p and q of all tokens before it, the cut's value."""
    n, (curve, _) = pair[2], curve_of(pair)
    size, found = curve.cut, []
    before = float(curve.target_before[size]), float(curve.draft_before[size])
    value = before[0] - before[1] ** n
    if size > 0:
        nodes = nodes_between(curve, n, (0, size), tol)
        found.append((*split_masses(curve, nodes, 0, size), 0.0, 0.0, value))
    if size < curve.single.size:
        nodes = nodes_between(curve, n, (size, max(size, curve.edge_at(n))), tol)
        found.append((*split_masses(curve, nodes, size, curve.single.size), *before, value))
    return found


@pytest.mark.parametrize("tol", TOLERANCES)
def test_no_cut_of_classes_is_better_than_the_best_of_tokens(tol: float) -> None:
    """No cut of the classes is lower than the best cut of tokens by more than the tolerance."""
    for number, pair in enumerate(PAIRS):
        for nodes, mass, target, draft, value in sides(pair, tol):
            wanted = target + np.append(0.0, (mass * nodes).cumsum())
            drafted = draft + np.append(0.0, mass.cumsum())
            assert (wanted - drafted ** pair[2]).min() >= value - tol - ROUNDING, number


def naive_nodes(curve: CutCurve, n: int, ends: tuple[int, int], tol: float) -> list[int]:
    """Nodes from the first edge to the last: every span with a corner that is too low is halved."""
    edges, p, q = curve.edges, curve.target_before, curve.draft_before
    first, last = ends
    if last - first <= 1:
        return sorted({first, last})
    target, draft = corner(edges, p, q, first, last)
    g = draft**n if n else float(np.interp(draft, q, curve.contained))
    if target - g >= min((p - curve.contained).tolist()) - tol:
        return [first, last]
    middle = 0.5 * (edges[first] + edges[last])
    m = min(max(sum(edge < middle for edge in edges.tolist()), first + 1), last - 1)
    halves = [(first, m), (m, last)]
    return sorted({k for own in halves for k in naive_nodes(curve, n, own, tol)})


@pytest.mark.parametrize("linear", [True, False])
def test_nodes_are_those_of_every_low_corner(linear: bool) -> None:
    for number, pair in enumerate(PAIRS[::3]):
        curve, _ = curve_of(pair)
        counts, tol = (0 if linear else pair[2]), 10.0 ** -(3 + number % 8)
        for ends in ((0, curve.cut), (curve.cut, curve.single.size - 1)):
            if ends[0] > ends[1]:
                continue
            found = nodes_between(curve, counts, ends, tol, linear)
            assert found.tolist() == naive_nodes(curve, counts, ends, tol), number


def test_masses_are_split_as_every_token_is() -> None:
    rng = np.random.default_rng(5)
    for number, pair in enumerate(PAIRS[:150]):
        curve, ratio = curve_of(pair)
        size, q = curve.cut, pair[1]
        first, last = (0, size) if number % 2 else (size, curve.single.size)
        inside = rng.integers(first, last + 1, size=5)
        chosen = np.unique(np.append(inside, first))
        chosen = chosen[np.isfinite(curve.edges[chosen])]
        if chosen.size == 0:
            continue
        nodes, mass = split_masses(curve, chosen, first, last)
        ends = float(curve.edges[first]), float(curve.edges[last])
        wanted = choice_twins.split_mass(q.tolist(), ratio.tolist(), nodes.tolist(), *ends)
        np.testing.assert_allclose(mass, np.array(wanted), atol=1e-14, err_msg=str(number))


def test_classes_keep_both_masses() -> None:
    """Classes keep q, and they keep p if no ratio exceeds n; tokens beyond n share the last class."""
    for number, pair in enumerate(PAIRS):
        p, q, n = pair
        drafted = sum(mass.sum() for _, mass, *_ in sides(pair, 1e-3))
        assert drafted == pytest.approx(q.sum(), abs=ROUNDING), number
        with np.errstate(all="ignore"):
            ratio = np.where(q > 0, p / q, np.inf)
        if (ratio[q > 0] <= n).all():
            wanted = sum(mass @ nodes for nodes, mass, *_ in sides(pair, 1e-3))
            assert wanted == pytest.approx(p[q > 0].sum(), abs=ROUNDING), number


def test_a_location_is_the_split_of_one_token() -> None:
    nodes = np.array([0.5, 1.0, 1.5, 4.0])
    ratio = np.array([0.5, 0.6, 1.0, 1.25, 3.9, 4.0, 9.0, np.inf])
    lower, share = locate(nodes, ratio)
    for own, g, part in zip(ratio, lower, share, strict=True):
        wanted = choice_twins.split_mass([1.0], [min(own, 1e300)], nodes.tolist(), 0.0, np.inf)
        split = np.zeros(5)
        split[g], split[g + 1] = part, 1.0 - part
        np.testing.assert_allclose(split[:4], np.array(wanted), atol=1e-15)
        assert split[4] == 0


def test_one_node_takes_all() -> None:
    lower, share = locate(np.array([2.0]), np.array([2.0, 7.0]))
    assert lower.tolist() == [0, 0]
    assert share.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_vocabulary_needs_few_classes(n: int) -> None:
    rng = np.random.default_rng(n)
    logits = 2.5 * rng.standard_normal(151_936)
    p = otmd.probs_from_logits(logits)
    q = otmd.probs_from_logits(logits + 0.7 * rng.standard_normal(logits.size))
    fine, coarse = (sides((p, q, n), tol) for tol in (1e-10, 1e-3))
    assert max(nodes.size for nodes, *_ in fine) <= 32
    assert max(nodes.size for nodes, *_ in coarse) <= 8


# ---------------------------------------------------------------- weights


def proportional(masses: Array, never: float) -> Callable[[Array], tuple[Array, Array]]:
    """The function that `balance` evaluates, for two drafts: rates and slopes as sums over every tuple."""

    def evaluate(log_weights: Array) -> tuple[Array, Array]:
        weights = np.exp(log_weights)
        rates = choice_twins.clock_choice(weights.tolist(), masses.tolist(), 2, never, 0.0)[:-1]
        total = weights[:, None] + weights
        pairs = 2 * np.outer(masses, masses) * np.outer(weights, weights) / total**2
        np.fill_diagonal(pairs, 0.0)
        return np.array(rates), pairs

    return evaluate


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_weights_are_found_that_have_these_rates(capped: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, never = int(rng.integers(2, 6)), float(rng.choice([0.0, 0.4]))
    masses = rng.dirichlet(np.ones(size)) * (1 - never)
    evaluate = proportional(masses, never)
    targets, _ = evaluate(np.sort(rng.uniform(-6.0, 0.0, size)))
    found, _ = balance(evaluate, targets, capped, 1e-12)
    np.testing.assert_allclose(evaluate(found)[0], targets, atol=1e-11)


def test_where_some_must_fall_short_no_class_is_chosen_too_often() -> None:
    """With equal weights, the first class would be chosen twice as often as wanted."""
    masses, targets = np.array([0.25, 0.25, 0.5]), np.array([0.125, 0.375, 0.75])
    evaluate = proportional(masses, 0.0)
    rates = balance(evaluate, targets, True, 1e-12)[1]
    assert (rates <= targets + 1e-12).all()
    assert rates.sum() == pytest.approx(1.0, abs=1e-12)


# ---------------------------------------------------------------- the plan


@pytest.mark.parametrize("tol", TOLERANCES)
def test_no_token_is_accepted_beyond_its_probability(tol: float) -> None:
    """Tokens are accepted with at most p, the sums are right, and the loss is below the tolerance."""
    for number, (p, q, n) in enumerate(PAIRS):
        plan = plan_independent(p, Slots.single(q, n), tol)
        best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, n)).rate
        assert (plan.accepted <= p).all(), number
        assert (plan.accepted >= 0).all(), number
        sides = (
            (plan.inner, np.flatnonzero(plan.subset)),
            (plan.outer, np.flatnonzero(~plan.subset)),
        )
        offered = sum(side.locate(own)[2].sum() for side, own in sides if side is not None)
        assert plan.rate - ROUNDING <= offered <= 1.0 + ROUNDING, number
        assert plan.rate == pytest.approx(plan.accepted.sum(), abs=ROUNDING), number
        assert plan.bound == pytest.approx(best, abs=ROUNDING), number
        assert -ROUNDING <= best - plan.rate <= tol + ROUNDING, (number, tol, best - plan.rate)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 0.3, 0.99])
def test_a_target_that_sums_to_less(scale: float) -> None:
    """No draft is accepted for the rest of the target: the bound is 1 + min p(H) - q(H)^n with this p."""
    for instance in instances(60, seed=92):
        p, q, n = scale * np.array(instance.p), np.array(instance.q), instance.num_drafts
        plan = plan_independent(p, Slots.single(q, n), 1e-10)
        value, _ = reference.smallest_best_cut(p.tolist(), q.tolist(), n)
        assert plan.bound == pytest.approx(1 + value, abs=ROUNDING), instance
        assert plan.bound - plan.rate <= 1e-9, instance
        assert (plan.accepted <= p).all()


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_kinds_reach_the_bound(kind: str) -> None:
    for seed in range(8):
        rng = np.random.default_rng([93, seed])
        p, q = (np.asarray(x, float) for x in KINDS[kind](rng, 200))
        n = int(rng.choice([1, 2, 4, 16]))
        plan = plan_independent(p / p.sum(), Slots.single(q / q.sum(), n), 1e-10)
        assert plan.bound - plan.rate <= 1e-9, (seed, n)
