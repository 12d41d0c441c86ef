"""The four ways to write the transport problem as a linear program: full, compact, dual and maximum flow."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csc_array, diags_array, hstack

from otmd.probabilities import FloatArray, IntArray, wrong
from otmd.transport.problem import TransportProblem
from otmd.transport.program import LinearProgram, SolverAnswer, program_of


def _incidence(problem: TransportProblem, sets: IntArray, tokens: IntArray) -> csc_array:
    """A column for each pair: ones in the row of its set and in the row of its token, (S + V, pairs)."""
    rows = np.stack([sets, problem.num_sets + tokens], axis=-1).ravel()
    shape = problem.num_sets + problem.vocab_size, sets.size
    return csc_array((np.ones(rows.size), rows, np.arange(0, rows.size + 1, 2)), shape=shape)


def _compact(problem: TransportProblem) -> LinearProgram:
    """Maximise Σ π(x, y) over y ∈ x, with Σ_y π(x, y) ≤ Q(x), Σ_x π(x, y) ≤ p(y), π ≥ 0."""
    matrix = _incidence(problem, problem.arc_sets, problem.tokens)
    most = np.concatenate([problem.supply, problem.target])
    return program_of("compact", np.ones(problem.num_arcs), matrix, rows=(-np.inf, most))


def _dual(problem: TransportProblem) -> LinearProgram:
    """Minimise Σ Q(x) u(x) + Σ p(y) v(y) with u(x) + v(y) ≥ 1 wherever y ∈ x, u ≥ 0, v ≥ 0.

    The linear programming dual of the compact form. The matrix is totally unimodular. So at a vertex v is
    the indicator of a subset H, u(x) is 1 unless x ⊆ H, and the value is 1 + p(H) − g(H).
    """
    primal = _compact(problem)
    costs, matrix = primal.row_upper, primal.matrix.T.tocsc()
    return program_of("dual", costs, matrix, sense="minimise", rows=(1.0, np.inf))


def _full(problem: TransportProblem) -> LinearProgram:
    """Maximise Σ π(x, y) over y ∈ x, with Σ_y π(x, y) = Q(x), Σ_x π(x, y) = p(y), π ≥ 0."""
    sets, vocab_size = problem.num_sets, problem.vocab_size
    objective = np.zeros(sets * vocab_size)
    objective[_arc_columns(problem)] = 1.0
    lower = np.concatenate([problem.supply, problem.target])
    upper = lower.copy()
    # Both marginals sum to 1, so one row follows from the others. It is left out, since with it rounding can
    # make the program infeasible: HiGHS's presolve said so where tokens had mass 1e-12.
    implied = sets + problem.target.argmax()
    lower[implied], upper[implied] = -np.inf, np.inf
    pairs = np.repeat(np.arange(sets), vocab_size), np.tile(np.arange(vocab_size), sets)
    return program_of("full", objective, _incidence(problem, *pairs), rows=(lower, upper))


def _max_flow(problem: TransportProblem) -> LinearProgram:
    """Maximise the flow out of the source: at most Q(x) into each set and p(y) out of each token."""
    arcs, sets, vocab_size = problem.num_arcs, problem.num_sets, problem.vocab_size
    # A row is the balance of a node: +1 for flow into the node, −1 for flow out of it.
    signs = csc_array(diags_array(np.repeat([-1.0, 1.0], [sets, vocab_size])))
    through = signs @ _incidence(problem, problem.arc_sets, problem.tokens)
    return program_of(
        "max_flow",
        np.repeat([1.0, 0.0], [sets, arcs + vocab_size]),
        csc_array(hstack([-signs[:, :sets], through, -signs[:, sets:]])),
        rows=(0.0, 0.0),
        column_upper=np.concatenate([problem.supply, np.full(arcs, np.inf), problem.target]),
    )


def _arc_columns(problem: TransportProblem) -> IntArray:
    """The columns of the full form that are arcs."""
    return problem.arc_sets * problem.vocab_size + problem.tokens


_BUILDS = {"full": _full, "compact": _compact, "dual": _dual, "max_flow": _max_flow}
FORMS = tuple(_BUILDS)
_MOST_PAIRS = 2**27


def build_program(problem: TransportProblem, form: str = "compact") -> LinearProgram:
    """Write a problem as a linear program.

    Parameters
    ----------
    problem : TransportProblem
        The problem.
    form : {"compact", "full", "dual", "max_flow"}
        How the problem is written. Another name, or a full coupling of more than 2^27 pairs, is a ValueError.

    Returns
    -------
    LinearProgram
        The objective, the sparse matrix and the bounds.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.TopK([0.5, 0.3, 0.2], num_drafts=2)
    >>> problem = otmd.TransportProblem.of([0.5, 0.25, 0.25], law)
    >>> otmd.transport.build_program(problem).matrix.shape
    (4, 2)
    """
    if form not in FORMS:
        raise wrong("form", repr(form), f"one of {', '.join(FORMS)}")
    if form == "full" and (pairs := problem.num_sets * problem.vocab_size) > _MOST_PAIRS:
        raise wrong("form", f"'full', which has {pairs} variables", "a smaller form, such as 'compact'")
    return _BUILDS[form](problem)


def read_solution(
    problem: TransportProblem, form: str, answer: SolverAnswer
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Read an answer to a form's program: the mass on the arcs (E,), and the duals u (S,) and v (V,)."""
    values, duals, sets = answer.values, answer.row_duals, problem.num_sets
    if form == "dual":
        # The multipliers of the dual's rows are the plan.
        return duals, values[:sets], values[sets:]
    if form == "max_flow":
        return values[sets : sets + problem.num_arcs], 1.0 + duals[:sets], -duals[sets:]
    if form == "full":
        values = values[_arc_columns(problem)]
    # Both marginals sum to 1: adding a constant to all u and subtracting it from all v changes nothing.
    # With the smallest v at 0 the multipliers of the full form are feasible for the compact form's dual.
    set_duals, token_duals = -duals[:sets], -duals[sets:]
    shift = token_duals.min()
    return values, set_duals + shift, token_duals - shift
