"""Is it the optimum? Residuals and gap of a solver's answer, computed from the program alone."""

from dataclasses import dataclass

import numpy as np

from otmd.probabilities import FloatArray
from otmd.transport.program import LinearProgram


@dataclass(frozen=True)
class Certificate:
    """How far a point and its multipliers are from an optimum; all are 0 at one.

    Attributes
    ----------
    primal_residual : float
        The largest violation of a row or a bound.
    dual_residual : float
        The largest multiplier that pulls at a side that is not there, infinite and so never tight.
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


def certify(program: LinearProgram, values: FloatArray, row_duals: FloatArray) -> Certificate:
    """Check an answer against its program.

    Parameters
    ----------
    program : LinearProgram
        The program as it was given to the solver.
    values : ndarray of float64, shape (variables,)
        The variables.
    row_duals : ndarray of float64, shape (constraints,)
        The multipliers of the rows, of the minimisation.

    Returns
    -------
    Certificate
        Infinite where the answer is not finite or has another shape.
    """
    shapes = values.shape == (program.num_variables,), row_duals.shape == (program.num_constraints,)
    if not (all(shapes) and np.isfinite(values).all() and np.isfinite(row_duals).all()):
        return Certificate(np.inf, np.inf, np.inf)
    activity = program.matrix @ values
    reduced = program.costs - program.matrix.T @ row_duals
    primal = max(
        _violation(activity, program.row_lower, program.row_upper),
        _violation(values, program.column_lower, program.column_upper),
    )
    row_value, row_stray = _support(row_duals, program.row_lower, program.row_upper)
    column_value, column_stray = _support(reduced, program.column_lower, program.column_upper)
    gap = abs(float(program.costs @ values) - row_value - column_value)
    return Certificate(primal, max(row_stray, column_stray), gap)


def _violation(values: FloatArray, lower: FloatArray, upper: FloatArray) -> float:
    return float(np.max(np.maximum(lower - values, values - upper), initial=0.0))


def _support(duals: FloatArray, lower: FloatArray, upper: FloatArray) -> tuple[float, float]:
    """What multipliers earn at the sides they pull at, and the largest that pulls at none."""
    side = np.where(duals > 0, lower, upper)
    pulls = duals != 0
    bounded = pulls & np.isfinite(side)
    stray = np.abs(duals[pulls & ~bounded]).max(initial=0.0)
    return float(duals[bounded] @ side[bounded]), float(stray)
