"""Rates that need no order of the tokens by p/q: greedy drafts, SpecHub's pairs, target-only."""

from typing import Any

import torch
from torch import Tensor

from otmd.probabilities import validate_count
from otmd.tensors.probabilities import checked_pair


def greedy_rates(
    target_probs: Any, draft_probs: Any, num_drafts: int, validate: bool = True
) -> Tensor:
    """Acceptance rates of the greedy coupling for 1 … n greedy drafts, each of them α*.

    p(Top) + Σ_{y∉Top} min(p(y), q(y)/(1 − q(Top))), Top the n − 1 likeliest tokens, ties to the lowest id
    (Hu et al. 2025, Section 5).

    Parameters
    ----------
    target_probs, draft_probs : torch.Tensor, shape (…, V)
        p and q on one device; leading axes are broadcast.
    num_drafts : int
        n.
    validate : bool
        Raise ValueError for values that are no distribution (logits, say), which waits for the
        device. With False the rates of such a position are NaN.

    Returns
    -------
    torch.Tensor of float64, shape (…, n)
        NaN where fewer tokens have mass than are drafted.

    Raises
    ------
    ValueError
        For wrong shapes, dtypes or devices, ``num_drafts`` < 1, or, with ``validate``, values that
        are no distribution.
    """
    count = validate_count("num_drafts", num_drafts)
    p, rest = _target_and_rest(target_probs, draft_probs, validate)
    certain = torch.zeros((), dtype=torch.float64, device=p.device)
    rates = []
    for drafted in range(count):
        if drafted:
            certain = certain + _take_likeliest(p, rest)
        rates.append((certain + _coupled(p, rest)).clamp(0.0, 1.0))
    return torch.stack(rates, dim=-1)


def spechub_rate(target_probs: Any, draft_probs: Any, validate: bool = True) -> Tensor:
    """Acceptance rate of SpecHub for two drafts of the Hub law, which is α*.

    p(a) + Σ_{x≠a} min(p(x), q(x)/(1 − q(a))), a the likeliest token (Sun et al. 2024).

    Parameters
    ----------
    target_probs, draft_probs : torch.Tensor, shape (…, V)
        p and q on one device; leading axes are broadcast.
    validate : bool
        Raise ValueError for values that are no distribution (logits, say), which waits for the
        device. With False the rates of such a position are NaN.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        NaN where q has a single token of mass.

    Raises
    ------
    ValueError
        For wrong shapes, dtypes or devices; with ``validate`` for values that are no distribution.
    """
    p, rest = _target_and_rest(target_probs, draft_probs, validate)
    return (_take_likeliest(p, rest) + _coupled(p, rest)).clamp(0.0, 1.0)


def target_only_rates(
    target_probs: Any, draft_probs: Any, num_drafts: int, validate: bool = True
) -> Tensor:
    """Acceptance rates of TargetOnly for 1 … n drafts with replacement: Σ p(y)(1 − (1 − q(y))^n).

    Parameters
    ----------
    target_probs, draft_probs : torch.Tensor, shape (…, V)
        p and q on one device; leading axes are broadcast.
    num_drafts : int
        n.
    validate : bool
        Raise ValueError for values that are no distribution (logits, say), which waits for the
        device. With False the rates of such a position are NaN.

    Returns
    -------
    torch.Tensor of float64, shape (…, n)

    Raises
    ------
    ValueError
        For wrong shapes, dtypes or devices, ``num_drafts`` < 1, or, with ``validate``, values that
        are no distribution.
    """
    count = validate_count("num_drafts", num_drafts)
    pair = checked_pair(target_probs, draft_probs, validate)
    p = pair.target_probs
    # Logarithms, because 1 − q forgets a q that is small beside 1.
    log_missed = pair.draft_probs.neg_().log1p_()
    rates = []
    for n in range(1, count + 1):
        drafted = (n * log_missed).expm1_().neg_()
        rates.append(drafted.mul_(p).sum(dim=-1, dtype=torch.float64).clamp(0.0, 1.0))
    return torch.stack(rates, dim=-1)


def _target_and_rest(target_probs: Any, draft_probs: Any, validate: bool) -> tuple[Tensor, Tensor]:
    """p, and a copy of q to take tokens out of, not divided by its sum.

    A division could round two masses to one, and then another token be the likeliest.
    """
    pair = checked_pair(target_probs, draft_probs, validate)
    return pair.target_probs, pair.draft.clone(memory_format=torch.contiguous_format)


def _take_likeliest(p: Tensor, rest: Tensor) -> Tensor:
    """Set the largest of ``rest`` to zero, ties to the lowest id, and return its p in float64."""
    # argmax returns the first of equals; topk promises no order among them.
    chosen = rest.argmax(dim=-1, keepdim=True)
    rest.scatter_(-1, chosen, 0.0)
    return p.gather(-1, chosen)[..., 0].double()


def _coupled(p: Tensor, rest: Tensor) -> Tensor:
    """Σ min(p, rest divided by its sum) in float64; NaN where nothing is left of it."""
    total = rest.sum(dim=-1, keepdim=True, dtype=torch.float64).to(rest.dtype)
    return torch.minimum(p, rest / total).sum(dim=-1, dtype=torch.float64)
