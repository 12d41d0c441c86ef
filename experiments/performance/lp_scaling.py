"""Reach of each form and solver of the transport problem as V and n grow.

    python -m experiments lp_scaling
    python -m experiments lp_scaling --dataset runs/pair --output runs/lp_scaling.parquet
    python -m experiments lp_scaling --quick --output runs/quick.parquet

Every solve has a process of its own, which is ended after ``--time-limit`` seconds. So time, peak memory and
giving up are measured and not guessed. A task is one form and solver: its problems in growing order, up to
the first that it gives up. Two comparisons time forms and solvers of one problem in turn in one process: a
busy machine slows all alike. With ``--dataset``, real distributions are solved at ``--positions`` of it.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.performance.lp_solve import (
    BACKENDS,
    Case,
    Pair,
    solve_apart,
    solver_of,
    synthetic_pair,
)
from experiments.runner import Task, markdown, run
from otmd.models import Dataset, open_dataset
from otmd.transport import TransportProblem, build_program

SERIES = (
    *(("full", name) for name in ("HiGHS simplex", "HiGHS ipm")),
    *(("compact", name) for name in BACKENDS if name not in {"networkx", "Dinic"}),
    *(("dual", name) for name in ("HiGHS simplex", "HiGHS ipm")),
    *(("max_flow", name) for name in ("HiGHS simplex", "HiGHS ipm", "networkx", "Dinic")),
)
"""Form and backend. cvxpy and linprog solve the smallest form only."""

GRID = {(2, True): (4, 10, 30, 100, 300, 1000), (4, True): (4, 10, 20, 40), (4, False): (4, 10, 16)}
"""V in growing order, for each number of drafts and whether tuples are merged."""

REAL = ((10, 2), (10, 4), (10, 5), (100, 2), (1000, 2))
REAL_SERIES = (
    ("full", "HiGHS simplex"),
    ("compact", "HiGHS simplex"),
    ("compact", "HiGHS ipm"),
    ("compact", "scipy linprog"),
    ("compact", "cvxpy Clarabel"),
    ("max_flow", "networkx"),
    ("max_flow", "Dinic"),
)
QUICK_GRID = {(2, True): (3, 5)}
QUICK_SERIES = (("full", "HiGHS simplex"), ("compact", "HiGHS simplex"), ("max_flow", "Dinic"))

ROUNDS = 15
FORMS_COMPARED = (("full", False), ("full", True), ("compact", False), ("compact", True))
"""Form, and whether tuples are merged. The first is the coupling as the literature states it."""

METHODS = ("HiGHS simplex", "HiGHS ipm")
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
PUBLISHED = {
    "linear program": ("4", "4000+", "400000+", "4000+", "out of memory"),
    "max-flow": ("2.5", "74", "10000+", "63–72", "400000+"),
}
"""Milliseconds a token of the sizes of REAL in Thomas & Pal (2025, arXiv:2511.15898), on their hardware."""

Program = tuple[int, int, str, bool, str]


def most_likely_pairs(dataset: Dataset, vocab_size: int, count: int) -> list[Pair]:
    """Distributions over the target's top k tokens, at positions spread over the data set.

    Both are truncated to these tokens and renormalised. The draft's most likely tokens may be others.
    """
    rows = np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int)
    pairs = []
    for arrays in zip(*dataset.arrays(rows), strict=True):
        probs = [otmd.probs_from_logits(a) if dataset.kind == "logits" else a for a in arrays]
        kept = np.argsort(-probs[0], kind="stable")[:vocab_size]
        target, draft = (of[kept] / of[kept].sum(dtype=np.float64) for of in probs)
        pairs.append((target, draft))
    return pairs


def measure(rng: np.random.Generator, claim: str, **task: Any) -> Iterator[dict[str, Any]]:
    """Rows of a task: of one of the two comparisons, or of one form and solver."""
    work = {"forms": compare_forms, "backends": compare_backends, "": solve_growing}[claim]
    return work(**task)


def solve_growing(
    source: str, sizes: Sequence[int], num_drafts: int, merge: bool, form: str, backend: str,
    time_limit: float, dataset: str, positions: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Solve problems in growing order, up to the first that is given up."""
    for size in sizes:
        pairs = [synthetic_pair(size, 0)]
        if dataset:
            pairs = most_likely_pairs(open_dataset(dataset), size, positions)
        for position, pair in enumerate(pairs):
            case = Case(size, num_drafts, merge, form, backend)
            row = solve_apart(case, pair, time_limit)
            yield {"position": position, "vocab_size": size, **row}
            if row["status"] not in {"optimal", "not certified"}:
                return


