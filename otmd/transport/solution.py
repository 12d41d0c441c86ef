"""A solver's answer, the check of it, and the solution of the transport problem that is read from it."""

import math
from dataclasses import dataclass

import numpy as np

from otmd.probabilities import BoolArray, FloatArray
from otmd.transport.forms import Form, Reading
from otmd.transport.plan import TransportPlan
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram

ADVICE = {
    "optimal": "the solver ended at an optimum, and the certificate recomputed here agrees",
    "infeasible": "no point keeps all constraints: check the marginals of the program",
    "unbounded": "the objective has no end: check the bounds of the program",
    "time limit": "the solver ran out of time: raise its limit, or take form='compact', the smallest",
    "iteration limit": "the solver ran out of iterations: raise its limit, or try another method",
    "failed": "the solver gave up: try another method or solver",
    "not certified": "the solver called it optimal and the certificate recomputed here does not "
    "agree: try method='simplex', or another solver",
}
"""The statuses of a solution, and what to do."""


@dataclass(frozen=True, eq=False)
class SolverAnswer:
    """What a solver hands back, not checked yet: how it ended and its point.

    Attributes
    ----------
    status : str
        "optimal", "infeasible", "unbounded", "time limit", "iteration limit" or "failed".
    detail : str
        What the solver itself called it.
    values : ndarray of float64, shape (variables,), or None
        The variables; None unless optimal.
    row_duals : ndarray of float64, shape (constraints,), or None
        The multipliers of the rows, of the minimisation.
    iterations : int
        Steps of the simplex or the interior point method, where the solver counts them.
    """

    status: str
    detail: str
    values: FloatArray | None = None
    row_duals: FloatArray | None = None
    iterations: int = 0


@dataclass(frozen=True)
class Certificate:
    """How far a point and its multipliers are from an optimum; all are 0 at one.

    Attributes
    ----------
    primal_residual : float
        The largest violation of a row or a bound.
    dual_residual : float
        The largest multiplier of a row or variable whose side in question is infinite.
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
    """Check the variables and the row multipliers (of the minimisation) against the program.

    The certificate is infinite where the answer is not finite or has another shape.
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
    """The multipliers' part of the dual objective, and the largest multiplier of an infinite side."""
    side = np.where(duals > 0, lower, upper)
    pulls = duals != 0
    bounded = pulls & np.isfinite(side)
    stray = np.abs(duals[pulls & ~bounded]).max(initial=0.0)
    return float(duals[bounded] @ side[bounded]), float(stray)


TOLERANCE = 1e-7
_LEVEL_DECIMALS = 6


class SolverError(RuntimeError):
    """A solver did not end at an optimum, or its answer did not stand the check."""


@dataclass(frozen=True, eq=False)
class TransportSolution:
    """What a linear program says about one position.

    Attributes
    ----------
    rate : float
        The plan's acceptance rate, α* where the status is "optimal"; NaN without a plan.
    plan : TransportPlan or None
        The accepted mass; None unless the solver ended optimal.
    subset : ndarray of bool, shape (V,), or None
        H, read off the duals: rounded to the indicator of the level set with the smallest cut.
    bounds : tuple of float
        The rate of the plan and the value of the cut, 1 + p(H) − g(H): whatever the solver did, α* is
        between them.
    set_duals, token_duals : ndarray of float64, shape (S,) and (V,), or None
        u and v of Hu et al.'s dual.
    status : str
        "optimal", "infeasible", "unbounded", "time limit", "iteration limit", "failed" or
        "not certified".
    message : str
        How it ended, and what to do.
    certificate : Certificate
        Recomputed from the program: primal residual, dual residual and gap.
    iterations : int
        Steps that the solver counted.
    """

    rate: float
    plan: TransportPlan | None
    subset: BoolArray | None
    bounds: tuple[float, float]
    set_duals: FloatArray | None
    token_duals: FloatArray | None
    status: str
    message: str
    certificate: Certificate
    iterations: int


def conclude(
    problem: TransportProblem,
    form: Form,
    program: LinearProgram,
    answer: SolverAnswer,
    throw: bool = True,
) -> TransportSolution:
    """Check a solver's answer and read the solution from it.

    With ``throw``, raises SolverError unless the status is "optimal".
    """
    solution = _read(problem, form, program, answer)
    if throw and solution.status != "optimal":
        raise SolverError(f"form {form.name!r}: {solution.message}")
    return solution


def _read(
    problem: TransportProblem, form: Form, program: LinearProgram, answer: SolverAnswer
) -> TransportSolution:
    nowhere = Certificate(math.inf, math.inf, math.inf)
    if answer.status != "optimal" or answer.values is None or answer.row_duals is None:
        status = "failed" if answer.status == "optimal" else answer.status
        return _without_plan(status, answer, nowhere)
    certificate = certify(program, answer.values, answer.row_duals)
    if not math.isfinite(certificate.worst):
        return _without_plan("not certified", answer, certificate)
    reading = form.read(problem, answer.values, answer.row_duals)
    plan = TransportPlan(problem, reading.accepted)
    subset = best_level_set(problem, reading)
    bounds = plan.rate, problem.cut_value(subset)
    trusted = max(certificate.worst, bounds[1] - bounds[0]) <= TOLERANCE
    status = "optimal" if trusted else "not certified"
    return TransportSolution(
        plan.rate,
        plan,
        subset,
        bounds,
        reading.set_duals,
        reading.token_duals,
        status,
        _message(status, answer, certificate, bounds),
        certificate,
        answer.iterations,
    )


def _without_plan(status: str, answer: SolverAnswer, certificate: Certificate) -> TransportSolution:
    bounds = 0.0, 1.0
    message = _message(status, answer, certificate, bounds)
    return TransportSolution(
        math.nan, None, None, bounds, None, None, status, message, certificate, answer.iterations
    )


def _message(
    status: str, answer: SolverAnswer, certificate: Certificate, bounds: tuple[float, float]
) -> str:
    residuals = ""
    if status == "not certified":
        residuals = (
            f" (primal residual {certificate.primal_residual:.1e}, dual residual "
            f"{certificate.dual_residual:.1e}, gap {certificate.gap:.1e}; plan and cut "
            f"{bounds[1] - bounds[0]:.1e} apart)"
        )
    return f"{status}: {ADVICE[status]}{residuals}; the solver said {answer.detail!r}"


def best_level_set(problem: TransportProblem, reading: Reading) -> BoolArray:
    """Round v to the indicator of a subset (V,) that has no larger value than (u, v).

    The value of v is the mean over t ~ U(0, 1) of the cut {v ≥ t}, so that the best of these cuts is
    at least as good; at a vertex there is only one, v itself.
    """
    levels = np.round(np.clip(reading.token_duals, 0.0, 1.0), _LEVEL_DECIMALS)
    thresholds = np.unique(levels[levels > 0])
    cuts = [levels >= threshold for threshold in thresholds]
    return min([np.zeros(problem.vocab_size, dtype=bool), *cuts], key=problem.cut_value)
