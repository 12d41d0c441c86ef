"""Layer and subtree verification: special cases, bounds, and faults that must be caught."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from small_models import KINDS, model_pair

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
    block_efficiency,
    inclusion_bound,
    optimal_block_efficiency,
    output_distribution,
    target_distribution,
)
from otmd.trees.base import Context
from otmd.trees.inclusion import _first_and_later, _listed_with
from otmd.trees.random_choices import every_outcome

RULES = [LayerVerification(), SubtreeVerification()]
TREES = {
    "strata 2×2": lambda q: TokenTree(q, (2, 2), otmd.Stratified),
    "strata 3×1": lambda q: TokenTree(q, (3, 1), otmd.Stratified),
    "greedy 2×2": lambda q: TokenTree(q, (2, 2), otmd.Greedy),
    "two paths": lambda q: IIDPaths(q, 2, 2),
    "distinct 2-2": lambda q: TokenTree(q, (2, 2)),
    "most likely": lambda q: MostLikelyTree(q, 5, 3, 3),
}


def pairs(kind: str, name: str, number: int):
    """Models and a tree, where the tree's law is defined."""
    for seed in range(number):
        target, draft = model_pair(kind, seed)
        fewest = min(np.count_nonzero(table, axis=-1).min() for table in draft.tables)
        if fewest >= 2 or not name.startswith("greedy"):
            yield target, TREES[name](draft)


def test_layers_leave_little_to_any_verifier() -> None:
    """On these models the layers lose less than nodes, and nodes less than token by token."""
    for name in ("strata 2×2", "strata 3×1", "two paths"):
        lost = dict.fromkeys((*RULES, TokenLevel(otmd.Preference())), 0.0)
        for target, law in pairs("any", name, 8):
            best = optimal_block_efficiency(target, law).value
            for rule in lost:
                lost[rule] += best - block_efficiency(rule, target, law).value
        by_layer, by_node, by_token = lost.values()
        assert by_layer < 0.5 * by_node < 0.5 * by_token


