"""Adaptive trees on tensors: losslessness on small models, parity with the law on arrays, static shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensor_pairs import model_like
from tensor_trees import child_reaches, every_adaptive_tree
from test_trees_on_tensors import EXACT, deviation, hostile, models, prepared

import otmd
from otmd.tensors import TensorLayerVerification, TensorLevel, draft_adaptive_level
from otmd.tensors import trees as tensor_trees
from otmd.trees import AdaptiveTree, TableModel
from otmd.trees.adaptive import Leaf
from otmd.trees.base import Node, Prefix

QUOTAS = [(3,), (2, 3), (1, 2, 2), (4, 5)]


# ---------------------------------------------------------------- losslessness, exactly


@pytest.mark.parametrize("num_tokens", [2, 3])
@pytest.mark.parametrize("quotas", QUOTAS)
def test_the_output_is_distributed_as_the_target(quotas: tuple[int, ...], num_tokens: int) -> None:
    target, draft = models(3, 0)
    trees = every_adaptive_tree(draft, quotas, num_tokens)
    assert trees.probs.sum() == pytest.approx(1.0, abs=EXACT)
    rule = prepared(target, trees)
    assert deviation(target, trees, rule) < EXACT
    assert (rule.end_probs.sum(dim=-1) - 1.0).abs().max() < EXACT
    if quotas == (2, 3) and num_tokens == 3:
        numbers = [sorted(map(x.count, {*x})) for x in trees.levels[1].nodes.tolist()]
        assert [1, 2] in numbers


@pytest.mark.parametrize(
    "case", ["one-hot draft", "one-hot target", "disjoint", "equal", "two tokens"]
)
def test_zero_masses_and_ties(case: str) -> None:
    target, draft = hostile(case)
    trees = every_adaptive_tree(draft, (2, 3), 3)
    assert deviation(target, trees, prepared(target, trees)) < EXACT


# ---------------------------------------------------------------- parity with the law on arrays


class Replayed:
    """A tree whose drafts are given, for :meth:`AdaptiveTree.grow`; it notes the reach of each node."""

    def __init__(self, draft: TableModel, drafts: dict[Prefix, list[int]]) -> None:
        self._draft = draft
        self._drafts = drafts
        self.reaches: dict[Prefix, float] = {}
        self.drawn: set[Prefix] = set()

    def leaf(self, prefix: Prefix, reach: float) -> Leaf:
        self.reaches[prefix] = reach
        return Leaf(self._draft(prefix), reach)

    def draw(self, prefix: Prefix, num_drafts: int) -> Node:
        assert len(self._drafts[prefix]) == num_drafts
        self.drawn.add(prefix)
        law = otmd.Stratified(self._draft(prefix), num_drafts)
        return Node(law, np.array(self._drafts[prefix]), num_drafts)


def test_numbers_of_drafts_and_reaches_are_those_of_the_law() -> None:
    """Models of 30 tokens, one tree of each, all in one batch; and each of them by itself."""
    quotas, size = (3, 4, 5, 4), 30
    drafts = [TableModel.random(size, 2, 0.1 + 0.1 * seed, rng=seed) for seed in range(8)]
    layers: list[list[Prefix | None]] = [[()] for _ in drafts]
    by_prefix: list[dict[Prefix, list[int]]] = [{} for _ in drafts]
    noted: list[dict[Prefix, float]] = [{(): 1.0} for _ in drafts]
    reaches = torch.ones((len(drafts), 1), dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    for quota in quotas:
        rows = [
            [model(prefix or ()) for prefix in layer]
            for model, layer in zip(drafts, layers, strict=True)
        ]
        q = torch.tensor(np.array(rows))
        level, below = draft_adaptive_level(q, reaches, quota, size, generator)
        torch.testing.assert_close(below, child_reaches(q, reaches, level), rtol=1e-12, atol=0)
        for b in range(len(drafts)):
            one, _ = draft_adaptive_level(q[b : b + 1], reaches[b : b + 1], quota, size)
            for x, y in zip(one[:4], level[:4], strict=True):
                assert torch.equal(x[0], y[b])
        reaches = below
        above, layers = layers, []
        for b, (nodes, tokens) in enumerate(
            zip(level.nodes.tolist(), level.draft_tokens.tolist(), strict=True)
        ):
            layer: list[Prefix | None] = []
            for node, token, reach in zip(nodes, tokens, below[b].tolist(), strict=True):
                prefix = None if node < 0 else (*(above[b][node] or ()), token)
                layer.append(prefix)
                if prefix is not None:
                    by_prefix[b].setdefault(prefix[:-1], []).append(token)
                    noted[b][prefix] = reach
            layers.append(layer)
    for model, by_node, reach_of in zip(drafts, by_prefix, noted, strict=True):
        replayed = Replayed(model, by_node)
        for _ in AdaptiveTree(model, quotas).grow(replayed):  # type: ignore[arg-type]
            pass
        assert replayed.drawn == by_node.keys()
        for prefix, reach in replayed.reaches.items():
            assert reach_of[prefix] == pytest.approx(reach, rel=1e-12)


def test_drafts_of_the_most_likely_tokens() -> None:
    """q is cut to k tokens and renormalised, in half precision too; nodes of reach 0 are no nodes."""
    _, q = model_like(4, 50, seed=2)
    reaches = torch.tensor([[0.5, 0.0, 0.3, 0.2]], dtype=torch.float64)
    rows = torch.tensor(q)[None]
    top = rows.topk(6).values[..., -1:]
    cut = torch.where(rows >= top, rows, 0.0)
    cut = cut / cut.sum(dim=-1, keepdim=True)
    rows[:, 1] = torch.nan
    level, below = draft_adaptive_level(rows, reaches, 7, 6)
    same, _ = draft_adaptive_level(cut, reaches, 7, 50)
    assert torch.equal(level.nodes, same.nodes)
    assert set(level.nodes[0].tolist()) == {0, 2, 3}
    assert (below > 0).all()
    torch.testing.assert_close(level.inclusion, same.inclusion[..., :6], rtol=1e-12, atol=1e-15)
    half, _ = draft_adaptive_level(rows.half(), reaches, 7, 6)
    assert half.nodes.shape == (1, 7)


# ---------------------------------------------------------------- draws, batches, graphs


def drawn(
    target: TableModel, draft: TableModel, count: int, seed: int = 0
) -> tuple[torch.Tensor, list[TensorLevel]]:
    """The target's rows and two levels of adaptive trees of Markov chains, 2 drafts and then 3."""
    p, q = ([torch.tensor(x) for x in model.tables] for model in (target, draft))
    generator = torch.Generator().manual_seed(seed)
    reaches = torch.ones((count, 1), dtype=torch.float64)
    root = q[0].expand(count, 1, -1)
    first, reaches = draft_adaptive_level(root, reaches, 2, 4, generator=generator)
    second, _ = draft_adaptive_level(q[1][first.draft_tokens], reaches, 3, 4, generator=generator)
    above = first.draft_tokens.gather(1, second.parents.clamp(min=0))
    rows = [p[0].expand(count, 1, -1), p[1][first.draft_tokens], p[2][above, second.draft_tokens]]
    return torch.cat(rows, dim=1), [first, second]


