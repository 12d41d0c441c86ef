"""Losses that train a drafter for the rule that verifies it, with gradients in the draft's logits.

The target's distributions are constants. A rate is piecewise differentiable in q: a piece is given by the
tokens beyond the optimal cut, or by the strata and the order of pairs. Gradients hold these fixed, so they
are exact inside a piece, and do not include the jump where a token changes its stratum. Where drafts are
hardly ever accepted, total variation is flat, and −log of a rate is not. For one draft this is
−log Σ min(p, q), a loss of Samarin et al. (2026, arXiv 2602.23881).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from otmd.probabilities import validate_count, wrong
from otmd.tensors.layers import make_strata, sweep, top_tokens
from otmd.tensors.probabilities import check_tensors, checked_probs

# The least rate whose logarithm is taken: where no draft can be accepted, the loss is 708 nats.
_LEAST = torch.finfo(torch.float64).tiny


def acceptance_loss(
    target_probs: Any,
    draft_logits: Any,
    num_drafts: int = 1,
    rate: Literal["optimal", "stratified"] = "optimal",
    validate: bool = True,
) -> Tensor:
    """−log of the acceptance rate of n drafts, in nats.

    Parameters
    ----------
    target_probs : torch.Tensor, shape (…, V)
        p; it gets no gradient.
    draft_logits : torch.Tensor, shape (…, V)
        Logits of q on the same device; −inf marks a token that is never drafted. Leading axes are broadcast.
    num_drafts : int
        n. With one draft both rates are Σ min(p, q).
    rate : {"optimal", "stratified"}
        α* of drafts with replacement, 1 + min_H p(H) − q(H)^n; or the rate of :func:`verify` on strata.
    validate : bool
        Whether values that are no distribution or no logits are a ValueError; the host then waits for the
        device. If not, their loss is NaN.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        At most 708. It is 708, with gradient 0, where no draft can be accepted.

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
    p, log_q = _checked_pair(target_probs, draft_logits, validate)
    if rate == "stratified":
        accepted = _swept(p, log_q, count)[2].sum(-1)
    elif rate == "optimal":
        accepted = _optimal_rate(p, log_q.exp(), count)
    else:
        raise wrong("rate", repr(rate), "'optimal' or 'stratified'")
    return -accepted.clamp(_LEAST, 1.0).log()


def tokens_per_step_loss(
    target_probs: Any,
    draft_logits: Any,
    tokens: Tensor,
    num_drafts: int | Sequence[int] = 1,
    validate: bool = True,
) -> Tensor:
    """Negative tokens per step of a draft tree, estimated along texts that the target sampled.

    The tree has a node for each draft, and the same number of drafts after all nodes of a level. Along a text
    y, with the score w of a node, which is 1 at the root, let a and c be those of :func:`sweep` for the
    target w p. The text's next node has the score c(y). The probability that a text's first k tokens are
    accepted is the product of a(y)/(w p(y)) over k levels; tokens per step are 1 and their sum. This is
    :class:`otmd.trees.SubtreeVerification` with another order of pairs. With one draft per node it is block
    verification, where the product is min(1, min_{i ≤ k} q(y_1 … y_i)/p(y_1 … y_i)) (Sun et al. 2025). The
    mean over texts that the target sampled is unbiased.

    Parameters
    ----------
    target_probs, draft_logits : torch.Tensor, shape (…, L, V)
        p and logits of q before each of the L tokens of a text, as for :func:`acceptance_loss`.
    tokens : torch.Tensor of int64, shape (…, L)
        The texts, of tokens with p > 0, else ValueError with ``validate``; leading axes are those of p and q.
    num_drafts : int or sequence of int
        The number of drafts after each node, or after those of each of the L levels, drawn from strata.
    validate : bool
        As for :func:`acceptance_loss`.

    Returns
    -------
    torch.Tensor of float64, shape (…)
        From −1 − L to −1.

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
        target = score[..., None] * p[..., level, :]
        masses = (target, *_swept(target, log_q[..., level, :], count))
        token = tokens[..., level, None]
        target, q, offered, accepted = (x.gather(-1, token)[..., 0] for x in masses)
        # A score may underflow; a drafted token is then accepted in full. Written so that NaN stays.
        in_full = accepted >= target
        share = accepted / torch.where(in_full, 1.0, target)
        reached = reached * torch.where(in_full, (q > 0).double(), share)
        score = torch.where(q > 0, offered / torch.where(q > 0, q, 1.0), 0.0 * offered)
        per_step = per_step + reached
    return -per_step


def _optimal_rate(p: Tensor, q: Tensor, count: int) -> Tensor:
    """p(H) + 1 − q(H)^n, H the tokens with p/q below the optimal cut.

    The cut is a minimiser: where it is unique, holding it fixed is exact (Danskin's theorem).
    """
    with torch.no_grad():
        ratio = torch.where(q > 0, p / q, torch.inf)
        descending, order = ratio.sort(dim=-1, descending=True)
        target_above, draft_above = (x.gather(-1, order).cumsum(dim=-1) for x in (p, q))
        kept = target_above + (1.0 - draft_above).clamp(min=0.0) ** count
        above = ratio >= descending.gather(-1, kept.argmax(dim=-1, keepdim=True))
    drafted_above = torch.where(above, q, 0.0).sum(dim=-1)
    # 1 − (1 − x)^n as a sum of positive terms, which keeps a small x.
    rest = (1.0 - drafted_above).clamp(min=0.0)
    contained = drafted_above * sum(rest**i for i in range(count))
    return torch.where(above, 0.0, p).sum(dim=-1) + contained


def _swept(target: Tensor, log_q: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inclusion probability of each token in strata (…, V), with a gradient, and its masses c q and a."""
    mass, order = top_tokens(log_q.detach().exp(), log_q.shape[-1])
    stratum, _ = make_strata(mass, (mass > 0).sum(-1).clamp(max=count), count)
    # The stratum of each token; n for none.
    number = torch.empty_like(order).scatter_(-1, order, stratum)
    none = log_q.new_zeros((*log_q.shape[:-1], count + 1))
    largest = (none - torch.inf).scatter_reduce(-1, number, log_q.detach(), "amax")
    weight = torch.where(number < count, log_q - largest.gather(-1, number), -torch.inf).exp()
    total = none.scatter_add(-1, number, weight).gather(-1, number)
    inclusion = weight / torch.where(number < count, total, 1.0)
    q = torch.where(log_q.isnan(), torch.nan, inclusion)
    masses, probs, slots = (x.reshape(-1, x.shape[-1]) for x in (target, q, number.clamp(max=count - 1)))
    offered, accepted, *_ = sweep(masses, probs, slots, count)
    return q, offered.view(target.shape), accepted.view(target.shape)


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


def _checked_text(p: Tensor, tokens: Tensor, num_drafts: int | Sequence[int], validate: bool) -> list[int]:
    """The number of drafts after the nodes of each level."""
    if p.ndim < 2:
        raise wrong("target_probs", f"shape {tuple(p.shape)}", "(…, L, V)")
    if tokens.shape != p.shape[:-1] or tokens.dtype != torch.int64:
        given = f"{tokens.dtype} of shape {tuple(tokens.shape)}"
        raise wrong("tokens", given, f"torch.int64 of shape {tuple(p.shape[:-1])}")
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
