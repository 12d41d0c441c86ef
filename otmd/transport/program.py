"""A sparse linear program with named rows and columns: what a form builds and a solver reads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

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
        Columns and rows of the matrix, and its entries.
    """

    variables: int
    constraints: int
    nonzeros: int

    @property
    def bytes(self) -> int:
        """Memory of the program's arrays; a solver needs several times as much."""
        matrix = 12 * self.nonzeros + 4 * (self.variables + 1)
        return matrix + 24 * self.variables + 16 * self.constraints

    def fits(self, max_bytes: float) -> bool:
        """Whether the program keeps within ``max_bytes`` and 32-bit indices."""
        return self.bytes <= max_bytes and self.nonzeros <= _MOST_NONZEROS


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Optimise objective·x over row_lower ≤ matrix x ≤ row_upper, column_lower ≤ x ≤ column_upper.

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
        Make the names.

    Raises
    ------
    ValueError
        For NaN.
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
                raise ValueError(f"{name}: got NaN in the {self.form!r} program, wanted numbers")

    @property
    def num_variables(self) -> int:
        """Columns of the matrix."""
        return self.objective.size

    @property
    def num_constraints(self) -> int:
        """Rows of the matrix."""
        return self.row_lower.size

    @property
    def row_names(self) -> list[str]:
        """What each constraint is about, made on demand."""
        return self.label_rows()

    @property
    def column_names(self) -> list[str]:
        """What each variable means, made on demand."""
        return self.label_columns()

    @property
    def size(self) -> ProgramSize:
        """The size of the program as it was built."""
        return ProgramSize(self.num_variables, self.num_constraints, self.matrix.nnz)

    @property
    def costs(self) -> FloatArray:
        """The objective of the same program as a minimisation, shape (variables,)."""
        return -self.objective if self.sense == "maximise" else self.objective


def sparse_columns(
    entries: FloatArray, rows: np.ndarray, starts: np.ndarray, num_rows: int
) -> csc_array:
    """Build a matrix from its columns, with the 32-bit indices that solvers take as they are."""
    indices, pointers = rows.astype(np.int32), starts.astype(np.int32)
    return csc_array((entries, indices, pointers), shape=(num_rows, starts.size - 1))
