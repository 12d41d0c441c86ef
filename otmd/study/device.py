"""Rates in closed form on a device of torch, for many positions at once."""

from typing import TYPE_CHECKING

import numpy as np

from otmd.probabilities import Processing, wrong
from otmd.registry import LAWS
from otmd.study.rows import Key, Rates, Settings, process, rate_columns, uniform_law

if TYPE_CHECKING:
    from torch import Tensor

# The table in :func:`_tables` of each closed form on tensors, by the form of the law and the reported name of
# the verifier. SpecHub's rate is that of two greedy drafts.
CLOSED_FORMS = {
    ("single", "MaximalCoupling"): "recursive rejection",
    ("single", "RecursiveRejection"): "recursive rejection",
    ("single", "KSequential"): "K-SEQ",
    ("single", "TargetOnly"): "target only",
    ("greedy", "GreedyCoupling"): "greedy",
    ("greedy", "SpecHub"): "greedy",
}


def check_device(device: str) -> None:
    """Raise ValueError unless torch can compute in float64 on this device."""
    import torch

    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        expected = f"one of torch's with float64, such as cpu or cuda ({reason})"
        raise wrong("device", repr(device), expected) from error


def closed_forms(settings: Settings) -> dict[Key, str]:
    """The rows of a position that have a closed form on tensors, and its name in :func:`_tables`."""
    forms = {entry.load(): entry.tensor_form for entry in LAWS.values()}
    rows = {}
    for (name, n), (law, pairs) in settings.served.items():
        structure = uniform_law(law, n).position_structure
        for label, verifier in pairs:
            form = forms.get(law, ""), verifier.reported_name(structure)
            # A class that derives from a verifier of otmd's may have other rates.
            if form in CLOSED_FORMS and type(verifier).__module__.startswith("otmd."):
                rows[name, n, label] = CLOSED_FORMS[form]
    return rows


def device_rates(
    settings: Settings,
    target: np.ndarray,
    draft: np.ndarray,
    kind: str,
    step: Processing,
    device: str,
) -> list[dict[Key, Rates]]:
    """Closed-form rates of k positions on a device.

    Undefined and invalid ones are left out, so that the CPU's code reports the reason.
    """
    forms = closed_forms(settings)
    rates: list[dict[Key, Rates]] = [{} for _ in target]
    if not forms:
        return rates
    try:
        p, q = (_on_device(values, kind, step, device) for values in (target, draft))
    except ValueError:
        return rates
    tables = _tables(p, q, max(n for _, n, _ in forms))
    for key, name in forms.items():
        n = key[1]
        optimal = tables["greedy" if name == "greedy" else "optimal"][:, n - 1]
        for i, (rate, best) in enumerate(zip(tables[name][:, n - 1], optimal, strict=True)):
            if np.isfinite(rate) and np.isfinite(best):
                rates[i][key] = rate_columns(float(rate), float(rate), float(best), settings.tol)
    return rates


def _on_device(values: np.ndarray, kind: str, step: Processing, device: str) -> "Tensor":
    """Distributions (k, V) on the device, NaN for invalid logits; top-k, top-p, min-p are applied here."""
    import torch

    from otmd.tensors import probs_from_logits

    if kind == "logits" and step == Processing(step.temperature):
        logits = torch.from_numpy(np.ascontiguousarray(values)).to(device, torch.float64)
        return probs_from_logits(logits, step.temperature)
    return torch.from_numpy(process("values", values, kind, step)).to(device)


def _tables(target_probs: "Tensor", draft_probs: "Tensor", most: int) -> dict[str, np.ndarray]:
    """Tables of rates for 1 … ``most`` drafts, shape (k, most), NaN where a rate is undefined."""
    from otmd.tensors import TensorRatioCurve, greedy_rates, target_only_rates

    curve = TensorRatioCurve(target_probs, draft_probs, validate=False)
    tables = {
        "optimal": curve.optimal_rates(most),
        "recursive rejection": curve.recursive_rejection_rates(most),
        "K-SEQ": curve.k_sequential_rates(most),
        "target only": target_only_rates(target_probs, draft_probs, most, validate=False),
        "greedy": greedy_rates(target_probs, draft_probs, most, validate=False),
    }
    return {name: table.cpu().numpy() for name, table in tables.items()}
