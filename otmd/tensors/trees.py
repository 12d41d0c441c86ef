"""Draft trees from strata, drafted level by level and verified layer by layer on a device.

The verifier is :class:`otmd.trees.LayerVerification`; ``docs/theory_trees.md`` proves that it is lossless.
Here its sweep (:mod:`otmd.verifiers.pair_sweep`) takes all pairs of a layer at once. For a pair of a slot and
a token, let t = w M be its target and q the probability that the slot drafts it. A cell is one slot and a
class of tokens with similar t/q. Cells are taken class by class. Let s of a slot be the probability that none
of its pairs so far was accepted, and A of a cell the product of the other slots' s before it. For any B ≥ A,

    c = min(1, t/(B q)),    a = A c q ≤ t

is lossless. So B is 1 at first; c follows from it, then s, then A of all cells. With this A as B, c can only
grow, so s and the next A can only fall: every round is lossless, and accepts at least as much as the last.

As in the pair sweep, the pairs that were thinned (c < 1) are then taken after all others, if that is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otmd.probabilities import wrong
from otmd.tensors.levels import TensorLevel, check_values
from otmd.tensors.probabilities import (
    are_distributions,
    check_tensor,
    draw_tokens,
    refuse_rows,
    sums_to_one,
)

# Octaves of t/q below 1, the last one open, and one class above.
_NUM_CLASSES = 12
_NUM_ROUNDS = 8
# The smallest A in a quotient: t/A must not be 0/0.
_TINY = 1e-300


class TreeVerdict(NamedTuple):
    """The decision on every tree.

    Attributes
    ----------
    path : torch.Tensor of int64, shape (B, L)
        The accepted nodes as their rows in ``target_probs``, without the root; unused entries are −1. L is
        the number of levels.
    length : torch.Tensor of int64, shape (B,)
        The number of accepted nodes.
    token : torch.Tensor of int64, shape (B,)
        The token that is emitted after them; −1 where, without validation, an input is invalid.
    """

    path: Tensor
    length: Tensor
    token: Tensor


class TensorLayerVerification:
    """:class:`otmd.trees.LayerVerification` for the trees of a batch, drafted by :func:`draft_level`.

    The nodes of a tree are the root, then the drafts of the first level, node by node, then those of the
    second, and so on: N in all. A draft that is −1 is no node, and its row in ``target_probs`` is ignored.

    Parameters
    ----------
    target_probs : torch.Tensor, shape (B, N, V)
        The target's distribution after every node; float16, bfloat16, float32 or float64.
    levels : sequence of TensorLevel
        All levels of the trees, the root's first, with all drafts that were drawn.
    validate : bool
        Whether to raise ValueError for rows that are no distribution, and for levels whose drafts were not
        drawn from their strata; the host then waits for the device. Without it, the output token of a tree
        with such an input is −1.

    Attributes
    ----------
    scores : torch.Tensor of float64, shape (B, N)
        The probability that the accepted path ends at each node or below it, given the drafts down to it.
        The mean of their sum over the drafts is the number of tokens per step.
    end_probs : torch.Tensor of float64, shape (B, N)
        The probability that the accepted path ends at each node, given all drafts.

    Raises
    ------
    ValueError
        For a wrong shape, dtype or device; with ``validate`` as above.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import TensorLayerVerification, draft_level
    >>> q = torch.tensor([0.2, 0.3, 0.5]).expand(1000, 2, 3)
    >>> p = torch.tensor([0.5, 0.3, 0.2]).expand(1000, 7, 3)
    >>> levels = [draft_level(q[:, :1], 2, 3), draft_level(q, 2, 3)]
    >>> verdict = TensorLayerVerification(p, levels).verify()
    >>> verdict.path.shape, verdict.length.shape, verdict.token.shape
    (torch.Size([1000, 2]), torch.Size([1000]), torch.Size([1000]))
    """

    def __init__(
        self, target_probs: Any, levels: Sequence[TensorLevel], validate: bool = True
    ) -> None:
        self._firsts = _check_shapes(target_probs, levels)
        self._target = target_probs.detach()
        self._possible = _check_values(self._target, levels, self._firsts, validate)
        self._levels = [
            _within_range(level, end - first, self._target.shape[-1])
            for level, (first, end) in zip(levels, pairwise(self._firsts), strict=True)
        ]
        scores = [torch.ones_like(self._possible, dtype=torch.float64)[:, None]]
        self._layers: list[_Layer] = []
        for first, level in zip(self._firsts, self._levels, strict=False):
            target = self._target[:, first : first + scores[-1].shape[1]]
            self._layers.append(_verify_layer(target, level, scores[-1]))
            scores.append(self._layers[-1].child_scores)
        self.scores = torch.cat(scores, dim=1)
        self.end_probs = _end_probs(scores, self._layers)

    def __repr__(self) -> str:
        shape = tuple(self._target.shape)
        return f"TensorLayerVerification(shape={shape}, num_levels={len(self._levels)})"

    def residual_probs(self, nodes: Tensor) -> Tensor:
        """The distribution of the token after a path that ends at the given nodes (B,), shape (B, V)."""
        masses = self._residual(nodes)
        return masses / masses.sum(dim=-1, keepdim=True)

    def verify(self, generator: torch.Generator | None = None) -> TreeVerdict:
        """Accept a path of every tree, and draw the token after it.

        The text is distributed exactly as the target's own. The generator must be of the tensors' device;
        without it the device's default generator is used.
        """
        node = draw_tokens(self.end_probs, generator)
        token = draw_tokens(self._residual(node), generator)
        valid = self._possible & self.end_probs.isfinite().all(-1) & (token >= 0)
        path = torch.stack(self._ancestors(node), dim=1)
        path = torch.where(valid[:, None], path, -1)
        return TreeVerdict(path, (path >= 0).sum(-1), torch.where(valid, token, -1))

    def _residual(self, nodes: Tensor) -> Tensor:
        """The masses (B, V) that the nodes (B,) emit, each row up to a factor."""
        request = torch.arange(len(nodes), device=nodes.device)
        target = self._target[request, nodes].double()
        masses = target.clone()
        for first, level, layer in zip(self._firsts, self._levels, self._layers, strict=False):
            drafts = (level.nodes >= 0) & (level.nodes + first == nodes[:, None])
            # Entries of one node have the same tokens.
            tokens = level.tokens[request, drafts.max(dim=-1).indices]
            share = torch.where(drafts[..., None], layer.left_shares, 1.0).prod(dim=1)
            masses.scatter_(-1, tokens, masses.gather(-1, tokens) * share)
        return torch.where((masses > 0).any(-1, keepdim=True), masses, target)

    def _ancestors(self, node: Tensor) -> list[Tensor]:
        """The nodes (B,) above and including the given ones in each layer below the root; −1 below them."""
        path = []
        levels = zip(self._firsts[1:], self._firsts, self._levels, strict=False)
        for first, first_above, level in reversed(list(levels)):
            within = node >= first
            path.append(torch.where(within, node, -1))
            index = (node - first).clamp(0, level.parents.shape[1] - 1)
            parent = first_above + level.parents.gather(-1, index[:, None])[:, 0]
            node = torch.where(within, parent, node)
        return path[::-1]


class _Layer(NamedTuple):
    """The sweep over one layer of W nodes, D of which draft, n drafts each.

    ``left`` (B, W) is the mass of w M − a, ``left_shares`` (B, D, k) its part of w M, ``missed`` (B,) the
    probability that no draft is accepted, and ``child_scores`` (B, D n) are those of the drafts.
    """

    left: Tensor
    left_shares: Tensor
    missed: Tensor
    child_scores: Tensor


def _verify_layer(target_probs: Tensor, level: TensorLevel, scores: Tensor) -> _Layer:
    """Sweep the drafts of one level, for the nodes' targets (B, W, V) and scores (B, W)."""
    num_drafts, num_tokens = level.drafts.shape[-1], level.tokens.shape[-1]
    num_slots = level.drafts.shape[1] * num_drafts
    node = level.nodes.clamp(min=0)
    score = torch.where(level.nodes >= 0, scores.gather(1, node), 0.0)[..., None]
    # In half precision sums are biased, and probabilities do not sum to 1.
    wide = torch.promote_types(target_probs.dtype, torch.float32)
    total = target_probs.sum(dim=-1, dtype=wide).double()
    total = torch.where(sums_to_one(total, target_probs.dtype), total, torch.nan)
    request = torch.arange(len(node), device=node.device)[:, None, None]
    target = target_probs[request, node[..., None], level.tokens].double()
    target = torch.where(score > 0, score * target / total.gather(1, node)[..., None], 0.0)
    probs = torch.where(level.number < num_drafts, level.inclusion, 0.0).flatten(1)
    slot = torch.arange(num_slots, device=node.device).view(-1, num_drafts)
    first_of_node, index_of_node = slot[:, :1], torch.arange(len(slot), device=node.device)
    # The last slot is taken first.
    position = num_slots - 1 - first_of_node - level.number.clamp(max=num_drafts - 1)
    sweep = _sweep(target.flatten(1), probs, position.flatten(1), num_slots)
    drafted = (level.drafts.clamp(min=0) + num_tokens * index_of_node[:, None]).flatten(1)
    drawn = torch.where(level.drafts.flatten(1) >= 0, probs.gather(1, drafted), 0.0)
    accept_prob = torch.where(drawn > 0, sweep.offered.gather(1, drafted) / drawn, 0.0)
    accepted = sweep.accepted.view_as(target)
    return _Layer(
        scores.scatter_add(1, node, -accepted.sum(dim=-1)).clamp(min=0.0),
        torch.where(target > 0, (target - accepted) / target, 1.0),
        sweep.missed,
        _first_accepted(accept_prob, sweep.cell.gather(1, drafted)),
    )


