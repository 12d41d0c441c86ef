"""Inputs: clear errors for what does not fit, NaN or an error for what is no distribution."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from tensor_pairs import assert_same, in_each_dtype, model_like

import otmd
from otmd.tensors import (
    TensorRatioCurve,
    acceptance_loss,
    draft_level,
    greedy_rates,
    probs_from_logits,
    target_only_rates,
    tokens_per_step_loss,
    top_tokens,
    verify,
)

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
BAD_FORM = [
    (P.numpy(), TypeError, "ndarray, expected a torch.Tensor"),
    (torch.tensor([1, 0, 0]), TypeError, "dtype torch.int64"),
    (P.to(torch.complex64), TypeError, "dtype torch.complex64"),
    (torch.tensor(1.0), ValueError, r"shape \(\), expected \(…, V\)"),
    (torch.zeros(2, 0), ValueError, r"shape \(2, 0\)"),
]
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


# ---------------------------------------------------------------- refusals

ROWS, LOG_ROWS = torch.stack([P, Q]), torch.stack([Q, P]).log()
NO_LOGIT = LOG_ROWS.index_fill(0, torch.tensor([1]), torch.nan)
TOP = top_tokens(torch.full((4, 1, 3), 1 / 3), 3)
REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    # Of rates and losses, by the checks that they share.
    *((lambda bad=bad: TensorRatioCurve(bad, Q), error, f"^target_probs: got {message}")
      for bad, error, message in BAD_FORM),
    *((lambda bad=bad: TensorRatioCurve(P, bad), error, f"^draft_probs: got {message}")
      for bad, error, message in BAD_FORM),
    *((lambda take=take: take(P, Q[:2]), ValueError, "^draft_probs: got 2 tokens, expected 3")
      for take in TAKERS.values()),
    (lambda: greedy_rates(P.expand(2, 3), Q.expand(4, 3), 3), ValueError,
     r"^draft_probs: got leading axes \(4,\).*\(2,\)"),
    (lambda: greedy_rates(P, Q.to("meta"), 3), ValueError, "^draft_probs: got device meta, expected cpu"),
    *((lambda call=call, n=n: call(n), ValueError if n == 0 else TypeError, "^num_drafts: got .*whole number")
      for n in (0, 1.5, True, "2", None)
      for call in (
          TensorRatioCurve(P, Q).optimal_rates, TensorRatioCurve(P, Q).recursive_rejection_rates,
          TensorRatioCurve(P, Q).k_sequential_rates, partial(greedy_rates, P, Q),
          partial(target_only_rates, P, Q), partial(acceptance_loss, P, Q),
      )),
    (lambda: acceptance_loss(ROWS, NO_LOGIT), ValueError, "^draft_logits: got a row with NaN"),
    (lambda: acceptance_loss(ROWS + 1.0, LOG_ROWS), ValueError, "^target_probs: got a row"),
    (lambda: acceptance_loss(ROWS, LOG_ROWS[:, :2]), ValueError, "^draft_logits: got 2 tokens"),
    (lambda: acceptance_loss(ROWS, LOG_ROWS, 2, "best"), ValueError, "^rate: got 'best'"),  # type: ignore[arg-type]
    (lambda: tokens_per_step_loss(ROWS, NO_LOGIT, torch.tensor([0, 1])), ValueError, "^draft_logits: got"),
    (lambda: tokens_per_step_loss(ROWS, LOG_ROWS, torch.tensor([0, 3])), ValueError, "^tokens: got a token"),
    (lambda: tokens_per_step_loss(ROWS, LOG_ROWS, torch.tensor([0])), ValueError, "^tokens: got torch.int64"),
    (lambda: tokens_per_step_loss(ROWS, LOG_ROWS, torch.tensor([0, 2]), (2, 2, 2)), ValueError,
     "^num_drafts: got 3 numbers"),
    (lambda: tokens_per_step_loss(P, Q.log(), torch.tensor(0)), ValueError, r"^target_probs: got shape"),
    *((lambda bad=bad: probs_from_logits(P, bad), error, "^temperature: got")
      for bad, error in ((-1.0, ValueError), (np.nan, ValueError), ("1", TypeError), (None, TypeError))),
    (lambda: probs_from_logits(torch.tensor([1, 2])), TypeError, "^logits: got dtype"),
    # Of the file to copy.
    (lambda: draft_level(*TOP, torch.ones((4, 1), dtype=torch.int64)), ValueError, "^quota: got None"),
    (lambda: draft_level(*TOP, 0), ValueError, "^num_drafts, quota: got a level of 0 drafts"),
    *((lambda shape=shape: draft_level(*TOP, 2, uniforms=torch.rand(shape)), ValueError,
       r"^uniforms: got shape \(.*, expected \(4, 2\)$") for shape in ((4, 1), (1, 2), (2,))),
    (lambda: verify(torch.ones(4, 3), draft_level(*TOP, 2), torch.rand(4, 1)), ValueError,
     r"^uniforms: got shape \(4, 1\), expected \(4, 2\)$"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
