"""What the exact rates of the couplings cost at a language model's vocabulary, in sorts; one thread.

    python experiments/performance/couplings.py

Rates and a sort of random numbers are timed in turn, round by round, and the best round of each counts. Times
are the processor's for this thread, so that other work on the machine counts little.
"""

import argparse
from functools import partial
from time import thread_time

import numpy as np
from optimal_plan import best_times, run_in_one_thread, synthetic_positions

import otmd

NUM_DRAFTS = (2, 4, 8)
RULES = [
    (otmd.PoissonCoupling(), otmd.WithReplacement),
    (otmd.GumbelList(), otmd.WithReplacement),
    (otmd.GumbelTop(), otmd.WithoutReplacement),
]


def main(arguments: list[str] | None = None) -> None:
    """Print one row a position, coupling and number of drafts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0])
    chosen = parser.parse_args(arguments)
    numbers = np.random.default_rng(0).random(chosen.vocab_size)
    print(f"| position | T | coupling | n | ms | sorts | rate | bounds apart |\n{'|---' * 8}|")
    for position in synthetic_positions(chosen.vocab_size, tuple(chosen.temperatures)):
        p, q = position.target, position.draft
        runs = {
            (type(rule).__name__, n): partial(rule.acceptance_bounds, p, law(q, n))
            for rule, law in RULES
            for n in NUM_DRAFTS
        }
        tasks = {"sort": partial(np.argsort, numbers), **runs}
        seconds = best_times(tasks, chosen.rounds, thread_time)
        for (name, n), run in runs.items():
            low, high = run()
            taken, at = seconds[name, n], f"{position.label} | {position.temperature}"
            rate = f"{0.5 * (low + high):.6f} | {high - low:.1e}"
            sorts = taken / seconds["sort"]
            print(f"| {at} | `{name}` | {n} | {1e3 * taken:.2f} | {sorts:.1f} | {rate} |")
    print(f"\nOne sort of {numbers.size:,} random numbers: {1e3 * seconds['sort']:.2f} ms.")


if __name__ == "__main__":
    run_in_one_thread(main)
