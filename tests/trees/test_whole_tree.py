"""Layer and subtree verification: special cases, bounds, and faults that must be caught."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from small_models import KINDS, model_pair

import otmd
from otmd.trees import (
    BlockVerification,
    GreedyMultiPath,
    IIDPaths,
    InclusionBound,
    LayerVerification,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    output_distribution,
    target_distribution,
    tokens_per_step,
)
from otmd.trees.base import Context
from otmd.trees.inclusion import _listed_with

RULES = [LayerVerification(), SubtreeVerification()]


@pytest.mark.parametrize("rule", RULES)
def test_a_path_is_verified_as_a_block(rule) -> None:
    for kind in KINDS:
        target, draft = model_pair(kind, 5)
        law = IIDPaths(draft, 1, 3)
        value = tokens_per_step(rule, target, law).value
        assert value == pytest.approx(
            tokens_per_step(BlockVerification(), target, law).value, abs=1e-12
        )
        assert value == pytest.approx(
            tokens_per_step(InclusionBound(), target, law).value, abs=1e-9
        )


SHAPES = [(((),), ()), ((), ((),)), (((), ()), (), ((),)), ((((),),), ())]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nodes_that_draft_nothing(rule, shape) -> None:
    """Leaves before and after nodes that draft, in a layer."""
    laws = (otmd.Stratified, otmd.WithReplacement, lambda q, n: otmd.Independent([q] * n))
    target, draft = model_pair("any", 1, vocab_size=2)
    for law in laws:
        tree = TokenTree(draft, shape, law)
        output = output_distribution(rule, target, tree)
        assert np.abs(output - target_distribution(target, tree.depth + 1)).max() < 1e-12
        value = tokens_per_step(rule, target, tree).value
        assert value <= tokens_per_step(InclusionBound(), target, tree).value + 1e-9


@pytest.mark.parametrize("tiny", [1e-9, 1e-17, 1e-160, 1e-300])
def test_greedy_multi_path_picks_tokens_of_tiny_mass(tiny: float) -> None:
    target = TableModel([[0.5, 0.3, 0.2]])
    for masses in ([1.0, tiny, 0.0], [0.5, 0.5, tiny], [tiny, 1.0, tiny]):
        law = IIDPaths(TableModel([np.array(masses) / sum(masses)]), 2, 2)
        output = output_distribution(GreedyMultiPath(), target, law)
        assert np.abs(output - target_distribution(target, 3)).max() < 1e-12


def test_the_bound_where_masses_underflow() -> None:
    half = TableModel([[0.5, 0.5]])
    rare = TableModel([[1.0, 1e-200]])
    bound = tokens_per_step(InclusionBound(), rare, IIDPaths(half, 1, 2)).value
    assert bound == pytest.approx(1.75, abs=1e-12)
    flat = TableModel([np.full(1000, 1e-3)])
    deep = IIDPaths(flat, 1, 150)
    assert tokens_per_step(InclusionBound(), flat, deep, 2, rng=0).value == pytest.approx(
        151.0, abs=1e-9
    )


BIG_LAWS = {
    "greedy": otmd.Greedy,
    "top then strata": partial(otmd.TopThen, top=1, rest=otmd.Stratified),
    "top then": partial(otmd.TopThen, top=1),
    "distinct": otmd.WithoutReplacement,
    "independent": lambda q, n: otmd.Independent([np.roll(q, j) for j in range(n)]),
    "with replacement": otmd.WithReplacement,
}


@pytest.mark.parametrize("name", BIG_LAWS)
@pytest.mark.parametrize("shape", [(3, 1), ((), ((),), (((),),))], ids=str)
def test_the_bound_by_closed_forms_is_that_of_all_tuples(name: str, shape, monkeypatch) -> None:
    for kind in ("any", "peaked"):
        target, draft = model_pair(kind, 2, vocab_size=4)
        law = TokenTree(draft, shape, BIG_LAWS[name])
        texts = [*product(range(4), repeat=law.depth)][::3]
        values = [InclusionBound().along(Context(target, law), text) for text in texts]
        with monkeypatch.context() as patch:
            patch.setattr("otmd.trees.inclusion._drafts_with", _listed_with)
            listed = [InclusionBound().along(Context(target, law), text) for text in texts]
        assert values == pytest.approx(listed, abs=1e-12)


def test_a_large_vocabulary() -> None:
    rng = np.random.default_rng(3)
    rows = rng.dirichlet(np.full(500, 0.1), size=2)
    target, draft = TableModel([rows[0]]), TableModel([0.6 * rows[0] + 0.4 * rows[1]])
    law = TokenTree(draft, (2, 2, 1, 1), otmd.Stratified)
    by_layer, by_node, by_token = (
        tokens_per_step(rule, target, law, 30, rng=4)
        for rule in (*RULES, TokenLevel(otmd.Preference()))
    )
    bound = tokens_per_step(InclusionBound(), target, law, 100, rng=5)
    assert by_layer.value < bound.value + 4 * (bound.standard_error + by_layer.standard_error)
    assert by_layer.value > by_token.value
    assert abs(by_node.value - by_layer.value) < 4 * by_node.standard_error
