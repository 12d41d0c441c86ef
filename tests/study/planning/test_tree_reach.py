"""Whole trees along texts: node by node and the bound against enumeration, layer by layer on drawn trees."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from planning.test_make_plan import write_texts
from planning.test_texts import texts

import otmd
from otmd.models import open_dataset
from otmd.models.dataset import DrawnTree
from otmd.models.drawn_trees import node_by_node_tokens
from otmd.study.planning import CANDIDATES, make_plan, read_texts
from otmd.study.planning.texts import Text, steps_along
from otmd.study.planning.whole_trees import (
    NodeByNode,
    TextNode,
    drawn_trees,
    reach_along,
)
from otmd.trees import (
    AdaptiveTree,
    BlockVerification,
    IIDPaths,
    LayerVerification,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    block_efficiency,
    inclusion_bound,
)
from otmd.trees.base import Context
from otmd.trees.random_choices import every_outcome

VOCAB, DEPTH = 3, 3
SHAPES = ((2, 2), (2, 1, 1), (3, 1))
LAWS = {
    "strata": otmd.Stratified,
    "greedy": otmd.Greedy,
}
KINDS = ("any", "one token", "far")


def models(kind: str, seed: int) -> tuple[TableModel, TableModel]:
    """A target and a draft; the draft may have mass on few tokens, or the two on different ones."""
    rng = np.random.default_rng(seed)
    target = TableModel.random(VOCAB, 2, 0.7, rng=rng)
    draft = TableModel.random(VOCAB, 2, 0.1 if kind == "far" else 0.7, rng=rng)
    if kind == "one token":
        kept = [np.where(t >= t.max(axis=-1, keepdims=True), t, 0.0) for t in draft.tables]
        draft = TableModel([table / table.sum(axis=-1, keepdims=True) for table in kept])
    return target, draft


def first_steps(target, draft, make, shapes=(*SHAPES, (1, 1, 1))) -> dict:
    """Mean over texts of the reach of the first step and of its bound, summed over levels, by tree."""
    totals: dict = {}
    for prob, tokens, p, q in texts(target, draft):
        if prob > 0.0:
            nodes = [TextNode(*rows, make) for rows in zip(p, q, tokens, strict=True)]
            for tree, rows in reach_along(nodes, shapes).items():
                totals[tree] = totals.get(tree, 0.0) + prob * rows[:, 0]
    return {tree: 1.0 + sum(totals[tree[: k + 1]] for k in range(len(tree))) for tree in totals}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAWS)
def test_first_steps_are_block_efficiency_and_the_bound_is_the_inclusion_bound(name, kind) -> None:
    """Averaged over all texts, exactly what enumeration of drafts and decisions says; shallow trees too."""
    target, draft = models(kind, 0)
    # Greedy drafts need as many tokens with mass; the plan drafts all of them.
    make = lambda q, n: LAWS[name](q, min(n, np.count_nonzero(q)))  # noqa: E731
    found = first_steps(target, draft, make)
    assert found.keys() == {(1,), (1, 1), (1, 1, 1), (2,), (3,), (2, 1), *SHAPES}
    if name == "strata":
        path = block_efficiency(BlockVerification(), target, IIDPaths(draft, 1, DEPTH)).value
        assert found[1, 1, 1] == pytest.approx([path] * 2, abs=1e-12)
    for tree in SHAPES:
        reached, bound = found[tree]
        law = TokenTree(draft, tree, make)
        exact = block_efficiency(SubtreeVerification(), target, law).value
        assert reached == pytest.approx(exact, abs=1e-12)
        assert bound == pytest.approx(inclusion_bound(target, law).value, abs=1e-12)
        assert reached <= bound + 1e-12


def test_the_rule_of_single_nodes_is_another_one() -> None:
    """Negative control: the product of single nodes' probabilities falls short of whole trees."""
    target, draft = models("any", 0)
    found = first_steps(target, draft, otmd.Stratified)
    law = TokenTree(draft, (2, 1, 1), otmd.Stratified)
    alone = block_efficiency(TokenLevel(otmd.Preference()), target, law).value
    assert found[2, 1, 1][0] > alone + 0.01


