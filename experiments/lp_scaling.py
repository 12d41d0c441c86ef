"""How far each form and solver of the transport problem goes as V and n grow.

    python experiments/lp_scaling.py
    python experiments/lp_scaling.py --dataset runs/pair --output runs/lp_scaling.parquet
    python experiments/lp_scaling.py --quick --output runs/quick.parquet

Every solve has a process of its own, which is ended at a time limit. So time, peak memory and giving up are
measured and not guessed. Results are kept as they come; the same command goes on where it stopped.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from lp_claims import PROGRAMS_COMPARED, ROUNDS, compare_backends, compare_forms
from lp_solve import BACKENDS, Case, solve_apart, synthetic_pair
from lp_tables import print_tables
from progress_store import ProgressStore, progress_store

from otmd import probs_from_logits
from otmd.models import Dataset, open_dataset

OUTPUT = Path("paper_figures/results/lp_scaling.parquet")
Pair = tuple[np.ndarray, np.ndarray]

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


def likeliest_pairs(dataset: Dataset, vocab_size: int, count: int) -> list[Pair]:
    """Distributions over the target's k likeliest tokens, at positions spread over the data set.

    Both are truncated to these tokens and renormalised. The draft's likeliest tokens may be others.
    """
    rows = np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int)
    pairs = []
    for arrays in zip(*dataset.arrays(rows), strict=True):
        whole = [probs_from_logits(a) if dataset.kind == "logits" else a for a in arrays]
        kept = np.argsort(-whole[0], kind="stable")[:vocab_size]
        target, draft = (probs[kept] / probs[kept].sum(dtype=np.float64) for probs in whole)
        pairs.append((target, draft))
    return pairs


def synthetic_cases(quick: bool) -> Iterator[list[tuple[Case, Pair]]]:
    """Lists of cases in growing order; the first case that gives up ends its list."""
    for (num_drafts, merge), sizes in (QUICK_GRID if quick else GRID).items():
        for form, backend in QUICK_SERIES if quick else SERIES:
            yield [
                (
                    Case("synthetic", 0, size, num_drafts, merge, form, backend),
                    synthetic_pair(size, 0),
                )
                for size in sizes
            ]


def real_cases(dataset: Dataset, quick: bool, count: int) -> Iterator[list[tuple[Case, Pair]]]:
    """Lists of the positions of one size, form and backend; the first that gives up ends its list."""
    sizes = ((3, 2),) if quick else REAL
    for vocab_size, num_drafts in sizes:
        pairs = likeliest_pairs(dataset, vocab_size, count)
        for form, backend in QUICK_SERIES if quick else REAL_SERIES:
            yield [
                (
                    Case("real", place, vocab_size, num_drafts, True, form, backend),
                    pair,
                )
                for place, pair in enumerate(pairs)
            ]


def run_cases(
    store: ProgressStore, lists: list[list[tuple[Case, Pair]]], time_limit: float
) -> None:
    """Solve what the store does not hold yet. A list ends at its first case that gives up."""
    for number, cases in enumerate(lists, start=1):
        for case, pair in cases:
            print(f"[{number}/{len(lists)}] {case}", flush=True)
            name = "-".join(str(value) for value in vars(case).values()).replace(" ", "_")
            rows = store.keep(name, lambda c=case, p=pair: [solve_apart(c, p, time_limit)])
            status = rows[0]["status"]
            if status != "optimal":
                print(f"    {status}", flush=True)
            if status not in {"optimal", "not certified"}:
                break


def run_claims(store: ProgressStore, quick: bool) -> None:
    """Measure the two comparisons of :mod:`lp_claims`."""
    rounds, kind = (2, "quick-claim") if quick else (ROUNDS, "claim")
    sizes = (4, 2) if quick else (10, 4)
    print("comparing forms and backends, in turn", flush=True)
    store.keep(f"{kind}-forms", lambda: compare_forms(*sizes, rounds))
    for program in PROGRAMS_COMPARED[:1] if quick else PROGRAMS_COMPARED:
        name = "-".join(map(str, (kind, *program)))
        store.keep(name, lambda p=program: compare_backends(*p, rounds=rounds))


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run, or go on with, the experiment; print its tables and return all rows."""
    parser = argparse.ArgumentParser(description="How far each form and solver goes.")
    parser.add_argument("--dataset", type=Path, help="made by `otmd collect`, or a dump")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--time-limit", type=float, default=8.0, help="seconds a case")
    parser.add_argument("--positions", type=int, default=7, help="positions of the data set")
    parser.add_argument("--quick", action="store_true", help="a small grid, in seconds")
    chosen = parser.parse_args(arguments)
    lists = list(synthetic_cases(chosen.quick))
    if chosen.dataset is not None:
        dataset = open_dataset(chosen.dataset)
        lists += real_cases(dataset, chosen.quick, chosen.positions)
    with progress_store(chosen.output) as store:
        run_claims(store, chosen.quick)
        run_cases(store, lists, chosen.time_limit)
        table = store.finish()
    print_tables(table)
    return table


if __name__ == "__main__":
    main()
