"""The solvers: HiGHS through highspy, any solver of cvxpy, networkx, and this package's maximum flow."""

import operator
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import highspy
import numpy as np

from otmd.optimum.certificate import OptimalityCertificate
from otmd.optimum.minimum_cut import CLOSED, max_flow, tokens_short_of_demand
from otmd.probabilities import FloatArray, wrong
from otmd.transport.problem import TransportProblem
from otmd.transport.program import TOLERANCE, LinearProgram, SolverAnswer, SolverError, certify

_HIGHS_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnbounded: "unbounded",
    highspy.HighsModelStatus.kUnboundedOrInfeasible: "infeasible",
    highspy.HighsModelStatus.kTimeLimit: "time limit",
    highspy.HighsModelStatus.kIterationLimit: "iteration limit",
}
# The smallest that HiGHS takes: the acceptance rate should have nine digits.
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
# The tolerances are absolute, and a draft set may have less mass than they allow. So all bounds and costs are
# multiplied by a power of two, which does not round. With 2^7 or more, HiGHS's presolve removes less of the
# program, and the simplex takes thousands of steps more.
_SCALE = 2.0**5
_COLUMNWISE, _MINIMISE = 1, 1


class _SilentHighs(highspy.Highs):
    """HiGHS, made silent before its callbacks are enabled: since 1.16 it prints its name at that moment."""

    def enableCallbacks(self) -> None:  # noqa: N802 (the name is highspy's)
        self.silent()
        super().enableCallbacks()


def solve_highs(
    program: LinearProgram, method: str | None = None, options: Mapping[str, object] | None = None
) -> SolverAnswer:
    """Solve a program by HiGHS: by "simplex", the default, or "ipm", interior point and then a vertex."""
    method = method or "simplex"
    if method not in ("simplex", "ipm"):
        raise wrong("method", repr(method), "one of simplex, ipm")
    highs = _SilentHighs()
    for name, value in {"solver": method, **_TIGHT, **(options or {})}.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise ValueError(f"options: HiGHS takes no {name!r} with value {value!r}")
    matrix, size = program.matrix, program.objective.size
    columns = _SCALE * program.costs, np.zeros(size), _SCALE * program.column_upper
    rows = _SCALE * program.row_lower, _SCALE * program.row_upper
    indices = np.asarray(matrix.indptr, np.int32), np.asarray(matrix.indices, np.int32)
    entries, continuous = np.asarray(matrix.data, np.float64), np.zeros(size, np.int32)
    shape = size, rows[0].size, matrix.nnz
    highs.passModel(*shape, _COLUMNWISE, _MINIMISE, 0.0, *columns, *rows, *indices, entries, continuous)
    highs.run()
    ended = highs.getModelStatus()
    status, detail = _HIGHS_STATUS.get(ended, "failed"), highs.modelStatusToString(ended)
    if status != "optimal":
        return SolverAnswer(status, detail)
    point = highs.getSolution()
    values, duals = np.array(point.col_value) / _SCALE, np.array(point.row_dual) / _SCALE
    return SolverAnswer(status, detail, values, duals)


def certified_optimum(program: LinearProgram, *methods: str) -> tuple[FloatArray, OptimalityCertificate]:
    """The variables at an optimum, by the first of HiGHS's methods that ends at one, and their certificate.

    SolverError if none does, or if the answer fails the check.
    """
    answers = (solve_highs(program, method) for method in methods)
    answer = next((answer for answer in answers if answer.status == "optimal"), None)
    if answer is None:
        raise SolverError(f"form {program.form!r}: no optimum by {', '.join(methods)}")
    certificate = certify(program, answer)
    if certificate.worst > TOLERANCE:
        raise SolverError(f"form {program.form!r}: the solution fails the check: {certificate}")
    return answer.values, certificate


