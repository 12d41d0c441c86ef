"""What a form is: one way to write the transport problem as a linear program."""

from collections.abc import Callable
from dataclasses import dataclass

from otmd.probabilities import FloatArray
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize
from otmd.transport.shape import ProblemShape

Shaped = TransportProblem | ProblemShape
"""What has a number of sets, of arcs and of tokens."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What a solved program says about the transport problem.

    Attributes
    ----------
    accepted : ndarray of float64, shape (E,)
        π(set, y), the mass that each arc carries.
    set_duals, token_duals : ndarray of float64, shape (S,) and (V,)
        u and v of Hu et al.'s dual: u(x) + v(y) ≥ 1 wherever y ∈ x.
    """

    accepted: FloatArray
    set_duals: FloatArray
    token_duals: FloatArray


@dataclass(frozen=True)
class Form:
    """One way to write the problem: how large it is, the program, and how to read its solution.

    Attributes
    ----------
    name : str
        What ``solve_transport`` calls it.
    size : callable
        ``size(shaped)``: the size of the program, without building it.
    build : callable
        ``build(problem)``: the program.
    read : callable
        ``read(problem, values, row_duals)``: the plan and the duals from the program's variables and
        the multipliers of its rows. These are of the minimisation: costs − matrixᵀ row_duals is ≥ 0
        for a variable at its lower bound.
    """

    name: str
    size: Callable[[Shaped], ProgramSize]
    build: Callable[[TransportProblem], LinearProgram]
    read: Callable[[TransportProblem, FloatArray, FloatArray], Reading]


def arc_names(problem: TransportProblem, prefix: str) -> list[str]:
    """Name each arc by its set and its token."""
    names = problem.set_names()
    return [
        f"{prefix} {names[row]} {token}"
        for row, token in zip(problem.arc_sets.tolist(), problem.tokens.tolist(), strict=True)
    ]


def node_names(problem: TransportProblem) -> list[str]:
    """Name each set and then each token."""
    sets = [f"set {name}" for name in problem.set_names()]
    return sets + [f"token {token}" for token in range(problem.vocab_size)]
