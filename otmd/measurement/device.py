"""Closed-form rates of many positions at once, on a torch device."""

from typing import TYPE_CHECKING, Any

import numpy as np

from otmd.drafts import Greedy, Hub, WithReplacement
from otmd.measurement.rows import Key, Rates, Settings, rate_columns
from otmd.probabilities import Processing
from otmd.verifiers import (
    GreedyCoupling,
    KSequential,
    MaximalCoupling,
    RecursiveRejection,
    SpecHub,
    TargetOnly,
)

if TYPE_CHECKING:
    from torch import Tensor

OPTIMAL = "optimal"
# (law, verifier): the names of its rate and of its law's optimum in :func:`_tables`.
CLOSED_FORMS: dict[tuple[Any, type], tuple[str, str]] = {
    (WithReplacement, MaximalCoupling): ("recursive_rejection", OPTIMAL),
    (WithReplacement, RecursiveRejection): ("recursive_rejection", OPTIMAL),
    (WithReplacement, KSequential): ("k_sequential", OPTIMAL),
    (WithReplacement, TargetOnly): ("target_only", OPTIMAL),
    (Greedy, GreedyCoupling): ("greedy", "greedy"),
    (Hub, SpecHub): ("spechub", "spechub"),
}


def closed_forms(settings: Settings) -> dict[Key, tuple[str, str]]:
    """Which rows of a position are closed forms on tensors: (rate, optimum) by (law, n, verifier)."""
    laws = dict(settings.laws)
    return {
        (name, n, label): CLOSED_FORMS[laws[name], type(verifier)]
        for (name, n), pairs in settings.served.items()
        for label, verifier in pairs
        if (laws[name], type(verifier)) in CLOSED_FORMS
    }


def check_device(device: str) -> None:
    """Raise ValueError unless torch can compute in float64 on this device."""
    import torch

    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(
            f"device: got {device!r}, wanted one of torch's with float64, such as cpu or cuda ({said})"
        ) from error


def device_rows(
    settings: Settings, target: np.ndarray, draft: np.ndarray, kind: str, device: str
) -> list[list[dict[Key, Rates]]]:
    """Closed-form rates of k positions on a device, by position and processing, for :func:`position_rows`.

    Rows that are undefined or of invalid distributions are left out: the CPU's code says why.
    """
    forms = closed_forms(settings)
    most = max(n for _, n, _ in forms)
    found: list[list[dict[Key, Rates]]] = [[] for _ in target]
    for step in settings.processing:
        p, q = (_probabilities(values, kind, step, device) for values in (target, draft))
        tables = {} if p is None or q is None else _tables(p, q, most)
        for position, steps in enumerate(found):
            steps.append({})
            for key, (rate, optimum) in forms.items() if tables else ():
                low, best = (float(tables[name][position, key[1] - 1]) for name in (rate, optimum))
                if np.isfinite(low) and np.isfinite(best):
                    steps[-1][key] = rate_columns(low, low, best, settings.tol)
    return found


def _probabilities(values: np.ndarray, kind: str, step: Processing, device: str) -> "Tensor | None":
    """Distributions (k, V) on the device; None where they are invalid, which the CPU's code will explain."""
    import torch

    from otmd.tensors import probs_from_logits

    if kind == "logits" and step != Processing(step.temperature):
        try:
            values, kind = step(values), "probs"
        except ValueError:
            return None
    elif kind == "probs" and step != Processing():
        return None
    there = torch.from_numpy(np.ascontiguousarray(values)).to(device, torch.float64)
    return probs_from_logits(there, step.temperature) if kind == "logits" else there


def _tables(target_probs: "Tensor", draft_probs: "Tensor", most: int) -> dict[str, np.ndarray]:
    """Each rate for 1 … ``most`` drafts, shape (k, most), NaN where it is undefined."""
    from otmd.tensors import TensorRatioCurve, greedy_rates, spechub_rate, target_only_rates

    curve = TensorRatioCurve(target_probs, draft_probs, validate=False)
    pair = target_probs, draft_probs
    tables = {
        OPTIMAL: curve.optimal_rates(most),
        "recursive_rejection": curve.recursive_rejection_rates(most),
        "k_sequential": curve.k_sequential_rates(most),
        "target_only": target_only_rates(*pair, most, validate=False),
        "greedy": greedy_rates(*pair, most, validate=False),
        # Hub drafts are two: only the column of n = 2 is read.
        "spechub": spechub_rate(*pair, validate=False)[:, None].expand(-1, max(most, 2)),
    }
    return {name: table.cpu().numpy() for name, table in tables.items()}
