"""SpecTr, Section 4: acceptance against the number of drafts, beside its floors and its upper bound.

    python experiments/claims/spectr_acceptance.py

Targets and drafts are Bernoulli and Zipf laws. The floors are (1 − (1 − 1/n)^n)·α* and (1 − 1/e)·α*
(Theorem 1), the bound is Lemma 3's.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import sweep_script

import otmd
from otmd.optimum.bounds import draft_probability_bound, k_sequential_floor


def pair_of(family: str, target: float, draft: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bernoulli laws of these chances, or Zipf laws of these exponents over ``size`` tokens."""
    if family == "Bernoulli":
        return np.array([target, 1.0 - target]), np.array([draft, 1.0 - draft])
    masses = [np.arange(1.0, size + 1.0) ** -exponent for exponent in (target, draft)]
    return masses[0] / masses[0].sum(), masses[1] / masses[1].sum()


def acceptance(
    rng: np.random.Generator, family: str, target: float, draft: float, size: int, most_drafts: int
) -> Iterator[dict[str, Any]]:
    """Rates of one pair for each number of drafts with replacement."""
    p, q = pair_of(family, target, draft, size)
    law = otmd.WithReplacement(q, most_drafts)
    optimal = otmd.optimal_acceptance(p, law, every_n=True).rate
    rules = {"k_sequential": otmd.KSequential(), "recursive_rejection": otmd.RecursiveRejection()}
    rates = {name: rule.acceptance_bounds(p, law, every_n=True)[0] for name, rule in rules.items()}
    for n in range(1, most_drafts + 1):
        best = float(optimal[n - 1])
        yield {
            "num_drafts": n,
            "optimal": best,
            **{name: float(rate[n - 1]) for name, rate in rates.items()},
            "floor_n": k_sequential_floor(n) * best,
            "floor": k_sequential_floor() * best,
            "bound": float(draft_probability_bound(p, law.with_num_drafts(n))),
        }


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run the sweep and print the pairs that are nearest to the floor."""
    table = sweep_script.run(acceptance, __doc__ or "", 0.05, arguments)
    part = table.with_columns(ratio=pl.col("k_sequential") / pl.col("optimal"))
    lowest = part.sort("ratio").group_by("family", "num_drafts", maintain_order=True).first()
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_hide_dataframe_shape=True):
        columns = ["family", "num_drafts", "target", "draft", "optimal", "k_sequential", "ratio"]
        print(lowest.sort("family", "num_drafts").select(columns))
    return table


if __name__ == "__main__":
    main()
