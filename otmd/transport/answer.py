"""What a solver hands back, before anything is believed."""

from dataclasses import dataclass

from otmd.probabilities import FloatArray

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
    """The solver's word: how it ended, in one of the words of :data:`ADVICE`, and its point.

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
