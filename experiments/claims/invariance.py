"""The price of invariance: the Poisson coupling compared with verifiers and the optimum.

    python -m experiments invariance

Reads the positions of ``positions.py``, and collects them if they are not there. Stores a row for each
position, temperature and number of drafts, with the rates on drafts with replacement, their optimum, and the
published floor for one draft.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import positions, texts_of
from experiments.runner import run, show

COUNTS = (1, 2, 4)
VERIFIERS = {
    "poisson": otmd.PoissonCoupling(),
    "recursive": otmd.RecursiveRejection(),
    "k_sequential": otmd.KSequential(),
}


def invariance(
    rng: np.random.Generator, prompt: int, draft: str, temperature: float
) -> Iterator[dict[str, Any]]:
    """One row a position of a prompt's text and number of drafts."""
    for index, (target, drafted) in enumerate(positions(prompt, draft, temperature)):
        apart = 0.5 * float(np.abs(target - drafted).sum())
        for num_drafts in COUNTS:
            law = otmd.WithReplacement(drafted, num_drafts)
            row = {"index": index, "num_drafts": num_drafts, "floor": (1 - apart) / (1 + apart)}
            for name, verifier in VERIFIERS.items():
                row[name] = float(otmd.acceptance_rate(verifier, target, law))
            yield {**row, "optimal": float(otmd.optimal_acceptance(target, law).rate)}


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, and print mean rates."""
    table = run(invariance, arguments, 1.0, data=texts_of)
    by = ["temperature", "num_drafts"]
    show(table.group_by(by).agg(pl.col(*VERIFIERS, "optimal", "floor").mean()).sort(by))
    return table
