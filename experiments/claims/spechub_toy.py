"""SpecHub on small vocabularies: hub drafts against independent ones and against drafts without replacement.

    python -m experiments spechub_toy

Targets are softmaxes of normal logits at a temperature. The draft's logits are a mean of the target's, with
the weight ``likeness``, and of independent ones. If q(a) ≥ 1/2 for the most likely draft a, hub drafts accept
at least as often as any verifier of two independent drafts: the hub always drafts a, and x ≠ a with
probability q(x)/(1 − q(a)) ≥ 2q(x), while two independent draws hold x with 1 − (1 − q(x))² ≤ 2q(x).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

import otmd
from experiments.runner import run, show

RIVALS = ("recursive_with", "recursive_without", "optimal_with", "optimal_without")


def pairs(
    rng: np.random.Generator, vocab_size: int, temperature: float, likeness: float, count: int
) -> Iterator[dict[str, Any]]:
    """Rates with two drafts of random pairs."""
    logits, noise = rng.standard_normal((2, count, vocab_size))
    targets = otmd.probs_from_logits(logits, temperature)
    drafted = otmd.probs_from_logits(likeness * logits + (1.0 - likeness) * noise, temperature)
    laws = (otmd.Hub, otmd.WithReplacement, otmd.WithoutReplacement)
    hub, independent, distinct = (law(drafted, 2) for law in laws)
    rejection = otmd.RecursiveRejection()
    columns = {
        "top_draft": drafted.max(axis=1),
        "hub": otmd.acceptance_rate(otmd.SpecHub(), targets, hub),
        "recursive_with": otmd.acceptance_rate(rejection, targets, independent),
        "recursive_without": otmd.acceptance_rate(rejection, targets, distinct),
        "optimal_with": otmd.optimal_acceptance(targets, independent).rate,
        "optimal_without": otmd.optimal_acceptance(targets, distinct).rate,
    }
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, map(float, row), strict=True))


def main(arguments: list[str]) -> pl.DataFrame:
    """Run the sweep, check the theorem, and print mean rates and how often the hub wins."""
    table = run(pairs, arguments, 0.3)
    certain = table.filter(pl.col("top_draft") >= 0.5)
    least = (certain["hub"] - certain["optimal_with"]).to_numpy().min()
    counted = f"q(a) ≥ 1/2 in {certain.height} of {table.height} pairs"
    print(f"{counted}; hub − α* with: {least:.1e} at least")
    means = pl.col("top_draft", "hub", *RIVALS).mean()
    wins = [(pl.col("hub") > pl.col(name)).mean().alias(f"hub > {name}") for name in RIVALS]
    for by in ("temperature", "likeness", "vocab_size"):
        show(table.group_by(by, maintain_order=True).agg(means, *wins))
    return table
