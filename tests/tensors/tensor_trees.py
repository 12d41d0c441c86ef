"""All draft trees of small models as one batch, and the exact distribution of what is emitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from otmd.tensors import TensorLayerVerification, TensorLevel, draft_adaptive_level, draft_level
from otmd.trees import TableModel, target_distribution

Prefix = tuple[int, ...]
# The drafting nodes (D,) of a tree, from the prefixes of the layer (None for no node); −1 for none.
Choose = Callable[[list[Prefix | None]], list[int]]


class Trees(NamedTuple):
    """B trees: the prefix of every node (None for no node), the levels, and P(the tree is drawn) (B,)."""

    prefixes: list[list[Prefix | None]]
    levels: list[TensorLevel]
    probs: np.ndarray


def all_nodes(layer: Sequence[Prefix | None]) -> list[int]:
    return [i if prefix is not None else -1 for i, prefix in enumerate(layer)]


def every_tree(
    draft: TableModel,
    shape: Sequence[int],
    num_tokens: int,
    choose: Choose = all_nodes,
    dtype: torch.dtype = torch.float64,
) -> Trees:
    """All trees whose levels draft ``shape[i]`` tokens at each drafting node, with their probabilities."""
    grown = _Grown()
    for count in shape:
        nodes = torch.tensor([choose(layer) for layer in grown.layers])
        rows = [
            [draft(layer[i] or ()) if i >= 0 else draft(()) for i in chosen]
            for layer, chosen in zip(grown.layers, nodes.tolist(), strict=True)
        ]
        q = torch.tensor(np.array(rows)).to(dtype)
        grown.add(draft_level(q, count, num_tokens, nodes))
    return grown.trees()


def every_adaptive_tree(draft: TableModel, quotas: Sequence[int], num_tokens: int) -> Trees:
    """All adaptive trees with these quotas, with their probabilities."""
    grown = _Grown()
    reaches = torch.ones((1, 1), dtype=torch.float64)
    for quota in quotas:
        rows = [[draft(prefix or ()) for prefix in layer] for layer in grown.layers]
        q = torch.tensor(np.array(rows))
        level, _ = draft_adaptive_level(q, reaches, quota, num_tokens)
        tree = grown.add(level)
        reaches = child_reaches(q[tree], reaches[tree], grown.levels[-1])
    return grown.trees()


def child_reaches(q: torch.Tensor, reaches: torch.Tensor, level: TensorLevel) -> torch.Tensor:
    """The reach of each draft of an adaptive level, draft by draft."""
    children = torch.zeros(level.nodes.shape, dtype=torch.float64)
    for b, nodes in enumerate(level.nodes.tolist()):
        for i, node in enumerate(nodes):
            if node >= 0:
                at = level.drafts[b, i, 0]
                probs = q[b, node, level.tokens[b, i]]
                prob = probs[at] / probs.sum()
                ratio = prob / level.inclusion[b, i, at]
                children[b, i] = (
                    reaches[b, node] * ratio * (1 - (1 - prob) / (nodes.count(node) + 1.5))
                )
    return children


class _Grown:
    """Trees that grow by all drafts of a level at a time; ``layers`` has the deepest nodes of each."""

    def __init__(self) -> None:
        self.layers: list[list[Prefix | None]] = [[()]]
        self.levels: list[TensorLevel] = []
        self._prefixes: list[list[Prefix | None]] = [[()]]
        self._probs = np.ones(1)

    def add(self, level: TensorLevel) -> torch.Tensor:
        """Add every draft of a level; the answer has the old tree of each new one."""
        tree, drafts, drawn = every_draft(level)
        self._probs = self._probs[tree] * drawn
        self.levels = [TensorLevel(*(x[tree] for x in old)) for old in self.levels]
        self.levels.append(TensorLevel(*(x[tree] for x in level))._replace(drafts=drafts))
        parents, tokens = self.levels[-1].parents.tolist(), self.levels[-1].draft_tokens.tolist()
        self.layers = [
            [
                (*(self.layers[b][parent] or ()), token) if token >= 0 else None
                for parent, token in zip(parents[i], tokens[i], strict=True)
            ]
            for i, b in enumerate(tree.tolist())
        ]
        pairs = zip(tree.tolist(), self.layers, strict=True)
        self._prefixes = [[*self._prefixes[b], *layer] for b, layer in pairs]
        return tree

    def trees(self) -> Trees:
        """The trees so far."""
        return Trees(self._prefixes, self.levels, self._probs)


def every_draft(level: TensorLevel) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """All drafts of a level: the tree of each, the drafts, and their probability given the tree."""
    shape = level.drafts.shape[1:]
    trees, drafts, probs = [], [], []
    for b, (number, inclusion) in enumerate(
        zip(level.number.numpy(), level.inclusion.numpy(), strict=True)
    ):
        choices = [np.flatnonzero(number[d] == j).tolist() or [-1] for d, j in np.ndindex(*shape)]
        for chosen in product(*choices):
            indices = zip(np.ndindex(*shape), chosen, strict=True)
            trees.append(b)
            drafts.append(np.reshape(chosen, shape))
            probs.append(math.prod(inclusion[d, i] for (d, _), i in indices if i >= 0))
    return torch.tensor(trees), torch.tensor(np.array(drafts)), np.array(probs)


def target_rows(
    target: TableModel, trees: Trees, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """The target after every node (B, N, V); NaN where there is no node."""
    none = np.full(target.vocab_size, np.nan)
    rows = [
        [none if prefix is None else target(prefix) for prefix in nodes] for nodes in trees.prefixes
    ]
    return torch.tensor(np.array(rows)).to(dtype)


def output_distribution(
    target: TableModel, trees: Trees, rule: TensorLayerVerification, length: int
) -> np.ndarray:
    """The exact distribution of the first ``length`` tokens, the target writing those after a step."""
    output = np.zeros((target.vocab_size,) * length)
    end_probs = rule.end_probs.numpy()
    for i in range(end_probs.shape[1]):
        residual = rule.residual_probs(torch.full((len(end_probs),), i)).numpy()
        for b, nodes in enumerate(trees.prefixes):
            prefix = nodes[i]
            if prefix is None:
                assert end_probs[b, i] == 0.0
                continue
            emitted = trees.probs[b] * end_probs[b, i] * residual[b]
            for token in np.flatnonzero(emitted).tolist():
                start = (*prefix, token)
                after = target_distribution(
                    lambda more, start=start: target((*start, *more)), length - len(start)
                )
                output[start] += emitted[token] * after
    return output