@pytest.mark.parametrize("rule", RULES)
def test_a_path_is_verified_as_a_block(rule) -> None:
    for kind in KINDS:
        target, draft = model_pair(kind, 5)
        law = IIDPaths(draft, 1, 3)
        value = block_efficiency(rule, target, law).value
        assert value == pytest.approx(
            block_efficiency(BlockVerification(), target, law).value, abs=1e-12
        )
        assert value == pytest.approx(inclusion_bound(target, law).value, abs=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_one_layer_is_the_preference_rule(rule) -> None:
    for seed in range(6):
        target, draft = model_pair("any", seed)
        for kind in (otmd.Stratified, otmd.WithReplacement, otmd.Greedy):
            rate = otmd.acceptance_rate(otmd.Preference(), target(()), kind(draft(()), 2))
            value = block_efficiency(rule, target, TokenTree(draft, (2,), kind)).value
            assert value == pytest.approx(1.0 + rate, abs=1e-12)


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
        value = block_efficiency(rule, target, tree).value
        assert value <= inclusion_bound(target, tree).value + 1e-9


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
    assert inclusion_bound(rare, IIDPaths(half, 1, 2)).value == pytest.approx(1.75, abs=1e-12)
    flat = TableModel([np.full(1000, 1e-3)])
    deep = IIDPaths(flat, 1, 150)
    assert inclusion_bound(flat, deep, 2, rng=0).value == pytest.approx(151.0, abs=1e-9)


@pytest.mark.parametrize("q", [1e-300, 0.003, 0.5, 1.0])
def test_counts_of_more_paths_than_a_float_can_count(q: float) -> None:
    probs = np.zeros(1501)
    for _, later, prob in _first_and_later(np.full(1500, q)):
        probs[1 + later] += prob
    drafted = -np.expm1(1500 * np.log1p(-q)) if q < 1.0 else 1.0
    assert probs.sum() == pytest.approx(drafted, rel=1e-11)
    assert probs @ np.arange(1501) == pytest.approx(1500 * q, rel=1e-11)


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
        value = inclusion_bound(target, law).value
        with monkeypatch.context() as patch:
            patch.setattr("otmd.trees.inclusion._drafts_with", _listed_with)
            assert value == pytest.approx(inclusion_bound(target, law).value, abs=1e-12)


@pytest.mark.parametrize("name", BIG_LAWS)
def test_the_bound_of_a_large_vocabulary(name: str) -> None:
    rng = np.random.default_rng(8)
    target, draft = (TableModel([rng.dirichlet(np.full(30_000, 0.01))]) for _ in range(2))
    law = TokenTree(draft, ((), ((),), (((),),)), BIG_LAWS[name])
    bound = inclusion_bound(target, law, 20, rng=9)
    assert 1.0 < bound.value < 4.0
    first = np.minimum(target(()), BIG_LAWS[name](draft(()), 3).inclusion_probs()).sum()
    assert bound.value > first


def test_the_bound_names_a_law_without_closed_form() -> None:
    wide = TableModel([np.full(3000, 1 / 3000)])
    law = TokenTree(wide, (2,), otmd.ConditionalPoisson)
    with pytest.raises(otmd.UnsupportedLaw, match="inclusion_bound: got drafts of Conditional"):
        inclusion_bound(wide, law, 2, rng=0)


@pytest.mark.parametrize("name", ["strata 2×2", "two paths", "greedy 2×2"])
def test_scores_of_a_drawn_tree_vary_less_than_what_is_emitted(name: str) -> None:
    for target, law in pairs("any", name, 3):
        context, rule = Context(target, law), LayerVerification()
        outcomes = list(every_outcome(partial(rule.run, context)))
        counted = sum(len(emitted) * prob for emitted, prob in outcomes)
        variance = sum((len(emitted) - counted) ** 2 * prob for emitted, prob in outcomes)
        exact = block_efficiency(rule, target, law).value
        sampled = block_efficiency(rule, target, law, 400, rng=1)
        assert abs(sampled.value - exact) < 4.5 * sampled.standard_error + 1e-12
        assert sampled.standard_error <= 0.8 * (variance / 400) ** 0.5 + 1e-12


def test_the_bound_along_sampled_texts() -> None:
    for name, make in TREES.items():
        target, draft = model_pair("any", 3)
        law = make(draft)
        sampled = inclusion_bound(target, law, 2000, rng=2)
        exact = inclusion_bound(target, law).value
        assert abs(sampled.value - exact) < 4.5 * sampled.standard_error + 1e-9, name


def test_laws_that_are_not_served_are_named() -> None:
    target, draft = model_pair("any", 0)
    for rule in RULES:
        with pytest.raises(otmd.UnsupportedLaw, match="expected independent drafts"):
            rule.step(target, TokenTree(draft, (2, 2)), rng=0)
    with pytest.raises(otmd.UnsupportedLaw, match="expected IIDPaths"):
        GreedyMultiPath().step(target, TokenTree(draft, (2, 2)), rng=0)


@pytest.mark.parametrize("sizes", [(3, 4), (4, 3)])
@pytest.mark.parametrize("rule", [*RULES, GreedyMultiPath(), BlockVerification()])
def test_models_of_different_vocabularies_are_named(rule, sizes: tuple[int, int]) -> None:
    target, draft = (TableModel.random(size, 1, rng=1) for size in sizes)
    law = IIDPaths(draft, 1, 2)
    with pytest.raises(ValueError, match=f"target_probs: got {sizes[0]} tokens"):
        rule.step(target, law, rng=0)
    with pytest.raises(ValueError, match=f"target_probs: got {sizes[0]} tokens"):
        inclusion_bound(target, law)


class WithoutLeftover(LayerVerification):
    """Faulty: a layer emits from w M, not from what its children leave of it."""

    def layers(self, context, tree):
        layers = super().layers(context, tree)
        for layer in layers:
            layer.masses, layer.left_by = layer.scores, layer._target
        return layers


def test_a_layer_that_forgets_its_children_is_caught() -> None:
    target, draft = model_pair("any", 1)
    law = TokenTree(draft, (2, 1), otmd.Stratified)
    output = output_distribution(WithoutLeftover(), target, law)
    assert np.abs(output - target_distribution(target, 3)).max() > 0.01


def test_a_large_vocabulary() -> None:
    rng = np.random.default_rng(3)
    rows = rng.dirichlet(np.full(2000, 0.05), size=2)
    target, draft = TableModel([rows[0]]), TableModel([0.6 * rows[0] + 0.4 * rows[1]])
    law = TokenTree(draft, (2, 2, 1, 1), otmd.Stratified)
    by_layer, by_node, by_token = (
        block_efficiency(rule, target, law, 60, rng=4)
        for rule in (*RULES, TokenLevel(otmd.Preference()))
    )
    bound = inclusion_bound(target, law, 400, rng=5)
    assert by_layer.value < bound.value + 4 * (bound.standard_error + by_layer.standard_error)
    assert by_layer.value > by_token.value
    assert abs(by_node.value - by_layer.value) < 4 * by_node.standard_error
