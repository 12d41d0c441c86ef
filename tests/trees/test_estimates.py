"""Estimates from one drawn tree: their means are what the rules emit, and the bound."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from conformance import VARIANTS
from small_models import model_pair

import otmd
from otmd.trees import (
    IIDPaths,
    InclusionBound,
    LayerVerification,
    MostLikelyTree,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    TreeLaw,
    TreeVerifier,
    optimal_block_efficiency,
    target_distribution,
    tokens_per_step,
)
from otmd.trees.base import Context
from otmd.trees.inclusion import _listed_with
from otmd.trees.random_choices import Sampled, every_outcome


class Rewritten(TreeVerifier):
    """A user's rule: it says what it emits, and nothing else."""

    def __init__(self, rule):
        self.rule = rule

    def emit(self, context, tree, choices):
        return self.rule.emit(context, tree, choices)


def test_drawn_trees_give_the_value_within_its_error():
    target, draft = model_pair("any", 1)
    law = TokenTree(draft, (2, 1), otmd.Stratified)
    for rule in (LayerVerification(), Rewritten(LayerVerification()), InclusionBound()):
        value, error = tokens_per_step(rule, target, law, 400, rng=0)
        assert 0.0 < error < 0.1
        assert abs(value - tokens_per_step(rule, target, law).value) < 4 * error


def the_bound(target, law):
    """By the formula: π(u) from all trees, and every text of the target."""
    context = Context(target, law)
    drafted = Counter()
    for prefixes, prob in every_outcome(lambda c: law.draft_tree(context, c).prefixes()):
        drafted.update(dict.fromkeys(prefixes, prob))
    total = 1.0
    for length in range(1, law.depth + 1):
        for text in product(range(3), repeat=length):
            masses = np.cumprod([target(text[:i])[text[i]] for i in range(length)])
            ratios = [drafted[text[: i + 1]] / mass for i, mass in enumerate(masses) if mass > 0]
            total += masses[-1] * min(1.0, *ratios) if masses[-1] > 0 else 0.0
    return total


NAMES = (
    *("greedy", "top, then strata", "top, then without replacement"),
    *("stratified", "without-replacement", "independent", "with-replacement"),
)


@pytest.mark.parametrize("kind", ["any", "peaked"])
def test_the_bound_is_its_formula_on_trees_and_along_texts(kind: str) -> None:
    target, draft = model_pair(kind, 2)
    shapes = (3, 1), ((), ((),), (((),),))
    laws = [TokenTree(draft, shape, VARIANTS[name]) for shape in shapes for name in NAMES]
    rule = InclusionBound()
    for law in (*laws, IIDPaths(draft, 3, 2), MostLikelyTree(draft, budget=3, depth=2)):
        context = Context(target, law)
        bound = the_bound(target, law)
        assert tokens_per_step(rule, target, law).value == pytest.approx(bound, abs=1e-12)
        probs = target_distribution(target, law.depth)
        texts = [text for text in product(range(3), repeat=law.depth) if probs[text] > 0]
        bounds = [rule.along(context, text) for text in texts]
        assert np.dot([probs[text] for text in texts], bounds) == pytest.approx(bound, abs=1e-12)


@pytest.mark.parametrize("name", ["without-replacement", "independent", "with-replacement"])
def test_the_bound_by_closed_forms_is_that_of_all_tuples(name: str, monkeypatch) -> None:
    target, draft = model_pair("peaked", 2, vocab_size=4)
    context = Context(target, TokenTree(draft, (3, 1), VARIANTS[name]))
    texts = [*product(range(4), repeat=2)][::3]
    bounds = [InclusionBound().along(context, text) for text in texts]
    monkeypatch.setattr("otmd.trees.inclusion._drafts_with", _listed_with)
    listed = [InclusionBound().along(context, text) for text in texts]
    assert bounds == pytest.approx(listed, abs=1e-12)


class BySibling(TreeLaw):
    """After token 0 two certain drafts, but only if its sibling is 1."""

    depth = 2
    draft_model = TableModel([[0.5, 0.25, 0.25, 0.0], np.tile([0.5, 0.5, 0.0, 0.0], (4, 1))])

    def root(self, draft):
        return "root"

    def node_law(self, draft_probs, state):
        if state == "root":
            return otmd.Joint([[0, 1], [0, 2]], [0.5, 0.5], 4)
        return otmd.Greedy(draft_probs, 2) if state else None

    def child(self, state, tokens, token):
        return state == "root" and token == 0 and 1 in tokens.tolist()


def test_trees_that_depend_on_siblings_have_no_bound_by_prefixes():
    """Given the tree, the sum over its nodes would have the mean 1.75, but a rule attains 2."""
    target = TableModel([[0.5, 0.0, 0.0, 0.5], np.tile([0.5, 0.5, 0.0, 0.0], (4, 1))])
    assert optimal_block_efficiency(target, BySibling()).value == pytest.approx(2.0, abs=1e-9)
    for num_trees in (None, 20):
        with pytest.raises(otmd.UnsupportedLaw, match="drafts elsewhere"):
            tokens_per_step(InclusionBound(), target, BySibling(), num_trees, rng=0)


def test_the_bound_where_masses_underflow() -> None:
    half = TableModel([[0.5, 0.5]])
    rare = TableModel([[1.0, 1e-200]])
    bound = tokens_per_step(InclusionBound(), rare, IIDPaths(half, 1, 2)).value
    assert bound == pytest.approx(1.75, abs=1e-12)
    flat = TableModel([np.full(1000, 1e-3)])
    deep = IIDPaths(flat, 1, 150)
    assert tokens_per_step(InclusionBound(), flat, deep, 2, rng=0).value == pytest.approx(151.0, abs=1e-9)


def test_a_large_vocabulary() -> None:
    rng = np.random.default_rng(3)
    rows = rng.dirichlet(np.full(500, 0.1), size=2)
    target, draft = TableModel([rows[0]]), TableModel([0.6 * rows[0] + 0.4 * rows[1]])
    law = TokenTree(draft, (2, 2, 1, 1), otmd.Stratified)
    by_layer, by_node, by_token = (
        tokens_per_step(rule, target, law, 30, rng=4)
        for rule in (LayerVerification(), SubtreeVerification(), TokenLevel(otmd.Preference()))
    )
    bound = tokens_per_step(InclusionBound(), target, law, 100, rng=5)
    assert by_layer.value < bound.value + 4 * (bound.standard_error + by_layer.standard_error)
    assert by_layer.value > by_token.value
    assert abs(by_node.value - by_layer.value) < 4 * by_node.standard_error


def test_the_most_likely_tree_yields_what_its_definition_says_and_is_read_level_by_level():
    """The text yields tokens as long as it stays in the tree; the draft model reads many nodes in a call."""
    target, draft = TableModel.random(4, 1, rng=0), TableModel.random(4, 1, rng=1)
    law = MostLikelyTree(draft, budget=6, depth=3)
    context = Context(target, law)
    tree = law.draft_tree(context, Sampled(np.random.default_rng(0)))
    asked = [set(nodes) for nodes in tree.grow()]
    assert asked[0] == {()}
    first = asked[: -law.depth]
    assert len(first) <= law.depth
    assert sum(map(len, first)) == len(set().union(*first))
    nodes = tree.prefixes()
    expected = sum(np.prod([target(v[:k])[v[k]] for k in range(len(v))]) for v in nodes)
    rule = TokenLevel(otmd.TargetOnly())
    assert rule.expected_tokens(context, tree) == pytest.approx(expected, abs=1e-12)
