"""Nothing is believed unchecked: corrupted answers, impossible programs, wrong arguments."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import otmd
from otmd.transport import (
    FORMS,
    SolverError,
    TransportPlan,
    TransportProblem,
    build_program,
    program_size,
    solve_path,
    solve_transport,
)
from otmd.transport.program import SolverAnswer, certify
from otmd.transport.solve import ADVICE, conclude
from otmd.transport.solvers import HighsSession, solve_cvxpy

P = np.array([0.5, 0.2, 0.2, 0.1])
LAW = otmd.WithReplacement([0.1, 0.2, 0.3, 0.4], 2)


@pytest.fixture(params=FORMS)
def solved(request):
    problem = TransportProblem.of(P, LAW)
    program = build_program(problem, request.param)
    return problem, program, HighsSession().solve(program)


def test_certificate_of_the_optimum_is_zero(solved):
    _, program, answer = solved
    assert certify(program, answer.values, answer.row_duals).worst < 1e-12


def test_certificate_by_hand():
    # Maximise x over x ≤ 3 as a row and 0 ≤ x ≤ 2 as bounds; claim x = 2.5 and a multiplier of 0.
    problem = TransportProblem.of([1.0], otmd.WithReplacement([1.0], 1))
    program = replace(
        build_program(problem),
        row_upper=np.array([3.0, 3.0]),
        column_upper=np.array([2.0]),
    )
    found = certify(program, np.array([2.5]), np.zeros(2))
    assert (found.primal_residual, found.dual_residual, found.gap) == (0.5, 0.0, 0.5)
    found = certify(program, np.array([2.0]), np.array([0.25, 0.0]))
    # Row multipliers above zero pull at a lower side that is not there; x gains −1 − 0.25 at 2.
    assert (found.primal_residual, found.dual_residual, found.gap) == (0.0, 0.25, 0.5)


@pytest.mark.parametrize("what", ["values", "row_duals"])
@pytest.mark.parametrize(
    "corrupt",
    [
        lambda array: array + 1e-5,
        lambda array: array - 1e-5,
        lambda array: 0.9 * array,
        lambda array: -array,
        np.zeros_like,
        lambda array: np.full_like(array, np.nan),
        lambda array: array[:-1],
        lambda array: np.append(array[:-1], np.inf),
    ],
)
def test_a_corrupted_answer_is_caught(solved, what, corrupt):
    problem, program, answer = solved
    spoilt = replace(answer, **{what: corrupt(getattr(answer, what))})
    with pytest.raises(SolverError, match=r"not certified: .*try method"):
        conclude(problem, program, spoilt)
    told = conclude(problem, program, spoilt, throw=False)
    assert told.status == "not certified"
    assert told.certificate.worst > 1e-7
    assert told.bounds[0] - 1e-12 <= otmd.optimal_acceptance(P, LAW).rate <= told.bounds[1] + 1e-12


def demands_too_much(problem: TransportProblem):
    """The full coupling with a token that takes more than there is."""
    program = build_program(problem, "full")
    sides = program.row_upper.copy()
    sides[problem.num_sets + 1] = 1.2
    return replace(program, row_lower=np.where(np.isinf(sides), -np.inf, sides), row_upper=sides)


def test_impossible_marginals_are_reported_as_infeasible():
    problem = TransportProblem.of(P, LAW)
    program = demands_too_much(problem)
    answers = [HighsSession().solve(program), HighsSession("ipm").solve(program)]
    for answer in answers:
        assert answer.status == "infeasible"
        with pytest.raises(SolverError, match=r"infeasible: .*check the marginals"):
            conclude(problem, program, answer)
        told = conclude(problem, program, answer, throw=False)
        assert told.plan is None
        assert told.subset is None
        assert np.isnan(told.rate)
        assert told.bounds == (0.0, 1.0)


def test_cvxpy_reports_infeasible_and_unbounded():
    pytest.importorskip("cvxpy")
    problem = TransportProblem.of(P, LAW)
    assert solve_cvxpy(demands_too_much(problem), None, {}).status == "infeasible"
    compact = build_program(problem)
    free = replace(compact, row_upper=np.full(compact.size.constraints, np.inf))
    assert solve_cvxpy(free, "HIGHS", {}).status in {"unbounded", "infeasible"}
    assert HighsSession().solve(free).status in {"unbounded", "infeasible"}


def test_limits_are_reported():
    options = {"simplex_iteration_limit": 0, "presolve": "off"}
    with pytest.raises(SolverError, match=r"iteration limit: .*raise its limit"):
        solve_transport(P, LAW, "full", options=options)
    told = solve_transport(P, LAW, "full", options=options, throw=False)
    assert (told.status, told.plan) == ("iteration limit", None)
    late = solve_transport(P, LAW, "full", options={"time_limit": 0.0}, throw=False)
    assert (late.status, late.plan) == ("time limit", None)


def test_an_optimum_without_a_point_is_a_failure():
    problem = TransportProblem.of(P, LAW)
    empty = SolverAnswer("optimal", "said so")
    told = conclude(problem, build_program(problem), empty, throw=False)
    assert told.status == "failed"


def test_every_status_has_advice():
    assert all(": " in text or "," in text for text in ADVICE.values())


@pytest.mark.parametrize("numbers", ["row_upper", "objective", "column_lower"])
def test_a_program_with_nan_is_refused(numbers):
    program = build_program(TransportProblem.of(P, LAW))
    with pytest.raises(ValueError, match=f"{numbers}: got NaN in the 'compact' program"):
        replace(program, **{numbers: np.full_like(getattr(program, numbers), np.nan)})


def test_a_session_survives_a_program_that_is_refused():
    program = build_program(TransportProblem.of(P, LAW))
    spoilt = replace(program, column_lower=np.full_like(program.column_lower, np.inf))
    with pytest.raises(ValueError, match="program: HiGHS refused its numbers"):
        HighsSession().solve(spoilt)
    session = HighsSession()
    assert session.solve(program).status == "optimal"
    with pytest.raises(ValueError, match="program: HiGHS refused its numbers"):
        session.solve(spoilt)
    assert session.solve(program).status == "optimal"


def test_a_program_too_large_names_its_size_and_the_form_that_fits():
    problem = TransportProblem.of(P, LAW)
    full, compact = program_size(problem, "full"), program_size(problem, "compact")
    assert full.variables == 40
    limit = full.bytes - 1
    message = f"40 variables, 14 constraints and {full.bytes} bytes.*max_bytes={limit}; .*'compact'"
    with pytest.raises(ValueError, match=message):
        solve_transport(P, LAW, "full", max_bytes=limit)
    with pytest.raises(ValueError, match=message):
        solve_path([problem], "full", max_bytes=limit)
    assert solve_transport(P, LAW, "full", max_bytes=full.bytes).status == "optimal"
    assert solve_transport(P, LAW, "compact", max_bytes=compact.bytes).status == "optimal"
    with pytest.raises(ValueError, match="no form fits"):
        solve_transport(P, LAW, "full", max_bytes=10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "fast"}, "form: got 'fast', expected one of full, compact, dual, max_flow"),
        ({"solver": "fast"}, "solver: got 'fast', expected one of highs, cvxpy, networkx, dinic"),
        ({"solver": "dinic"}, "form: got 'compact', expected 'max_flow'"),
        ({"solver": "networkx", "form": "dual"}, "form: got 'dual', expected 'max_flow'"),
        ({"method": "magic"}, "method: got 'magic', expected one of simplex, ipm"),
        ({"options": {"magic": 1}}, "options: HiGHS takes no 'magic'"),
        ({"solver": "cvxpy", "method": "MAGIC"}, "method: got 'MAGIC', expected one of "),
        ({"solver": "dinic", "form": "max_flow", "method": "x"}, "solver='dinic' takes none"),
        ({"solver": "networkx", "form": "max_flow", "method": "x"}, "method, options: got 'x'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    pytest.importorskip("cvxpy")
    with pytest.raises(ValueError, match=message):
        solve_transport(P, LAW, **arguments)


def test_wrong_problems_are_named():
    with pytest.raises(ValueError, match=r"leading axes .*one position"):
        solve_transport([P, P], LAW)
    with pytest.raises(ValueError, match=r"law: got leading axes \(2,\), expected one position"):
        solve_transport(P, otmd.WithReplacement([P, P], 2))
    with pytest.raises(TypeError, match="law: got int, expected a DraftLaw"):
        solve_transport(P, 3)
    with pytest.raises(ValueError, match="target_probs: got 2 tokens, expected 4"):
        solve_transport([0.5, 0.5], LAW)
    with pytest.raises(ValueError, match="target_probs"):
        solve_transport([0.5, 0.2, 0.2, np.nan], LAW)
    with pytest.raises(ValueError, match="enumerate: got"):
        solve_transport(np.full(300, 1 / 300), otmd.WithReplacement(np.full(300, 1 / 300), 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"supply": np.zeros(10)}, "supply: got entries"),
        ({"supply": np.full(10, 0.05)}, "supply: got a sum"),
        ({"supply": np.full(10, np.nan)}, "supply: got entries"),
        ({"target": np.zeros(4)}, "target"),
        ({"tokens": np.full(16, 4)}, "tokens: expected ids"),
        ({"starts": np.zeros(11, np.int64)}, "starts: got an empty draft set"),
        ({"starts": np.arange(11)}, "starts: expected to run from 0 to 16"),
    ],
)
def test_a_corrupted_problem_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(TransportProblem.of(P, LAW), **changes)


@pytest.mark.parametrize(("solver", "form"), [("cvxpy", "compact"), ("networkx", "max_flow")])
def test_missing_packages_are_named(monkeypatch, solver, form):
    monkeypatch.setitem(sys.modules, solver, None)
    with pytest.raises(ImportError, match=r'pip install -e "\.\[modeling\]"'):
        solve_transport(P, LAW, form, solver)


def test_plan_refuses_mass_that_is_none():
    problem = TransportProblem.of(P, LAW)
    with pytest.raises(ValueError, match="accepted: got shape"):
        TransportPlan(problem, np.zeros(3))
    with pytest.raises(ValueError, match="accepted: got NaN"):
        TransportPlan(problem, np.full(problem.num_arcs, np.nan))