def mean_over_drafts(target, law, tokens) -> float:
    """Mean over all drafts of what a rule is expected to yield on a drawn tree."""
    context = Context(target, law)
    on_tree = lambda choices: tokens(context, law.draft_tree(context, choices), choices)  # noqa: E731
    return sum(value * prob for value, prob in every_outcome(on_tree))


@pytest.mark.parametrize("rule", [LayerVerification(), SubtreeVerification()], ids=repr)
def test_first_steps_on_adaptive_trees_are_block_efficiency(rule) -> None:
    """A fixed tree along all texts, and the mean difference from it over all drafts of both trees."""
    node_by_node = lambda context, tree, _: node_by_node_tokens(context, tree)  # noqa: E731
    is_layer = isinstance(rule, LayerVerification)
    name, tokens = (
        ("adaptive-layer", rule.tokens_per_step) if is_layer else ("adaptive-subtree", node_by_node)
    )
    for seed in range(2):
        target, draft = models("any", seed)
        fixed = TokenTree(draft, (2, 1), otmd.Stratified)
        adaptive = AdaptiveTree(draft, (2, 3))
        value = mean_over_drafts(target, adaptive, tokens)
        base = mean_over_drafts(target, fixed, node_by_node)
        # The other rule's numbers are not read.
        pair = (value, np.nan) if is_layer else (np.nan, value)
        total = 0.0
        for prob, found, p, q in texts(target, draft, 2):
            nodes = [TextNode(*x, otmd.Stratified) for x in zip(p, q, found, strict=True)]
            reach = {tree: [rows] for tree, rows in reach_along(nodes, [(2, 1)]).items()}
            trees = [
                SimpleNamespace(index=0, shape=(2, 1), node_by_node=base, adaptive=False),
                SimpleNamespace(
                    index=0, shape=(2, 3), layer=pair[0], node_by_node=pair[1], adaptive=True
                ),
            ]
            kind = drawn_trees(
                SimpleNamespace(trees=trees, metadata={"trees_every": 1}),
                [Text("a", "b", [0, 1], list(found))],
                NodeByNode("", 1.0, reach),
                CANDIDATES[name],
                2,
            )
            (choice,) = kind.choices([5])
            steps = steps_along(kind.reached(0, choice), 2, 2, kind.more(0, choice))
            total += prob * steps.tokens
        exact = block_efficiency(rule, target, adaptive).value
        assert total == pytest.approx(exact, abs=1e-12)
        # Control: the fixed tree yields another number.
        assert abs(base - exact) > 1e-3


