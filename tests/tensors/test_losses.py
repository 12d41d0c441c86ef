"""Losses for drafters: their values against the NumPy side, their gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from strategies import unit
from tensor_pairs import assert_same, edge_cases, model_like, on_each_device

import otmd
from otmd import trees
from otmd.tensors import acceptance_loss, tokens_per_step_loss
from otmd.testing import hostile_names, hostile_pairs

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
RATES = ("optimal", "stratified")
LOSSES = {
    f"{rate} {n}": partial(acceptance_loss, num_drafts=n, rate=rate) for rate in RATES for n in (1, 2, 4)
}
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def pair(rows: int, size: int, seed: int, scale: float = 2.5) -> tuple[torch.Tensor, torch.Tensor]:
    p, q = (torch.from_numpy(x) for x in model_like(rows, size, seed, scale))
    return p, q.log()


# ---------------------------------------------------------------- acceptance


@on_each_device
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("size", [5, 60, 1500])
def test_the_loss_is_minus_the_log_of_the_rate(size: int, n: int, device: str) -> None:
    """α* exactly; on strata the order of pairs is not that of ``Preference``, with one draft both agree."""
    p, q = model_like(6, size, seed=size + n)
    target, logits = torch.from_numpy(p).to(device), torch.from_numpy(q).log().to(device)
    optimal = otmd.optimal_acceptance(p, otmd.WithReplacement(q, n)).rate
    assert_same(acceptance_loss(target, logits, n), -np.log(optimal), 1e-9)
    rate = otmd.acceptance_rate(otmd.Preference(), p, otmd.Stratified(q, n))
    loss = acceptance_loss(target, logits, n, "stratified")
    assert_same(loss, -np.log(rate), 1e-9 if n == 1 else 0.02)


@each_loss
def test_gradients_are_those_of_finite_differences(loss: Loss) -> None:
    p, logits = pair(3, 12, seed=12)
    assert torch.autograd.gradcheck(partial(loss, p), logits.requires_grad_(), atol=1e-6)


def corners() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Pairs at which rates are not differentiable, or masses are 0."""
    listed = edge_cases() | dict(zip(hostile_names(), hostile_pairs(), strict=True))
    return {name: (torch.tensor(unit(p)), torch.tensor(unit(q)).log()) for name, (p, q) in listed.items()}


@each_loss
@pytest.mark.parametrize("corner", corners())
def test_corners_have_finite_losses_and_gradients(corner: str, loss: Loss) -> None:
    p, logits = corners()[corner]
    logits = logits.clone().requires_grad_()
    value = loss(p, logits)
    value.backward()
    assert 0.0 <= value.item() < 709.0
    assert logits.grad.isfinite().all()
    if "equal" in corner or corner == "vocabulary of one":
        assert abs(value.item()) < 1e-12
    assert abs(logits.grad.sum().item()) < 1e-9


def test_hardly_accepted_drafts_have_a_gradient() -> None:
    """At a rate of 1e-30 the logarithm still falls by a step along its gradient."""
    p = torch.tensor([0.5, 0.5, 0, 0], dtype=torch.float64)
    for name, loss in LOSSES.items():
        logits = torch.tensor([0.0, 0.5, 70.0, 70.5], dtype=torch.float64, requires_grad=True)
        loss(p, logits).backward()
        assert logits.grad.isfinite().all()
        assert name == "stratified 4" or logits.grad.abs().max() > 0.1


@each_loss
def test_axes_dtypes_and_the_targets_gradient(loss: Loss) -> None:
    p, logits = pair(6, 30, seed=4)
    expected = loss(p, logits)
    grown = p.view(2, 3, 30).clone().requires_grad_()
    value = loss(grown, logits.view(2, 3, 30).clone().requires_grad_())
    assert_same(value.flatten().detach(), expected.numpy(), 1e-14)
    value.sum().backward()
    assert grown.grad is None
    assert loss(p[:1], logits).shape == (6,)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        half = logits.to(dtype).requires_grad_()
        value = loss(p.to(dtype), half)
        value.sum().backward()
        assert value.dtype == torch.float64
        assert half.grad.dtype == dtype
        assert half.grad.isfinite().all()
        assert_same(value.detach(), expected.numpy(), 0.1)


@each_loss
def test_unchecked_rows_without_a_distribution_have_no_loss(loss: Loss) -> None:
    p, logits = pair(2, 6, seed=1)
    second = torch.tensor([[False], [True]])
    for broken in ((p, logits.masked_fill(second, torch.nan)), (p.masked_fill(second, 2.0), logits)):
        assert loss(*broken, validate=False).isnan().tolist() == [False, True]


# ---------------------------------------------------------------- tokens per step


