"""Four forms, several solvers, one number: the optimal acceptance rate; sizes before a program is built."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import numpy as np
import pytest
import reference
from strategies import LAWS, instances, package_law, twin_law

import otmd
from otmd.transport import (
    FORMS,
    ProblemShape,
    SolverError,
    TransportProblem,
    TransportSolution,
    build_program,
    program_size,
    solve_path,
    solve_transport,
)
from otmd.transport.forms import Reading
from otmd.transport.solve import best_level_set
from otmd.transport.solvers import NETWORKX_METHODS

AGREE = 1e-9
INSTANCES = instances(100, seed=31)
every_form = pytest.mark.parametrize("form", FORMS)


def pair(vocab_size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(vocab_size)), rng.dirichlet(np.ones(vocab_size))


def uniform(size: int) -> np.ndarray:
    return np.full(size, 1 / size)


def check(
    solution: TransportSolution, problem: TransportProblem, rate: float, where: object
) -> None:
    """The plan, the cut and the duals of a solution prove its rate."""
    assert solution.status == "optimal", where
    assert abs(solution.rate - rate) < AGREE, where
    assert solution.certificate.worst < AGREE, where
    assert solution.certificate.upper_bound == problem.cut_value(solution.subset), where
    assert solution.certificate.attained == solution.rate <= rate + 1e-12, where
    u, v = solution.set_duals, solution.token_duals
    assert min(u.min(), v.min()) >= -AGREE, where
    assert (u[problem.arc_sets] + v[problem.tokens] >= 1 - AGREE).all(), where
    assert abs(problem.supply @ u + problem.target @ v - rate) < AGREE, where


@pytest.mark.parametrize(
    ("form", "solver", "methods"),
    [*((form, "highs", ("simplex", "ipm")) for form in FORMS), ("max_flow", "dinic", (None,))],
)
def test_forms_agree_with_the_smallest_cut_of_all_subsets(
    form: str, solver: str, methods: tuple
) -> None:
    assert {instance.law for instance in INSTANCES} == set(LAWS)
    for i, instance in enumerate(INSTANCES):
        law = package_law(instance, instance.law)
        rate = reference.optimal_by_masks(instance.p, twin_law(instance, instance.law))
        method, merge = methods[i % len(methods)], i % 4 > 0
        solution = solve_transport(
            instance.target_probs, law, form, solver, method=method, merge=merge
        )
        problem = TransportProblem.of(instance.target_probs, law, merge)
        check(solution, problem, rate, (form, instance.law, instance))


@pytest.mark.parametrize(("vocab_size", "num_drafts", "merge"), [(27, 3, True), (20, 3, False)])
def test_forms_agree_on_thousands_of_tuples(vocab_size: int, num_drafts: int, merge: bool) -> None:
    p, q = pair(vocab_size)
    law = otmd.WithReplacement(q, num_drafts)
    rate = otmd.optimal_acceptance(p, law).rate
    problem = TransportProblem.of(p, law, merge)
    for form, solver in (("compact", "highs"), ("dual", "highs"), ("max_flow", "dinic")):
        check(solve_transport(p, law, form, solver, merge=merge), problem, rate, form)


@pytest.mark.parametrize("method", [None, *NETWORKX_METHODS])
def test_networkx_agrees_or_its_failure_is_a_solver_error(method: str | None) -> None:
    pytest.importorskip("networkx")
    failures = []
    for seed in range(20 if method else 40):
        p, q = pair(2 + seed % 2, seed)
        for law in (otmd.WithReplacement(q, 2), otmd.WithoutReplacement(q, 2)):
            try:
                solution = solve_transport(p, law, "max_flow", "networkx", method=method)
            except SolverError as error:
                failures.append(str(error))
            else:
                rate = otmd.optimal_acceptance(p, law).rate
                check(solution, TransportProblem.of(p, law), rate, (method, p, law))
    # networkx's dinitz is not made for rounded capacities.
    assert (method == "dinitz") == bool(failures)
    assert all(re.search("failed: .*(IndexError|KeyError)", failure) for failure in failures)


@every_form
@pytest.mark.parametrize(("method", "within"), [("HIGHS", AGREE), ("CLARABEL", 1e-7)])
def test_cvxpy_agrees(form: str, method: str, within: float) -> None:
    pytest.importorskip("cvxpy")
    p, q = pair(4)
    for law in (otmd.WithReplacement(q, 3), otmd.Greedy(q, 2)):
        solution = solve_transport(p, law, form, "cvxpy", method=method)
        assert solution.status == "optimal"
        assert abs(solution.rate - otmd.optimal_acceptance(p, law).rate) < within


@pytest.mark.parametrize("solver", ["highs", "cvxpy", "networkx"])
def test_no_solver_prints_a_word(solver: str) -> None:
    """In a process of its own, since C keeps what it prints to a pipe until the end."""
    form = "max_flow" if solver == "networkx" else "full"
    law = "otmd.WithReplacement([0.2, 0.3, 0.5], 2)"
    code = f"import otmd; otmd.solve_transport([0.5, 0.3, 0.2], {law}, {form!r}, {solver!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")


def test_fractional_duals_round_to_a_subset_that_is_no_worse() -> None:
    # Two subsets are optimal here, {0} and {0, 1}, and so is everything between them.
    p, law = [0.2, 0.3, 0.5], otmd.Joint([[0], [1], [2]], [0.5, 0.3, 0.2], 3)
    problem = TransportProblem.of(p, law)
    reading = Reading(np.zeros(3), np.array([0, 0.6, 1]), np.array([1, 0.4, 0]))
    assert abs(problem.cut_value(best_level_set(problem, reading)) - 0.7) < 1e-15


@every_form
def test_a_path_is_solved_from_the_last_basis(form: str) -> None:
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
    for solution, problem in zip(warm, problems, strict=True):
        check(solution, problem, otmd.optimal_acceptance(problem.target, problem.law).rate, form)
    assert sum(s.iterations for s in warm[1:]) < 0.5 * sum(s.iterations for s in cold[1:])


@pytest.mark.parametrize("method", ["simplex", "ipm"])
def test_a_path_may_change_its_draft_sets(method: str) -> None:
    p, q = pair(6)
    problems = [TransportProblem.of(p, otmd.WithoutReplacement(q, n)) for n in (1, 2, 2, 3, 1)]
    for problem, solution in zip(problems, solve_path(problems, method=method), strict=True):
        check(solution, problem, otmd.optimal_acceptance(p, problem.law).rate, method)


# ---------------------------------------------------------------- sizes and names


@pytest.mark.parametrize("merge", [True, False])
@every_form
def test_sizes_are_those_of_the_programs_built(form: str, merge: bool) -> None:
    for instance in instances(20, seed=35):
        law = package_law(instance, instance.law)
        program = build_program(TransportProblem.of(instance.target_probs, law, merge), form)
        asked = program_size(ProblemShape.of(law, merge), form)
        assert asked == program.size, instance
        assert program.matrix.shape == (asked.constraints, asked.variables)
        assert len(set(program.row_names)) == asked.constraints
        assert len(set(program.column_names)) == asked.variables
        matrix = program.matrix
        arrays = [matrix.data, matrix.indices, matrix.indptr, program.objective]
        arrays += [np.zeros(asked.variables), program.column_upper]
        arrays += [program.row_lower, program.row_upper]
        assert asked.bytes == sum(array.nbytes for array in arrays)


def test_names_say_what_rows_and_columns_are() -> None:
    problem = TransportProblem.of([0.5, 0.5], otmd.WithReplacement([0.25, 0.75], 2))
    compact, dual = build_program(problem), build_program(problem, "dual")
    assert set(compact.row_names) == {"set {0}", "set {0,1}", "set {1}", "token 0", "token 1"}
    assert "accept {0,1} 1" in compact.column_names
    assert dual.column_names == compact.row_names
    assert "cover {0,1} 1" in dual.row_names
    assert "emit {0} 1" in build_program(problem, "full").column_names
    assert "draw {0}" in build_program(problem, "max_flow").column_names
    apart = TransportProblem.of([0.5, 0.5], otmd.WithReplacement([0.25, 0.75], 2), merge=False)
    assert "set (1,0)" in build_program(apart).row_names


def test_tuples_without_mass_are_dropped_and_those_that_underflow_counted() -> None:
    law = otmd.Joint([[0, 1], [1, 0], [2, 2]], [0.5, 0.5, 0.0], 3)
    assert TransportProblem.of([0.2, 0.3, 0.5], law).num_sets == 1
    law = otmd.WithReplacement([1 - 1e-200, 1e-200], 2)
    assert ProblemShape.of(law, merge=False).num_sets == 4
    assert TransportProblem.of([0.5, 0.5], law, merge=False).num_sets == 3


def test_the_known_sizes() -> None:
    law = otmd.WithReplacement(uniform(10), 4)
    assert program_size(ProblemShape.of(law, merge=False), "full").variables == 100_000
    assert program_size(ProblemShape.of(law, merge=False)).variables == 34_390
    assert program_size(ProblemShape.of(law)).variables == 1300


@every_form
def test_a_law_of_too_many_tuples_is_refused_at_once(form: str) -> None:
    law = otmd.WithReplacement(uniform(1000), 4)
    size = program_size(ProblemShape.of(law), form)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"variables, \S+ constraints .*; no form fits") as caught:
        solve_transport(uniform(1000), law, form)
    assert time.perf_counter() - start < 0.5
    assert f"got {form!r}, which needs {size.variables} variables" in str(caught.value)


def test_a_refusal_names_the_forms_that_fit() -> None:
    law = otmd.WithReplacement(uniform(1000), 2)
    message = r"500500000 variables.*; form 'compact' or 'dual' or 'max_flow' fits"
    with pytest.raises(ValueError, match=message):
        solve_transport(uniform(1000), law, "full")
    # The compact program would take 0.8 GB; 300^3 tuples are more than five million.
    law = otmd.WithReplacement(uniform(300), 3)
    with pytest.raises(ValueError, match="no form fits, as the law has too many tuples to list"):
        solve_transport(uniform(300), law, "full")
    law = otmd.Independent(np.stack([uniform(60), uniform(60)]))
    limit = program_size(ProblemShape.of(law), "full").bytes - 1
    with pytest.raises(ValueError, match=f"needs .*max_bytes={limit}; .*'compact'"):
        solve_transport(uniform(60), law, "full", max_bytes=limit)
    law = otmd.WithReplacement(uniform(2000), 3000)
    with pytest.raises(ValueError, match=r"which needs \d\.\d\de\+9906 variables"):
        solve_transport(uniform(2000), law, merge=False)
    # A table of tuples may be of any length.
    law = otmd.Joint(np.arange(60).reshape(2, 30), [0.5, 0.5], 60)
    assert build_program(TransportProblem.of(uniform(60), law)).size.variables == 60
