"""The price of invariance: couplings by shared clocks compared with verifiers and the optimum.

    python -m experiments invariance

Reads the positions of ``positions.py``, and collects them if they are not there. Stores a row for each
position, temperature and number of drafts, with the rates of couplings and verifiers, both optima, and the
published floors.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import positions, texts_of
from experiments.runner import run, show
from otmd.probabilities import FloatArray

COUNTS = (1, 2, 4)
TOLERANCE = 1e-3
RATES = {
    "recursive_with": (otmd.RecursiveRejection(), otmd.WithReplacement),
    "k_sequential": (otmd.KSequential(), otmd.WithReplacement),
    "poisson": (otmd.PoissonCoupling(), otmd.WithReplacement),
    "gumbel_list": (otmd.GumbelList(), otmd.WithReplacement),
    "recursive_without": (otmd.RecursiveRejection(), otmd.WithoutReplacement),
    "gumbel_top": (otmd.GumbelTop(), otmd.WithoutReplacement),
}


def floors(target: FloatArray, drafted: FloatArray, num_drafts: int) -> dict[str, float]:
    """(1 − TV)/(1 + TV) of one draft (arXiv:2408.07978), and the list matching lemma (arXiv:2506.05632)."""
    apart = 0.5 * float(np.abs(target - drafted).sum())
    curve = otmd.RatioCurve(target, drafted)
    drawn = np.isfinite(curve.ratio)
    excess = curve.ratio[drawn] * curve.draft_mass[1:][drawn] - curve.target_mass[1:][drawn]
    mass = target[curve.order[drawn]]
    listed = float((num_drafts * mass / (np.maximum(excess, 0.0) + num_drafts)).sum())
    return {"floor_one": (1 - apart) / (1 + apart), "floor_list": listed}


def rates(target: FloatArray, drafted: FloatArray, num_drafts: int) -> dict[str, float]:
    """Every rate at one position. Rates with bounds have two columns."""
    row: dict[str, float] = floors(target, drafted, num_drafts)
    for law in (otmd.WithReplacement, otmd.WithoutReplacement):
        best = otmd.optimal_acceptance(target, law(drafted, num_drafts))
        row[f"optimal_{'with' if law is otmd.WithReplacement else 'without'}"] = float(best.rate)
    for name, (verifier, law) in RATES.items():
        low, high = verifier.acceptance_bounds(target, law(drafted, num_drafts), TOLERANCE)
        row |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return row


def invariance(
    rng: np.random.Generator, prompt: int, draft: str, temperature: float
) -> Iterator[dict[str, Any]]:
    """One row a position of a prompt's text and number of drafts."""
    for index, (target, drafted) in enumerate(positions(prompt, draft, temperature)):
        for num_drafts in COUNTS:
            yield {"index": index, "num_drafts": num_drafts, **rates(target, drafted, num_drafts)}


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, and print mean rates, and how often the Gumbel top n accepts more than recursive rejection."""
    table = run(invariance, arguments, 12.0, data=texts_of)
    better = (pl.col("gumbel_top_low") > pl.col("recursive_without_high")).alias("top_better")
    worse = (pl.col("gumbel_top_high") < pl.col("recursive_without_low")).alias("top_worse")
    numbers = pl.col(pl.Float64).exclude("temperature")
    by = ["temperature", "num_drafts"]
    groups = table.with_columns(better, worse).group_by(by)
    means = groups.agg(pl.len(), numbers.mean(), pl.col("top_better", "top_worse").mean())
    show(means.sort(by).unpivot(index=by))
    return table
