"""Classes of tokens lose nothing: the optimum over classes, the nodes, and the split of a token."""

from __future__ import annotations

import choice_twins
import numpy as np
import pytest
import reference
from strategies import Array, instances

import otmd
from otmd.curve._kernels import ratios_of
from otmd.curve.blocks import BlockedCurve
from otmd.laws import Slots
from otmd.verifiers.optimal import plan_independent
from otmd.verifiers.optimal.choice_plan import (
    CutCurve,
    choose_nodes,
    cut_curve,
    split_masses,
)

ROUNDING = 1e-12
TOLERANCES = (1e-10, 1e-3)
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
    *((np.array(x.p), np.array(x.q), x.num_drafts) for x in instances(50, seed=91)),
    *(language_pair(V, seed) for V in (40, 600, 5000) for seed in range(8)),
]


def curve_of(pair: Pair) -> tuple[CutCurve, Array]:
    """The tokens by p/q, fine near the best cut, and p/q of each."""
    p, q, n = pair
    blocked = BlockedCurve(p, q, [n])
    (cut,) = blocked.smallest_cuts()
    return cut_curve(blocked, cut.size), ratios_of(p, q, np.arange(p.size))


def nodes_between(curve: CutCurve, n: int, ends: tuple[int, int], tol: float) -> Array:
    """Indices of the nodes that are chosen from one edge to another."""
    least = float((curve.target_before - curve.contained).min())
    return choose_nodes([curve], [ends], np.array([n]), least, tol)[0]


def sides(pair: Pair, tol: float) -> list[tuple[Array, Array, float, float, float]]:
    """For each side of the cut: nodes, draft masses, p and q of all tokens before it, the cut's value."""
    n = pair[2]
    curve, _ = curve_of(pair)
    size = curve.cut
    result = []
    before = float(curve.target_before[size]), float(curve.draft_before[size])
    value = before[0] - before[1] ** n
    if size > 0:
        nodes = nodes_between(curve, n, (0, size), tol)
        result.append((*split_masses(curve, nodes, 0, size), 0.0, 0.0, value))
    if size < curve.single.size:
        nodes = nodes_between(curve, n, (size, max(size, curve.edge_at(n))), tol)
        result.append((*split_masses(curve, nodes, size, curve.single.size), *before, value))
    return result


@pytest.mark.parametrize("tol", TOLERANCES)
def test_no_cut_of_classes_is_better_than_the_best_of_tokens(tol: float) -> None:
    """No cut of the classes is lower than the best cut of tokens by more than the tolerance."""
    for number, pair in enumerate(PAIRS):
        for nodes, mass, target, draft, value in sides(pair, tol):
            expected = target + np.append(0.0, (mass * nodes).cumsum())
            drafted = draft + np.append(0.0, mass.cumsum())
            assert (expected - drafted ** pair[2]).min() >= value - tol - ROUNDING, number


def test_masses_are_split_as_every_token_is() -> None:
    rng = np.random.default_rng(5)
    for number, pair in enumerate(PAIRS):
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
        expected = choice_twins.split_mass(q.tolist(), ratio.tolist(), nodes.tolist(), *ends)
        np.testing.assert_allclose(mass, np.array(expected), atol=1e-14, err_msg=str(number))


@pytest.mark.parametrize("n", [2, 8])
def test_a_vocabulary_needs_few_classes(n: int) -> None:
    rng = np.random.default_rng(n)
    logits = 2.5 * rng.standard_normal(151_936)
    p = otmd.probs_from_logits(logits)
    q = otmd.probs_from_logits(logits + 0.7 * rng.standard_normal(logits.size))
    fine, coarse = (sides((p, q, n), tol) for tol in (1e-10, 1e-3))
    assert max(nodes.size for nodes, *_ in fine) <= 32
    assert max(nodes.size for nodes, *_ in coarse) <= 8


@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_a_target_that_sums_to_less(scale: float) -> None:
    """No draft is accepted for the rest of the target: the bound is 1 + min p(H) - q(H)^n with this p."""
    for instance in instances(30, seed=92):
        p, q, n = scale * np.array(instance.p), np.array(instance.q), instance.num_drafts
        plan = plan_independent(p, Slots.single(q, n), 1e-10)
        value, _ = reference.smallest_best_cut(p.tolist(), q.tolist(), n)
        assert plan.bound == pytest.approx(1 + value, abs=ROUNDING), instance
        assert plan.bound - plan.rate <= 1e-9, instance
        assert (plan.accepted <= p).all()
