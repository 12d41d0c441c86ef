"""Time of the exact rates of the couplings at a language model's vocabulary, in sorts; one thread.

    python -m experiments couplings
    python -m experiments couplings --vocab-size 1000 --rounds 1

Rates and a sort of random numbers are timed in turn, round by round, and the best round of each counts. Times
are the processor's for this thread, so that other work on the machine counts little.
"""

from functools import partial
from time import thread_time
from typing import Any

import numpy as np

import otmd
from experiments.performance.timing import best_times, synthetic_positions
from experiments.runner import markdown, options

ONE_THREAD = True
NUM_DRAFTS = (2, 4, 8)
RULES = [
    (otmd.PoissonCoupling(), otmd.WithReplacement),
    (otmd.GumbelList(), otmd.WithReplacement),
    (otmd.GumbelTop(), otmd.WithoutReplacement),
]


def main(arguments: list[str]) -> None:
    """Print one row a position, coupling and number of drafts."""
    defaults: dict[str, Any] = {"vocab_size": 151_936, "rounds": 15, "temperatures": (1.0,)}
    chosen = options(__name__, arguments, **defaults)
    numbers = np.random.default_rng(0).random(chosen.vocab_size)
    lines = []
    seconds = {}
    for position in synthetic_positions(chosen.vocab_size, tuple(chosen.temperatures)):
        p, q = position.target, position.draft
        runs = {
            (type(rule).__name__, n): partial(rule.acceptance_bounds, p, law(q, n))
            for rule, law in RULES
            for n in NUM_DRAFTS
        }
        sort = partial(np.argsort, numbers)
        seconds = best_times({"sort": sort, **runs}, chosen.rounds, thread_time)
        for (name, n), run in runs.items():
            low, high = run()
            time = seconds[name, n]
            cells = [f"{1e3 * time:.2f}", f"{time / seconds['sort']:.1f}"]
            cells += [f"{0.5 * (low + high):.6f}", f"{high - low:.1e}"]
            lines.append([position.label, position.temperature, f"`{name}`", n, *cells])
    heads = ("position", "T", "coupling", "n", "ms", "sorts", "rate", "bounds apart")
    print(markdown(heads, lines))
    print(f"\nOne sort of {numbers.size:,} random numbers: {1e3 * seconds['sort']:.2f} ms.")
