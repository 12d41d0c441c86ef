"""SpecTr, Theorem 1: distance of K-SEQ to its floor (1 − (1 − 1/n)^n)·α* in the worst case that is found.

    python -m experiments spectr_floor

Each task searches distributions over a few tokens for the smallest K-SEQ/α*, by Nelder and Mead's simplex
from a random start. A better search might find a smaller ratio. A ratio below the floor would refute the
theorem.

Every search ends where α* just reaches 1, at two tokens or a split of two: p = (b^n, 1 − b^n) and
q = (b, 1 − b). The worst b of that family is printed, too. With two drafts it is 2/3, where K-SEQ accepts
exactly 8/9.
"""

from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import minimize, minimize_scalar

import otmd
from experiments.runner import run, show
from otmd.optimum.bounds import k_sequential_floor

SPREAD = 2.0


def ratio(logits: np.ndarray, num_drafts: int) -> float:
    """K-SEQ's acceptance in units of α*, for the softmax of the first half and of the second."""
    p, q = (otmd.probs_from_logits(half) for half in np.split(logits, 2))
    drafts = otmd.WithReplacement(q, num_drafts)
    best = otmd.optimal_acceptance(p, drafts).rate
    return float(otmd.acceptance_rate(otmd.KSequential(), p, drafts) / best)


def worst(rng: np.random.Generator, num_drafts: int, tokens: int, start: int) -> list[dict[str, Any]]:
    """The smallest ratio that one search finds, and the pair that has it."""
    first = SPREAD * rng.standard_normal(2 * tokens)
    options = {"maxiter": 400 * tokens, "fatol": 1e-9, "xatol": 1e-7, "adaptive": True}
    end = minimize(ratio, first, (num_drafts,), "Nelder-Mead", options=options)
    p, q = (otmd.probs_from_logits(half).tolist() for half in np.split(end.x, 2))
    row = {"ratio": ratio(end.x, num_drafts), "floor": k_sequential_floor(num_drafts)}
    return [{**row, "evaluations": end.nfev, "p": p, "q": q}]


def family_ratio(mass: float, num_drafts: int) -> float:
    """K-SEQ's acceptance on p = (b^n, 1 − b^n), q = (b, 1 − b), where α* = 1."""
    p, q = (np.array([prob, 1.0 - prob]) for prob in (mass**num_drafts, mass))
    drafts = otmd.WithReplacement(q, num_drafts)
    return float(otmd.acceptance_rate(otmd.KSequential(), p, drafts))


def worst_of_family(num_drafts: int) -> tuple[float, float]:
    """The b of that family at which K-SEQ does worst, and its rate there."""
    limits = [1.0 - share / num_drafts for share in (min(2.0, 0.9 * num_drafts), 0.1)]
    end = minimize_scalar(
        family_ratio, bounds=limits, args=(num_drafts,), method="bounded", options={"xatol": 1e-12}
    )
    return float(end.x), float(end.fun)


def main(arguments: list[str]) -> pl.DataFrame:
    """Run the searches and print the best of each number of drafts."""
    table = run(worst, arguments, 1.5)
    best = table.sort("ratio").group_by("num_drafts", maintain_order=True).first()
    show(best.sort("num_drafts").select("num_drafts", "floor", "ratio", "p", "q"))
    for n in (*best["num_drafts"].sort(), 1000):
        mass, least = worst_of_family(n)
        floor = k_sequential_floor(n)
        print(f"family: n = {n}, b = {mass:.4f}, K-SEQ {least:.4f}, floor {floor:.4f}")
    return table