def compare_forms(size: int, num_drafts: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds of HiGHS on two forms of one synthetic problem, with tuples merged and not."""
    cases = product(FORMS_COMPARED, METHODS)
    programs = [(size, num_drafts, *form, backend) for form, backend in cases]
    names = ("vocab_size", "", "form", "merge", "backend")
    return _race(programs, names, rounds)


def compare_backends(
    size: int, num_drafts: int, form: str, merge: bool, rounds: int
) -> Iterator[dict[str, Any]]:
    """Seconds of HiGHS called directly, by scipy and by cvxpy on one synthetic program."""
    programs = [(size, num_drafts, form, merge, backend) for backend in BACKENDS_COMPARED]
    return _race(programs, ("vocab_size", "", "", "", "backend"), rounds)


def _race(programs: list[Program], names: tuple[str, ...], rounds: int) -> Iterator[dict[str, Any]]:
    """Times of programs that take turns. A task has the columns without a name."""
    prepared = {program: _prepare(*program) for program in programs}
    seconds: dict[Program, list[float]] = {program: [] for program in programs}
    for _ in range(rounds):
        for program, (solve, _) in prepared.items():
            start = time.perf_counter()
            answer = solve()
            seconds[program].append(time.perf_counter() - start)
            if answer.status != "optimal":
                raise RuntimeError(f"{program}: ended {answer.status}, expected an optimum to time")
    for program, times in seconds.items():
        columns = {name: value for name, value in zip(names, program, strict=True) if name}
        best = min(times)
        median = sorted(times)[len(times) // 2]
        times_of = {"best_seconds": best, "median_seconds": median}
        yield {**columns, "variables": prepared[program][1], **times_of}


def _prepare(
    vocab_size: int, num_drafts: int, form: str, merge: bool, backend: str
) -> tuple[Callable[[], Any], int]:
    target, draft = synthetic_pair(vocab_size, 0)
    problem = TransportProblem.of(target, otmd.WithReplacement(draft, num_drafts), merge)
    program = build_program(problem, form)
    return solver_of(problem, program, backend), program.size.variables


def tasks_of(chosen: Namespace) -> list[Task]:
    """The comparisons, and a task for each form, solver and series of problems."""
    rounds = 2 if chosen.quick else ROUNDS
    size, num_drafts = (4, 2) if chosen.quick else (10, 4)
    tasks: list[Task] = [{"claim": "forms", "size": size, "num_drafts": num_drafts}]
    for size, num_drafts, form, merge in PROGRAMS_COMPARED[: 1 if chosen.quick else None]:
        program = {"size": size, "num_drafts": num_drafts, "form": form, "merge": merge}
        tasks.append({"claim": "backends", **program})
    for task in tasks:
        task["rounds"] = rounds
    grid = QUICK_GRID if chosen.quick else GRID
    of_problem = {"claim": "", "time_limit": chosen.time_limit}
    for (n, merge), sizes in grid.items():
        problem = {"source": "synthetic", "sizes": list(sizes), "num_drafts": n, "merge": merge}
        for form, backend in QUICK_SERIES if chosen.quick else SERIES:
            way = {"form": form, "backend": backend, "dataset": "", "positions": 1}
            tasks.append({**of_problem, **problem, **way})
    if chosen.dataset is None:
        return tasks
    read = {"dataset": str(chosen.dataset), "positions": chosen.positions}
    for size, n in ((3, 2),) if chosen.quick else REAL:
        problem = {"source": "real", "sizes": [size], "num_drafts": n, "merge": True}
        for form, backend in QUICK_SERIES if chosen.quick else REAL_SERIES:
            tasks.append({**of_problem, **problem, "form": form, "backend": backend, **read})
    return tasks


def identify(tasks: list[Task]) -> str:
    """The metadata of the data sets that the tasks read."""
    paths = sorted({task.get("dataset", "") for task in tasks} - {""})
    return repr([open_dataset(path).metadata for path in paths])


def comparison_of_forms(table: pl.DataFrame) -> str:
    """HiGHS on four programs of one problem, and how many times faster each is than the largest."""
    rows = table.filter(claim="forms").sort("variables", descending=True)
    largest: dict[str, float] = {}
    lines = []
    keys = ("form", "merge", "variables")
    for (form, merge, variables), part in rows.group_by(keys, maintain_order=True):
        seconds = dict(part.select("backend", "best_seconds").rows())
        largest = largest or seconds
        times = [f"{1e3 * seconds[m]:.1f} ({largest[m] / seconds[m]:.1f}×)" for m in METHODS]
        lines.append([form, "merged" if merge else "apart", f"{variables:,}", *times])
    return markdown(["form", "tuples", "variables", *(f"{m}, ms" for m in METHODS)], lines)


def comparison_of_backends(table: pl.DataFrame) -> str:
    """The same program by HiGHS directly, by scipy and by cvxpy."""
    rows = table.filter(claim="backends").sort("variables")
    lines = []
    keys = ("size", "num_drafts", "form", "merge", "variables")
    for (size, n, form, merge, variables), part in rows.group_by(keys, maintain_order=True):
        seconds = dict(part.select("backend", "best_seconds").rows())
        times = [f"{1e3 * seconds[name]:.1f}" for name in BACKENDS_COMPARED]
        lines.append(
            [f"{size}, {n}", form if merge else f"{form}, apart", f"{variables:,}", *times]
        )
    return markdown(["V, n", "form", "variables", "highspy, ms", "linprog", "cvxpy"], lines)


def real_distributions(table: pl.DataFrame) -> str:
    """Median milliseconds and quartiles over positions, and what was published elsewhere."""
    rows = table.filter(source="real")
    sizes = rows.select("vocab_size", "num_drafts").unique().sort("vocab_size", "num_drafts").rows()
    names = rows.select("form", "backend").unique(maintain_order=True).sort("form", "backend")
    lines = []
    for form, backend in names.rows():
        part = rows.filter(form=form, backend=backend)
        cells = [_cell(part.filter(vocab_size=size, num_drafts=n)) for size, n in sizes]
        lines.append([f"{form}, {backend}", *cells])
    for name, published in PUBLISHED.items():
        by_size = dict(zip(REAL, published, strict=True))
        cells = [by_size.get(size, "") for size in sizes]
        lines.append([f"*{name}, Thomas & Pal, other hardware*", *cells])
    return markdown(["", *sizes], lines)


def _cell(rows: pl.DataFrame) -> str:
    failed = rows.filter(pl.col("status") != "optimal")
    if rows.is_empty() or not failed.is_empty():
        return "" if rows.is_empty() else failed["status"][0]
    # From the marginals to the answer: listing and merging the tuples, building, solving.
    total = 1e3 * (rows["list_seconds"] + rows["build_seconds"] + rows["solve_seconds"])
    low, middle, high = (total.quantile(q, "linear") for q in (0.25, 0.5, 0.75))
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def main(arguments: list[str]) -> pl.DataFrame:
    """Run, or continue, the experiment; print its tables and return all rows."""
    defaults: dict[str, Any] = {"dataset": None, "positions": 7, "time_limit": 8.0, "quick": False}
    table = run(measure, arguments, 15.0, tasks_of, identify, workers=1, **defaults)
    print(f"\n{comparison_of_forms(table)}\n\n{comparison_of_backends(table)}")
    if "real" in table["source"]:
        print(f"\n{real_distributions(table)}")
    return table