def _modeling_package(name: str) -> Any:
    """Import cvxpy or networkx; ImportError says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f'solver={name!r} needs pip install "otmd[modeling]"') from error


_CVXPY_STATUS = {"infeasible": "infeasible", "unbounded": "unbounded", "user_limit": "time limit"}


def solve_cvxpy(program: LinearProgram, method: str | None, options: Mapping[str, object]) -> SolverAnswer:
    """Solve a program by cvxpy with the solver that ``method`` names, by default Clarabel."""
    cvxpy = _modeling_package("cvxpy")
    name = method or "CLARABEL"
    installed = cvxpy.installed_solvers()
    if name not in installed:
        raise wrong("method", repr(name), f"one of {', '.join(installed)}")
    variables = cvxpy.Variable(program.objective.size, bounds=[0.0, program.column_upper])
    matrix, lower, upper = program.matrix.tocsr(), program.row_lower, program.row_upper
    equal = lower == upper
    # Each kind of constraint has a mask of rows, and its multipliers a sign.
    sides = [
        (rows, sign, relate(matrix[rows] @ variables, limit[rows]))
        for rows, sign, relate, limit in (
            (equal, -1.0, operator.eq, upper),
            (np.isfinite(upper) & ~equal, -1.0, operator.le, upper),
            (np.isfinite(lower) & ~equal, 1.0, operator.ge, lower),
        )
        if rows.any()
    ]
    cost = cvxpy.Minimize(program.costs @ variables)
    problem = cvxpy.Problem(cost, [side for _, _, side in sides])
    try:
        problem.solve(solver=name, **options)
    except Exception as error:  # each solver raises errors of its own, as for unknown options
        return SolverAnswer("failed", f"{name}: {error!r}")
    status, detail = str(problem.status), f"{name}: {problem.status}"
    if status != "optimal" or variables.value is None:
        ended = _CVXPY_STATUS.get(status.removesuffix("_inaccurate"), "failed")
        return SolverAnswer(ended, detail)
    duals = np.zeros(program.row_lower.size)
    for rows, sign, side in sides:
        duals[rows] += sign * np.asarray(side.dual_value, np.float64)
    return SolverAnswer("optimal", detail, np.asarray(variables.value, np.float64), duals)


NETWORKX_METHODS = (
    "edmonds_karp",
    "shortest_augmenting_path",
    "dinitz",
    "boykov_kolmogorov",
    "preflow_push",
)


def solve_dinic(problem: TransportProblem, method: str | None, options: Mapping[str, object]) -> SolverAnswer:
    """Maximum flow by the compiled kernel of this package (Dinic's algorithm, in floating point)."""
    if method is not None or options:
        raise ValueError("method, options: solver='dinic' takes none")
    supply, demand = problem.supply.copy(), problem.target.copy()
    return _answer(problem, max_flow(problem.starts, problem.tokens, supply, demand), "Dinic ended")


def solve_networkx(
    problem: TransportProblem, method: str | None, options: Mapping[str, object]
) -> SolverAnswer:
    """Maximum flow by networkx: slow, as an independent check."""
    name = method or "shortest_augmenting_path"
    if name not in NETWORKX_METHODS or options:
        expected = f"one of {', '.join(NETWORKX_METHODS)} and no options"
        raise wrong("method, options", f"{method!r} and {dict(options)}", expected)
    networkx = _modeling_package("networkx")
    graph = networkx.DiGraph()
    arcs = list(zip(problem.arc_sets.tolist(), problem.tokens.tolist(), strict=True))
    graph.add_edges_from((("set", row), ("token", token)) for row, token in arcs)
    for row, mass in enumerate(problem.supply.tolist()):
        graph.add_edge("source", ("set", row), capacity=mass)
    for token, mass in enumerate(problem.target.tolist()):
        graph.add_edge(("token", token), "sink", capacity=mass)
    algorithm = getattr(networkx.algorithms.flow, name)
    try:
        _, routed = networkx.maximum_flow(graph, "source", "sink", flow_func=algorithm)
    except Exception as error:  # dinitz raises IndexError and KeyError on rounded capacities
        return SolverAnswer("failed", f"networkx {name}: {error!r}")
    flow = np.array([routed["set", row]["token", token] for row, token in arcs], np.float64)
    return _answer(problem, flow, f"networkx {name} ended")


def _answer(problem: TransportProblem, flow: FloatArray, detail: str) -> SolverAnswer:
    """Turn a maximum flow on the arcs (E,) into an answer to the max-flow program."""
    drawn, output = problem.by_set(flow), problem.by_token(flow)
    arcs, supply, demand = (problem.starts, problem.tokens), problem.supply, problem.target
    subset = tokens_short_of_demand(*arcs, supply - drawn, demand - output, flow.copy(), CLOSED)
    # The multipliers are those of the cut: −1 for each token of H and for each draft set within H.
    within = np.logical_and.reduceat(subset[problem.tokens], problem.starts[:-1])
    duals = -np.concatenate([within, subset]).astype(np.float64)
    return SolverAnswer("optimal", detail, np.concatenate([drawn, flow, output]), duals)
