"""Distributions checked and scaled: against sums of fractions, one row at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import otmd


def rows(dtype: type) -> np.ndarray:
    values = np.full((3, 2048), 1 / 2048, dtype)
    values[:, ::2] *= dtype(1.5)
    values[:, 1::2] *= dtype(0.5)
    return values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("token", [0, 1023, 1024, 2047])
@pytest.mark.parametrize(
    "change", [0.0, 1e-5, -1e-5, 0.5, -0.001, np.nan, np.inf, -np.inf, 1e-16], ids=str
)
def test_what_is_accepted_scaled_and_refused(
    dtype: type, row: int, token: int, change: float
) -> None:
    values = rows(dtype)
    values[row, token] += dtype(change)
    tolerance = float(np.sqrt(np.finfo(dtype).eps))
    valid = all(np.isfinite(own).all() and own.min() >= 0 for own in values)
    totals = [float(sum(map(Fraction, own))) for own in values.tolist()] if valid else []
    if not valid or max(abs(total - 1) for total in totals) > tolerance:
        with pytest.raises(ValueError, match=r"^p: got"):
            otmd.validate_probs("p", values)
        return
    found = otmd.validate_probs("p", values)
    for own, total, expected in zip(found, totals, values.astype(np.float64), strict=True):
        scale = 1.0 if abs(total - 1) < 1.4e-14 else total
        np.testing.assert_allclose(own, wanted / scale, rtol=1e-14)


def test_no_rows() -> None:
    assert otmd.validate_probs("p", np.empty((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_of_any_float_dtype(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([0.5, 0.25, 0.25], dtype=getattr(torch, dtype), requires_grad=True)
    assert otmd.validate_probs("p", tensor).tolist() == [0.5, 0.25, 0.25]


def test_a_tensor_in_bfloat16_may_be_off_by_its_own_rounding() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    peaked = torch.softmax(6 * torch.randn((20, 32_000), generator=generator), -1).bfloat16()
    assert (peaked.double().sum(-1) - 1).abs().max() > 3.5e-4
    probs = otmd.validate_probs("p", peaked)
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-13)
    with pytest.raises(ValueError, match=r"sums to 1\.1.* within 8\.8e-02.* dtype torch\.bfloat16"):
        otmd.validate_probs("p", torch.tensor([0.5, 0.6], dtype=torch.bfloat16))
