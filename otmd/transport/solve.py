"""Solve the transport problem of one position, in any form, by any solver, and check the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw
from otmd.laws.base import takes_law
from otmd.optimum.certificate import OptimalityCertificate
from otmd.probabilities import BoolArray, FloatArray, wrong
from otmd.transport import forms, solvers
from otmd.transport import program as lp
from otmd.transport.problem import TransportProblem
from otmd.transport.transport_plan import TransportPlan

_LINEAR_SOLVERS = {"highs": solvers.solve_highs, "cvxpy": solvers.solve_cvxpy}
_FLOW_SOLVERS = {"networkx": solvers.solve_networkx, "dinic": solvers.solve_dinic}
SOLVERS = (*_LINEAR_SOLVERS, *_FLOW_SOLVERS)
_LEVEL_DECIMALS = 6

ADVICE = {
    "infeasible": "no point keeps all constraints",
    "unbounded": "the objective has no bound",
    "time limit": "raise the solver's limit, or take form='compact', the smallest",
    "iteration limit": "raise the solver's limit, or try another method",
    "failed": "the solver gave up: try another method or solver",
    "not certified": "the solver called it optimal, but the certificate recomputed here does not agree: "
    "try method='simplex', or another solver",
}
"""The statuses of a solution that is not optimal, and what each one means and advises."""


@dataclass(frozen=True, eq=False)
class TransportSolution:
    """The solution of the transport problem of one position.

    Attributes
    ----------
    status : str
        "optimal", "infeasible", "unbounded", "time limit", "iteration limit", "failed" or
        "not certified".
    message : str
        How the solver ended, and what to do then.
    certificate : OptimalityCertificate
        The plan's rate, 1 + p(H) − g(H), and the largest violation of the program, recomputed here. α* lies
        between the first two, even if the solver is wrong.
    rate : float
        The plan's acceptance rate, α* where the status is "optimal"; NaN without a plan.
    plan : TransportPlan or None
        The accepted mass; None unless the solver ended at an optimum.
    subset : ndarray of bool, shape (V,), or None
        H, the level set {v ≥ t} of the token duals v that has the smallest 1 + p(H) − g(H).
    set_duals, token_duals : ndarray of float64, shape (S,) and (V,), or None
        u and v of the dual of Hu et al. 2025: u(x) + v(y) ≥ 1 wherever y ∈ x.
    """

    status: str
    message: str
    certificate: OptimalityCertificate
    rate: float = math.nan
    plan: TransportPlan | None = None
    subset: BoolArray | None = None
    set_duals: FloatArray | None = None
    token_duals: FloatArray | None = None


@takes_law
def solve_transport(
    target_probs: ArrayLike,
    law: DraftLaw,
    form: str = "compact",
    solver: str = "highs",
    *,
    method: str | None = None,
    options: Mapping[str, object] | None = None,
    merge: bool = True,
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
        The solver. The last two compute a maximum flow, and take the max-flow form only.
    method : str, optional
        HiGHS: "simplex" or "ipm". cvxpy: the name of an installed solver. networkx: a flow algorithm.
    options : mapping, optional
        Options of HiGHS or of cvxpy's solver, by name.
    merge : bool
        Make one row of all tuples with the same set of tokens; the optimum is the same.
    throw : bool
        Whether to raise SolverError where there is no certified optimum. If not, the solution's status
        says so.

    Returns
    -------
    TransportSolution
        The plan, its rate, and a certificate that is recomputed from the program.

    Raises
    ------
    ValueError
        For invalid input, leading axes, a solver that does not take the form, or too many tuples to list.
    SolverError
        With ``throw``, if the solver did not end at an optimum or its answer failed the check.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> solution = otmd.solve_transport([0.5, 0.25, 0.25], law)
    >>> round(solution.rate, 6), solution.certificate.worst < 1e-9
    (0.9375, True)
    """
    if solver not in SOLVERS:
        raise wrong("solver", repr(solver), f"one of {', '.join(SOLVERS)}")
    if solver in _FLOW_SOLVERS and form != "max_flow":
        raise wrong("form", repr(form), f"'max_flow', the one that {solver!r} takes")
    problem = TransportProblem.of(target_probs, law, merge)
    program = forms.build_program(problem, form)
    if solver in _FLOW_SOLVERS:
        answer = _FLOW_SOLVERS[solver](problem, method, options or {})
    else:
        answer = _LINEAR_SOLVERS[solver](program, method, options or {})
    return conclude(problem, program, answer, throw)


def conclude(
    problem: TransportProblem,
    program: lp.LinearProgram,
    answer: lp.SolverAnswer,
    throw: bool = True,
) -> TransportSolution:
    """Check a solver's answer and read the solution; with ``throw``, SolverError unless it is optimal."""
    status, certificate = answer.status, OptimalityCertificate(0.0, 1.0, math.inf)
    parts: dict[str, Any] = {}
    check = lp.certify(program, answer)
    if math.isfinite(check.worst):
        accepted, set_duals, token_duals = forms.read_solution(problem, program.form, answer)
        plan = TransportPlan(problem, accepted)
        subset = best_level_set(problem, token_duals)
        certificate = OptimalityCertificate(plan.rate, problem.cut_value(subset), check.worst)
        parts = {"rate": plan.rate, "plan": plan, "subset": subset}
        parts |= {"set_duals": set_duals, "token_duals": token_duals}
    if status == "optimal" and certificate.worst > lp.TOLERANCE:
        status = "not certified"
    message = f"optimal: the solver said {answer.detail!r}"
    if status != "optimal":
        message = f"{status}: {ADVICE[status]}; {certificate}; the solver said {answer.detail!r}"
        if throw:
            raise lp.SolverError(f"form {program.form!r}: {message}")
    return TransportSolution(status, message, certificate, **parts)


def best_level_set(problem: TransportProblem, token_duals: FloatArray) -> BoolArray:
    """The level set {v ≥ t} (V,) of the token duals with the least cut value, at most the dual objective."""
    levels = np.round(np.clip(token_duals, 0.0, 1.0), _LEVEL_DECIMALS)
    cuts = [levels >= threshold for threshold in np.unique(levels[levels > 0])]
    return min([np.zeros(problem.vocab_size, dtype=bool), *cuts], key=problem.cut_value)
