"""The full coupling (SpecTr; Sun et al. 2023): every output token for every draft set."""

import numpy as np

from otmd.probabilities import FloatArray
from otmd.transport.form import Form, Reading, Shaped, node_names
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, ProgramSize, sparse_columns


def _size(problem: Shaped) -> ProgramSize:
    pairs = problem.num_sets * problem.vocab_size
    return ProgramSize(pairs, problem.num_sets + problem.vocab_size, 2 * pairs)


def _build(problem: TransportProblem) -> LinearProgram:
    sets, vocab_size = problem.num_sets, problem.vocab_size
    pairs = sets * vocab_size
    objective = np.zeros(pairs)
    objective[_arc_columns(problem)] = 1.0
    rows = np.empty((sets, vocab_size, 2), np.int32)
    rows[:, :, 0] = np.arange(sets)[:, None]
    rows[:, :, 1] = sets + np.arange(vocab_size)
    starts, num_rows = np.arange(0, 2 * pairs + 1, 2), sets + vocab_size
    lower, upper = _marginals(problem)
    return LinearProgram(
        form="full",
        sense="maximise",
        objective=objective,
        matrix=sparse_columns(np.ones(2 * pairs), rows.ravel(), starts, num_rows),
        row_lower=lower,
        row_upper=upper,
        column_lower=np.zeros(pairs),
        column_upper=np.full(pairs, np.inf),
        label_rows=lambda: node_names(problem),
        label_columns=lambda: _pair_names(problem),
    )


def _read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    # Both marginals sum to 1, so that a constant may move between the two sets of multipliers. With
    # the smallest v at 0 all of them are feasible for the compact form's dual.
    set_duals, token_duals = -row_duals[: problem.num_sets], -row_duals[problem.num_sets :]
    shift = token_duals.min()
    return Reading(values[_arc_columns(problem)], set_duals + shift, token_duals - shift)


def _marginals(problem: TransportProblem) -> tuple[FloatArray, FloatArray]:
    """Q and p as the rows' two sides, the likeliest token's left open.

    It follows from the others, as both marginals sum to 1. Stated as well it lets their rounding make
    the program infeasible: HiGHS's presolve said so for tokens of mass 1e-12.
    """
    lower = np.concatenate([problem.supply, problem.target])
    upper = lower.copy()
    implied = problem.num_sets + problem.target.argmax()
    lower[implied], upper[implied] = -np.inf, np.inf
    return lower, upper


def _arc_columns(problem: TransportProblem) -> np.ndarray:
    return problem.arc_sets * problem.vocab_size + problem.tokens


def _pair_names(problem: TransportProblem) -> list[str]:
    tokens = range(problem.vocab_size)
    return [f"emit {name} {token}" for name in problem.set_names() for token in tokens]


FULL_COUPLING = Form("full", _size, _build, _read)
"""Maximise Σ π(x, y) over y ∈ x, with Σ_y π(x, y) = Q(x), Σ_x π(x, y) = p(y), π ≥ 0.

The row of the likeliest token is implied by the others, and left open.
"""
