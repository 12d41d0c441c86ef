"""Whole trees along texts: node by node and the bound against enumeration, layer by layer on drawn trees."""

from __future__ import annotations

import json
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from planning.test_make_plan import LENGTH, write_texts

import otmd
from otmd.models import open_dataset
from otmd.models.dataset import DrawnTree
from otmd.models.drawn_trees import node_by_node_tokens
from otmd.probabilities import Processing
from otmd.study.planning import CANDIDATES, Evidence, Settings, make_plan, probs_table, read_texts
from otmd.study.planning.latency import Latency
from otmd.study.planning.texts import Text, products, reached_by_block, steps_along
from otmd.study.planning.token_table import _rows
from otmd.study.planning.tree_choices import Choice, EqualLevels, IndependentPaths, StaticTrees
from otmd.study.planning.whole_trees import (
    NodeByNode,
    TextNode,
    WalkSettings,
    drawn_trees,
    reach_along,
    reach_table,
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
    "sharp": lambda q, n: otmd.Stratified(q, n, sharpness=2.0),
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


def texts(target: TableModel, draft: TableModel, length: int = DEPTH):
    """Every text, its probability, and the distributions along it."""
    for tokens in product(range(VOCAB), repeat=length):
        p, q = (np.array([model(tokens[:i]) for i in range(length)]) for model in (target, draft))
        yield float(np.prod(p[np.arange(length), tokens])), tokens, p, q


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
    for seed in range(3):
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


def test_a_path_is_block_verification() -> None:
    target, draft = models("any", 3)
    for _, tokens, p, q in texts(target, draft, 5):
        every = np.arange(5)
        reach = reach_along(
            [TextNode(*rows, otmd.Stratified) for rows in zip(p, q, tokens, strict=True)],
            [(1,) * 3],
        )
        wanted = reached_by_block(q[every, tokens] / p[every, tokens], 3)
        for k in range(3):
            for row in reach[(1,) * (k + 1)]:
                np.testing.assert_allclose(row, wanted[:, k + 1], atol=1e-13)


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

BOUNDED = {
    "rejection": lambda model, shape: TokenTree(model, (1,) * len(shape), otmd.WithReplacement),
    "stratified": lambda model, shape: TokenTree(model, shape, otmd.Stratified),
    "greedy": lambda model, shape: TokenTree(model, shape, otmd.Greedy),
    "sequoia": lambda model, shape: TokenTree(model, shape),
    "rrs": lambda model, shape: TokenTree(model, shape, otmd.WithReplacement),
    "preference-paths": lambda model, shape: IIDPaths(model, 2, len(shape)),
}
NODES = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
NESTED = ((((),), ()), ((),))


def evidence_of(rule: str, target, draft):
    """The probabilities of all texts, and by the number of drafts what one rule has for their tokens."""
    settings = Settings((rule,), (1, 2, 3), Processing(), (Processing(),), 0)
    first = next(iter(CANDIDATES[rule].variants))
    rng = np.random.default_rng(0)
    weights = []
    included: dict = {n: [] for n in settings.counts(rule)}
    for prob, tokens, p, q in texts(target, draft):
        weights.append(prob)
        along = [
            {
                row["num_drafts"]: row["included"]
                for row, _ in _rows(settings, *at, rng)
                if row["variant"] == first
            }
            for at in zip(p, q, tokens, strict=True)
        ]
        for n, by_text in included.items():
            by_text.append(np.array([rows[n] for rows in along]))
    return weights, included


@pytest.mark.parametrize("rule", BOUNDED)
def test_bounds_of_every_law_are_inclusion_bounds(rule) -> None:
    target, draft = models("any", 4)
    weights, included = evidence_of(rule, target, draft)
    sums = {n: [rows.sum(axis=1) for rows in by_text] for n, by_text in included.items()}
    every = np.arange(len(weights))
    checks: list = []
    if rule == "preference-paths":
        trees = IndependentPaths("", 1.0, included, included, every, DEPTH)
        checks.append((trees, Choice("", 1.0, (2, 2, 2), 6, ((0,),)), IIDPaths(draft, 2, 3)))
    else:
        levels = EqualLevels("", 1.0, sums, sums, DEPTH, False)
        shape = (1, 1, 1) if rule == "rejection" else (2, 2, 1)
        if rule != "rrs":
            # A static tree goes on below the first of equal drafts: levels are then no tree of their own.
            checks.append((levels, Choice("", 1.0, shape), BOUNDED[rule](draft, shape)))
        if rule != "rejection":
            static = StaticTrees("", 1.0, included, included, every, DEPTH)
            choice = Choice("", 1.0, (2, 3, 1), 6, NODES)
            checks.append((static, choice, BOUNDED[rule](draft, NESTED)))
    for trees, choice, law in checks:
        total = sum(w * trees.bound(i, choice)[0].sum() for i, w in enumerate(weights))
        assert total == pytest.approx(inclusion_bound(target, law).value, abs=1e-12)


def test_a_reach_is_at_most_its_bound(tmp_path) -> None:
    """Token by token, for every rule whose probabilities are exact; block verification attains it."""
    dataset = open_dataset(write_texts(tmp_path / "texts"))
    rules = (
        "rejection",
        "block",
        "certain-tree",
        "greedy",
        "rrs",
        "preference-paths",
        "stratified",
    )
    settings = Settings(rules, (1, 2), Processing(), (Processing(),), 0)
    found = read_texts(dataset)
    table = probs_table(dataset, found, settings, tmp_path / "out", workers=1)
    bounds = table.select("text", "index", "draft_temperature", "num_drafts").unique().with_columns(
        proportional=1.0, fitted=1.0
    )  # fmt: skip
    evidence = Evidence(table, bounds, found, LENGTH, 3)
    for rule in rules:
        for choice in evidence.choices(rule, [7]):
            key = rule, choice.variant, choice.draft_temperature
            trees = (evidence.trees if choice.budget else evidence.levels)[key]
            for i in range(len(found)):
                reached, bound = trees.reached(i, choice), trees.bound(i, choice)
                assert (reached <= bound + 1e-9).all()
                if rule in ("block", "certain-tree"):
                    np.testing.assert_allclose(reached, bound, atol=1e-12)


# Plans.


@pytest.fixture
def dataset(tmp_path):
    return open_dataset(write_texts(tmp_path / "texts"))


RULES = ["stratified", "stratified-subtree", "greedy-subtree", "stratified-layer", "block"]


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
    drawn(dataset, (2, 1, 1), 0.25)
    plan = make_plan(
        dataset, tmp_path / "out", rules=RULES, depth=3, num_drafts=(1, 2), budgets=(6,), workers=1
    )
    rows = {row.rule: row for row in plan.rows}
    assert rows.keys() == {*RULES}
    layer, subtree = rows["stratified-layer"], rows["stratified-subtree"]
    assert (layer.choice.shape, layer.acceptance) == ((2, 1, 1), [])
    assert subtree.choice.shape == (2, 1, 1)
    # A gain of a quarter at each third token, times three, along where steps begin.
    assert 0.05 < layer.value - subtree.value < 0.6
    assert subtree.value > rows["stratified"].value
    for row in plan.rows:
        assert row.value - 0.25 < row.bound
    assert rows["block"].bound == pytest.approx(rows["block"].value, abs=1e-12)
    assert "stratified-layer with the tree 2×1×1" in plan.said[0]
    table = plan.tables()[0]
    assert table.heads[4] == "bound"
    assert {row[0]: row[4] for row in table.rows}["block"] == rows["block"].bound
    # Depths that are unknown are shown as such.
    by_title = {table.title: table for table in plan.tables()}
    depths = {row[0]: row[2:] for row in by_title["Acceptance by depth"].rows}
    assert depths["stratified-layer"] == [None] * 3


def test_adaptive_trees_are_ranked(dataset, tmp_path) -> None:
    """Beside fixed ones, with the cost of their levels; without a bound, which is not known."""
    fixed = drawn(dataset, (2, 1), 0.0).trees
    deep = [DrawnTree(tree.index, (2, 1, 1), 1.6, 1.6, 1.5) for tree in fixed]
    add = {(2, 3): 0.1, (1, 1, 1): 0.5, (7, 7): 1.0, (1,) * 4: 2.0}
    adaptive = [
        DrawnTree(tree.index, quotas, 1.5 + gain, 1.5 + gain / 2, 1.4, adaptive=True)
        for quotas, gain in add.items()
        for tree in fixed
    ]
    object.__setattr__(dataset, "trees", [*fixed, *deep, *adaptive])
    times = Latency([(1, 1.0), (9, 2.0)], [(1, 0.1), (8, 0.2)], 0.01, 1)
    rules = ["stratified-layer", "adaptive-layer", "adaptive-subtree"]
    make = partial(make_plan, dataset, depth=3, num_drafts=(2,), budgets=(3, 7), workers=1)
    plan = make(tmp_path / "out", rules=rules, latency=times)
    rows = {(row.rule, row.choice.shape): row for row in plan.rows if row.choice.adaptive}
    # Of three drafts the chain is the only tree. Too many drafts or levels are left out.
    listed = {shape for _, shape in rows}
    assert (1, 1, 1) in listed <= {(1, 1, 1), (2, 3)}
    assert {rule for rule, _ in rows} == {"adaptive-layer", "adaptive-subtree"}
    chain = rows["adaptive-layer", (1, 1, 1)]
    assert chain.choice.tree == "1+1+1"
    assert chain.value == pytest.approx(chain.tokens_per_step / times.step((1, 1, 1), 3))
    assert chain.tokens_per_step > rows["adaptive-subtree", (1, 1, 1)].tokens_per_step
    tables = plan.by_budget().values()
    bounds = [
        row[list(table.heads).index("bound")]
        for table in tables
        for row in table.rows
        if "adaptive-layer" in row and "chain of 3" in row
    ]
    # The tree of three drafts is the best one within seven as well.
    assert len(bounds) == 2
    assert np.isnan(bounds).all()
    shown = next(row for row in plan.to_dict()["ranking"] if row["choice"]["adaptive"])
    assert (shown["bound"], shown["engines"], shown["acceptance"]) == (None, (), [])
    json.dumps(plan.to_dict(), allow_nan=False)
    object.__setattr__(dataset, "trees", adaptive)
    with pytest.raises(
        ValueError, match=r"not ranked: adaptive-layer; .* compared with fixed ones"
    ):
        make(tmp_path / "none", rules=["adaptive-layer"])


def test_an_adaptive_tree_is_compared_with_the_most_similar() -> None:
    shapes = [(2, 1), (2, 1, 1), (4,), (3, 1, 1, 1)]
    quotas = {(2, 2): (2, 1), (2, 2, 2): (2, 1, 1), (4, 4, 4): (3, 1, 1, 1), (5,): (4,)}
    trees = [DrawnTree(0, shape, 1.5, 1.5, 1.5) for shape in shapes]
    trees += [DrawnTree(0, shape, 1.5, 1.5, 1.5, adaptive=True) for shape in quotas]
    dataset = SimpleNamespace(trees=trees, metadata={"trees_every": 1})
    node_by_node = NodeByNode("", 1.0, {shape: [] for shape in shapes})
    kind = drawn_trees(dataset, [], node_by_node, CANDIDATES["adaptive-layer"], 4)
    assert {x.shape: y.shape for x, y in kind.references.items()} == quotas


def test_no_gain_is_node_by_node(dataset, tmp_path) -> None:
    drawn(dataset, (2, 1), 0.0)
    plan = make_plan(
        dataset,
        tmp_path / "out",
        rules=RULES[1:4],
        depth=2,
        num_drafts=(2,),
        budgets=(4,),
        workers=1,
    )
    rows = {row.rule: row for row in plan.rows}
    layer, subtree = rows["stratified-layer"], rows["stratified-subtree"]
    assert layer.value == subtree.value
    np.testing.assert_array_equal(layer.without, subtree.without)


def test_layer_alone_and_its_missing_trees(dataset, tmp_path) -> None:
    options = {"rules": ["stratified-layer"], "depth": 2, "budgets": (4,), "workers": 1}
    with pytest.raises(ValueError, match="otmd collect --trees"):
        make_plan(dataset, tmp_path / "none", **options)
    with pytest.raises(ValueError, match="otmd collect --trees"):
        make_plan(drawn(dataset, (2, 1, 1), 0.1), tmp_path / "deep", **options)
    drawn(dataset, (2, 1), 0.1)
    with pytest.raises(ValueError, match="draft temperatures"):
        make_plan(dataset, tmp_path / "warm", draft_temperatures=(0.5,), **options)
    adaptive = DrawnTree(0, (40, 2), 2.0, 1.5, 1.4, adaptive=True)
    object.__setattr__(dataset, "trees", [*dataset.trees, adaptive])
    plan = make_plan(dataset, tmp_path / "out", **options)
    assert [(row.rule, row.choice.shape) for row in plan.rows] == [("stratified-layer", (2, 1))]


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


def test_an_interrupted_walk_goes_on(dataset, tmp_path, monkeypatch) -> None:
    from otmd.study.planning import whole_trees

    found = read_texts(dataset)
    rules = ("stratified-subtree", "greedy-subtree")
    settings = WalkSettings(rules, ((2, 1),), Processing(), (Processing(),))
    wanted = reach_table(dataset, found, settings, tmp_path / "a", workers=1)
    assert {key[0] for key in wanted} == {*rules}
    whole, seen = whole_trees.text_reach, []

    def stop_at_third(settings, job):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(job.number)
        return whole(settings, job)

    monkeypatch.setattr(whole_trees, "text_reach", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        reach_table(dataset, found, settings, tmp_path / "b", workers=1)
    monkeypatch.setattr(
        whole_trees, "text_reach", lambda s, job: seen.append(job.number) or whole(s, job)
    )
    again = reach_table(dataset, found, settings, tmp_path / "b", workers=1)
    assert seen == list(range(len(found)))
    for key, kind in wanted.items():
        for shape, by_text in kind.reach.items():
            for one, other in zip(by_text, again[key].reach[shape], strict=True):
                np.testing.assert_array_equal(one, other)


def test_products_end_with_the_text() -> None:
    assert products(np.full((2, 3), 0.5)).tolist() == [[1.0, 0.5, 0.25, 0.0], [1.0, 0.5, 0.0, 0.0]]


def test_block_efficiency_of_paths_is_their_bound() -> None:
    target, draft = models("any", 6)
    path = IIDPaths(draft, 1, DEPTH)
    exact = block_efficiency(BlockVerification(), target, path).value
    found = first_steps(target, draft, otmd.WithReplacement, [(1, 1, 1)])
    assert found[1, 1, 1] == pytest.approx([exact] * 2, abs=1e-12)
