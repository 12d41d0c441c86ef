"""Losses that train a drafter for the rule that verifies it, with gradients in the draft's logits.

The target's distributions are constants. Every rate is piecewise differentiable in q: a piece is given by the
tokens beyond the optimal cut, the strata, or the order in which tokens are accepted. Gradients hold these
fixed, so they are exact inside a piece. The cut of α* is a minimiser: where it is unique, holding it fixed is
exact (Danskin's theorem); otherwise the gradient is that of one of the pieces. A rate on strata may jump
where a token changes its stratum; the gradient does not include the jump.

Where drafts are hardly ever accepted, total variation is flat, and −log of a rate is not. For one draft this
is −log Σ min(p, q), a loss of Samarin et al. (2026, arXiv 2602.23881); :func:`hybrid_loss` is their other
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from otmd.probabilities import validate_count, validate_positive, wrong
from otmd.tensors.levels import check_values
from otmd.tensors.preference import (
    accept_by_runs,
    accept_from_strata,
    accepted_fully,
    quotient,
)
from otmd.tensors.probabilities import check_tensors, checked_probs
from otmd.tensors.strata import stratify

Rate = Literal["optimal", "preference", "stratified"]
# The least rate whose logarithm is taken: where no draft can be accepted, the loss is 708 nats.
_LEAST = torch.finfo(torch.float64).tiny


def acceptance_loss(
    target_probs: Any,
    draft_logits: Any,
    num_drafts: int = 1,
    rate: Rate = "optimal",
    validate: bool = True,
) -> Tensor:
    """−log of the acceptance rate of n drafts, in nats.

    Parameters
    ----------
    target_probs : torch.Tensor, shape (…, V)
        p; float16, bfloat16, float32 or float64. It gets no gradient.
    draft_logits : torch.Tensor, shape (…, V)
        Logits of q on the same device; −inf marks a token that is never drafted. Leading axes are broadcast.
    num_drafts : int
        n. With one draft all rates are Σ min(p, q).
    rate : {"optimal", "preference", "stratified"}
        α* of drafts with replacement, 1 + min_H p(H) − q(H)^n; the rate of :class:`TensorPreference` with
        replacement; or its rate on the strata of :func:`stratify`.
    validate : bool
        Whether values that are no distribution or no logits are a ValueError; the host then waits for the
        device. If not, their loss is NaN.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        At most 708. It is 708, with gradient 0, where no draft can be accepted.

    Raises
    ------
    ValueError
        For wrong shapes, n < 1, another ``rate``, and, with ``validate``, values as above or strata of fewer
        than n tokens with mass; TypeError for another dtype.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import acceptance_loss
    >>> logits = torch.tensor([0.25, 0.25, 0.5]).log().requires_grad_()
    >>> loss = acceptance_loss(torch.tensor([0.5, 0.25, 0.25]), logits, num_drafts=2)
    >>> loss.exp()
    tensor(1.0667, dtype=torch.float64, grad_fn=<ExpBackward0>)
    >>> loss.backward()
    >>> logits.grad
    tensor([-0.3000,  0.1000,  0.2000])
    """
    count = validate_count("num_drafts", num_drafts)
    if rate not in _RATES:
        raise wrong("rate", repr(rate), f"one of {', '.join(map(repr, _RATES))}")
    p, log_q = _checked_pair(target_probs, draft_logits, validate)
    return -_RATES[rate](p, log_q, count, validate).clamp(_LEAST, 1.0).log()


def total_variation_loss(target_probs: Any, draft_logits: Any, validate: bool = True) -> Tensor:
    """Total variation of p and q, which is 1 − α of one draft.

    Parameters
    ----------
    target_probs : torch.Tensor, shape (…, V)
        p. It gets no gradient.
    draft_logits : torch.Tensor, shape (…, V)
        Logits of q.
    validate : bool
        As for :func:`acceptance_loss`.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        From 0 to 1.

    Raises
    ------
    ValueError, TypeError
        For tensors that :func:`acceptance_loss` refuses.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import total_variation_loss
    >>> logits = torch.tensor([0.25, 0.25, 0.5]).log()
    >>> total_variation_loss(torch.tensor([0.5, 0.25, 0.25]), logits)
    tensor(0.2500, dtype=torch.float64)
    """
    p, log_q = _checked_pair(target_probs, draft_logits, validate)
    return (p - log_q.exp()).clamp(min=0.0).sum(dim=-1)


def hybrid_loss(
    target_probs: Any, draft_logits: Any, decay: float = 3.0, validate: bool = True
) -> Tensor:
    """Mixture of KL divergence and total variation, which moves from one to the other as q nears p.

    With α = Σ min(p, q) and the weight λ = exp(−decay · α), it is λ KL(p ‖ q) + (1 − λ) (1 − α). Gradients
    hold λ fixed. KL has a gradient where hardly any draft is accepted, and total variation is 1 − α itself.
    A loss of Samarin et al. (2026, arXiv 2602.23881). The formula was read in code that cites them, pull
    request 673 of vllm-project/speculators, where each position has a weight of its own.

    Parameters
    ----------
    target_probs : torch.Tensor, shape (…, V)
        p. It gets no gradient.
    draft_logits : torch.Tensor, shape (…, V)
        Logits of q.
    decay : float
        Positive; the larger, the sooner total variation counts.
    validate : bool
        As for :func:`acceptance_loss`.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        In nats; inf where the target has a token that is never drafted.

    Raises
    ------
    ValueError, TypeError
        For a ``decay`` that is no positive number, and for tensors that :func:`acceptance_loss` refuses.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import hybrid_loss
    >>> logits = torch.tensor([0.25, 0.25, 0.5]).log()
    >>> hybrid_loss(torch.tensor([0.5, 0.25, 0.25]), logits)
    tensor(0.2419, dtype=torch.float64)
    """
    decay = validate_positive("decay", decay)
    p, log_q = _checked_pair(target_probs, draft_logits, validate)
    variation = (p - log_q.exp()).clamp(min=0.0).sum(dim=-1)
    divergence = torch.where(p > 0.0, p * (p.log() - log_q), 0.0 * p).sum(dim=-1)
    weight = torch.exp(decay * (variation.detach() - 1.0))
    return weight * divergence + (1.0 - weight) * variation


def tokens_per_step_loss(
    target_probs: Any,
    draft_logits: Any,
    tokens: Tensor,
    num_drafts: int | Sequence[int] = 1,
    validate: bool = True,
) -> Tensor:
    """Negative tokens per step of a draft tree, estimated along texts that the target sampled.

    The tree has a node for each draft, and the same number of drafts after all nodes of a level. Along a text
    y, with the score w of a node, which is 1 at the root, let a and c be the accepted masses and acceptance
    probabilities of the preference rule for the target w p. The text's next node has the score c(y). The
    probability that a text's first k tokens are accepted is the product of a(y)/(w p(y)) over k levels; the
    tokens per step are 1 and the sum of these. This is :class:`otmd.trees.SubtreeVerification`, with the
    order of tokens of :class:`TensorPreference`. With one draft per node it is block verification, where the
    product is min(1, min_{i ≤ k} q(y_1 … y_i)/p(y_1 … y_i)) (Sun et al. 2025). The mean over texts that the
    target sampled is unbiased, since the drafts of a node depend on its prefix alone.

    Parameters
    ----------
    target_probs : torch.Tensor, shape (…, L, V)
        p before each of the L tokens of a text. It gets no gradient.
    draft_logits : torch.Tensor, shape (…, L, V)
        Logits of q there.
    tokens : torch.Tensor of int64, shape (…, L)
        The texts, of tokens with p > 0; the leading axes are those of p and q, broadcast.
    num_drafts : int or sequence of int
        The number of drafts after each node, or after those of each of the L levels, drawn from strata.
    validate : bool
        As for :func:`acceptance_loss`.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        From −1 − L to −1.

    Raises
    ------
    ValueError, TypeError
        As for :func:`acceptance_loss`; for a ``num_drafts`` of another length than L and, with ``validate``,
        for a token with p = 0.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import tokens_per_step_loss
    >>> p = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    >>> logits = torch.tensor([[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]).log()
    >>> tokens_per_step_loss(p, logits, torch.tensor([0, 2]))
    tensor(-2.0000, dtype=torch.float64)
    """
    p, log_q = _checked_pair(target_probs, draft_logits, validate)
    counts = _checked_text(p, tokens, num_drafts, validate)
    score = reached = torch.ones_like(p[..., 0, 0])
    per_step = score.clone()
    for level, count in enumerate(counts):
        token = tokens[..., level, None]
        target = score[..., None] * p[..., level, :]
        number, inclusion = _strata(log_q[..., level, :], count, validate)
        rule = accept_from_strata(target, inclusion, number, count)
        mass, accepted, drawn = (
            masses.gather(-1, token)[..., 0] for masses in (target, rule.accepted, inclusion)
        )
        # A score may underflow; a drafted token is then accepted in full. Written so that NaN stays.
        in_full = accepted >= mass
        share = quotient(accepted, torch.where(in_full, 1.0, mass))
        reached = reached * torch.where(in_full, (drawn > 0).double(), share)
        score = rule.accept_prob.gather(-1, token)[..., 0]
        per_step = per_step + reached
    return -per_step


# ---------------------------------------------------------------- rates (…) of p and log q (…, V)


def _optimal_rate(p: Tensor, log_q: Tensor, count: int, validate: bool) -> Tensor:
    """p(H) + 1 − q(H)^n, H the tokens with p/q below the optimal cut."""
    q = log_q.exp()
    with torch.no_grad():
        ratio = torch.where(q > 0, p / q, torch.inf)
        descending, order = ratio.sort(dim=-1, descending=True)
        target_above, draft_above = (x.gather(-1, order).cumsum(dim=-1) for x in (p, q))
        kept = target_above + (1.0 - draft_above).clamp(min=0.0) ** count
        above = ratio >= descending.gather(-1, kept.argmax(dim=-1, keepdim=True))
    below_cut = torch.where(above, 0.0, p).sum(dim=-1)
    drafted_above = torch.where(above, q, 0.0).sum(dim=-1)
    return below_cut + accepted_fully(torch.ones_like(drafted_above), drafted_above, count)


def _preference_rate(p: Tensor, log_q: Tensor, count: int, validate: bool) -> Tensor:
    q = log_q.exp()
    ratio = torch.where(q > 0, p / q, -1.0).detach()
    order = ratio.argsort(dim=-1, descending=True, stable=True)
    accepted, _, left = accept_by_runs(p.gather(-1, order), q.gather(-1, order), count)
    # The rate is 1 − left too, which would forget a small rate.
    return torch.where(left.isnan(), left, accepted.sum(dim=-1))


def _stratified_rate(p: Tensor, log_q: Tensor, count: int, validate: bool) -> Tensor:
    number, inclusion = _strata(log_q, count, validate)
    return accept_from_strata(p, inclusion, number, count).accepted.sum(dim=-1)


_RATES = {
    "optimal": _optimal_rate,
    "preference": _preference_rate,
    "stratified": _stratified_rate,
}


def _strata(log_q: Tensor, count: int, validate: bool) -> tuple[Tensor, Tensor]:
    """The stratum of each token (…, V), and q within its stratum, with a gradient."""
    strata = stratify(log_q.exp(), count, validate=validate)
    number = strata.number
    largest = log_q.new_full((*log_q.shape[:-1], count), -torch.inf)
    largest = largest.scatter_reduce(-1, number, log_q.detach(), "amax").gather(-1, number)
    weight = (log_q - largest).exp()
    total = weight.new_zeros((*weight.shape[:-1], count)).scatter_add(-1, number, weight)
    inclusion = weight / total.gather(-1, number)
    return number, torch.where(strata.inclusion.isnan(), torch.nan, inclusion)


# ---------------------------------------------------------------- checks


def _checked_pair(target_probs: Any, draft_logits: Any, validate: bool) -> tuple[Tensor, Tensor]:
    """Tensors p and log q (…, V) in float64, broadcast; log q has a gradient."""
    check_tensors(target_probs, draft_logits, "draft_logits")
    p = checked_probs("target_probs", target_probs, validate)
    log_q = torch.log_softmax(draft_logits.double(), dim=-1)
    if validate and bool(log_q.isnan().any()):
        expected = "logits below inf, a finite one in each row"
        raise wrong("draft_logits", "a row with NaN or inf, or without a finite logit", expected)
    p, log_q = torch.broadcast_tensors(p, log_q)
    return p, log_q


def _checked_text(
    p: Tensor, tokens: Tensor, num_drafts: int | Sequence[int], validate: bool
) -> list[int]:
    """The number of drafts after the nodes of each level."""
    if p.ndim < 2:
        raise wrong("target_probs", f"shape {tuple(p.shape)}", "(…, L, V)")
    check_values("tokens", tokens, torch.int64, tuple(p.shape[:-1]), p.device)
    length = p.shape[-2]
    counts = list(num_drafts) if isinstance(num_drafts, Sequence) else [num_drafts] * length
    if len(counts) != length:
        raise wrong("num_drafts", f"{len(counts)} numbers", f"{length}, the length of the texts")
    if validate:
        inside = (tokens >= 0) & (tokens < p.shape[-1])
        drawn = p.gather(-1, tokens.clamp(0, p.shape[-1] - 1)[..., None])[..., 0]
        if not bool((inside & (drawn > 0)).all()):
            raise wrong("tokens", "a token that the target does not sample", "tokens with p > 0")
    return [validate_count("num_drafts", count) for count in counts]
