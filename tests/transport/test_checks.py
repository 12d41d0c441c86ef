"""Corrupted answers, impossible programs and wrong arguments are told; plans emit the target."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from strategies import instances, package_law

import otmd
from otmd.testing import check_verifier
from otmd.transport import (
    FORMS,
    SolverError,
    TransportPlan,
    TransportProblem,
    build_program,
    canonical_decomposition,
    solve_transport,
)
from otmd.transport.program import SolverAnswer, certify
from otmd.transport.solve import conclude
from otmd.transport.solvers import solve_cvxpy, solve_highs
from otmd.verifiers.plan_verifier import PlanVerifier

P = np.array([0.5, 0.2, 0.2, 0.1])
LAW = otmd.WithReplacement([0.1, 0.2, 0.3, 0.4], 2)
FLAT = np.full(1000, 1 / 1000)


def test_certificate_by_hand() -> None:
    # Maximise x over x ≤ 3 as a row and 0 ≤ x ≤ 2 as bounds; claim x = 2.5 and a multiplier of 0.
    problem = TransportProblem.of([1.0], otmd.WithReplacement([1.0], 1))
    sides = {"row_upper": np.array([3.0, 3.0]), "column_upper": np.array([2.0])}
    program = replace(build_program(problem), **sides)
    proof = certify(program, SolverAnswer("", "", np.array([2.5]), np.zeros(2)))
    assert (proof.attained, proof.upper_bound, proof.residual) == (2.5, 2.0, 0.5)
    assert (proof.gap, proof.worst) == (-0.5, 0.5)
    # A row multiplier above zero pulls at a lower side that is not there; x gains −1 − 0.25 at 2.
    proof = certify(program, SolverAnswer("", "", np.array([2.0]), np.array([0.25, 0.0])))
    assert (proof.attained, proof.upper_bound, proof.residual) == (2.0, 2.5, 0.25)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", ["values", "row_duals"])
@pytest.mark.parametrize(
    "corrupt",
    [
        lambda array: array + 1e-5,
        lambda array: array - 1e-5,
        lambda array: 0.9 * array,
        np.zeros_like,
        lambda array: np.full_like(array, np.nan),
        lambda array: array[:-1],
    ],
)
def test_a_corrupted_answer_is_caught(form: str, part: str, corrupt) -> None:
    problem = TransportProblem.of(P, LAW)
    program = build_program(problem, form)
    answer = solve_highs(program)
    assert certify(program, answer).worst < 1e-12
    spoilt = answer._replace(**{part: corrupt(getattr(answer, part))})
    with pytest.raises(SolverError, match=r"not certified: .*try method"):
        conclude(problem, program, spoilt)
    solution = conclude(problem, program, spoilt, throw=False)
    proof = solution.certificate
    assert (solution.status, proof.worst > 1e-7) == ("not certified", True)
    rate = otmd.optimal_acceptance(P, LAW).rate
    assert proof.attained - 1e-12 <= rate <= proof.upper_bound + 1e-12


def demands_too_much(problem: TransportProblem):
    """The full coupling with a token that takes more than there is."""
    program = build_program(problem, "full")
    sides = program.row_upper.copy()
    sides[problem.num_sets + 1] = 1.2
    return replace(program, row_lower=np.where(np.isinf(sides), -np.inf, sides), row_upper=sides)


@pytest.mark.parametrize("method", ["simplex", "ipm", "cvxpy"])
def test_impossible_marginals_are_reported_as_infeasible(method: str) -> None:
    problem = TransportProblem.of(P, LAW)
    program = demands_too_much(problem)
    if method == "cvxpy":
        pytest.importorskip("cvxpy")
        answer = solve_cvxpy(program, None, {})
    else:
        answer = solve_highs(program, method)
    with pytest.raises(SolverError, match="infeasible: no point keeps all constraints"):
        conclude(problem, program, answer)
    solution = conclude(problem, program, answer, throw=False)
    assert (solution.status, solution.plan, solution.subset) == ("infeasible", None, None)
    assert np.isnan(solution.rate)
    assert (solution.certificate.attained, solution.certificate.upper_bound) == (0.0, 1.0)


def test_limits_and_answers_without_a_point_are_reported() -> None:
    options = {"simplex_iteration_limit": 0, "presolve": "off"}
    with pytest.raises(SolverError, match=r"iteration limit: raise the solver's limit"):
        solve_transport(P, LAW, "full", options=options)
    late = solve_transport(P, LAW, "full", options={"time_limit": 0.0}, throw=False)
    assert (late.status, late.plan) == ("time limit", None)
    problem = TransportProblem.of(P, LAW)
    empty = conclude(problem, build_program(problem), SolverAnswer("optimal", ""), throw=False)
    assert empty.status == "not certified"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "fast"}, "form: got 'fast', expected one of full, compact, dual, max_flow"),
        ({"solver": "fast"}, "solver: got 'fast', expected one of highs, cvxpy, networkx, dinic"),
        ({"solver": "dinic"}, "form: got 'compact', expected 'max_flow'"),
        ({"method": "magic"}, "method: got 'magic', expected one of simplex, ipm"),
        ({"options": {"magic": 1}}, "options: HiGHS takes no 'magic'"),
        ({"solver": "cvxpy", "method": "MAGIC"}, "method: got 'MAGIC', expected one of "),
        ({"solver": "dinic", "form": "max_flow", "method": "x"}, "solver='dinic' takes none"),
        ({"solver": "networkx", "form": "max_flow", "method": "x"}, "method, options: got 'x'"),
        ({"target_probs": [P, P]}, "leading axes .*one position"),
        ({"law": otmd.WithReplacement([P, P], 2)}, r"law: got leading axes \(2,\)"),
        ({"target_probs": [0.5, 0.5]}, "target_probs: got 2 tokens, expected 4"),
        ({"target_probs": [0.5, 0.2, 0.2, np.nan]}, "target_probs"),
        ({"target_probs": FLAT, "law": otmd.WithReplacement(FLAT, 4)}, "enumerate: got 1000000000000 tuples"),
        (
            {"target_probs": FLAT, "law": otmd.WithReplacement(FLAT, 2), "form": "full"},
            "form: got 'full', which has 500500000 variables",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    pytest.importorskip("cvxpy")
    with pytest.raises((ValueError, TypeError), match=message):
        solve_transport(**{"target_probs": P, "law": LAW, **arguments})


@pytest.mark.parametrize(("solver", "form"), [("cvxpy", "compact"), ("networkx", "max_flow")])
def test_missing_packages_are_named(monkeypatch, solver: str, form: str) -> None:
    monkeypatch.setitem(sys.modules, solver, None)
    with pytest.raises(ImportError, match=r'pip install "otmd\[modeling\]"'):
        solve_transport(P, LAW, form, solver)


# ---------------------------------------------------------------- plans


def any_plan(problem: TransportProblem, seed: int) -> TransportPlan:
    """A plan from random mass, far too much of it in places and negative in others."""
    rng = np.random.default_rng(seed)
    return TransportPlan(problem, rng.normal(scale=0.3, size=problem.num_arcs))


def emitted(plan: TransportPlan) -> np.ndarray:
    """The distribution of the output, drafts enumerated one by one."""
    tuples, probs = plan.problem.law.enumerate()
    laws = [prob * plan.conditional_law(x) for x, prob in zip(tuples, probs, strict=True)]
    return np.sum(laws, axis=0)


def test_plans_emit_the_target_and_their_decomposition_is_no_worse() -> None:
    better = 0
    for seed, instance in enumerate(instances(50, seed=41)):
        law = package_law(instance, instance.law)
        solved = solve_transport(instance.target_probs, law, merge=seed % 2 == 0).plan
        problem = solved.problem
        best = otmd.optimal_acceptance(instance.target_probs, law).rate
        for plan in (solved, any_plan(problem, seed)):
            assert np.abs(emitted(plan) - problem.target).max() < 1e-12, instance
            assert (problem.by_set(plan.accepted) <= problem.supply * (1 + 1e-15)).all()
            parts = canonical_decomposition(plan)
            assert plan.rate - 1e-12 <= parts.rate <= best + 1e-9, instance
            better += parts.rate > plan.rate + 1e-6
            assert abs(parts.plan.rate - parts.rate) < 1e-12, instance
            assert np.abs(emitted(parts.plan) - problem.target).max() < 1e-12, instance
            # Step one selects a draft of its own set, always; step two is single-draft sampling.
            assert parts.selection.min() >= 0
            assert np.abs(problem.by_set(parts.selection) - problem.supply).max() < 1e-12
            assert np.abs(problem.by_token(parts.selection) - parts.selected_probs).max() < 1e-12
        assert abs(canonical_decomposition(solved).rate - best) < 1e-9, instance
    assert better > 3


def test_verifiers_of_plans_are_lossless_and_have_their_rates() -> None:
    """Plans that are optimal or far from it, and the decomposition of these."""
    for seed, instance in enumerate(instances(5, seed=51)):
        target, law = instance.target_probs, package_law(instance, instance.law)
        solved = solve_transport(target, law, merge=seed % 2 == 0).plan
        other = any_plan(solved.problem, seed)
        for plan in (solved, other, canonical_decomposition(other).plan):
            # The same law made anew is served.
            made_anew = package_law(instance, instance.law)
            check_verifier(PlanVerifier(plan), made_anew, target_probs=target)


def test_a_plan_as_a_matrix_and_by_drafts() -> None:
    p, law = [0.5, 0.3, 0.2], otmd.WithReplacement([0.2, 0.3, 0.5], 3)
    plan = solve_transport(p, law).plan
    assert plan.matrix.shape == (plan.problem.num_sets, 3)
    assert plan.matrix.sum() == pytest.approx(plan.rate, abs=1e-15)
    assert np.array_equal(plan.conditional_law([0, 2, 2]), plan.conditional_law([2, 0, 0]))
    with pytest.raises(ValueError, match="tokens: got"):
        plan.conditional_law([0])
    for merge in (True, False):
        plan = solve_transport(p, otmd.WithoutReplacement(p, 2), merge=merge).plan
        with pytest.raises(ValueError, match=r"tokens: got \[1, 1\], which .* never draws"):
            plan.conditional_law([1, 1])
    with pytest.raises(ValueError, match="accepted: got shape"):
        TransportPlan(plan.problem, np.zeros(3))
    with pytest.raises(ValueError, match="accepted: got NaN"):
        TransportPlan(plan.problem, np.full(plan.problem.num_arcs, np.nan))
