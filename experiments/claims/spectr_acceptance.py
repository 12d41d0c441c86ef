"""SpecTr, Section 4: acceptance against the number of drafts, compared with its floors and its upper bound.

    python -m experiments spectr_acceptance

Targets and drafts are Bernoulli and Zipf distributions. The floors are (1 − (1 − 1/n)^n)·α* and (1 − 1/e)·α*
(Theorem 1), the bound is Lemma 3's.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.runner import run, show
from otmd.optimum import bounds


def pair_of(family: str, target: float, draft: float, size: int) -> list[np.ndarray]:
    """Bernoulli distributions of these probabilities, or Zipf's of these exponents over ``size`` tokens."""
    if family == "Bernoulli":
        return [np.array([prob, 1.0 - prob]) for prob in (target, draft)]
    masses = [np.arange(1.0, size + 1.0) ** -exponent for exponent in (target, draft)]
    return [mass / mass.sum() for mass in masses]


def acceptance(
    rng: np.random.Generator, family: str, target: float, draft: float, size: int, most_drafts: int
) -> Iterator[dict[str, Any]]:
    """Rates of one pair for each number of drafts with replacement."""
    p, q = pair_of(family, target, draft, size)
    rules = {"k_sequential": otmd.KSequential(), "recursive_rejection": otmd.RecursiveRejection()}
    for n in range(1, most_drafts + 1):
        law = otmd.WithReplacement(q, n)
        best = float(otmd.optimal_acceptance(p, law).rate)
        yield {
            "num_drafts": n,
            "optimal": best,
            **{name: float(rule.acceptance_rate(p, law)) for name, rule in rules.items()},
            "floor_n": bounds.k_sequential_floor(n) * best,
            "floor": bounds.k_sequential_floor() * best,
            "bound": float(bounds.draft_probability_bound(p, law)),
        }


def main(arguments: list[str]) -> pl.DataFrame:
    """Run the sweep and print the pairs that are nearest to the floor."""
    table = run(acceptance, arguments, 0.05)
    ratios = table.with_columns(ratio=pl.col("k_sequential") / pl.col("optimal")).sort("ratio")
    lowest = ratios.group_by("family", "num_drafts", maintain_order=True).first()
    columns = ["family", "num_drafts", "target", "draft", "optimal", "k_sequential", "ratio"]
    show(lowest.sort("family", "num_drafts").select(columns))
    return table