def test_large_vocabularies_are_swept_alike() -> None:
    """Beyond 1,024 tokens, where kernels are compiled: the walk against the rule on one node."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(1500, 0.05), 2) + 1e-9
    p, q = p / p.sum(), q / q.sum()
    law = otmd.Stratified(q, 3)
    for token in np.argsort(-p)[:8].tolist():
        accepted, _ = TextNode(p, q, token, otmd.Stratified).step(3, 1.0)
        exact = otmd.Preference().prepare(p, law).emission_probs(token).sum()
        assert accepted == pytest.approx(exact, abs=1e-12)


# The bound beside rows of other rules.

# Plans.


@pytest.fixture
def dataset(tmp_path):
    return open_dataset(write_texts(tmp_path / "texts"))


RULES = [
    *("block", "stratified", "greedy-subtree", "stratified-layer", "stratified-subtree"),
    *("adaptive-layer", "adaptive-subtree"),
]


def drawn(dataset, shape, gain: float, every: int = 3):
    """The dataset with trees at every third token, on which layer by layer yields more."""
    dataset.metadata["trees_every"] = every
    trees = [
        DrawnTree(row, shape, 1.5 + gain, 1.5, 1.4)
        for text in read_texts(dataset)
        for row in text.rows[1::every]
    ]
    object.__setattr__(dataset, "trees", trees)
    return dataset


def test_whole_trees_are_ranked(dataset, tmp_path) -> None:
    """Fixed and adaptive; the latter have no bound."""
    fixed = drawn(dataset, (2, 1, 1), 0.25).trees
    adaptive = [
        DrawnTree(tree.index, quotas, 1.5 + gain, 1.5 + gain / 2, 1.4, adaptive=True)
        for quotas, gain in {(2, 2): 0.1, (1, 1, 1): 0.5, (7, 7): 1.0, (1,) * 4: 2.0}.items()
        for tree in fixed
    ]
    object.__setattr__(dataset, "trees", [*fixed, *adaptive])
    options = {"depth": 3, "num_drafts": (1, 2), "budgets": (6,), "workers": 1}
    plan = make_plan(dataset, tmp_path / "out", rules=RULES, **options)
    rows = {row.rule: row for row in plan.rows}
    assert rows.keys() == {*RULES}
    layer, subtree, chain = (rows[name] for name in RULES[3:6])
    assert (layer.choice.shape, layer.acceptance) == ((2, 1, 1), [])
    # A gain of a quarter at each third token, times three, along where steps begin.
    assert subtree.choice.shape == (2, 1, 1)
    assert 0.05 < layer.value - subtree.value < 0.6
    assert subtree.value > rows["stratified"].value
    assert rows["block"].bound == pytest.approx(rows["block"].value, abs=1e-12)
    # Too many drafts or levels are left out.
    assert (chain.choice.shape, chain.choice.tree) == ((1, 1, 1), "1+1+1")
    assert chain.tokens_per_step > rows["adaptive-subtree"].tokens_per_step
    assert np.isnan(chain.bound)
    shown = next(row for row in plan.to_dict()["ranking"] if row["choice"]["adaptive"])
    assert (shown["bound"], shown["engines"], shown["acceptance"]) == (None, (), [])
    json.dumps(plan.to_dict(), allow_nan=False)
    # Depths that are unknown are shown as such.
    (table,) = [table for table in plan.tables() if table.title == "Acceptance by depth"]
    assert {row[0]: row[2:] for row in table.rows}["stratified-layer"] == [None] * 3
    object.__setattr__(dataset, "trees", adaptive)
    with pytest.raises(ValueError, match=r"not ranked: adaptive-layer; .* compared with fixed"):
        make_plan(dataset, tmp_path / "none", rules=["adaptive-layer"], **options)


def test_gains_are_weighted_by_where_trees_are_drawn() -> None:
    """Steps that begin where a tree was drawn count once for each such place that was passed over."""
    text = Text("a", "b", [4, 5, 6, 7], [0, 0, 0, 0])
    shape = (2,)
    reach = {shape: [np.full((2, 4), 0.5)]}
    trees = [DrawnTree(5, shape, 1.75, 1.5, 1.0), DrawnTree(5, (3,), 2.0, 1.0, 1.0)]
    dataset = SimpleNamespace(trees=trees, metadata={"trees_every": 2})
    node_by_node = NodeByNode("", 1.0, reach)
    kind = drawn_trees(dataset, [text], node_by_node, CANDIDATES["stratified-layer"], 1)
    (choice,) = kind.choices([4])
    assert choice.shape == shape
    assert kind.more(0, choice).tolist() == [0.0, 0.5, 0.0, 0.0]
    alone = steps_along(kind.reached(0, choice), 4)
    more = steps_along(kind.reached(0, choice), 4, None, kind.more(0, choice))
    # A step begins at the second token with probability 1/2.
    assert more.tokens - alone.tokens == pytest.approx(0.25)
    assert more.steps == alone.steps
