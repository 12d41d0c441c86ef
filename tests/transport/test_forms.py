"""Four forms, several solvers, one number: the optimal acceptance rate."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import reference
from strategies import LAWS, instances, package_law, twin_law

import otmd
from otmd.transport import (
    FORMS,
    SolverError,
    TransportProblem,
    build_program,
    program_size,
    solve_path,
    solve_transport,
)
from otmd.transport.forms import Reading
from otmd.transport.solve import best_level_set
from otmd.transport.solvers import NETWORKX_METHODS

AGREE = 1e-9
INSTANCES = instances(500, seed=31)
LARGE = [(27, 3, True), (20, 3, False), (10, 4, True), (140, 2, True)]


def pair(vocab_size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(vocab_size)), rng.dirichlet(np.ones(vocab_size))


def check(solution, problem: TransportProblem, rate: float, where: str) -> None:
    assert solution.status == "optimal", where
    assert abs(solution.rate - rate) < AGREE, where
    assert abs(problem.cut_value(solution.subset) - rate) < AGREE, where
    assert solution.certificate.worst < AGREE, where
    assert solution.bounds[0] <= rate + 1e-12, where
    assert solution.bounds[1] >= rate - 1e-12, where


@pytest.mark.parametrize(
    ("form", "solver", "methods"),
    [
        *((form, "highs", ("simplex", "ipm")) for form in FORMS),
        ("max_flow", "dinic", (None,)),
    ],
)
def test_forms_agree_with_the_smallest_cut_of_all_subsets(form, solver, methods):
    for instance in INSTANCES:
        law = package_law(instance, instance.law)
        rate = reference.optimal_by_masks(instance.p, twin_law(instance, instance.law))
        problem = TransportProblem.of(instance.target_probs, law)
        for method in methods:
            solution = solve_transport(instance.target_probs, law, form, solver, method=method)
            check(solution, problem, rate, f"{form} {method} {instance.law} {instance}")


def test_the_instances_cover_every_law():
    assert {instance.law for instance in INSTANCES} == set(LAWS)


@pytest.mark.parametrize(("vocab_size", "num_drafts", "merge"), LARGE)
def test_forms_agree_on_thousands_of_tuples(vocab_size, num_drafts, merge):
    p, q = pair(vocab_size)
    law = otmd.WithReplacement(q, num_drafts)
    rate = otmd.optimal_acceptance(p, law).rate
    problem = TransportProblem.of(p, law, merge)
    for form in FORMS:
        if program_size(problem, form).variables < 40_000:
            check(solve_transport(p, law, form, merge=merge), problem, rate, form)
    check(solve_transport(p, law, "max_flow", "dinic", merge=merge), problem, rate, "dinic")


@pytest.mark.parametrize("form", FORMS)
def test_merging_changes_the_program_and_not_the_answer(form):
    for instance in instances(60, seed=33):
        law = package_law(instance, instance.law)
        merged = solve_transport(instance.target_probs, law, form)
        apart = solve_transport(instance.target_probs, law, form, merge=False)
        assert abs(merged.rate - apart.rate) < AGREE, instance
    p, q = pair(5)
    law = otmd.WithReplacement(q, 3)
    sizes = [program_size(TransportProblem.of(p, law, merge), form) for merge in (True, False)]
    assert sizes[0].variables < sizes[1].variables


@pytest.mark.parametrize("method", [None, *NETWORKX_METHODS])
def test_networkx_agrees_or_its_failure_is_a_solver_error(method):
    pytest.importorskip("networkx")
    cases = [(i.target_probs, package_law(i, i.law)) for i in instances(25, seed=34)]
    p, q = [0.3366997309604694, 0.6633002690395305], [0.19706423892424063, 0.8029357610767593]
    cases.append((p, otmd.WithoutReplacement(q, 2)))
    for seed in range(40 if method else 200):
        p, q = pair(2 + seed % 2, seed)
        cases += [(p, otmd.WithReplacement(q, 2)), (p, otmd.WithoutReplacement(q, 2))]
    failures = []
    for p, law in cases:
        rate = otmd.optimal_acceptance(p, law).rate
        try:
            found = solve_transport(p, law, "max_flow", "networkx", method=method)
        except SolverError as error:
            failures.append(str(error))
        else:
            check(found, TransportProblem.of(p, law), rate, f"{method} {p} {law}")
    # networkx's dinitz is not made for rounded capacities.
    assert (method == "dinitz") == bool(failures)
    assert all(re.search("failed: .*(IndexError|KeyError)", failure) for failure in failures)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("method", "within"), [("HIGHS", AGREE), ("CLARABEL", 1e-7)])
def test_cvxpy_agrees(form, method, within):
    pytest.importorskip("cvxpy")
    p, q = pair(4)
    for law in (otmd.WithReplacement(q, 3), otmd.Greedy(q, 2)):
        rate = otmd.optimal_acceptance(p, law).rate
        found = solve_transport(p, law, form, "cvxpy", method=method)
        assert found.status == "optimal"
        assert abs(found.rate - rate) < within


@pytest.mark.parametrize("solver", ["highs", "cvxpy", "networkx"])
def test_no_solver_prints_a_word(solver):
    """In a process of its own, since C keeps what it prints to a pipe until the end."""
    form = "max_flow" if solver == "networkx" else "full"
    law = "otmd.WithReplacement([0.2, 0.3, 0.5], 2)"
    code = f"import otmd; otmd.solve_transport([0.5, 0.3, 0.2], {law}, {form!r}, {solver!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")


def test_dual_solution_is_a_subset():
    for instance in INSTANCES[:150]:
        law = package_law(instance, instance.law)
        solution = solve_transport(instance.target_probs, law, "dual")
        problem = TransportProblem.of(instance.target_probs, law)
        u, v = solution.set_duals, solution.token_duals
        price = problem.supply @ u + problem.target @ v
        within = np.logical_and.reduceat(solution.subset[problem.tokens], problem.starts[:-1])
        assert abs(price - problem.cut_value(solution.subset)) < AGREE, instance
        assert abs(price - problem.supply @ ~within - problem.target @ solution.subset) < AGREE
        assert (u[problem.arc_sets] + v[problem.tokens] >= 1 - AGREE).all()


@pytest.mark.parametrize("form", FORMS)
def test_duals_of_every_form_are_feasible_and_prove_the_rate(form):
    for instance in INSTANCES[:150]:
        law = package_law(instance, instance.law)
        solution = solve_transport(instance.target_probs, law, form)
        problem = TransportProblem.of(instance.target_probs, law)
        u, v = solution.set_duals, solution.token_duals
        assert min(u.min(), v.min()) >= -AGREE, instance
        assert (u[problem.arc_sets] + v[problem.tokens] >= 1 - AGREE).all(), instance
        assert abs(problem.supply @ u + problem.target @ v - solution.rate) < AGREE, instance


def test_fractional_duals_round_to_a_subset_that_is_no_worse():
    # Two subsets are optimal here, {0} and {0, 1}, and so is everything between them.
    p, law = [0.2, 0.3, 0.5], otmd.Joint([[0], [1], [2]], [0.5, 0.3, 0.2], 3)
    problem = TransportProblem.of(p, law)
    reading = Reading(np.zeros(3), np.array([0, 0.6, 1]), np.array([1, 0.4, 0]))
    assert abs(problem.cut_value(best_level_set(problem, reading)) - 0.7) < 1e-15


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("merge", [True, False])
def test_sizes_are_those_of_the_programs_built(form, merge):
    for instance in instances(40, seed=35):
        law = package_law(instance, instance.law)
        problem = TransportProblem.of(instance.target_probs, law, merge)
        program = build_program(problem, form)
        asked = program_size(problem, form)
        assert asked == program.size
        assert program.matrix.shape == (asked.constraints, asked.variables)
        assert len(program.row_names) == len(set(program.row_names)) == asked.constraints
        assert len(program.column_names) == len(set(program.column_names)) == asked.variables
        arrays = (
            program.matrix.data,
            program.matrix.indices,
            program.matrix.indptr,
            program.objective,
            program.column_lower,
            program.column_upper,
            program.row_lower,
            program.row_upper,
        )
        assert asked.bytes == sum(array.nbytes for array in arrays)


def test_names_say_what_rows_and_columns_are():
    problem = TransportProblem.of([0.5, 0.5], otmd.WithReplacement([0.25, 0.75], 2))
    compact, dual = build_program(problem), build_program(problem, "dual")
    sets = {"set {0}", "set {0,1}", "set {1}"}
    assert set(compact.row_names) == sets | {"token 0", "token 1"}
    assert "accept {0,1} 1" in compact.column_names
    assert dual.column_names == compact.row_names
    assert "cover {0,1} 1" in dual.row_names
    assert "emit {0} 1" in build_program(problem, "full").column_names
    assert "draw {0}" in build_program(problem, "max_flow").column_names
    apart = TransportProblem.of([0.5, 0.5], otmd.WithReplacement([0.25, 0.75], 2), merge=False)
    assert "set (1,0)" in build_program(apart).row_names


def test_tuples_without_mass_are_dropped():
    law = otmd.Joint([[0, 1], [1, 0], [2, 2]], [0.5, 0.5, 0.0], 3)
    assert TransportProblem.of([0.2, 0.3, 0.5], law).num_sets == 1
    assert TransportProblem.of([0.2, 0.3, 0.5], law, merge=False).num_sets == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_path_is_solved_from_the_last_basis(form):
    rng = np.random.default_rng(3)
    target, draft = rng.normal(scale=2, size=(2, 8))
    problems = [
        TransportProblem.of(
            otmd.probs_from_logits(target, temperature=t),
            otmd.WithReplacement(otmd.probs_from_logits(draft, temperature=t), 3),
        )
        for t in np.linspace(0.7, 0.8, 6)
    ]
    warm = solve_path(problems, form, options={"presolve": "off"})
    cold = [solve_path([problem], form, options={"presolve": "off"})[0] for problem in problems]
    for one, other, problem in zip(warm, cold, problems, strict=True):
        rate = otmd.optimal_acceptance(problem.target, problem.law).rate
        check(one, problem, rate, form)
        assert abs(one.rate - other.rate) < AGREE
    assert sum(s.iterations for s in warm[1:]) < 0.5 * sum(s.iterations for s in cold[1:])


@pytest.mark.parametrize("method", ["simplex", "ipm"])
def test_a_path_may_change_its_draft_sets(method):
    p, q = pair(6)
    problems = [TransportProblem.of(p, otmd.WithoutReplacement(q, n)) for n in (1, 2, 2, 3, 1)]
    for problem, solution in zip(problems, solve_path(problems, method=method), strict=True):
        rate = otmd.optimal_acceptance(p, problem.law).rate
        check(solution, problem, rate, method)
