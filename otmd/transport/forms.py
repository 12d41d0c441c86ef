"""The four ways to write the transport problem as a linear program: full, compact, dual and maximum flow."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from otmd.drafts import DraftLaw
from otmd.probabilities import BoolArray, FloatArray
from otmd.transport.problem import ProblemShape, TransportProblem, closed_counts
from otmd.transport.program import LinearProgram, ProgramSize, sparse_columns

Shaped = TransportProblem | ProblemShape
"""Either has the numbers that a program's size follows from: ``num_sets``, ``num_arcs``, ``vocab_size``."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What a solved program says about the problem: π(set, y) on the arcs (E,), and the duals of Hu et al.

    u of the sets (S,) and v of the tokens (V,) have u(x) + v(y) ≥ 1 wherever y ∈ x.
    """

    accepted: FloatArray
    set_duals: FloatArray
    token_duals: FloatArray


@dataclass(frozen=True)
class Form:
    """One way to write the problem: its name, its size, the program, and how to read a solution of it.

    ``read(problem, values, row_duals)`` takes the multipliers of the minimisation.
    """

    name: str
    size: Callable[[Shaped], ProgramSize]
    build: Callable[[TransportProblem], LinearProgram]
    read: Callable[[TransportProblem, FloatArray, FloatArray], Reading]


def _arc_names(problem: TransportProblem, prefix: str) -> list[str]:
    names = problem.set_names()
    arcs = zip(problem.arc_sets.tolist(), problem.tokens.tolist(), strict=True)
    return [f"{prefix} {names[row]} {token}" for row, token in arcs]


def _node_names(problem: TransportProblem, sets: str = "set", token: str = "token") -> list[str]:
    tokens = [f"{token} {each}" for each in range(problem.vocab_size)]
    return [f"{sets} {name}" for name in problem.set_names()] + tokens


def _num_nodes(problem: Shaped) -> int:
    return problem.num_sets + problem.vocab_size


def _compact_size(problem: Shaped) -> ProgramSize:
    return ProgramSize(problem.num_arcs, _num_nodes(problem), 2 * problem.num_arcs)


def _compact_build(problem: TransportProblem) -> LinearProgram:
    arcs, nodes = problem.num_arcs, _num_nodes(problem)
    rows = np.stack([problem.arc_sets, problem.num_sets + problem.tokens], axis=-1).ravel()
    return LinearProgram(
        form="compact",
        sense="maximise",
        objective=np.ones(arcs),
        matrix=sparse_columns(np.ones(2 * arcs), rows, np.arange(0, 2 * arcs + 1, 2), nodes),
        row_lower=np.full(nodes, -np.inf),
        row_upper=np.concatenate([problem.supply, problem.target]),
        column_lower=np.zeros(arcs),
        column_upper=np.full(arcs, np.inf),
        label_rows=lambda: _node_names(problem),
        label_columns=lambda: _arc_names(problem, "accept"),
    )


def _compact_read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    return Reading(values, -row_duals[: problem.num_sets], -row_duals[problem.num_sets :])


COMPACT = Form("compact", _compact_size, _compact_build, _compact_read)
"""Maximise Σ π(x, y) over y ∈ x, with Σ_y π(x, y) ≤ Q(x), Σ_x π(x, y) ≤ p(y), π ≥ 0."""


def _dual_size(problem: Shaped) -> ProgramSize:
    return ProgramSize(_num_nodes(problem), problem.num_arcs, 2 * problem.num_arcs)


def _dual_build(problem: TransportProblem) -> LinearProgram:
    primal = _compact_build(problem)
    rows, columns = primal.num_variables, primal.num_constraints
    return LinearProgram(
        form="dual",
        sense="minimise",
        objective=primal.row_upper,
        matrix=primal.matrix.T.tocsc(),
        row_lower=primal.objective,
        row_upper=np.full(rows, np.inf),
        column_lower=np.zeros(columns),
        column_upper=np.full(columns, np.inf),
        label_rows=lambda: _arc_names(problem, "cover"),
        label_columns=primal.label_rows,
    )


def _dual_read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    # The multipliers of the dual's rows are the plan.
    return Reading(row_duals, values[: problem.num_sets], values[problem.num_sets :])


DUAL = Form("dual", _dual_size, _dual_build, _dual_read)
"""Minimise Σ Q(x) u(x) + Σ p(y) v(y) with u(x) + v(y) ≥ 1 wherever y ∈ x, u ≥ 0, v ≥ 0.

