"""cvxpy: any of its solvers, to check one answer by another."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from otmd.probabilities import FloatArray
from otmd.transport.answer import SolverAnswer
from otmd.transport.program import LinearProgram

DEFAULT_METHOD = "CLARABEL"

_STATUS = {
    "optimal": "optimal",
    "infeasible": "infeasible",
    "infeasible_inaccurate": "infeasible",
    "unbounded": "unbounded",
    "unbounded_inaccurate": "unbounded",
    "user_limit": "time limit",
}


def solve_cvxpy(
    program: LinearProgram, method: str | None, options: Mapping[str, object]
) -> SolverAnswer:
    """Solve a program by cvxpy.

    Parameters
    ----------
    program : LinearProgram
        What to solve.
    method : str, optional
        A solver that cvxpy has installed; Clarabel where none is named.
    options : mapping
        Passed on to ``cvxpy.Problem.solve``.

    Returns
    -------
    SolverAnswer

    Raises
    ------
    ImportError
        Without cvxpy.
    ValueError
        For a solver that is not installed.
    """
    try:
        import cvxpy
    except ImportError as error:
        raise ImportError("solver='cvxpy' needs `pip install 'otmd[modeling]'`") from error
    name = method or DEFAULT_METHOD
    installed = cvxpy.installed_solvers()
    if name not in installed:
        raise ValueError(f"method: got {name!r}, wanted one of {', '.join(installed)}")
    variables = cvxpy.Variable(program.num_variables)
    sides, limits = _constraints(program, variables)
    question = cvxpy.Problem(
        cvxpy.Minimize(program.costs @ variables), [*(side for _, _, side in sides), *limits]
    )
    try:
        # cvxpy's methods are attached by a decorator that type checkers do not follow.
        question.solve(solver=name, **options)  # pyright: ignore[reportArgumentType]
    except cvxpy.SolverError as error:
        return SolverAnswer("failed", f"{name}: {error}")
    status, detail = str(question.status), f"{name}: {question.status}"
    if status != "optimal" or variables.value is None:
        return SolverAnswer(_STATUS.get(status, "failed"), detail)
    duals = np.zeros(program.num_constraints)
    for rows, sign, side in sides:
        duals[rows] += sign * np.asarray(side.dual_value, np.float64)
    return SolverAnswer("optimal", detail, np.asarray(variables.value, np.float64), duals)


def _constraints(
    program: LinearProgram, variables: Any
) -> tuple[list[tuple[np.ndarray, float, Any]], list[Any]]:
    """The rows' constraints with the sign of their multipliers, and the variables' bounds."""
    rows = program.matrix.tocsr()
    lower, upper = program.row_lower, program.row_upper
    equal = lower == upper
    sides = []
    for chosen, sign, relate in (
        (equal, -1.0, lambda left, which: left == upper[which]),
        (np.isfinite(upper) & ~equal, -1.0, lambda left, which: left <= upper[which]),
        (np.isfinite(lower) & ~equal, 1.0, lambda left, which: left >= lower[which]),
    ):
        which = np.flatnonzero(chosen)
        if which.size:
            sides.append((which, sign, relate(rows[which] @ variables, which)))
    return sides, _bounds(variables, program.column_lower, program.column_upper)


def _bounds(variables: Any, lower: FloatArray, upper: FloatArray) -> list[Any]:
    low, high = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
    limits = [variables[low] >= lower[low]] if low.size else []
    return [*limits, variables[high] <= upper[high]] if high.size else limits
