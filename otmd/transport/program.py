"""A sparse linear program, a solver's answer to it, and the certificate of that answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_array

from otmd.probabilities import FloatArray

_MOST_NONZEROS = 2**31 - 1


@dataclass(frozen=True)
class ProgramSize:
    """How large a program is, known before it is built.

    Attributes
    ----------
    variables, constraints, nonzeros : int
        The columns, the rows and the nonzero entries of its matrix.
    """

    variables: int
    constraints: int
    nonzeros: int

    @property
    def bytes(self) -> int:
        """Memory of the program's arrays, in bytes; a solver needs several times as much."""
        matrix = 12 * self.nonzeros + 4 * (self.variables + 1)
        return matrix + 24 * self.variables + 16 * self.constraints

    def fits(self, max_bytes: float) -> bool:
        """Whether the program needs at most ``max_bytes``, and 32-bit indices suffice."""
        return self.bytes <= max_bytes and self.nonzeros <= _MOST_NONZEROS


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Optimise objective·x over row_lower ≤ matrix x ≤ row_upper, column_lower ≤ x ≤ column_upper.

    NaN in an array is a ValueError.

    Attributes
    ----------
    form : str
        The form that built it.
    sense : {"maximise", "minimise"}
        What to do with the objective.
    objective, column_lower, column_upper : ndarray of float64, shape (variables,)
        One entry a variable.
    matrix : scipy.sparse.csc_array, shape (constraints, variables)
        With 32-bit indices.
    row_lower, row_upper : ndarray of float64, shape (constraints,)
        Infinite where a constraint has one side only.
    label_rows, label_columns : callable
        Without arguments; return the names of rows and of columns.
    """

    form: str
    sense: Literal["maximise", "minimise"]
    objective: FloatArray
    matrix: csc_array
    row_lower: FloatArray
    row_upper: FloatArray
    column_lower: FloatArray
    column_upper: FloatArray
    label_rows: Callable[[], list[str]] = field(repr=False)
    label_columns: Callable[[], list[str]] = field(repr=False)

    def __post_init__(self) -> None:
        sides = ("row_lower", "row_upper", "column_lower", "column_upper")
        for name in ("objective", "matrix", *sides):
            values = self.matrix.data if name == "matrix" else getattr(self, name)
            if np.isnan(values).any():
                raise ValueError(f"{name}: got NaN in the {self.form!r} program, expected numbers")

    @property
    def row_names(self) -> list[str]:
        """The name of each constraint, made on demand."""
        return self.label_rows()

    @property
    def column_names(self) -> list[str]:
        """The name of each variable, made on demand."""
        return self.label_columns()

    @property
    def size(self) -> ProgramSize:
        """The size of the program as it was built."""
        return ProgramSize(self.objective.size, self.row_lower.size, self.matrix.nnz)

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
    labels: tuple[Callable[[], list[str]], Callable[[], list[str]]] = (list, list),
    sense: Literal["maximise", "minimise"] = "maximise",
    column_upper: FloatArray | float = np.inf,
) -> LinearProgram:
    """Make a program over x ≥ 0. A single number given as a bound holds for every row or column.

    By default rows and columns have no names.
    """
    shape: Any = matrix.shape
    lower, upper = (np.full(shape[0], side) for side in rows)
    columns = np.zeros(objective.size), np.full(objective.size, column_upper)
    return LinearProgram(form, sense, objective, matrix, lower, upper, *columns, *labels)


def sparse_columns(
    entries: FloatArray, rows: np.ndarray, starts: np.ndarray, num_rows: int
) -> csc_array:
    """Build a matrix from its columns, with 32-bit indices, which solvers take without conversion."""
    indices, pointers = rows.astype(np.int32), starts.astype(np.int32)
    return csc_array((entries, indices, pointers), shape=(num_rows, starts.size - 1))


@dataclass(frozen=True, eq=False)
class SolverAnswer:
    """A solver's answer, not yet checked.

    ``values`` are the variables and ``row_duals`` the row multipliers of the minimisation; None unless the
    status is "optimal".
    """

    status: str
    detail: str
    values: FloatArray | None = None
    row_duals: FloatArray | None = None
    iterations: int = 0


@dataclass(frozen=True)
class Certificate:
    """How far variables and multipliers are from an optimum. At an optimum all three numbers are 0.

    Attributes
    ----------
    primal_residual : float
        The largest violation of a constraint or of a bound of a variable.
    dual_residual : float
        The largest violation of dual feasibility: the size of a multiplier that belongs to an infinite bound.
    gap : float
        The distance between the primal and the dual objective.
    """

    primal_residual: float
    dual_residual: float
    gap: float

    @property
    def worst(self) -> float:
        """The largest of the three."""
        return max(self.primal_residual, self.dual_residual, self.gap)

    def __str__(self) -> str:
        return (
            f"primal residual {self.primal_residual:.1e}, dual residual {self.dual_residual:.1e}, "
            f"gap {self.gap:.1e}"
        )


def certify(program: LinearProgram, values: FloatArray, row_duals: FloatArray) -> Certificate:
    """Certify variables and row multipliers of the minimisation: infinite for a wrong shape or NaN."""
    fits = values.shape == program.costs.shape and row_duals.shape == program.row_lower.shape
    if not (fits and np.isfinite(values).all() and np.isfinite(row_duals).all()):
        return Certificate(np.inf, np.inf, np.inf)
    rows = program.row_lower, program.row_upper
    columns = program.column_lower, program.column_upper
    primal = max(_violation(program.matrix @ values, *rows), _violation(values, *columns))
    reduced = program.costs - program.matrix.T @ row_duals
    row_value, row_excess = _dual_value(row_duals, *rows)
    column_value, column_excess = _dual_value(reduced, *columns)
    gap = abs(float(program.costs @ values) - row_value - column_value)
    return Certificate(primal, max(row_excess, column_excess), gap)


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
    """The solver did not end at an optimum, or its answer failed the check."""
