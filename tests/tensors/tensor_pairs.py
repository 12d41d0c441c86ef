"""Pairs of distributions for the rates on tensors, and the rates of the NumPy side."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
import torch

import otmd

COUNT = 4
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)
in_each_dtype = pytest.mark.parametrize("dtype", list(NUMPY), ids=["float32", "float64"])

Array = np.ndarray


def batches(count: int, seed: int) -> list[tuple[Array, Array]]:
    """The hostile instances of the whole suite, those of one vocabulary size as one batch."""
    grouped: dict[int, list[tuple[Array, Array]]] = {}
    for instance in strategies.instances(count, seed):
        pair = strategies.unit(instance.target_probs), strategies.unit(instance.draft_probs)
        grouped.setdefault(instance.vocab_size, []).append(pair)
    return [(np.stack(p), np.stack(q)) for p, q in (zip(*g, strict=True) for g in grouped.values())]


def edge_cases() -> dict[str, tuple[Array, Array]]:
    """Cases that the instances do not hold: subnormal masses, and ratios beyond the range of a float."""
    flat, eye = np.full(4, 0.25), np.eye(4)
    return {
        "subnormal draft": (flat, np.array([1.0, 5e-324, 1e-323, 1.5e-323])),
        "subnormal draft in float32": (flat, np.array([1.0, 1e-45, 3e-45, 1e-40])),
        "subnormal target": (np.array([1e-40, 5e-324, 1.0, 0.0]), flat),
        "subnormal both": (np.array([1.0, 1e-310, 1e-41, 0]), np.array([1e-310, 1.0, 1e-41, 0])),
        "ratio overflows": (np.array([0.5, 0.5, 0, 0]), np.array([1.0, 1e-310, 1e-41, 0])),
        "one-hot draft, hit": (np.array([0.1, 0.2, 0.3, 0.4]), eye[3]),
        "one-hot draft, missed": (np.array([0.5, 0.5, 0, 0]), eye[3]),
        "vocabulary of one": (np.ones(1), np.ones(1)),
        "one draft token less than drafts": (flat, np.array([0.5, 0.25, 0.25, 0])),
    }


def model_like(rows: int, vocab_size: int, seed: int, scale: float = 2.5) -> tuple[Array, Array]:
    return strategies.close_pair((rows, vocab_size), 0.7, seed, scale)


def reference(p: Array, q: Array, count: int = COUNT) -> dict[str, Array]:
    """Rates (…, n) by the NumPy side, NaN where a law is undefined."""
    names = ("optimal", "recursive", "k_sequential", "target_only", "greedy", "hub")
    rates = {name: np.full((*p.shape[:-1], count), np.nan) for name in names}
    for index in np.ndindex(p.shape[:-1]):
        for n in range(1, count + 1):
            for name, rate in rates_of_one(p[index], q[index], n).items():
                rates[name][(*index, n - 1)] = rate
    return rates


def rates_of_one(p: Array, q: Array, n: int) -> dict[str, float]:
    drawn_again = otmd.WithReplacement(q, n)
    rates = {
        "optimal": otmd.optimal_acceptance(p, drawn_again).rate,
        "recursive": otmd.acceptance_rate(otmd.RecursiveRejection(), p, drawn_again),
        "k_sequential": otmd.acceptance_rate(otmd.KSequential(), p, drawn_again),
        "target_only": otmd.acceptance_rate(otmd.TargetOnly(), p, drawn_again),
    }
    if np.count_nonzero(q) >= n:
        rates["greedy"] = otmd.acceptance_rate(otmd.Preference(), p, otmd.Greedy(q, n))
    if n == 2 and np.count_nonzero(q) >= 2:
        rates["hub"] = otmd.acceptance_rate(otmd.SpecHub(), p, otmd.Hub(q))
    return {name: float(rate) for name, rate in rates.items()}


def on_device(
    p: Array, q: Array, dtype: torch.dtype, device: str
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[Array, Array]]:
    """The pair as tensors, and as the arrays with the very same values."""
    arrays = np.asarray(p, NUMPY[dtype]), np.asarray(q, NUMPY[dtype])
    tensors = torch.from_numpy(arrays[0]).to(device), torch.from_numpy(arrays[1]).to(device)
    return tensors, arrays


def assert_same(rates: torch.Tensor, expected: Array, tolerance: float, name: str = "") -> None:
    np.testing.assert_allclose(rates.cpu().numpy(), expected, rtol=0, atol=tolerance, err_msg=name)
