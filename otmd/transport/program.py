"""A sparse linear program, a solver's answer to it, and the check of that answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import csc_array

from otmd.optimum.certificate import OptimalityCertificate
from otmd.probabilities import FloatArray


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Optimise objective·x over row_lower ≤ matrix x ≤ row_upper, 0 ≤ x ≤ column_upper.

    Attributes
    ----------
    form : str
        The form that built it.
    sense : {"maximise", "minimise"}
        What to do with the objective.
    objective, column_upper : ndarray of float64, shape (variables,)
        One entry a variable.
    matrix : scipy.sparse.csc_array, shape (constraints, variables)
        With 32-bit indices.
    row_lower, row_upper : ndarray of float64, shape (constraints,)
        Infinite where a constraint has one side only.
    """

    form: str
    sense: Literal["maximise", "minimise"]
    objective: FloatArray
    matrix: csc_array
    row_lower: FloatArray
    row_upper: FloatArray
    column_upper: FloatArray

    @property
    def costs(self) -> FloatArray:
        """The objective of the same program as a minimisation, shape (variables,)."""
        return -self.objective if self.sense == "maximise" else self.objective


def program_of(
    form: str,
    objective: FloatArray,
    matrix: csc_array,
    *,
    rows: tuple[FloatArray | float, FloatArray | float],
    sense: Literal["maximise", "minimise"] = "maximise",
    column_upper: FloatArray | float = np.inf,
) -> LinearProgram:
    """Make a program. A single number given as a bound holds for every row or column."""
    # Solvers take 32-bit indices without conversion.
    indices = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    shape: Any = matrix.shape
    matrix = csc_array((matrix.data, *indices), shape=shape)
    lower, upper = (np.full(shape[0], side) for side in rows)
    columns = np.full(objective.size, column_upper)
    return LinearProgram(form, sense, objective, matrix, lower, upper, columns)


class SolverAnswer(NamedTuple):
    """A solver's answer, not yet checked.

    ``values`` are the variables and ``row_duals`` the row multipliers of the minimisation; empty unless the
    status is "optimal".
    """

    status: str
    detail: str
    values: FloatArray = np.empty(0)
    row_duals: FloatArray = np.empty(0)


def certify(program: LinearProgram, answer: SolverAnswer) -> OptimalityCertificate:
    """Certify a solver's answer: infinite for a wrong shape or NaN."""
    values, row_duals = answer.values, answer.row_duals
    fits = values.shape == program.costs.shape and row_duals.shape == program.row_lower.shape
    if not (fits and np.isfinite(values).all() and np.isfinite(row_duals).all()):
        return OptimalityCertificate(-np.inf, np.inf, np.inf)
    rows = program.row_lower, program.row_upper
    columns = np.zeros_like(program.column_upper), program.column_upper
    primal = max(_violation(program.matrix @ values, *rows), _violation(values, *columns))
    reduced = program.costs - program.matrix.T @ row_duals
    row_value, row_excess = _dual_value(row_duals, *rows)
    column_value, column_excess = _dual_value(reduced, *columns)
    residual = max(primal, row_excess, column_excess)
    # The multipliers bound the costs from below: a maximum is minus the costs.
    costs, bound = float(program.costs @ values), row_value + column_value
    if program.sense == "maximise":
        return OptimalityCertificate(-costs, -bound, residual)
    return OptimalityCertificate(bound, costs, residual)


def _violation(values: FloatArray, lower: FloatArray, upper: FloatArray) -> float:
    return float(np.max(np.maximum(lower - values, values - upper), initial=0.0))


def _dual_value(duals: FloatArray, lower: FloatArray, upper: FloatArray) -> tuple[float, float]:
    """The multipliers' part of the dual objective, and the largest multiplier of an infinite bound."""
    bound = np.where(duals > 0, lower, upper)
    finite = np.isfinite(bound)
    excess = np.abs(duals[~finite & (duals != 0)]).max(initial=0.0)
    return float(duals[finite] @ bound[finite]), float(excess)


TOLERANCE = 1e-7
"""The largest entry of a certificate that is trusted."""


class SolverError(RuntimeError):
    """The solver did not end at an optimum, or its answer failed the check.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> options = {"presolve": "off", "simplex_iteration_limit": 0}
    >>> try:
    ...     otmd.solve_transport([0.5, 0.25, 0.25], law, options=options)
    ... except otmd.SolverError as error:
    ...     print(str(error).split(";")[0])
    form 'compact': iteration limit: raise the solver's limit, or try another method
    """
