"""Forms and solvers of one problem, timed in turn in one process: a busy machine slows all alike."""

import time
from collections.abc import Callable
from itertools import product
from typing import Any

from lp_solve import solver_of, synthetic_pair

import otmd
from otmd.transport import TransportProblem
from otmd.transport.forms import build_program

ROUNDS = 15

FORMS_COMPARED = (("full", False), ("full", True), ("compact", False), ("compact", True))
"""Form, and whether tuples are merged. The first is the coupling as the literature states it."""

BACKENDS_COMPARED = ("HiGHS simplex", "scipy linprog", "cvxpy HiGHS")

PROGRAMS_COMPARED = (
    (10, 2, "compact", True),
    (10, 2, "full", False),
    (10, 4, "compact", True),
    (10, 4, "compact", False),
    (10, 4, "full", True),
    (100, 2, "compact", True),
    (300, 2, "compact", True),
    (30, 2, "full", True),
    (30, 2, "dual", True),
    (30, 2, "max_flow", True),
)


def compare_forms(vocab_size: int, num_drafts: int, rounds: int) -> list[dict[str, Any]]:
    """Seconds of HiGHS on two forms of one synthetic problem, with tuples merged and not."""
    cases = product(FORMS_COMPARED, ("HiGHS simplex", "HiGHS ipm"))
    keys = [(vocab_size, num_drafts, *form, backend) for form, backend in cases]
    return _race("forms", keys, rounds)


def compare_backends(
    vocab_size: int, num_drafts: int, form: str, merge: bool, rounds: int
) -> list[dict[str, Any]]:
    """Seconds of HiGHS called directly, by scipy and by cvxpy on one synthetic program."""
    keys = [(vocab_size, num_drafts, form, merge, backend) for backend in BACKENDS_COMPARED]
    return _race("backends", keys, rounds)


def _prepare(
    vocab_size: int, num_drafts: int, form: str, merge: bool, backend: str
) -> tuple[Callable[[], Any], int]:
    target, draft = synthetic_pair(vocab_size, 0)
    problem = TransportProblem.of(target, otmd.WithReplacement(draft, num_drafts), merge)
    program = build_program(problem, form)
    return solver_of(problem, program, backend), program.size.variables


def _race(
    claim: str, keys: list[tuple[int, int, str, bool, str]], rounds: int
) -> list[dict[str, Any]]:
    prepared = {key: _prepare(*key) for key in keys}
    seconds: dict[tuple[Any, ...], list[float]] = {key: [] for key in keys}
    for _ in range(rounds):
        for key, (run, _) in prepared.items():
            start = time.perf_counter()
            answer = run()
            seconds[key].append(time.perf_counter() - start)
            if answer.status != "optimal":
                raise RuntimeError(f"{key}: ended {answer.status}, expected an optimum to time")
    names = ("vocab_size", "num_drafts", "form", "merge", "backend")
    return [
        {
            "claim": claim,
            **dict(zip(names, key, strict=True)),
            "variables": prepared[key][1],
            "best_seconds": min(taken),
            "median_seconds": sorted(taken)[len(taken) // 2],
            "rounds": rounds,
        }
        for key, taken in seconds.items()
    ]
