"""One solve in a process of its own: its time, its peak memory, and its status."""

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import vstack

import otmd
from otmd.kernel import every_kernel_compiled
from otmd.transport import (
    LinearProgram,
    ProblemShape,
    TransportProblem,
    build_program,
    program_size,
)
from otmd.transport.forms import refuse_too_large
from otmd.transport.program import SolverAnswer
from otmd.transport.solve import ask_solver, conclude

Pair = tuple[np.ndarray, np.ndarray]

BACKENDS: dict[str, tuple[str, str | None]] = {
    "HiGHS simplex": ("highs", "simplex"),
    "HiGHS ipm": ("highs", "ipm"),
    "cvxpy Clarabel": ("cvxpy", "CLARABEL"),
    "cvxpy HiGHS": ("cvxpy", "HIGHS"),
    "scipy linprog": ("linprog", None),
    "networkx": ("networkx", None),
    "Dinic": ("dinic", None),
}
"""Solver and method of ``solve_transport`` by the name in figures; only this script calls linprog."""

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
"""The tolerances with which otmd calls HiGHS. scipy and cvxpy, with 1e-7 by default, take the same."""

_MOST_REPEATS = 5
_REPEAT_SECONDS = 1.0
_MOST_MEMORY = 6 * 2**30


@dataclass(frozen=True)
class Case:
    """V, n, whether tuples with the same token set are one row, the form, and one of :data:`BACKENDS`."""

    vocab_size: int
    num_drafts: int
    merge: bool
    form: str
    backend: str


def synthetic_pair(vocab_size: int, seed: int) -> Pair:
    """Target and draft (V,), drawn from a Dirichlet distribution with the parameters 5/rank."""
    rng = np.random.default_rng([vocab_size, seed])
    zipf = 5.0 / np.arange(1, vocab_size + 1)
    target, draft = rng.dirichlet(zipf, size=2) + 1e-12
    return target / target.sum(), draft / draft.sum()


def solve_with_linprog(program: LinearProgram) -> Callable[[], SolverAnswer]:
    """Translate a program for scipy's linprog; return the function that solves it, which is timed."""
    lower, upper = program.row_lower, program.row_upper
    equal = lower == upper
    above, below = np.isfinite(upper) & ~equal, np.isfinite(lower) & ~equal
    rows = program.matrix.tocsr()
    sides: dict[str, Any] = {}
    if equal.any():
        sides |= {"A_eq": rows[equal], "b_eq": upper[equal]}
    if (above | below).any():
        sides["A_ub"] = vstack([rows[above], -rows[below]])
        sides["b_ub"] = np.concatenate([upper[above], -lower[below]])
    bounds = np.stack([np.zeros(program.costs.size), program.column_upper], axis=-1)

    def run() -> SolverAnswer:
        end = linprog(program.costs, bounds=bounds, method="highs", options=TIGHT, **sides)
        if not end.success:
            return SolverAnswer("failed", end.message)
        duals = np.zeros(program.size.constraints)
        duals[equal] = end.eqlin.marginals if equal.any() else 0.0
        if (above | below).any():
            marginals = end.ineqlin.marginals
            duals[above] = marginals[: np.count_nonzero(above)]
            duals[below] = -marginals[np.count_nonzero(above) :]
        return SolverAnswer("optimal", end.message, end.x, duals)

    return run


def solver_of(
    problem: TransportProblem, program: LinearProgram, backend: str
) -> Callable[[], SolverAnswer]:
    """Return a function that solves a program by a backend, ready to be timed."""
    solver, method = BACKENDS[backend]
    if solver == "linprog":
        return solve_with_linprog(program)
    options = TIGHT if backend == "cvxpy HiGHS" else None
    return lambda: ask_solver(problem, program, solver, method, options)


def measure_solve(case: Case, pair: Pair) -> dict[str, Any]:
    """Build and solve a case in this process: sizes, seconds, bytes, rate and certificate."""
    law = otmd.WithReplacement(pair[1], case.num_drafts)
    before = _peak_memory()
    row = _solve(pair[0], law, case)
    peak = _peak_memory() - before
    best = otmd.optimal_acceptance(pair[0], law).rate
    return {**row, "peak_bytes": peak, "rate_error": row["rate"] - best}


def _warm_up(case: Case) -> None:
    """Import and compile what the case will use, so that neither its time nor its limit counts that."""
    target, draft = synthetic_pair(3, 0)
    law = otmd.WithReplacement(draft, 2)
    with every_kernel_compiled():
        _solve(target, law, case)
        otmd.optimal_acceptance(target, law)


def _solve(target: np.ndarray, law: otmd.DraftLaw, case: Case) -> dict[str, Any]:
    refuse_too_large(law, case.form, case.merge)
    started = time.perf_counter()
    problem = TransportProblem.of(target, law, case.merge)
    listed = time.perf_counter()
    program = build_program(problem, case.form)
    built = time.perf_counter()
    run = solver_of(problem, program, case.backend)
    answer = SolverAnswer("failed", "not solved yet")
    seconds: list[float] = []
    while not seconds or (len(seconds) < _MOST_REPEATS and sum(seconds) < _REPEAT_SECONDS):
        start = time.perf_counter()
        answer = run()
        seconds.append(time.perf_counter() - start)
    solution = conclude(problem, program, answer, throw=False)
    return {
        "status": solution.status,
        "list_seconds": listed - started,
        "build_seconds": built - listed,
        "solve_seconds": min(seconds),
        "repeats": len(seconds),
        "rate": solution.rate,
        "gap": solution.certificate.worst,
    }


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _child(sender: Connection, case: Case, pair: Pair) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    try:
        _warm_up(case)
        sender.send("ready")
        sender.send(measure_solve(case, pair))
    except MemoryError:
        sender.send({"status": "memory"})
    except ValueError as refusal:
        sender.send({"status": "refused", "detail": str(refusal)})


def solve_apart(case: Case, pair: Pair, limit: float) -> dict[str, Any]:
    """Solve a case in a process of its own, ended ``limit`` seconds after it was ready to solve.

    Returns
    -------
    dict
        The program's size and what was measured; the status is "time limit", "memory", "refused" or
        "ended by signal N" where there was no answer.
    """
    law = otmd.WithReplacement(pair[1], case.num_drafts)
    size = program_size(ProblemShape.of(law, case.merge), case.form)
    row: dict[str, Any] = {**asdict(size), "program_bytes": size.bytes}
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "cvxpy", "networkx"])
    process = context.Process(target=_child, args=(sender, case, pair))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
        if answer == "ready":
            answer = receiver.recv() if receiver.poll(limit) else {"status": "time limit"}
        row |= answer
    except EOFError:
        process.join()
        row["status"] = f"ended by signal {-(process.exitcode or 0)}"
    process.kill()
    process.join()
    return row
