"""One level of draft trees on a device: strata of the most likely tokens after each node, and their drafts.

:class:`otmd.Stratified` says what the law is. :mod:`otmd.tensors.trees` verifies trees of such levels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from otmd.probabilities import validate_count, wrong, wrong_type
from otmd.tensors.probabilities import are_distributions, check_tensor, refuse_rows


class TensorLevel(NamedTuple):
    """The drafts after some nodes of one layer of every tree of a batch; see :func:`draft_level`.

    Attributes
    ----------
    nodes : torch.Tensor of int64, shape (B, D)
        The drafting nodes, as indices among the drafts of the level above (0 is the root); −1 for none. A
        node may be listed several times, with the same tokens in the same order, and with other strata each
        time.
    tokens : torch.Tensor of int64, shape (B, D, k)
        The k most likely tokens after each node.
    number : torch.Tensor of int64, shape (B, D, k)
        Their strata, 0 to n − 1; n for a token that is in none.
    inclusion : torch.Tensor of float64, shape (B, D, k)
        The probability of each token to be the draft of its stratum.
    drafts : torch.Tensor of int64, shape (B, D, n)
        The draft of each stratum, as an index among the k tokens; −1 for a stratum without tokens.
    """

    nodes: Tensor
    tokens: Tensor
    number: Tensor
    inclusion: Tensor
    drafts: Tensor

    @property
    def draft_tokens(self) -> Tensor:
        """The drafted tokens, shape (B, D n), node by node; −1 for a stratum without tokens."""
        tokens = self.tokens.gather(-1, self.drafts.clamp(min=0))
        return torch.where(self.drafts >= 0, tokens, -1).flatten(1)

    @property
    def parents(self) -> Tensor:
        """The node before each draft, shape (B, D n), as an index among the drafts of the level above."""
        return self.nodes.repeat_interleave(self.drafts.shape[-1], dim=-1)


def draft_level(
    draft_probs: Any,
    num_drafts: int,
    num_tokens: int,
    nodes: Tensor | None = None,
    generator: torch.Generator | None = None,
    validate: bool = True,
) -> TensorLevel:
    """Draft one token from each of n strata after every given node of a layer.

    The strata are those of :class:`otmd.Stratified` for the k most likely tokens. Where fewer than n tokens
    have mass, each of them is a stratum, and the other strata have no draft.

    Parameters
    ----------
    draft_probs : torch.Tensor, shape (B, D, V)
        q after each drafting node; float16, bfloat16, float32 or float64.
    num_drafts : int
        n.
    num_tokens : int
        k, n ≤ k ≤ V. The rule is lossless for every k.
    nodes : torch.Tensor of int64, shape (B, D), optional
        The drafting nodes, each at most once, as indices among the drafts of the level above; −1 for none.
        They may depend on all drafts above. By default all drafts of the level above, or the root.
    generator : torch.Generator, optional
        A generator of the tensor's device; without it the device's default generator.
    validate : bool
        Whether rows that are no distribution are a ValueError; the host then waits for the device.

    Returns
    -------
    TensorLevel
        The layer.

    Raises
    ------
    ValueError
        For a wrong shape, or k < n; with ``validate`` for rows as above.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import draft_level
    >>> level = draft_level(torch.tensor([[[0.6, 0.3, 0.1, 0.0]]]), num_drafts=2, num_tokens=3)
    >>> level.number
    tensor([[[0, 1, 1]]])
    """
    count = validate_count("num_drafts", num_drafts)
    top = check_draft_probs(draft_probs, num_tokens, minimum=count)
    if nodes is None:
        nodes = torch.arange(draft_probs.shape[1], device=draft_probs.device)
        nodes = nodes.expand(draft_probs.shape[:2])
    check_values("nodes", nodes, torch.int64, tuple(draft_probs.shape[:2]), draft_probs.device)
    if validate:
        refuse_rows("draft_probs", draft_probs, (nodes >= 0) & ~are_distributions(draft_probs))
    mass, tokens = draft_probs.detach().topk(top)
    mass = torch.where(nodes[..., None] >= 0, mass.double(), 0.0)
    return TensorLevel(nodes, tokens, *draw_strata(mass, count, count, generator))


def draw_strata(
    mass: Tensor, count: int | Tensor, most: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Strata and inclusion probabilities (…, k) of tokens with descending masses, and drafts (…, most).

    ``count`` (…, 1) is the number of strata, up to ``most``, which stands for no stratum.
    """
    number = _strata(mass, count, most)
    total = mass.new_zeros((*mass.shape[:-1], most + 1)).scatter_add_(-1, number, mass)
    inclusion = torch.where(number < most, mass / total.gather(-1, number), 0.0)
    return number, inclusion, _draw_from_strata(number, inclusion, most, generator)


def _strata(mass: Tensor, count: int | Tensor, most: int) -> Tensor:
    """The strata of tokens with descending masses (…, k); ``most`` for a token without mass."""
    after = mass.flip(-1).cumsum(-1).flip(-1)
    index = torch.arange(mass.shape[-1], device=mass.device)
    first = slice(None, most - 1)
    heavy = mass[..., first] * (count - index[first]) >= after[..., first]
    alone = heavy.cumprod(-1).sum(-1, keepdim=True)
    rest = after.gather(-1, alone)
    # The small number outweighs rounding, so that no stratum is empty.
    share = ((rest - after) * (count - alone) / rest + 1e-9).nan_to_num(0.0)
    number = torch.where(index < alone, index, alone + share.floor().long()).clamp(max=count - 1)
    return torch.where((mass > 0) & (number >= 0), number, most)


def _draw_from_strata(
    number: Tensor, inclusion: Tensor, count: int, generator: torch.Generator | None
) -> Tensor:
    """One index of each stratum (…, n), −1 where it has none. The strata lie side by side."""
    shape = (*number.shape[:-1], count)
    slot = torch.arange(count, device=number.device).expand(shape).contiguous()
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device=number.device)
    drawn = torch.searchsorted(inclusion.cumsum(-1), slot + uniform, right=True)
    first, end = (torch.searchsorted(number, slot, right=right) for right in (False, True))
    return torch.where(first < end, drawn.clamp(first, end - 1), -1)


def check_draft_probs(draft_probs: Any, num_tokens: int, minimum: int = 1) -> int:
    """The number of tokens; ValueError unless q (B, D, V) has as many, TypeError for no floating tensor."""
    top = validate_count("num_tokens", num_tokens, minimum=minimum)
    check_tensor("draft_probs", draft_probs)
    if draft_probs.ndim != 3:
        raise wrong("draft_probs", f"shape {tuple(draft_probs.shape)}", "(B, D, V)")
    if top > draft_probs.shape[-1]:
        raise wrong("num_tokens", top, f"at most {draft_probs.shape[-1]}, the vocabulary")
    return top


def check_values(
    name: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> None:
    """Raise ValueError unless ``value`` is of this dtype, shape and device, TypeError for no tensor."""
    if not isinstance(value, Tensor):
        raise wrong_type(name, value, "a torch.Tensor")
    if value.shape != shape or value.dtype != dtype:
        given = f"{value.dtype} of shape {tuple(value.shape)}"
        raise wrong(name, given, f"{dtype} of shape {shape}")
    if value.device != device:
        raise wrong(name, f"device {value.device}", f"{device}, that of the probabilities")
