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
        n ≥ 1.
    validate : bool
        As for :class:`TensorRatioCurve`, for errors as well.

    Returns
    -------
    torch.Tensor of float64, shape (…, n)
        NaN where fewer tokens have mass than are drafted.
    """
    count = validate_count("num_drafts", num_drafts)
    pair = checked_pair(target_probs, draft_probs, validate)
    p = pair.target_probs
    # Not divided by its sum, which could round two masses to one, and then another token be the likeliest.
    rest = pair.draft.clone(memory_format=torch.contiguous_format)
    certain = torch.zeros((), dtype=torch.float64, device=p.device)
    rates = []
    for drafted in range(count):
        if drafted:
            # argmax returns the first of equals; topk promises no order among them.
            likeliest = rest.argmax(dim=-1, keepdim=True)
            rest.scatter_(-1, likeliest, 0.0)
            certain = certain + p.gather(-1, likeliest)[..., 0].double()
        total = rest.sum(dim=-1, keepdim=True, dtype=torch.float64).to(rest.dtype)
        coupled = torch.minimum(p, rest / total).sum(dim=-1, dtype=torch.float64)
        rates.append((certain + coupled).clamp(0.0, 1.0))
    return torch.stack(rates, dim=-1)


def spechub_rate(target_probs: Any, draft_probs: Any, validate: bool = True) -> Tensor:
    """Acceptance rate of SpecHub for two drafts of the Hub law, which is α* (Sun et al. 2024).

    It is the rate of two greedy drafts, p(a) + Σ_{x≠a} min(p(x), q(x)/(1 − q(a))), a the likeliest token.
    Parameters and errors are those of :func:`greedy_rates`.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        NaN where q has a single token of mass.
    """
    return greedy_rates(target_probs, draft_probs, 2, validate)[..., 1]


def target_only_rates(
    target_probs: Any, draft_probs: Any, num_drafts: int, validate: bool = True
) -> Tensor:
    """Acceptance rates of TargetOnly for 1 … n drafts with replacement: Σ p(y)(1 − (1 − q(y))^n).

    Parameters and errors are those of :func:`greedy_rates`.

    Returns
    -------
    torch.Tensor of float64, shape (…, n)
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
