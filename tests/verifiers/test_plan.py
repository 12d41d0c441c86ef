"""The verifier that samples from a plan is lossless, has the plan's rate, and serves its own law only."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import instances, package_law

import otmd
from otmd.transport import TransportPlan, TransportProblem, canonical_decomposition, solve_transport
from otmd.verifiers.plan_verifier import PlanVerifier


def enumerated_rate(verifier: PlanVerifier, target, law) -> float:
    """P(the output is among the drafts), from the conditional laws of the output."""
    prepared = verifier.prepare(target, law)
    rate = 0.0
    for tokens, prob in zip(*law.enumerate(), strict=True):
        rate += prob * prepared.conditional_law(tokens)[np.unique(tokens)].sum()
    return rate


@pytest.mark.parametrize("form", ["compact", "full", "dual", "max_flow"])
def test_the_output_is_the_target_and_the_rate_is_optimal(form):
    for instance in instances(20, seed=51):
        law = package_law(instance, instance.law)
        plan = solve_transport(instance.target_probs, law, form).plan
        verifier = PlanVerifier(plan)
        best = otmd.optimal_acceptance(instance.target_probs, law).rate
        # The same law made anew is served.
        law = package_law(instance, instance.law)
        output = verifier.output_distribution(instance.target_probs, law)
        assert np.abs(output - plan.problem.target).max() < 1e-12, instance
        assert abs(verifier.acceptance_rate(instance.target_probs, law) - best) < 1e-9, instance


@pytest.mark.parametrize("merge", [True, False])
def test_a_plan_that_is_far_from_optimal_is_lossless_and_its_rate_exact(merge):
    rng = np.random.default_rng(0)
    for instance in instances(20, seed=53):
        law = package_law(instance, instance.law)
        problem = TransportProblem.of(instance.target_probs, law, merge)
        plan = TransportPlan(problem, rng.normal(scale=0.2, size=problem.num_arcs))
        for made in (plan, canonical_decomposition(plan).plan):
            verifier = PlanVerifier(made)
            output = verifier.output_distribution(instance.target_probs, law)
            assert np.abs(output - problem.target).max() < 1e-12, instance
            rate = verifier.acceptance_rate(instance.target_probs, law)
            assert abs(rate - enumerated_rate(verifier, instance.target_probs, law)) < 1e-12
