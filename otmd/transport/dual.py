"""The dual form (Hu et al. 2025): prices of draft sets and of tokens; it chooses a subset H."""

import numpy as np

from otmd.probabilities import FloatArray
from otmd.transport.form import Form, Reading, Shaped, arc_names, node_names
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize, sparse_columns


def _size(problem: Shaped) -> ProgramSize:
    columns = problem.num_sets + problem.vocab_size
    return ProgramSize(columns, problem.num_arcs, 2 * problem.num_arcs)


def _build(problem: TransportProblem) -> LinearProgram:
    arcs, columns = problem.num_arcs, problem.num_sets + problem.vocab_size
    uses = np.bincount(problem.tokens, minlength=problem.vocab_size)
    rows = np.concatenate([np.arange(arcs), np.argsort(problem.tokens, kind="stable")])
    starts = np.concatenate([problem.starts, arcs + uses.cumsum()])
    return LinearProgram(
        form="dual",
        sense="minimise",
        objective=np.concatenate([problem.supply, problem.target]),
        matrix=sparse_columns(np.ones(2 * arcs), rows, starts, arcs),
        row_lower=np.ones(arcs),
        row_upper=np.full(arcs, np.inf),
        column_lower=np.zeros(columns),
        column_upper=np.full(columns, np.inf),
        label_rows=lambda: arc_names(problem, "cover"),
        label_columns=lambda: node_names(problem),
    )


def _read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    # The multipliers of the dual's rows are the plan.
    return Reading(row_duals, values[: problem.num_sets], values[problem.num_sets :])


DUAL = Form("dual", _size, _build, _read)
"""Minimise Σ Q(x) u(x) + Σ p(y) v(y) with u(x) + v(y) ≥ 1 wherever y ∈ x, u ≥ 0, v ≥ 0.

The matrix is totally unimodular: at a vertex v is the indicator of a subset H, u(x) = 1 unless x ⊆ H,
and the value is 1 + p(H) − g(H).
"""