@pytest.mark.slow
def test_it_compiles_without_a_break_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting and deciding as one graph, which needs no value on the host."""
    monkeypatch.setattr(tensor_trees, "_NUM_ROUNDS", 2)
    target, draft = models(4, 3)
    p, q = ([torch.tensor(x) for x in model.tables] for model in (target, draft))

    def step(reaches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        root = q[0].expand(50, 1, -1)
        first, reaches = draft_adaptive_level(root, reaches, 2, 4, validate=False)
        tokens = first.draft_tokens.clamp(min=0)
        second, _ = draft_adaptive_level(q[1][tokens], reaches, 3, 4, validate=False)
        above = tokens.gather(1, second.parents.clamp(min=0))
        last = p[2][above, second.draft_tokens.clamp(min=0)]
        rows = torch.cat([p[0].expand(50, 1, -1), p[1][tokens], last], dim=1)
        return TensorLayerVerification(rows, [first, second], validate=False).verify()

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    path, length, token = compiled(torch.ones((50, 1), dtype=torch.float64))
    assert ((path >= 0).sum(dim=-1) == length).all()
    assert (token >= 0).all()


# ---------------------------------------------------------------- bad input


def test_bad_values_are_named() -> None:
    q = torch.full((2, 3, 4), 0.25)
    reaches = torch.ones((2, 3), dtype=torch.float64)
    for message, call in {
        "draft_probs: got shape": lambda: draft_adaptive_level(q[0], reaches, 2, 4),
        "reaches: got torch.float32": lambda: draft_adaptive_level(q, reaches.float(), 2, 4),
        "reaches: got .* of shape": lambda: draft_adaptive_level(q, reaches[:1], 2, 4),
        "num_tokens: got 5": lambda: draft_adaptive_level(q, reaches, 2, 5),
        "quota: got 0": lambda: draft_adaptive_level(q, reaches, 0, 4),
        "draft_probs: got a row at index": lambda: draft_adaptive_level(q * 2, reaches, 2, 4),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("change", ["a stratum twice", "other tokens"])
def test_a_node_that_is_listed_wrongly_is_refused(change: str) -> None:
    rows, levels = drawn(*models(4, 3), 4)
    first = levels[0]
    assert first.nodes.tolist() == [[0, 0]] * 4
    if change == "a stratum twice":
        first = TensorLevel(*(x[:, [0, 0]] for x in first))
    else:
        tokens = torch.stack([first.tokens[:, 0], first.tokens[:, 1].roll(1, -1)], dim=1)
        first = first._replace(tokens=tokens)
    with pytest.raises(ValueError, match=r"levels\[0\]: got drafts"):
        TensorLayerVerification(rows, [first, levels[1]])
    verdict = TensorLayerVerification(rows, [first, levels[1]], validate=False).verify()
    assert (verdict.token == -1).all()
