"""Gain of more threads for a batch of positions, compared with one pass over the same arrays.

    python -m experiments threads
    python -m experiments threads --positions 4 --rounds 1

Prints a line for each rate: milliseconds a position in one thread and in all threads, the best of rounds in
which all rates take turns; their ratio; and how many passes Σ (p − q)₊ over p and q, in all threads, would
take as long. A rate that waits for memory alone cannot be quicker than one pass.
"""

from collections.abc import Callable
from functools import partial

import numba
import numpy as np

import otmd
from experiments.performance.timing import best_times, synthetic_logits
from experiments.runner import markdown, options
from otmd.kernel import in_threads, num_threads

VOCAB_SIZE = 151_936
NOISE = 1.0


@numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})
def excess(p: np.ndarray, q: np.ndarray) -> float:
    """Σ (p − q)₊ in one pass."""
    total = 0.0
    for i in range(p.size):
        total += max(p[i] - q[i], 0.0)
    return total


def batch(positions: int) -> list[np.ndarray]:
    """Pairs of target and draft like those of ``peers.py``, shape (B, V) each."""
    logits = synthetic_logits((positions, VOCAB_SIZE), NOISE, seed=0)
    return [otmd.probs_from_logits(values) for values in logits]


def calls(target: np.ndarray, draft: np.ndarray) -> dict[str, Callable[[], object]]:
    """The functions that are timed, by name, the pass first."""

    def one_pass(start: int, stop: int) -> None:
        for i in range(start, stop):
            excess(target[i], draft[i])

    def sums(start: int, stop: int) -> None:
        for i in range(start, stop):
            target[i].sum()
            draft[i].sum()

    with_three, with_all = (otmd.WithReplacement(draft, n) for n in (3, 8))
    without = otmd.WithoutReplacement(draft, 4)
    optimum = otmd.optimal_acceptance
    rates = [
        (otmd.RecursiveRejection(), with_three),
        (otmd.KSequential(), with_three),
        (otmd.TargetOnly(), with_three),
        (otmd.Preference(), otmd.Greedy(draft, 3)),
        (otmd.SpecHub(), otmd.Hub(draft)),
        (otmd.Preference(), otmd.WithReplacement(draft, 1)),
    ]
    in_float32 = target.astype(np.float32)
    return {
        "one pass over p and q": partial(in_threads, one_pass, *target.shape),
        "NumPy's sums of p and q": partial(in_threads, sums, *target.shape),
        "α*, with replacement, n = 3": partial(optimum, target, with_three),
        "α*, with replacement, n = 3, p in float32": partial(optimum, in_float32, with_three),
        "α*, with replacement, n = 1 … 8": partial(optimum, target, with_all, every_n=True),
        "α*, without replacement, n = 4": partial(optimum, target, without),
        **{
            f"`{type(rule).__name__}`, n = {law.num_drafts}": partial(
                rule.acceptance_rate, target, law
            )
            for rule, law in rates
        },
    }


def in_so_many(threads: int, run: Callable[[], object]) -> None:
    """Run a function in so many threads."""
    numba.set_num_threads(threads)
    run()


def main(arguments: list[str]) -> None:
    """Time and print."""
    chosen = options(__name__, arguments, positions=96, rounds=40)
    every = num_threads()
    runs = calls(*batch(chosen.positions))
    tasks = {
        (name, count): partial(in_so_many, count, run)
        for name, run in runs.items()
        for count in (1, every)
    }
    best = best_times(tasks, chosen.rounds)
    one_pass = best[next(iter(runs)), every]
    lines = []
    for name in runs:
        single, threaded = best[name, 1], best[name, every]
        cells = [f"{1e3 * seconds / chosen.positions:.3f}" for seconds in (single, threaded)]
        lines.append([name, *cells, f"{single / threaded:.2f}", f"{threaded / one_pass:.1f}"])
    print(markdown(["", "one thread, ms", f"{every} threads, ms", "ratio", "passes"], lines))
