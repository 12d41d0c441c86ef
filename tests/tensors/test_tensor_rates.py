"""Every rate on tensors against the NumPy side, on random, hostile and large inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strategies import unit
from tensor_pairs import (
    COUNT,
    assert_same,
    batches,
    edge_cases,
    in_each_dtype,
    model_like,
    on_device,
    on_each_device,
    reference,
)

import otmd
from otmd.tensors import TensorRatioCurve, greedy_rates, target_only_rates

VOCAB = 151_936


def all_rates(p: torch.Tensor, q: torch.Tensor, count: int = COUNT) -> dict[str, torch.Tensor]:
    curve = TensorRatioCurve(p, q, validate=False)
    return {
        "optimal": curve.optimal_rates(count),
        "recursive": curve.recursive_rejection_rates(count),
        "k_sequential": curve.k_sequential_rates(count),
        "target_only": target_only_rates(p, q, count, validate=False),
        "greedy": greedy_rates(p, q, count, validate=False),
        "hub": greedy_rates(p, q, 2, validate=False)[..., 1],
    }


def compare(
    tensors: tuple[torch.Tensor, ...],
    arrays: tuple[np.ndarray, ...],
    count: int,
    tolerance: float = 1e-12,
) -> None:
    expected = reference(*arrays, count)
    for name, rates in all_rates(*tensors, count).items():
        assert rates.dtype == torch.float64
        assert rates.device == tensors[0].device
        assert_same(rates, expected[name][..., 1] if name == "hub" else expected[name], tolerance, name)


@on_each_device
@in_each_dtype
def test_hostile_instances(dtype: torch.dtype, device: str) -> None:
    for p, q in batches(150, seed=17):
        compare(*on_device(p, q, dtype, device), COUNT)


@on_each_device
@in_each_dtype
@pytest.mark.parametrize("case", edge_cases())
def test_edges(case: str, dtype: torch.dtype, device: str) -> None:
    compare(*on_device(*edge_cases()[case], dtype, device), COUNT)


@on_each_device
@in_each_dtype
@pytest.mark.parametrize("scale", [0.0, 2.5])
def test_a_language_models_vocabulary(scale: float, dtype: torch.dtype, device: str) -> None:
    compare(*on_device(*model_like(2, VOCAB, 3, scale), dtype, device), COUNT)


@on_each_device
def test_masses_are_added_without_drift(device: str) -> None:
    """Equal masses, whose rounding errors have one sign: one long chain is off by 1e-12."""
    (p, q), arrays = on_device(*model_like(1, VOCAB, 11, 0.0), torch.float64, device)
    rates = TensorRatioCurve(p, q).recursive_rejection_rates(8)
    assert_same(rates, otmd.RatioCurve(*arrays).recursive_rejection_rates(8), 1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_its_values_in_float32(dtype: torch.dtype) -> None:
    p, q = (torch.from_numpy(x).to(dtype) for x in model_like(4, 60, 9))
    compare((p, q), (unit(p.double().numpy()), unit(q.double().numpy())), COUNT, 1e-6)


@pytest.mark.parametrize(
    ("target_shape", "draft_shape"),
    [((), ()), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((0,), ()), ((2, 0), (0,))],
)
def test_leading_axes(target_shape: tuple[int, ...], draft_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    p, q = (torch.from_numpy(rng.dirichlet(np.ones(6), s)) for s in (target_shape, draft_shape))
    wide, narrow = torch.broadcast_tensors(p, q)
    compare((p, q), (wide.numpy(), narrow.numpy()), 3)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    q = torch.full((3000,), 1 / 3000, dtype=torch.float64)
    p = torch.zeros(3000, dtype=torch.float64)
    p[[0, 1]] = 0.5
    assert_same(greedy_rates(p, q, 3), np.array([2 / 3000, 0.5 + 1 / 2999, 1.0]), 1e-12)


def test_masses_that_a_division_would_round_to_one_are_no_ties() -> None:
    """Divided by their sum the first two are the same float32, and the second is the most likely."""
    first = np.float32(0.24998)
    q = np.array([first, np.nextafter(first, np.float32(1)), 0.24997, 0.24997], np.float32)
    while len(set((q / np.float32(q.sum(dtype=np.float64)))[:2])) == 2:
        q[:2] = np.nextafter(q[:2], np.float32(1))
    p = torch.tensor([0.0, 0.9, 0.1, 0.0])
    assert_same(greedy_rates(p, torch.from_numpy(q), 2), np.array([1 / 4 + 0.1, 1.0]), 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_is_not_waited_for() -> None:
    (p, q), _ = on_device(*model_like(4, 1000, 3), torch.float32, "cuda")
    all_rates(p, q)
    torch.cuda.set_sync_debug_mode("error")
    try:
        all_rates(p, q)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_memory_at_a_language_models_vocabulary() -> None:
    torch.manual_seed(0)
    p, q = torch.rand((2, 128, VOCAB), device="cuda").softmax(dim=-1)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    all_rates(p, q)
    assert torch.cuda.max_memory_allocated() - held < 4 * 2**30