The linear programming dual of the compact form. The matrix is totally unimodular, so at a vertex v is the
indicator of a subset H, u(x) = 1 unless x ⊆ H, and the value is 1 + p(H) − g(H).
"""


def _full_size(problem: Shaped) -> ProgramSize:
    pairs = problem.num_sets * problem.vocab_size
    return ProgramSize(pairs, _num_nodes(problem), 2 * pairs)


def _full_build(problem: TransportProblem) -> LinearProgram:
    sets, vocab_size = problem.num_sets, problem.vocab_size
    pairs = sets * vocab_size
    objective = np.zeros(pairs)
    objective[_arc_columns(problem)] = 1.0
    rows = np.empty((sets, vocab_size, 2), np.int32)
    rows[:, :, 0] = np.arange(sets)[:, None]
    rows[:, :, 1] = sets + np.arange(vocab_size)
    starts = np.arange(0, 2 * pairs + 1, 2)
    lower = np.concatenate([problem.supply, problem.target])
    upper = lower.copy()
    # Both marginals sum to 1, so one row follows from the others. With that row, rounding can make the
    # program infeasible: HiGHS's presolve reported so for tokens of mass 1e-12.
    implied = sets + problem.target.argmax()
    lower[implied], upper[implied] = -np.inf, np.inf
    return LinearProgram(
        form="full",
        sense="maximise",
        objective=objective,
        matrix=sparse_columns(np.ones(2 * pairs), rows.ravel(), starts, sets + vocab_size),
        row_lower=lower,
        row_upper=upper,
        column_lower=np.zeros(pairs),
        column_upper=np.full(pairs, np.inf),
        label_rows=lambda: _node_names(problem),
        label_columns=lambda: [
            f"emit {name} {token}" for name in problem.set_names() for token in range(vocab_size)
        ],
    )


def _full_read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    # Both marginals sum to 1: adding a constant to all u and subtracting it from all v changes nothing.
    # With the smallest v at 0 the multipliers are feasible for the compact form's dual.
    set_duals, token_duals = -row_duals[: problem.num_sets], -row_duals[problem.num_sets :]
    shift = token_duals.min()
    return Reading(values[_arc_columns(problem)], set_duals + shift, token_duals - shift)


def _arc_columns(problem: TransportProblem) -> np.ndarray:
    return problem.arc_sets * problem.vocab_size + problem.tokens


FULL_COUPLING = Form("full", _full_size, _full_build, _full_read)
"""Maximise Σ π(x, y) over y ∈ x, with Σ_y π(x, y) = Q(x), Σ_x π(x, y) = p(y), π ≥ 0.

The row of the likeliest token is implied by the others, and left open.
"""


def _max_flow_size(problem: Shaped) -> ProgramSize:
    nodes = _num_nodes(problem)
    return ProgramSize(nodes + problem.num_arcs, nodes, nodes + 2 * problem.num_arcs)


def _max_flow_build(problem: TransportProblem) -> LinearProgram:
    arcs, sets, vocab_size = problem.num_arcs, problem.num_sets, problem.vocab_size
    nodes = sets + vocab_size
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
        column_lower=np.zeros(nodes + arcs),
        column_upper=np.concatenate([problem.supply, np.full(arcs, np.inf), problem.target]),
        label_rows=lambda: _node_names(problem),
        label_columns=lambda: _edge_names(problem),
    )


def _edge_names(problem: TransportProblem) -> list[str]:
    sets, ends = problem.num_sets, _node_names(problem, "draw", "output")
    return [*ends[:sets], *_arc_names(problem, "accept"), *ends[sets:]]


def _max_flow_read(problem: TransportProblem, values: FloatArray, row_duals: FloatArray) -> Reading:
    sets = problem.num_sets
    accepted = values[sets : sets + problem.num_arcs]
    return Reading(accepted, 1.0 + row_duals[:sets], -row_duals[sets:])


def flow_values(problem: TransportProblem, flow: FloatArray) -> FloatArray:
    """The max-flow program's variables, given the flow on the arcs (E,): what enters a node leaves it."""
    return np.concatenate([problem.by_set(flow), flow, problem.by_token(flow)])