def _first_accepted(accept_prob: Tensor, rank: Tensor) -> Tensor:
    """P(each of the drafts (B, U) is the first, in ascending order of rank, that is accepted)."""
    order = rank.argsort(dim=-1, stable=True)
    accept = accept_prob.gather(-1, order)
    return torch.empty_like(accept).scatter_(-1, order, accept * _products_before(1.0 - accept))


def _end_probs(scores: list[Tensor], layers: list[_Layer]) -> Tensor:
    """P(the path ends at each node), shape (B, N), from the scores of each layer and its sweep."""
    left = [*(layer.left for layer in layers), scores[-1]]
    missed = [*(layer.missed for layer in layers), torch.ones_like(scores[0][:, 0])]
    end_probs = []
    undecided = torch.ones_like(missed[0])[:, None]
    for depth in reversed(range(len(scores))):
        mass, none_below = left[depth].sum(dim=-1, keepdim=True), missed[depth][:, None]
        # Rounding aside, mass ≤ none_below, and where the latter is 0 a lower layer has stopped.
        stopping = torch.where(none_below > mass, mass / none_below, 1.0) if depth else 1.0
        masses = torch.where(mass > 0, left[depth], scores[depth])
        share = masses / masses.sum(dim=-1, keepdim=True).clamp(min=_TINY)
        end_probs.append(undecided * stopping * share)
        undecided = undecided * (1.0 - stopping)
    return torch.cat(end_probs[::-1], dim=1)