def expected_tokens(target: trees.TableModel, draft: trees.TableModel, widths: Sequence[int]) -> float:
    """The mean of the loss over all texts, by their probabilities under the target."""
    depth, size = len(widths), len(target(()))
    total = 0.0
    for text in np.ndindex(*(size,) * depth):
        rows = [tuple(text[:i]) for i in range(depth)]
        p, q = (torch.tensor(np.stack([m(row) for row in rows])) for m in (target, draft))
        weight = float(p[range(depth), list(text)].prod())
        total -= weight * float(tokens_per_step_loss(p, q.log(), torch.tensor(text), widths))
    return total


@pytest.mark.parametrize("seed", range(2))
def test_one_path_yields_the_tokens_of_block_verification(seed: int) -> None:
    target, draft = (trees.TableModel.random(vocab_size=3, order=2, rng=seed + s) for s in (0, 50))
    path = trees.IIDPaths(draft, num_paths=1, depth=3)
    exact = trees.tokens_per_step(trees.BlockVerification(), target, path).value
    assert abs(expected_tokens(target, draft, (1, 1, 1)) - exact) < 1e-12


def test_along_a_path_the_running_minimum_counts() -> None:
    p, logits = pair(8, 20, seed=6)
    p, logits = p.view(2, 4, 20), logits.view(2, 4, 20)
    tokens = torch.tensor([[3, 1, 4, 15], [9, 2, 6, 5]])
    ratio = (logits.softmax(-1) / p).gather(-1, tokens[..., None])[..., 0]
    accepted = ratio.cumprod(-1).cummin(-1).values.clamp(max=1.0)
    assert_same(tokens_per_step_loss(p, logits, tokens), -1.0 - accepted.sum(-1).numpy(), 1e-12)


@pytest.mark.parametrize("widths", [(2, 1), (2, 2), (3, 2)])
def test_trees_are_lossless_and_near_the_default_order(widths: tuple[int, ...]) -> None:
    target, draft = (trees.TableModel.random(vocab_size=4, order=2, rng=s) for s in (0, 50))
    tree = trees.TokenTree(draft, widths, otmd.Stratified)
    value = expected_tokens(target, draft, widths)
    default = trees.tokens_per_step(trees.SubtreeVerification(), target, tree).value
    assert abs(value - default) < 0.05
    assert value <= trees.optimal_block_efficiency(target, tree).value + 1e-9


@pytest.mark.parametrize("widths", [(2, 2, 1), *(pytest.param(w, marks=pytest.mark.slow) for w in (1, 4))])
def test_gradients_of_trees(widths: int | Sequence[int]) -> None:
    p, logits = pair(6, 8, seed=2)
    # Drafts of other positions, so that no text is accepted surely.
    p, logits = p.view(2, 3, 8), logits.flip(0).view(2, 3, 8)
    # The tokens that the draft misses most.
    tokens = (logits.softmax(-1) / p).argmin(-1)
    loss = partial(tokens_per_step_loss, p, tokens=tokens, num_drafts=widths)
    assert torch.autograd.gradcheck(loss, logits.requires_grad_(), atol=1e-6)
    before = loss(logits)
    before.sum().backward()
    assert (loss(logits.detach() - 0.01 * logits.grad) < before.detach()).all()


def test_a_token_that_is_never_drafted_ends_a_path() -> None:
    p, logits = pair(3, 9, seed=2)
    p[:, 7] = 0.0
    p /= p.sum(-1, keepdim=True)
    logits[1, 4] = -torch.inf
    logits.requires_grad_()
    loss = tokens_per_step_loss(p, logits, torch.tensor([1, 4, 5]))
    loss.backward()
    first = min(1.0, (logits.exp() / p)[0, 1].item())
    assert abs(loss.item() + 1.0 + first) < 1e-12
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("widths", [1, 2])
@pytest.mark.parametrize("power", [150, 155, 160, 170, 300])
def test_a_score_that_underflows(power: int, widths: int) -> None:
    """A text that the draft prefers is accepted whole, however unlikely it is under the target."""
    rare = 10.0**-power
    p = torch.tensor([[1.0, rare, 0.0], [1.0, rare, 0.0], [0.4, 0.3, 0.3]], dtype=torch.float64)
    logits = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    loss = tokens_per_step_loss(p, logits.requires_grad_(), torch.tensor([1, 1, 0]), widths)
    loss.backward()
    assert loss.item() == pytest.approx(-4.0)
    assert logits.grad.isfinite().all()
    # Without mass in the draft it ends there, even where its score is 0.
    never = torch.where(torch.tensor([[False], [False], [True]]), logits, logits.detach())
    never = never.index_fill(1, torch.tensor([0]), -torch.inf)
    assert tokens_per_step_loss(p, never, torch.tensor([1, 1, 0])).item() == pytest.approx(-3.0)
