"""What more threads do for a batch of positions, beside what they do for one pass over the same arrays.

    python experiments/performance/threads.py

Prints a line for each rate: milliseconds a position in one thread and in all threads, the best of rounds in
which all rates take turns; their ratio; and how many passes Σ (p − q)₊ over p and q, in all threads, would
take as long. A rate that waits for memory alone cannot be quicker than one pass.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numba
import numpy as np
from optimal_plan import synthetic_logits

import otmd
from otmd.curve._kernels import hockey_stick
from otmd.kernel import in_threads, num_threads

VOCAB_SIZE, NOISE = 151_936, 1.0


def batch(positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of target and draft like those of ``peers.py``, shape (B, V) each."""
    target, draft = synthetic_logits((positions, VOCAB_SIZE), NOISE, seed=0)
    return otmd.probs_from_logits(target), otmd.probs_from_logits(draft)


def calls(target: np.ndarray, draft: np.ndarray) -> dict[str, Callable[[], object]]:
    """The functions that are timed, by name, the pass first."""

    def one_pass(start: int, stop: int) -> None:
        for i in range(start, stop):
            hockey_stick(target[i], draft[i], 1.0)

    def sums(start: int, stop: int) -> None:
        for i in range(start, stop):
            target[i].sum()
            draft[i].sum()

    with_three, with_all = (otmd.WithReplacement(draft, n) for n in (3, 8))
    without, optimum = otmd.WithoutReplacement(draft, 4), otmd.optimal_acceptance
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


def best_times(
    runs: dict[str, Callable[[], object]], threads: tuple[int, int], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each with each number of threads: the best of rounds in which all take turns."""
    best = {name: [np.inf, np.inf] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            for i, count in enumerate(threads):
                numba.set_num_threads(count)
                start = perf_counter()
                run()
                best[name][i] = min(best[name][i], perf_counter() - start)
    return best


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--positions", type=int, default=96, help="of a batch")
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    threads, runs = (1, num_threads()), calls(*batch(chosen.positions))
    for run in runs.values():
        run()
    best = best_times(runs, threads, chosen.rounds)
    print(f"\n| | one thread, ms | {threads[1]} threads, ms | ratio | passes |")
    print("|---|---|---|---|---|")
    one_pass = next(iter(best.values()))[1]
    for name, (one, every) in best.items():
        cells = [1e3 * seconds / chosen.positions for seconds in (one, every)]
        cells += [one / every, every / one_pass]
        print("| {} | {:.3f} | {:.3f} | {:.2f} | {:.1f} |".format(name, *cells))


if __name__ == "__main__":
    main()
