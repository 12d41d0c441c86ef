"""SpecTr, Theorem 1: how close K-SEQ comes to its floor (1 − (1 − 1/n)^n)·α* in the worst case found.

    python experiments/claims/spectr_floor.py

Each task searches distributions over a few tokens for the smallest K-SEQ/α*, by Nelder and Mead's simplex
from a random start. A better search might find a smaller ratio. A ratio below the floor would refute the
theorem.

Every search ends where α* just reaches 1, at two tokens or a split of two: p = (b^n, 1 − b^n) and
q = (b, 1 − b). The worst b of that family is printed beside what was found. With two drafts it is 2/3,
where K-SEQ accepts exactly 8/9.
"""

from typing import Any

import numpy as np
import polars as pl
import sweep_script
from scipy.optimize import minimize, minimize_scalar

import otmd
from otmd.optimum.bounds import k_sequential_floor

_SPREAD = 2.0


def ratio(logits: np.ndarray, num_drafts: int) -> float:
    """K-SEQ's acceptance in units of α*, for the softmax of the first half and of the second."""
    p, q = (otmd.probs_from_logits(half) for half in np.split(logits, 2))
    drafts = otmd.WithReplacement(q, num_drafts)
    best = otmd.optimal_acceptance(p, drafts).rate
    return float(otmd.acceptance_rate(otmd.KSequential(), p, drafts) / best)


def worst(
    rng: np.random.Generator, num_drafts: int, tokens: int, start: int
) -> list[dict[str, Any]]:
    """The smallest ratio that one search finds, and where."""
    first = _SPREAD * rng.standard_normal(2 * tokens)
    options = {"maxiter": 400 * tokens, "fatol": 1e-9, "xatol": 1e-7, "adaptive": True}
    found = minimize(ratio, first, (num_drafts,), "Nelder-Mead", options=options)
    p, q = (otmd.probs_from_logits(half) for half in np.split(found.x, 2))
    floor = k_sequential_floor(num_drafts)
    return [
        {
            "ratio": ratio(found.x, num_drafts),
            "floor": floor,
            "evaluations": found.nfev,
            "p": p.tolist(),
            "q": q.tolist(),
        }
    ]


def family_ratio(mass: float, num_drafts: int) -> float:
    """K-SEQ's acceptance on p = (b^n, 1 − b^n), q = (b, 1 − b), where α* = 1."""
    p, q = (np.array([chance, 1.0 - chance]) for chance in (mass**num_drafts, mass))
    drafts = otmd.WithReplacement(q, num_drafts)
    return float(otmd.acceptance_rate(otmd.KSequential(), p, drafts))


def worst_of_family(num_drafts: int) -> tuple[float, float]:
    """The b of that family at which K-SEQ does worst, and how it does there."""
    least, most = (1.0 - share / num_drafts for share in (min(2.0, 0.9 * num_drafts), 0.1))
    options = {"xatol": 1e-12}
    found = minimize_scalar(
        family_ratio, bounds=(least, most), args=(num_drafts,), method="bounded", options=options
    )
    return float(found.x), float(found.fun)


def main(arguments: list[str] | None = None) -> pl.DataFrame:
    """Run the searches and print the best of each number of drafts."""
    table = sweep_script.run(worst, __doc__ or "", 1.5, arguments)
    best = table.sort("ratio").group_by("num_drafts", maintain_order=True).first()
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=4, tbl_hide_dataframe_shape=True):
        print(best.sort("num_drafts").select("num_drafts", "floor", "ratio", "p", "q"))
    for n in (*best["num_drafts"].sort(), 1000):
        mass, least = worst_of_family(n)
        print(
            f"family: n = {n}, b = {mass:.4f}, K-SEQ {least:.4f}, floor {k_sequential_floor(n):.4f}"
        )
    return table


if __name__ == "__main__":
    main()
