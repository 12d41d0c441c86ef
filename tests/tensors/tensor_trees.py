"""All draft trees of small models as one batch, and the exact distribution of what is emitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from otmd.tensors import TensorLayerVerification, TensorLevel, draft_level
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
    layers, nodes_of_tree = [[()]], [[()]]
    levels: list[TensorLevel] = []
    probs = np.ones(1)
    for count in shape:
        nodes = torch.tensor([choose(layer) for layer in layers])
        rows = [
            [draft(layer[i] or ()) if i >= 0 else draft(()) for i in chosen]
            for layer, chosen in zip(layers, nodes.tolist(), strict=True)
        ]
        level = draft_level(torch.tensor(np.array(rows)).to(dtype), count, num_tokens, nodes)
        tree, drafts, drawn = every_draft(level)
        probs = probs[tree] * drawn
        levels = [TensorLevel(*(x[tree] for x in old)) for old in levels]
        levels.append(TensorLevel(*(x[tree] for x in level))._replace(drafts=drafts))
        parents, tokens = levels[-1].parents.tolist(), levels[-1].draft_tokens.tolist()
        layers = [
            [
                (*(layers[b][parent] or ()), token) if token >= 0 else None
                for parent, token in zip(parents[i], tokens[i], strict=True)
            ]
            for i, b in enumerate(tree.tolist())
        ]
        nodes_of_tree = [[*nodes_of_tree[b], *layers[i]] for i, b in enumerate(tree.tolist())]
    return Trees(nodes_of_tree, levels, probs)


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
