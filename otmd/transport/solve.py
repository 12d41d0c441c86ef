"""Solve the transport problem of one position, in any form, by any solver that takes the form."""

from collections.abc import Iterable, Mapping

from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw
from otmd.transport.forms import (
    DEFAULT_MAX_BYTES,
    MAX_FLOW,
    Form,
    build_program,
    form_named,
    refuse_too_large,
)
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram
from otmd.transport.solution import SolverAnswer, TransportSolution, conclude
from otmd.transport.solvers import (
    HighsSession,
    solve_cvxpy,
    solve_dinic,
    solve_highs,
    solve_networkx,
)

SOLVERS = ("highs", "cvxpy", "networkx", "dinic")

_GRAPH_SOLVERS = {"networkx": solve_networkx, "dinic": solve_dinic}


def solve_transport(
    target_probs: ArrayLike,
    law: DraftLaw,
    form: str = "compact",
    solver: str = "highs",
    *,
    method: str | None = None,
    options: Mapping[str, object] | None = None,
    merge: bool = True,
    max_bytes: float = DEFAULT_MAX_BYTES,
    throw: bool = True,
) -> TransportSolution:
    """Solve the optimal transport problem of one position as a linear program or a maximum flow.

    Parameters
    ----------
    target_probs : array_like, shape (V,)
        p.
    law : DraftLaw
        A law without leading axes that can be enumerated.
    form : {"compact", "full", "dual", "max_flow"}
        How the problem is written.
    solver : {"highs", "cvxpy", "networkx", "dinic"}
        What solves it; the last two walk the graph of the max-flow form.
    method : str, optional
        HiGHS: "simplex" or "ipm". cvxpy: the name of an installed solver. networkx: a flow algorithm.
    options : mapping, optional
        Passed on to HiGHS or cvxpy by name.
    merge : bool
        Make one row of all tuples with the same set of tokens.
    max_bytes : float
        Refuse to build a program whose arrays are larger.
    throw : bool
        Raise where there is no certified optimum; without it the solution's status says so.

    Returns
    -------
    TransportSolution

    Raises
    ------
    ValueError
        For invalid input, leading axes, a solver that does not take the form, or a program that is too
        large; the message names its size and the forms that fit.
    SolverError
        With ``throw``, where the solver did not end optimal or its answer did not stand the check.
    """
    chosen = _validate(form, solver)
    refuse_too_large(law, form, merge, max_bytes)
    problem = TransportProblem.of(target_probs, law, merge)
    program = build_program(problem, form, max_bytes)
    answer = ask_solver(problem, program, solver, method, options)
    return conclude(problem, chosen, program, answer, throw)


def solve_path(
    problems: Iterable[TransportProblem],
    form: str = "compact",
    *,
    method: str = "simplex",
    options: Mapping[str, object] | None = None,
    max_bytes: float = DEFAULT_MAX_BYTES,
    throw: bool = True,
) -> list[TransportSolution]:
    """Solve problems one after another by HiGHS, each from the last one's basis.

    Neighbours with the same draft sets, as along a temperature, differ in their marginals alone: a few
    steps of the simplex lead from one to the next. Others are solved afresh.

    Parameters
    ----------
    problems : iterable of TransportProblem
        The path, made by ``TransportProblem.of``.
    method : {"simplex", "ipm"}
        The interior point method always starts afresh.
    form, options, max_bytes, throw
        As for :func:`solve_transport`.

    Returns
    -------
    list of TransportSolution
        One a problem.

    Raises
    ------
    ValueError, SolverError
        As :func:`solve_transport`.
    """
    chosen = form_named(form)
    session = HighsSession(method, options)
    solutions = []
    for problem in problems:
        program = build_program(problem, form, max_bytes)
        solutions.append(conclude(problem, chosen, program, session.solve(program), throw))
    return solutions


def _validate(form: str, solver: str) -> Form:
    chosen = form_named(form)
    if solver not in SOLVERS:
        raise ValueError(f"solver: got {solver!r}, wanted one of {', '.join(SOLVERS)}")
    if solver in _GRAPH_SOLVERS and form != MAX_FLOW.name:
        raise ValueError(f"form: got {form!r}, wanted 'max_flow', the one that {solver!r} takes")
    return chosen


def ask_solver(
    problem: TransportProblem,
    program: LinearProgram,
    solver: str,
    method: str | None = None,
    options: Mapping[str, object] | None = None,
) -> SolverAnswer:
    """A solver's answer to a program, not checked."""
    if solver == "highs":
        return solve_highs(program, method or "simplex", options)
    if solver == "cvxpy":
        return solve_cvxpy(program, method, options or {})
    return _GRAPH_SOLVERS[solver](problem, method, options or {})
