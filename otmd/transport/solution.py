"""The solution of a transport program: the rate, the plan, the cut, and why to believe them."""

import math
from dataclasses import dataclass

import numpy as np

from otmd.probabilities import BoolArray, FloatArray
from otmd.transport.answer import ADVICE, SolverAnswer
from otmd.transport.certificate import Certificate, certify
from otmd.transport.form import Form, Reading
from otmd.transport.plan import TransportPlan
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram

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

    Parameters
    ----------
    problem : TransportProblem
        What was asked.
    form : Form
        How it was written.
    program : LinearProgram
        What the solver was given.
    answer : SolverAnswer
        What it handed back.
    throw : bool
        Raise where the answer is not a certified optimum; without it the status says so.

    Returns
    -------
    TransportSolution

    Raises
    ------
    SolverError
        With ``throw``, unless the status is "optimal".
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