def cut_duals(problem: TransportProblem, subset: BoolArray) -> FloatArray:
    """The row multipliers of a cut H (V,): −1 for each token of H and each draft set within H."""
    within = np.logical_and.reduceat(subset[problem.tokens], problem.starts[:-1])
    return -np.concatenate([within, subset]).astype(np.float64)


MAX_FLOW = Form("max_flow", _max_flow_size, _max_flow_build, _max_flow_read)
"""Maximise the flow out of the source: at most Q(x) into each set and p(y) out of each token."""


FORMS: dict[str, Form] = {form.name: form for form in (FULL_COUPLING, COMPACT, DUAL, MAX_FLOW)}
DEFAULT_MAX_BYTES = 4 * 2**30


def form_named(name: str) -> Form:
    """Return the form of that name, or raise ValueError."""
    if name not in FORMS:
        raise ValueError(f"form: got {name!r}, wanted one of {', '.join(FORMS)}")
    return FORMS[name]


def program_size(problem: Shaped, form: str = "compact") -> ProgramSize:
    """How large the program of a form is, without building it.

    Parameters
    ----------
    problem : TransportProblem or ProblemShape
        What is to be solved, or its shape alone: ``ProblemShape.of(law)`` lists no tuples.
    form : {"compact", "full", "dual", "max_flow"}
        How it is written; ValueError for another.
    """
    return form_named(form).size(problem)


def refuse_too_large(
    law: DraftLaw, form: str, merge: bool = True, max_bytes: float = DEFAULT_MAX_BYTES
) -> None:
    """Raise ValueError for a law whose program is too large, if that is known without listing tuples."""
    chosen, counts = form_named(form), closed_counts(law, merge)
    if counts is not None:
        shape = ProblemShape(*counts, law.vocab_size)
        _require_fits(shape, chosen, max_bytes, listable=law.can_enumerate())


def build_program(
    problem: TransportProblem, form: str = "compact", max_bytes: float = DEFAULT_MAX_BYTES
) -> LinearProgram:
    """Write a problem as a linear program.

    Parameters
    ----------
    problem, form
        As for :func:`program_size`; a problem, not its shape.
    max_bytes : float
        Refuse to build a program whose arrays are larger.

    Raises
    ------
    ValueError
        For an unknown form or a program that is too large.
    """
    chosen = form_named(form)
    _require_fits(problem, chosen, max_bytes)
    return chosen.build(problem)


def _require_fits(problem: Shaped, form: Form, max_bytes: float, listable: bool = True) -> None:
    size, advice = form.size(problem), "no form fits"
    if size.fits(max_bytes):
        return
    fitting = [other.name for other in FORMS.values() if other.size(problem).fits(max_bytes)]
    if not listable:
        advice += ", as the law has too many tuples to list; optimal_acceptance lists none"
    elif fitting:
        advice = f"form {' or '.join(map(repr, fitting))} fits"
    raise ValueError(
        f"form: got {form.name!r}, which needs {_written(size.variables)} variables, "
        f"{_written(size.constraints)} constraints and {_written(size.bytes)} bytes, wanted at most "
        f"max_bytes={max_bytes:.0f}; {advice}"
    )


def _written(count: int) -> str:
    # Python refuses to write integers of more than 4,300 digits.
    return str(count) if count < 10**30 else f"{Decimal(count):.2e}"
