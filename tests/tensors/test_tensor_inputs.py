"""Inputs: clear errors for what does not fit, NaN or an error for what is no distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tensor_pairs import assert_same, in_each_dtype, model_like

import otmd
from otmd.tensors import TensorRatioCurve, greedy_rates, probs_from_logits, target_only_rates

P = torch.tensor([0.5, 0.3, 0.2])
Q = torch.tensor([0.2, 0.3, 0.5])
TAKERS: dict[str, Callable[..., object]] = {
    "optimal": lambda p, q, **o: TensorRatioCurve(p, q, **o).optimal_rates(3),
    "recursive": lambda p, q, **o: TensorRatioCurve(p, q, **o).recursive_rejection_rates(3),
    "k_sequential": lambda p, q, **o: TensorRatioCurve(p, q, **o).k_sequential_rates(3),
    "greedy": lambda p, q, **o: greedy_rates(p, q, 3, **o),
    "target only": lambda p, q, **o: target_only_rates(p, q, 3, **o),
}
takers = pytest.mark.parametrize("taker", TAKERS)
BAD_FORM = {
    "an array": (P.numpy(), "got ndarray, expected a torch.Tensor"),
    "whole numbers": (torch.tensor([1, 0, 0]), "got dtype torch.int64"),
    "complex numbers": (P.to(torch.complex64), "got dtype torch.complex64"),
    "no axis": (torch.tensor(1.0), r"got shape \(\), expected \(…, V\)"),
    "no tokens": (torch.zeros(2, 0), r"got shape \(2, 0\)"),
}
BAD_VALUES = {
    "NaN": [0.5, np.nan, 0.5],
    "infinity": [0.5, np.inf, 0.5],
    "negative mass": [0.6, -0.1, 0.5],
    "a sum too small": [0.5, 0.3, 0.1],
    "logits": [3.0, -1.0, 0.5],
    "a sum too large": [0.5, 0.5, 0.5],
    "nothing": [0.0, 0.0, 0.0],
}


@takers
@pytest.mark.parametrize("bad", BAD_FORM)
def test_a_wrong_form_is_named(bad: str, taker: str) -> None:
    value, message = BAD_FORM[bad]
    error = ValueError if message.startswith("got shape") else TypeError
    with pytest.raises(error, match=f"^target_probs: {message}"):
        TAKERS[taker](value, Q)
    with pytest.raises(error, match=f"^draft_probs: {message}"):
        TAKERS[taker](P, value)


@takers
def test_what_does_not_fit_is_named(taker: str) -> None:
    with pytest.raises(ValueError, match=r"^draft_probs: got 2 tokens, expected 3, the vocabulary"):
        TAKERS[taker](P, Q[:2])
    with pytest.raises(ValueError, match=r"^draft_probs: got leading axes \(4,\).*\(2,\)"):
        TAKERS[taker](P.expand(2, 3), Q.expand(4, 3))
    with pytest.raises(ValueError, match=r"^draft_probs: got device meta, expected cpu, that of"):
        TAKERS[taker](P, Q.to("meta"))


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", None])
def test_num_drafts_is_named(count: object) -> None:
    curve = TensorRatioCurve(P, Q)
    calls = [curve.optimal_rates, curve.recursive_rejection_rates, curve.k_sequential_rates]
    calls += [lambda n: greedy_rates(P, Q, n), lambda n: target_only_rates(P, Q, n)]
    for call in calls:
        error = ValueError if type(count) is int else TypeError
        with pytest.raises(error, match=r"^num_drafts: got .*expected a whole number"):
            call(count)  # type: ignore[arg-type]


@takers
@in_each_dtype
@pytest.mark.parametrize("bad", BAD_VALUES)
@pytest.mark.parametrize("side", ["target", "draft"])
def test_no_distribution_is_nan_at_its_index_or_an_error(
    side: str, bad: str, dtype: torch.dtype, taker: str
) -> None:
    good = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]], dtype=dtype)
    broken = good.clone()
    broken[1] = torch.tensor(BAD_VALUES[bad], dtype=dtype)
    q = Q.to(dtype)
    q = q / q.sum()
    pair = (broken, q) if side == "target" else (q, broken)
    right = TAKERS[taker](*((good, q) if side == "target" else (q, good)))
    rates = TAKERS[taker](*pair, validate=False)
    assert isinstance(rates, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    assert torch.equal(rates[0], right[0])
    assert rates[1].isnan().all()
    message = rf"^{side}_probs: got a row at index \(1,\) that sums to .*, expected finite numbers ≥ 0"
    with pytest.raises(ValueError, match=message):
        TAKERS[taker](*pair)


def test_a_sum_within_rounding_is_divided_out() -> None:
    p, q = (x.astype(np.float32) * np.float32(1.0001) for x in model_like(2, 300, 4))
    with pytest.raises(ValueError, match=r"sums to 1\.000.*expected .* 1 within 1\.5e-08"):
        TensorRatioCurve(torch.from_numpy(p).double(), torch.from_numpy(q).double())
    rates = TensorRatioCurve(torch.from_numpy(p), torch.from_numpy(q)).optimal_rates(3)
    assert_same(rates, otmd.RatioCurve(p, q).optimal_rates(3), 1e-6)


# ---------------------------------------------------------------- logits

LOGITS = np.array([[1.0, 3.0, 3.0, -2.0], [-np.inf, 80.0, -90.0, 79.5], [0.0, 0.0, 0.0, 0.0]])


@in_each_dtype
@pytest.mark.parametrize("temperature", [0, 0.0, 5e-324, 1e-320, 1e-46, 1e-39, 1e-6, 0.3, 1.0, 2, 1e6])
def test_probabilities_are_those_of_numpy(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.from_numpy(LOGITS).to(dtype)
    probs = probs_from_logits(logits, temperature)
    assert probs.dtype == dtype
    expected = otmd.probs_from_logits(LOGITS, temperature)
    assert_same(probs, expected, 1e-6 if dtype == torch.float32 else 1e-15)
    assert torch.equal(logits, torch.from_numpy(LOGITS).to(dtype))


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_bad_logits_are_no_distribution(bad: list[float], temperature: float) -> None:
    p = probs_from_logits(torch.tensor([bad, [0.0, 1.0]]), temperature)
    assert p[0].isnan().any()
    assert not p[1].isnan().any()
    rates = TensorRatioCurve(p, torch.tensor([0.5, 0.5]), validate=False).optimal_rates(1)
    assert rates[:, 0].isnan().tolist() == [True, False]


def test_bad_arguments_of_logits_are_named() -> None:
    for bad in (-1.0, np.nan, np.inf, "1", None):
        error = ValueError if isinstance(bad, float) else TypeError
        with pytest.raises(error, match=r"^temperature: got"):
            probs_from_logits(P, bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^logits: got dtype"):
        probs_from_logits(torch.tensor([1, 2]))
