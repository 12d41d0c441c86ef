"""What more threads do for a batch of positions, beside what they do for a plain sum of the same arrays.

    python experiments/performance/threads.py

One line a rate: milliseconds a position in one thread and in all, the best of rounds in which both take
turns, and their ratio. No rate can gain more than the sums do where memory is what it waits for.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numba
import numpy as np
from optimal_plan import synthetic_logits

import otmd
from otmd.parallel import in_threads, num_threads

VOCAB_SIZE, NOISE = 151_936, 1.0


def batch(positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of target and draft as those of ``peers.py``, shape (B, V) each."""
    target, draft = synthetic_logits((positions, VOCAB_SIZE), NOISE, seed=0)
    return otmd.probs_from_logits(target), otmd.probs_from_logits(draft)


def calls(target: np.ndarray, draft: np.ndarray) -> dict[str, Callable[[], object]]:
    """What is timed, by name: first the sums."""

    def sums(start: int, stop: int) -> None:
        for i in range(start, stop):
            target[i].sum()
            draft[i].sum()

    rates = [
        (otmd.RecursiveRejection(), otmd.WithReplacement(draft, 3)),
        (otmd.KSequential(), otmd.WithReplacement(draft, 3)),
        (otmd.TargetOnly(), otmd.WithReplacement(draft, 3)),
        (otmd.GreedyCoupling(), otmd.Greedy(draft, 3)),
        (otmd.SpecHub(), otmd.Hub(draft)),
    ]
    with_all, without = otmd.WithReplacement(draft, 8), otmd.WithoutReplacement(draft, 4)
    return {
        "sums of p and q": partial(in_threads, sums, *target.shape),
        "α*, with replacement, n = 3": partial(otmd.optimal_acceptance, target, rates[0][1]),
        "α*, with replacement, n = 1 … 8": partial(
            otmd.optimal_acceptance, target, with_all, every_n=True
        ),
        "α*, without replacement, n = 4": partial(otmd.optimal_acceptance, target, without),
        **{
            f"{type(rule).__name__}, n = {law.num_drafts}": partial(
                rule.acceptance_rate, target, law
            )
            for rule, law in rates
        },
    }


def best_times(run: Callable[[], object], threads: tuple[int, int], rounds: int) -> list[float]:
    """Seconds with each number of threads, the best of rounds in which they take turns."""
    best = [np.inf, np.inf]
    for _ in range(rounds):
        for i, count in enumerate(threads):
            numba.set_num_threads(count)
            start = perf_counter()
            run()
            best[i] = min(best[i], perf_counter() - start)
    return best


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--positions", type=int, default=96, help="of a batch")
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    threads = 1, num_threads()
    print(f"\n| | one thread, ms | {threads[1]} threads, ms | ratio |\n|---|---|---|---|")
    for name, run in calls(*batch(chosen.positions)).items():
        run()
        one, all_of_them = best_times(run, threads, chosen.rounds)
        cells = (1e3 * seconds / chosen.positions for seconds in (one, all_of_them))
        print(
            "| {} | {:.3f} | {:.3f} | {:.2f} |".format(name, *cells, one / all_of_them), flush=True
        )


if __name__ == "__main__":
    main()