# ---------------------------------------------------------------- the sweep


class _Sweep(NamedTuple):
    """c q and a of each pair (B, E), its cell in the order of preference, and Π_j s_j at the end (B,)."""

    offered: Tensor
    accepted: Tensor
    cell: Tensor
    missed: Tensor


def _sweep(target: Tensor, probs: Tensor, slot: Tensor, num_slots: int) -> _Sweep:
    """Sweep the pairs (B, E) class by class; then once more, with the thinned pairs after all others."""
    octave = (0.5 - torch.log2(target / probs)).nan_to_num(0.0).clamp(0, _NUM_CLASSES - 2)
    level = torch.where(target >= probs, 0, 1 + octave.long())
    cell = level * num_slots + slot
    shape = (_NUM_CLASSES, num_slots)
    first = _sweep_cells(target, probs, cell, shape)
    turn = (first.offered < probs).long()
    shape = (2 * _NUM_CLASSES, num_slots)
    second = _sweep_cells(target, probs, cell + turn * (_NUM_CLASSES * num_slots), shape)
    better = (second.missed < first.missed)[:, None]
    return _Sweep(
        torch.where(better, second.offered, first.offered),
        torch.where(better, second.accepted, first.accepted),
        torch.where(better, second.cell, first.cell),
        torch.minimum(second.missed, first.missed),
    )


def _sweep_cells(target: Tensor, probs: Tensor, cell: Tensor, shape: tuple[int, int]) -> _Sweep:
    """Sweep the pairs (B, E) in the order of their cells, of which there are ``shape`` (classes, slots)."""
    offered = after = probs
    others = target.new_ones((len(target), shape[0] * shape[1]))
    for _ in range(_NUM_ROUNDS):
        # c q = min(q, t/B)
        offered = torch.minimum(probs, target / others.clamp(min=_TINY).gather(-1, cell))
        mass = torch.zeros_like(others).scatter_add_(-1, cell, offered).unflatten(1, shape)
        # s after each class, and before it
        after = (1.0 - mass.cumsum(dim=1)).clamp(min=0.0)
        before = after + mass
        later = _products_before(before.flip(-1)).flip(-1)
        others = (_products_before(after) * later).flatten(1)
    accepted = torch.minimum(target, others.gather(-1, cell) * offered)
    return _Sweep(offered, accepted, cell, after[:, -1].prod(dim=-1))


def _products_before(values: Tensor) -> Tensor:
    """The product of all values before each one, along the last axis."""
    return torch.cat([torch.ones_like(values[..., :1]), values[..., :-1]], dim=-1).cumprod(dim=-1)


# ---------------------------------------------------------------- checks


