"""Logits on a device → a table of rates: nothing but the rates moves to the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from otmd.probabilities import validate_count
from otmd.tensors.probabilities import check_tensors, probs_from_logits
from otmd.tensors.rates import greedy_rates, spechub_rate, target_only_rates
from otmd.tensors.ratio_curve import TensorRatioCurve

OPTIMAL = "optimal"
UNDEFINED = "undefined: fewer tokens with mass than drafts"

Label = tuple[str, int]


class Row(NamedTuple):
    """What one row of a position says, and which columns of rates it takes it from."""

    law: str
    num_drafts: int
    verifier: str
    rate: Label
    optimal: Label


def measure_logits(
    target_logits: Any, draft_logits: Any, temperatures: Sequence[float], num_drafts: Sequence[int]
) -> pl.DataFrame:
    """Measure α* and every rate of this package on a batch of positions.

    Parameters
    ----------
    target_logits, draft_logits : torch.Tensor, shape (N, V)
        Raw logits of the same N positions, on one device.
    temperatures : sequence of float
        What both logits are divided by, one after another.
    num_drafts : sequence of int
        Numbers of drafts.

    Returns
    -------
    polars.DataFrame
        One row a position, temperature, law, number of drafts and verifier, with the names and
        meanings of :func:`otmd.measure`: ``index`` (0 … N − 1), ``temperature``, ``law``,
        ``num_drafts``, ``verifier``, ``optimal``, ``rate``, ``gap``, ``status``. Rates are null
        where the law is undefined.

    Raises
    ------
    ValueError
        For wrong shapes, dtypes or devices, no or bad temperatures or numbers of drafts, or a
        position whose logits hold NaN or +inf, or no finite logit.
    """
    target, draft = check_tensors("logits", target_logits, draft_logits)
    if target.ndim != 2 or target.shape != draft.shape:
        raise ValueError(
            f"target_logits, draft_logits: got shapes {tuple(target.shape)} and "
            f"{tuple(draft.shape)}, wanted the same (N, V)"
        )
    counts = [validate_count("num_drafts", n) for n in num_drafts]
    for name, values in (("temperatures", temperatures), ("num_drafts", counts)):
        if not values:
            raise ValueError(f"{name}: got nothing, wanted at least one")
    labels: list[Label] = []
    found = []
    for temperature in temperatures:
        p, q = (probs_from_logits(logits, temperature) for logits in (target, draft))
        rates = _rates(p, q, max(counts))
        labels = list(rates)
        found.append(torch.stack(list(rates.values()), dim=-1))
    # Positions × temperatures × rates, in one transfer.
    values = torch.stack(found, dim=1).cpu().numpy()
    _refuse_no_distribution(values[..., labels.index((OPTIMAL, 1))], temperatures)
    return _table(values, labels, temperatures, counts)


def _rates(p: Tensor, q: Tensor, count: int) -> dict[Label, Tensor]:
    """Rates (N,) on the device under the name of their rule and their number of drafts."""
    curve = TensorRatioCurve(p, q)
    every_n = {
        OPTIMAL: curve.optimal_rates(count),
        "RecursiveRejection": curve.recursive_rejection_rates(count),
        "KSequential": curve.k_sequential_rates(count),
        "TargetOnly": target_only_rates(p, q, count),
        "GreedyCoupling": greedy_rates(p, q, count),
    }
    rates = {
        (name, n): columns[..., n - 1]
        for name, columns in every_n.items()
        for n in range(1, count + 1)
    }
    return {**rates, ("SpecHub", 2): spechub_rate(p, q)}


def _rows(counts: Sequence[int]) -> list[Row]:
    drawn_again = ("RecursiveRejection", "KSequential", "TargetOnly")
    rows = [
        Row("WithReplacement", n, name, (name, n), (OPTIMAL, n))
        for n in counts
        for name in drawn_again
    ]
    # These two attain the optimum of their laws.
    attained = [("Greedy", "GreedyCoupling", n) for n in counts]
    attained += [("Hub", "SpecHub", 2)] * (2 in counts)
    return rows + [Row(law, n, name, (name, n), (name, n)) for law, name, n in attained]


def _table(
    values: np.ndarray, labels: list[Label], temperatures: Sequence[float], counts: Sequence[int]
) -> pl.DataFrame:
    """Rates (N, temperatures, labels) → one row each."""
    rows = _rows(counts)
    positions, steps = values.shape[:2]
    repeats = positions * steps
    optimal, rate = (
        values[..., [labels.index(label) for label in wanted]].ravel()
        for wanted in ([row.optimal for row in rows], [row.rate for row in rows])
    )
    undefined = np.isnan(rate)
    return pl.DataFrame(
        {
            "index": np.repeat(np.arange(positions), steps * len(rows)),
            "temperature": np.tile(np.repeat(np.array(temperatures, float), len(rows)), positions),
            "law": pl.Series([row.law for row in rows] * repeats, dtype=pl.String),
            "num_drafts": np.tile(np.array([row.num_drafts for row in rows]), repeats),
            "verifier": pl.Series([row.verifier for row in rows] * repeats, dtype=pl.String),
            "optimal": optimal,
            "rate": rate,
            "gap": optimal - rate,
            "status": np.where(undefined, UNDEFINED, "ok").tolist(),
        }
    ).with_columns(pl.col("optimal", "rate", "gap").fill_nan(None))


def _refuse_no_distribution(optimal: np.ndarray, temperatures: Sequence[float]) -> None:
    broken = np.argwhere(np.isnan(optimal))
    if len(broken):
        position, step = broken[0]
        raise ValueError(
            f"target_logits, draft_logits: got a row {position} that gives no two distributions "
            f"at temperature {temperatures[step]}, wanted numbers below +inf, one of them finite"
        )
