"""Estimates from one drawn tree: their means are what the rules emit, and the bound."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest

import otmd
from otmd.trees import (
    BlockVerification,
    GreedyMultiPath,
    IIDPaths,
    LayerVerification,
    MostLikelyTree,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    block_efficiency,
    inclusion_bound,
    target_distribution,
)
from otmd.trees.base import Context
from otmd.trees.estimates import bound_along, bound_on_tree, expected_tokens
from otmd.trees.random_choices import Sampled, every_outcome

NODE_LAWS = {
    otmd.Stratified: (TokenLevel(otmd.Preference()), SubtreeVerification(), LayerVerification()),
    otmd.WithoutReplacement: (TokenLevel(otmd.RecursiveRejection()), Traversal()),
    otmd.Greedy: (TokenLevel(otmd.Preference()), SubtreeVerification()),
}
PATHS = (TokenLevel(otmd.KSequential()), GreedyMultiPath(), LayerVerification())
ONE_PATH = (TokenLevel(otmd.Preference()), BlockVerification())


def models():
    return TableModel.random(3, 2, rng=1), TableModel.random(3, 2, rng=2)


def small_laws(draft):
    """Laws of small trees whose bound is estimated, each with rules."""
    for kind, rules in NODE_LAWS.items():
        yield TokenTree(draft, (2, 1), kind), rules
    yield IIDPaths(draft, 2, 2), PATHS
    yield TokenTree(draft, (1, 1)), ONE_PATH


def mean_over_trees(context, estimate):
    outcomes = every_outcome(
        lambda choices: estimate(context, context.law.draft_tree(context, choices))
    )
    return sum(value * prob for value, prob in outcomes)


def test_estimates_have_the_mean_of_what_the_rules_emit():
    target, draft = models()
    certain = MostLikelyTree(draft, budget=3, depth=2), (TokenLevel(otmd.TargetOnly()),)
    for law, rules in (*small_laws(draft), certain):
        context = Context(target, law)
        for rule in rules:
            mean = mean_over_trees(context, partial(expected_tokens, rule))
            assert mean == pytest.approx(block_efficiency(rule, target, law).value, abs=1e-12)


def test_estimates_of_the_bound_have_its_mean():
    target, draft = (TableModel.random(4, 2, 0.3, rng=seed) for seed in (1, 2))
    probs = target_distribution(target, 2)
    for law, _ in small_laws(draft):
        context = Context(target, law)
        bound = inclusion_bound(target, law).value
        assert mean_over_trees(context, bound_on_tree) == pytest.approx(bound, abs=1e-12)
        texts = [text for text in product(range(4), repeat=2) if probs[text] > 0]
        bounds = [bound_along(context, text) for text in texts]
        assert np.dot([probs[text] for text in texts], bounds) == pytest.approx(bound, abs=1e-12)
        assert max(bounds) - min(bounds) > 0.01


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
    assert expected_tokens(rule, context, tree) == pytest.approx(expected, abs=1e-12)
