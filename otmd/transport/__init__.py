"""The optimal acceptance rate as linear programs and a maximum flow, with the plan that attains it."""

from otmd.transport.forms import FORMS, build_program, program_size
from otmd.transport.problem import ProblemShape, TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize, SolverError
from otmd.transport.solve import SOLVERS, TransportSolution, solve_path, solve_transport
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
    "ProblemShape",
    "ProgramSize",
    "SolverError",
    "TransportPlan",
    "TransportProblem",
    "TransportSolution",
    "build_program",
    "canonical_decomposition",
    "program_size",
    "solve_path",
    "solve_transport",
]
