"""Solvers of the max-flow form that walk the graph itself: networkx, and this package's Dinic."""

from collections.abc import Mapping

import numpy as np

from otmd.optimum.max_flow import max_flow, tokens_short_of_demand
from otmd.probabilities import FloatArray
from otmd.transport.answer import SolverAnswer
from otmd.transport.max_flow import cut_duals, flow_values
from otmd.transport.problem import TransportProblem

NETWORKX_METHODS = (
    "edmonds_karp",
    "shortest_augmenting_path",
    "dinitz",
    "boykov_kolmogorov",
    "preflow_push",
)

# Less residual capacity than this is rounding, not an open arc.
_CLOSED = 1e-15


def solve_dinic(
    problem: TransportProblem, method: str | None, options: Mapping[str, object]
) -> SolverAnswer:
    """Maximum flow by the compiled kernel of this package (Dinic's algorithm, in floating point)."""
    if method is not None or options:
        raise ValueError("method, options: solver='dinic' takes none")
    supply, demand = problem.supply.copy(), problem.target.copy()
    return _answer(problem, max_flow(problem.starts, problem.tokens, supply, demand), "Dinic ended")


def solve_networkx(
    problem: TransportProblem, method: str | None, options: Mapping[str, object]
) -> SolverAnswer:
    """Maximum flow by networkx: slow, and an independent check."""
    name = method or "dinitz"
    if name not in NETWORKX_METHODS or options:
        raise ValueError(
            f"method, options: got {method!r} and {dict(options)}, wanted one of "
            f"{', '.join(NETWORKX_METHODS)} and no options"
        )
    try:
        import networkx
    except ImportError as error:
        raise ImportError("solver='networkx' needs `pip install 'otmd[modeling]'`") from error
    graph = networkx.DiGraph()
    arcs = list(zip(problem.arc_sets.tolist(), problem.tokens.tolist(), strict=True))
    graph.add_edges_from((("set", row), ("token", token)) for row, token in arcs)
    for row, mass in enumerate(problem.supply.tolist()):
        graph.add_edge("source", ("set", row), capacity=mass)
    for token, mass in enumerate(problem.target.tolist()):
        graph.add_edge(("token", token), "sink", capacity=mass)
    walk = getattr(networkx.algorithms.flow, name)
    _, routed = networkx.maximum_flow(graph, "source", "sink", flow_func=walk)
    flow = np.array([routed["set", row]["token", token] for row, token in arcs], np.float64)
    return _answer(problem, flow, f"networkx {name} ended")


def _answer(problem: TransportProblem, flow: FloatArray, detail: str) -> SolverAnswer:
    left = problem.supply - problem.by_set(flow)
    demand = problem.target - problem.by_token(flow)
    subset = tokens_short_of_demand(
        problem.starts, problem.tokens, left, demand, flow.copy(), _CLOSED
    )
    return SolverAnswer("optimal", detail, flow_values(problem, flow), cut_duals(problem, subset))