def _check_shapes(target_probs: Any, levels: Sequence[TensorLevel]) -> list[int]:
    """The row of the first node of every layer; ValueError for a wrong shape, dtype or device."""
    check_tensor("target_probs", target_probs)
    firsts, num_nodes = [0], 1
    batch, device = target_probs.shape[0], target_probs.device
    for i, level in enumerate(levels):
        shape = level.tokens.shape
        num_drafts = level.drafts.shape[-1]
        fields = dict.fromkeys(("tokens", "number", "inclusion"), tuple(shape))
        fields |= {"nodes": tuple(shape[:2]), "drafts": (*shape[:2], num_drafts)}
        if level.tokens.ndim != 3 or shape[0] != batch:
            raise wrong(f"levels[{i}].tokens", f"shape {tuple(shape)}", f"({batch}, D, k)")
        for name, size in fields.items():
            dtype = torch.float64 if name == "inclusion" else torch.int64
            check_values(f"levels[{i}].{name}", getattr(level, name), dtype, size, device)
        firsts.append(firsts[-1] + num_nodes)
        num_nodes = shape[1] * num_drafts
    size = firsts[-1] + num_nodes
    if target_probs.ndim != 3 or target_probs.shape[1] != size:
        expected = f"({batch}, {size}, V), a row for each node"
        raise wrong("target_probs", f"shape {tuple(target_probs.shape)}", expected)
    return firsts


def _check_values(
    target_probs: Tensor, levels: Sequence[TensorLevel], firsts: list[int], validate: bool
) -> Tensor:
    """A mask (B,) of the trees whose levels are possible; with ``validate`` ValueError for bad values."""
    possible = torch.ones(len(target_probs), dtype=torch.bool, device=target_probs.device)
    exists = [possible[:, None]]
    for i, level in enumerate(levels):
        drawn = _is_drawn(level, exists[-1].shape[1], target_probs.shape[-1])
        if validate and not bool(drawn.all()):
            index = int((~drawn).nonzero()[0])
            expected = "the drafts of draft_level, one of each stratum that has tokens"
            raise wrong(
                f"levels[{i}]", f"drafts {level.drafts[index].tolist()} in tree {index}", expected
            )
        possible = possible & drawn
        exists.append((level.drafts >= 0).flatten(1))
    if validate:
        broken = torch.cat(exists, dim=1) & ~are_distributions(target_probs)
        refuse_rows("target_probs", target_probs, broken)
    return possible


def _is_drawn(level: TensorLevel, num_above: int, vocab_size: int) -> Tensor:
    """A mask (B,) of the trees in which one token of each stratum, and nothing else, was drafted.

    Of the tokens of a node each is in at most one stratum, however often the node is listed.
    """
    nodes, tokens, number, inclusion, drafts = level
    num_tokens, count = tokens.shape[-1], drafts.shape[-1]
    valid = (nodes >= -1) & (nodes < num_above)
    same_node = (nodes >= 0)[..., None] & (nodes[..., None] == nodes[:, None])
    first = same_node.max(dim=-1).indices[..., None].expand_as(tokens)
    valid = valid & ((nodes < 0)[..., None] | (tokens == tokens.gather(1, first))).all(dim=-1)
    above = (nodes + 1).clamp(0, num_above)[..., None].expand_as(tokens)
    times = inclusion.new_zeros((len(nodes), num_above + 1, num_tokens))
    times.scatter_add_(1, above, (number < count).double())
    for index, low, high in (
        (tokens, 0, vocab_size),
        (number, 0, count + 1),
        (drafts, -1, num_tokens),
    ):
        valid = valid & ((index >= low) & (index < high)).all(dim=-1)
    mass = inclusion.new_zeros((*nodes.shape, count + 1))
    mass = mass.scatter_add_(-1, number.clamp(0, count), inclusion)[..., :count]
    slot = torch.arange(count, device=nodes.device)
    exists, draft = drafts >= 0, drafts.clamp(0, num_tokens - 1)
    is_drawn = number.gather(-1, draft) == slot
    is_full = (mass - 1.0).abs() <= 1e-6
    valid = valid & torch.where(exists, is_drawn & is_full, mass == 0.0).all(dim=-1)
    valid = valid & (inclusion >= 0).all(dim=-1)
    return valid.all(dim=-1) & (times[:, 1:] <= 1).flatten(1).all(dim=-1)


def _within_range(level: TensorLevel, num_above: int, vocab_size: int) -> TensorLevel:
    """The level with indices that can be looked up; those outside are of trees that are not decided."""
    num_tokens, count = level.tokens.shape[-1], level.drafts.shape[-1]
    return TensorLevel(
        level.nodes.clamp(-1, num_above - 1),
        level.tokens.clamp(0, vocab_size - 1),
        level.number.clamp(0, count),
        level.inclusion,
        level.drafts.clamp(-1, num_tokens - 1),
    )
