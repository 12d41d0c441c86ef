"""The optimal acceptance rate as linear programs and a maximum flow, with the plan that attains it."""

from otmd.transport.forms import FORMS, build_program
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, SolverError
from otmd.transport.solve import SOLVERS, TransportSolution, solve_transport
from otmd.transport.transport_plan import (
    CanonicalDecomposition,
    TransportPlan,
    canonical_decomposition,
)

__all__ = [
    "FORMS",
    "SOLVERS",
    "CanonicalDecomposition",
    "LinearProgram",
    "SolverError",
    "TransportPlan",
    "TransportProblem",
    "TransportSolution",
    "build_program",
    "canonical_decomposition",
    "solve_transport",
]
