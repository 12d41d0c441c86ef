"""Four forms, several solvers, one number: the optimal acceptance rate; sizes before a program is built."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from strategies import LAWS, instances, package_law

import otmd
from otmd.transport import (
    FORMS,
    SolverError,
    TransportProblem,
    TransportSolution,
    build_program,
    solve_transport,
)
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


def check(solution: TransportSolution, problem: TransportProblem, rate: float, where: object) -> None:
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
def test_forms_agree_with_the_smallest_cut(form: str, solver: str, methods: tuple) -> None:
    assert {instance.law for instance in INSTANCES} == set(LAWS)
    for i, instance in enumerate(INSTANCES):
        law = package_law(instance, instance.law)
        rate = otmd.optimal_acceptance(instance.target_probs, law).rate
        method, merge = methods[i % len(methods)], i % 4 > 0
        solution = solve_transport(instance.target_probs, law, form, solver, method=method, merge=merge)
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


def test_no_solver_prints_a_word() -> None:
    """In a process of its own, since C keeps what it prints to a pipe until the end."""
    law = "otmd.WithReplacement([0.2, 0.3, 0.5], 2)"
    code = "import otmd\n"
    for form, solver in (("full", "highs"), ("full", "cvxpy"), ("max_flow", "networkx")):
        code += f"otmd.solve_transport([0.5, 0.3, 0.2], {law}, {form!r}, {solver!r})\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    compiling = b"otmd: compiling kernels, once for this machine\n"
    assert ended.stdout + ended.stderr.replace(compiling, b"") == b""


def test_fractional_duals_round_to_a_subset_that_is_no_worse() -> None:
    # Two subsets are optimal here, {0} and {0, 1}, and so is everything between them.
    p, law = [0.2, 0.3, 0.5], otmd.Joint([[0], [1], [2]], [0.5, 0.3, 0.2], 3)
    problem = TransportProblem.of(p, law)
    token_duals = np.array([1, 0.4, 0])
    assert abs(problem.cut_value(best_level_set(problem, token_duals)) - 0.7) < 1e-15


def test_tuples_without_mass_are_dropped() -> None:
    law = otmd.Joint([[0, 1], [1, 0], [2, 2]], [0.5, 0.5, 0.0], 3)
    assert TransportProblem.of([0.2, 0.3, 0.5], law).num_sets == 1
    law = otmd.WithReplacement([1 - 1e-200, 1e-200], 2)
    assert TransportProblem.of([0.5, 0.5], law, merge=False).num_sets == 3


@every_form
@pytest.mark.parametrize("merge", [True, False])
def test_the_known_sizes(form: str, merge: bool) -> None:
    problem = TransportProblem.of(uniform(6), otmd.WithReplacement(uniform(6), 3), merge)
    sets, arcs = (216, 546) if not merge else (41, 96)
    sizes = {"full": 6 * sets, "compact": arcs, "dual": sets + 6, "max_flow": sets + arcs + 6}
    assert build_program(problem, form).objective.size == sizes[form]
