"""All draft trees of small models as one batch, and the exact distribution of the text they give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import torch

from otmd.tensors import (
    Level,
    draft_adaptive_level,
    draft_level,
    residual_masses,
    score_tree,
    top_tokens,
)
from otmd.trees import TableModel, target_distribution

EXACT = 1e-12
Prefix = tuple[int, ...]
Layer = list[Prefix | None]


def models(vocab_size: int, seed: int) -> tuple[TableModel, TableModel]:
    """A target and a draft whose next token depends on the last two."""
    target, draft = (TableModel.random(vocab_size, 2, 0.7, rng=[seed, i]) for i in range(2))
    return target, draft


class EveryTree:
    """B trees, one for each way to draw the drafts.

    ``probs`` (B,) has the probability of each tree, ``prefixes`` the tokens down to every node of it, None
    for none.
    """

    def __init__(self, draft: TableModel) -> None:
        self.draft = draft
        self.levels: list[Level] = []
        self.probs = np.ones(1)
        self.prefixes: list[Layer] = [[()]]
        self.deepest: list[Layer] = [[()]]

    def rows(self, nodes: list[list[int]]) -> torch.Tensor:
        """The draft's distributions (B, D, V) after nodes of the deepest layer."""
        pairs = zip(self.deepest, nodes, strict=True)
        return torch.tensor(
            np.array([[self.draft(layer[i] or ()) for i in chosen] for layer, chosen in pairs])
        )

    def add(self, level: Level) -> torch.Tensor:
        """Grow every tree by all drafts that a level may have; returns the old tree of each new one."""
        trees, drafts, probs = [], [], []
        quota, k = level.drafts.shape[1], level.tokens.shape[-1]
        for b, slots in enumerate(level.slots.flatten(1).numpy()):
            inclusion = level.inclusion[b].flatten().numpy()
            choices = [np.flatnonzero(slots == j).tolist() or [-1] for j in range(quota)]
            for pairs in product(*choices):
                trees.append(b)
                drafts.append(pairs)
                probs.append(math.prod(inclusion[i] for i in pairs if i >= 0))
        tree = torch.tensor(trees)
        self.probs = self.probs[trees] * np.array(probs)
        self.levels = [Level(*(x[tree] for x in old)) for old in self.levels]
        self.levels.append(Level(*(x[tree] for x in level))._replace(drafts=torch.tensor(drafts)))
        tokens, parents = (x.tolist() for x in (self.levels[-1].draft_tokens, self.levels[-1].parents))
        self.deepest = [
            [
                None if j < 0 else (*(self.deepest[b][i] or ()), j)
                for i, j in zip(parents[new], tokens[new], strict=True)
            ]
            for new, b in enumerate(trees)
        ]
        self.prefixes = [[*self.prefixes[b], *layer] for b, layer in zip(trees, self.deepest, strict=True)]
        assert k == self.levels[0].tokens.shape[-1]
        return tree


def all_nodes(layer: Layer) -> list[int]:
    return [i if prefix is not None else -1 for i, prefix in enumerate(layer)]


def every_tree(
    draft: TableModel,
    shape: Sequence[int],
    k: int,
    choose: Callable[[Layer], list[int]] = all_nodes,
    dtype: torch.dtype = torch.float64,
) -> EveryTree:
    """Trees whose levels draft ``shape[i]`` tokens after each of the nodes that are chosen."""
    trees = EveryTree(draft)
    for count in shape:
        nodes = [choose(layer) for layer in trees.deepest]
        mass, tokens = top_tokens(trees.rows(nodes).to(dtype), k)
        trees.add(draft_level(mass, tokens, count, nodes=torch.tensor(nodes)))
    return trees


def every_adaptive_tree(draft: TableModel, quotas: Sequence[int], k: int) -> EveryTree:
    """Adaptive trees of these quotas."""
    trees, reaches = EveryTree(draft), torch.ones((1, 1), dtype=torch.float64)
    for quota in quotas:
        q = trees.rows([list(range(len(layer))) for layer in trees.deepest])
        level, _ = draft_adaptive_level(*top_tokens(q, k), reaches, quota)
        tree = trees.add(level)
        reaches = child_reaches(q[tree], reaches[tree], trees.levels[-1])
    return trees


def child_reaches(q: torch.Tensor, reaches: torch.Tensor, level: Level) -> torch.Tensor:
    """The reach of each draft of an adaptive level, draft by draft."""
    children = torch.zeros(level.drafts.shape, dtype=torch.float64)
    for b, parents in enumerate(level.parents.tolist()):
        for i, node in enumerate(parents):
            if node >= 0:
                cut = q[b, node, level.tokens[b, node]]
                prob = q[b, node, level.draft_tokens[b, i]] / cut.sum()
                ratio = prob / level.inclusion[b].flatten()[level.drafts[b, i]]
                accepted = 1 - (1 - prob) / (parents.count(node) + 1.5)
                children[b, i] = reaches[b, node] * ratio * accepted
    return children


def target_rows(target: TableModel, trees: EveryTree, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The target after every node (B, N, V); NaN where there is no node."""
    none = np.full(target.vocab_size, np.nan)
    rows = [[none if x is None else target(x) for x in nodes] for nodes in trees.prefixes]
    return torch.tensor(np.array(rows)).to(dtype)


def deviation(
    target: TableModel,
    trees: EveryTree,
    levels: list[Level] | None = None,
    rows: torch.Tensor | None = None,
    **options: int,
) -> float:
    """The largest error of the law of the first L + 1 tokens, the target writing those after a step."""
    levels = trees.levels if levels is None else levels
    rows = target_rows(target, trees) if rows is None else rows
    length = len(levels) + 1
    text = np.zeros((target.vocab_size,) * length)
    _, ends, shares = score_tree(rows, levels, **options)
    assert (ends.sum(-1) - 1.0).abs().max() < EXACT
    for i, column in enumerate(ends.numpy().T):
        masses = residual_masses(rows, levels, shares, torch.full((len(rows),), i))
        residual = (masses / masses.sum(-1, keepdim=True)).numpy()
        for b, nodes in enumerate(trees.prefixes):
            if nodes[i] is None:
                assert column[b] == 0.0
            elif column[b] > 0.0:
                for token, mass in enumerate(residual[b]):
                    start = (*nodes[i], token)
                    after = target_distribution(lambda x, s=start: target((*s, *x)), length - len(start))
                    text[start] += trees.probs[b] * column[b] * mass * after
    return float(np.abs(text - target_distribution(target, length)).max())
