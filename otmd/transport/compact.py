"""The compact form (SpecHub; Sun et al. 2024): only the accepted mass is a variable."""

import numpy as np

from otmd.probabilities import FloatArray
from otmd.transport.form import Form, Reading, Shaped, arc_names, node_names
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize, sparse_columns


def _size(problem: Shaped) -> ProgramSize:
    rows = problem.num_sets + problem.vocab_size
    return ProgramSize(problem.num_arcs, rows, 2 * problem.num_arcs)


def _build(problem: TransportProblem) -> LinearProgram:
    arcs, sets = problem.num_arcs, problem.num_sets
    rows = np.stack([problem.arc_sets, sets + problem.tokens], axis=-1).ravel()
    num_rows = sets + problem.vocab_size
    return LinearProgram(
        form="compact",
        sense="maximise",
        objective=np.ones(arcs),
        matrix=sparse_columns(np.ones(2 * arcs), rows, np.arange(0, 2 * arcs + 1, 2), num_rows),
        row_lower=np.full(num_rows, -np.inf),
        row_upper=np.concatenate([problem.supply, problem.target]),
        column_lower=np.zeros(arcs),
        column_upper=np.full(arcs, np.inf),
        label_rows=lambda: node_names(problem),
        label_columns=lambda: arc_names(problem, "accept"),
    )


def _read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    return Reading(values, -row_duals[: problem.num_sets], -row_duals[problem.num_sets :])


COMPACT = Form("compact", _size, _build, _read)
"""Maximise Σ π(x, y) over y ∈ x, with Σ_y π(x, y) ≤ Q(x), Σ_x π(x, y) ≤ p(y), π ≥ 0."""
