"""Adaptive draft trees on a device: the drafts of a level go where they add most to its estimated acceptance.

:class:`otmd.trees.AdaptiveTree` says what the law is. Nodes have different numbers of drafts, but a level has
as many as its quota. So each draft lists its node with one stratum, and all shapes are known in advance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otmd.probabilities import validate_count
from otmd.tensors.levels import TensorLevel, check_draft_probs, check_values, draw_strata
from otmd.tensors.probabilities import are_distributions, refuse_rows

# c in the estimate that n drafts of a node are all refused with probability (1 − Σ q²)/(n + c).
_MORE = 1.5


def draft_adaptive_level(
    draft_probs: Any,
    reaches: Tensor,
    quota: int,
    num_tokens: int,
    generator: torch.Generator | None = None,
    validate: bool = True,
) -> tuple[TensorLevel, Tensor]:
    """Draft one level of adaptive trees, and estimate the reach of its drafts.

    The law is that of :class:`otmd.trees.AdaptiveTree` for q cut to its k most likely tokens, and
    renormalised.

    Parameters
    ----------
    draft_probs : torch.Tensor, shape (B, W, V)
        q after every draft of the level above, or after the root; float16, bfloat16, float32 or float64.
    reaches : torch.Tensor of float64, shape (B, W)
        The reach of each of these nodes, 1 for the root. A node of reach 0 has no drafts, and its q is
        ignored.
    quota : int
        Q, the most drafts of a tree on this level.
    num_tokens : int
        k ≤ V. The rule is lossless for every k.
    generator : torch.Generator, optional
        A generator of the tensor's device; without it the device's default generator.
    validate : bool
        Whether rows that are no distribution are a ValueError; the host then waits for the device.

    Returns
    -------
    level : TensorLevel
        D = Q nodes with n = 1 draft each; those that are −1 come last.
    reaches : torch.Tensor of float64, shape (B, Q)
        The reach of each draft, 0 for none: those of the nodes of the next level.

    Raises
    ------
    ValueError
        For a wrong shape, or k > V; with ``validate`` for rows as above.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import draft_adaptive_level
    >>> q = torch.tensor([[[0.5, 0.3, 0.2], [0.98, 0.01, 0.01]]])
    >>> reaches = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    >>> level, reaches = draft_adaptive_level(q, reaches, quota=3, num_tokens=3)
    >>> level.nodes, reaches.shape
    (tensor([[0, 0, 1]]), torch.Size([1, 3]))
    """
    size = validate_count("quota", quota)
    top = check_draft_probs(draft_probs, num_tokens)
    shape = tuple(draft_probs.shape[:2])
    check_values("reaches", reaches, torch.float64, shape, draft_probs.device)
    if validate:
        refuse_rows("draft_probs", draft_probs, (reaches > 0) & ~are_distributions(draft_probs))
    mass, tokens = draft_probs.detach().topk(top)
    mass = torch.where(reaches[..., None] > 0, mass.double(), 0.0)
    probs = mass / mass.sum(dim=-1, keepdim=True)
    counts = _num_drafts(probs, reaches, size)[..., None]
    number, inclusion, drafts = draw_strata(mass, counts, min(size, top), generator)
    drafted = drafts.clamp(min=0)
    prob = probs.gather(-1, drafted)
    accepted = 1.0 - (1.0 - prob) / (counts + _MORE)
    below = reaches[..., None] * prob / inclusion.gather(-1, drafted) * accepted
    node, stratum, exists = _listed(counts, size)

    def of_node(values: Tensor) -> Tensor:
        return values.gather(1, node.expand(-1, -1, values.shape[-1]))

    is_in = exists & (of_node(number) == stratum)
    level = TensorLevel(
        torch.where(exists, node, -1)[..., 0],
        of_node(tokens),
        torch.where(is_in, 0, 1),
        torch.where(is_in, of_node(inclusion), 0.0),
        torch.where(exists, of_node(drafts).gather(-1, stratum), -1),
    )
    return level, torch.where(exists, of_node(below).gather(-1, stratum), 0.0)[..., 0]


def _num_drafts(probs: Tensor, reaches: Tensor, quota: int) -> Tensor:
    """The number of drafts after each node (B, W), from the probabilities (B, W, k) of its tokens."""
    spread = 1.0 - (probs * probs).sum(dim=-1, keepdim=True)
    count = torch.arange(1, min(quota, probs.shape[-1]) + 1, device=probs.device)
    grown = torch.diff(1.0 - spread / (count + _MORE), prepend=torch.zeros_like(spread))
    has_token = count <= (probs > 0).sum(dim=-1, keepdim=True)
    gains = torch.where(has_token, reaches[..., None] * grown, 0.0).flatten(1)
    largest = gains.argsort(dim=-1, descending=True, stable=True)[:, :quota]
    chosen = gains.gather(1, largest) > 0.0
    none = torch.zeros_like(reaches, dtype=torch.int64)
    return none.scatter_add_(1, largest // len(count), chosen.long())


def _listed(counts: Tensor, quota: int) -> tuple[Tensor, Tensor, Tensor]:
    """The node and stratum of each draft, and whether it exists, (B, Q, 1); from ``counts`` (B, W, 1)."""
    ends = counts[..., 0].cumsum(dim=-1)
    draft = torch.arange(quota, device=counts.device).expand(len(counts), quota).contiguous()
    node = torch.searchsorted(ends, draft, right=True)
    exists = node < ends.shape[1]
    node = node.clamp(max=ends.shape[1] - 1)
    first = ends.gather(1, node) - counts[..., 0].gather(1, node)
    stratum = torch.where(exists, draft - first, 0)
    return node[..., None], stratum[..., None], exists[..., None]
