"""The plan itself: its marginals, its conditional law, and the canonical decomposition."""

from __future__ import annotations

import numpy as np
import plan_twins
import pytest
import reference
from strategies import instances, package_law, twin_law

import otmd
from otmd.transport import (
    TransportPlan,
    TransportProblem,
    canonical_decomposition,
    solve_transport,
)

INSTANCES = instances(120, seed=41)


def any_plan(problem: TransportProblem, seed: int) -> TransportPlan:
    """A plan from random mass, far too much of it here and negative there."""
    rng = np.random.default_rng(seed)
    return TransportPlan(problem, rng.normal(scale=0.3, size=problem.num_arcs))


def emitted(plan: TransportPlan) -> np.ndarray:
    """The output law, drafts enumerated one by one."""
    tuples, probs = plan.problem.law.enumerate()
    laws = [prob * plan.conditional_law(x) for x, prob in zip(tuples, probs, strict=True)]
    return np.sum(laws, axis=0)


@pytest.mark.parametrize("merge", [True, False])
def test_plans_emit_the_target_distribution(merge):
    for seed, instance in enumerate(INSTANCES):
        law = package_law(instance, instance.law)
        solved = solve_transport(instance.target_probs, law, merge=merge).plan
        problem = TransportProblem.of(instance.target_probs, law, merge)
        for plan in (solved, any_plan(problem, seed)):
            assert np.abs(emitted(plan) - problem.target).max() < 1e-12, instance
            assert (problem.by_set(plan.accepted) <= problem.supply * (1 + 1e-15)).all()
            assert (plan.accepted_by_token <= problem.target * (1 + 1e-15)).all()


def test_plans_follow_their_twin_tuple_by_tuple():
    few = [x for x in INSTANCES if x.vocab_size**x.num_drafts < 70]
    assert len(few) > 30
    for seed, instance in enumerate(few):
        law = package_law(instance, instance.law)
        problem = TransportProblem.of(instance.target_probs, law, merge=False)
        mass = np.random.default_rng(seed).normal(scale=0.3, size=problem.num_arcs)
        arcs = [tuple(problem.tuples[row].tolist()) for row in problem.arc_sets]
        accepted = dict(zip(zip(arcs, problem.tokens.tolist(), strict=True), mass, strict=True))
        rule = plan_twins.plan_rule(instance.p, twin_law(instance, instance.law), accepted)
        plan = TransportPlan(problem, mass)
        for tokens in arcs:
            wanted = reference.conditional(rule(tokens), instance.vocab_size)
            assert np.abs(plan.conditional_law(tokens) - wanted).max() < 1e-12, instance


def test_matrix_holds_the_accepted_mass():
    p, law = [0.5, 0.25, 0.25], otmd.WithoutReplacement([0.25, 0.25, 0.5], 2)
    plan = solve_transport(p, law).plan
    assert plan.matrix.shape == (3, 3)
    assert abs(plan.matrix.sum() - plan.rate) < 1e-15
    assert abs(plan.rate - 1) < 1e-12
    assert np.abs(plan.matrix.toarray().sum(axis=0) - p).max() < 1e-12
    assert "rate=1" in repr(plan)


def test_conditional_law_does_not_depend_on_the_order_of_merged_drafts():
    p, law = [0.5, 0.3, 0.2], otmd.WithReplacement([0.2, 0.3, 0.5], 3)
    plan = solve_transport(p, law).plan
    assert np.array_equal(plan.conditional_law([0, 2, 2]), plan.conditional_law([2, 0, 0]))
    apart = solve_transport(p, law, merge=False).plan
    assert abs(apart.conditional_law([2, 0, 0]).sum() - 1) < 1e-12


@pytest.mark.parametrize("merge", [True, False])
def test_drafts_that_are_never_drawn_are_refused(merge):
    plan = solve_transport(
        [0.5, 0.3, 0.2], otmd.WithoutReplacement([0.2, 0.3, 0.5], 2), merge=merge
    ).plan
    with pytest.raises(ValueError, match=r"tokens: got \[1, 1\], which .* never draws"):
        plan.conditional_law([1, 1])
    with pytest.raises(ValueError, match="tokens: got shape"):
        plan.conditional_law([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="tokens: got"):
        plan.conditional_law([0])


def test_canonical_decomposition_has_an_optimal_plans_rate():
    better = 0
    for seed, instance in enumerate(INSTANCES):
        law = package_law(instance, instance.law)
        plan = solve_transport(instance.target_probs, law).plan
        parts = canonical_decomposition(plan)
        best = otmd.optimal_acceptance(instance.target_probs, law).rate
        problem = plan.problem
        assert abs(parts.rate - best) < 1e-9, instance
        assert abs(parts.plan.rate - parts.rate) < 1e-12, instance
        # Step one selects a draft of its own set, always; step two is single-draft sampling.
        assert parts.selection.min() >= 0
        assert np.abs(problem.by_set(parts.selection) - problem.supply).max() < 1e-12
        assert np.abs(problem.by_token(parts.selection) - parts.selected_probs).max() < 1e-12
        coupling = otmd.Preference().acceptance_rate(
            problem.target, otmd.WithReplacement(parts.selected_probs, 1)
        )
        assert abs(coupling - parts.rate) < 1e-12, instance
        assert np.abs(emitted(parts.plan) - problem.target).max() < 1e-12, instance
        # Of any other plan they are no worse.
        poor = any_plan(problem, seed)
        parts = canonical_decomposition(poor)
        assert parts.rate >= poor.rate - 1e-12, instance
        better += parts.rate > poor.rate + 1e-6
        assert np.abs(emitted(parts.plan) - problem.target).max() < 1e-12, instance
    assert better > 10
