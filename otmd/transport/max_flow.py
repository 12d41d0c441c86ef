"""The max-flow form: from a source through draft sets and their tokens to a sink."""

import numpy as np

from otmd.probabilities import BoolArray, FloatArray
from otmd.transport.form import Form, Reading, Shaped, arc_names, node_names
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize, sparse_columns


def _size(problem: Shaped) -> ProgramSize:
    nodes = problem.num_sets + problem.vocab_size
    return ProgramSize(nodes + problem.num_arcs, nodes, nodes + 2 * problem.num_arcs)


def _build(problem: TransportProblem) -> LinearProgram:
    arcs, sets, vocab_size = problem.num_arcs, problem.num_sets, problem.vocab_size
    columns, nodes = sets + arcs + vocab_size, sets + vocab_size
    through = np.stack([problem.arc_sets, sets + problem.tokens], axis=-1).ravel()
    entries = [np.ones(sets), np.tile([-1.0, 1.0], arcs), np.full(vocab_size, -1.0)]
    lengths = np.concatenate([np.ones(sets), np.full(arcs, 2), np.ones(vocab_size)])
    rows = np.concatenate([np.arange(sets), through, sets + np.arange(vocab_size)])
    starts = np.concatenate([[0], lengths.cumsum()])
    return LinearProgram(
        form="max_flow",
        sense="maximise",
        objective=np.concatenate([np.ones(sets), np.zeros(arcs + vocab_size)]),
        matrix=sparse_columns(np.concatenate(entries), rows, starts, nodes),
        row_lower=np.zeros(nodes),
        row_upper=np.zeros(nodes),
        column_lower=np.zeros(columns),
        column_upper=np.concatenate([problem.supply, np.full(arcs, np.inf), problem.target]),
        label_rows=lambda: node_names(problem),
        label_columns=lambda: _edge_names(problem),
    )


def _read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    sets = problem.num_sets
    accepted = values[sets : sets + problem.num_arcs]
    return Reading(accepted, 1.0 + row_duals[:sets], -row_duals[sets:])


def flow_values(problem: TransportProblem, flow: FloatArray) -> FloatArray:
    """The program's variables for a flow on the arcs (E,): conserved at every node."""
    return np.concatenate([problem.by_set(flow), flow, problem.by_token(flow)])


def cut_duals(problem: TransportProblem, subset: BoolArray) -> FloatArray:
    """The multipliers of a cut: −1 for each token of H and each set within it."""
    within = np.logical_and.reduceat(subset[problem.tokens], problem.starts[:-1])
    return -np.concatenate([within, subset]).astype(np.float64)


def _edge_names(problem: TransportProblem) -> list[str]:
    sets = [f"draw {name}" for name in problem.set_names()]
    tokens = [f"output {token}" for token in range(problem.vocab_size)]
    return [*sets, *arc_names(problem, "accept"), *tokens]


MAX_FLOW = Form("max_flow", _size, _build, _read)
"""Maximise the flow out of the source: at most Q(x) into each set and p(y) out of each token."""
