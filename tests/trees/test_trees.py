"""Laws of trees against every way to draw them, shapes against every shape, and input that makes no sense."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
import reference as naive
from small_models import along, model_pair

import otmd
from otmd.trees import (
    BlockVerification,
    IIDPaths,
    MostLikelyTree,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    block_efficiency,
    budget_shape,
    output_distribution,
    target_distribution,
)
from otmd.trees.base import Context
from otmd.trees.laws import Shape
from otmd.trees.optimum import _trees
from otmd.trees.random_choices import RandomChoices, every_outcome


@pytest.mark.parametrize("num_paths", [1, 2, 3])
def test_paths_merge_into_the_tree_of_their_prefixes(num_paths: int) -> None:
    target, draft = model_pair("any", num_paths)
    wanted: dict[frozenset, float] = defaultdict(float)
    for tree, prob in naive.trees_of_paths(draft, num_paths, 2):
        drafted = {(*prefix, token) for prefix, tokens in tree.items() for token in tokens}
        wanted[frozenset({(), *drafted})] += prob
    found = _trees(Context(target, IIDPaths(draft, num_paths, 2)))
    assert found.keys() == wanted.keys()
    for tree, prob in wanted.items():
        assert found[tree] == pytest.approx(prob, abs=1e-12)


@pytest.mark.parametrize("budget", [1, 3, 6, 20])
def test_the_likeliest_tree_holds_the_likeliest_paths(budget: int) -> None:
    for seed in range(5):
        target, draft = model_pair("any", seed)
        paths = [path for d in (1, 2, 3) for path in product(range(3), repeat=d)]
        likeliest = sorted(paths, key=lambda path: -np.prod(along(draft, path)))[:budget]
        (found,) = _trees(Context(target, MostLikelyTree(draft, budget, 3, 3)))
        assert found == {(), *likeliest}


def test_a_likeliest_tree_no_wider_than_it_may_be() -> None:
    target, draft = model_pair("any", 0)
    (found,) = _trees(Context(target, MostLikelyTree(draft, 30, 3, 2)))
    assert len(found) == 1 + 2 + 4 + 8


def accepted(shape: Shape, rates: list[float]) -> float:
    """How long the accepted path of a shape is on average."""
    return sum(
        rate * (1.0 + accepted(below, rates)) for rate, below in zip(rates, shape, strict=False)
    )


def shapes(budget: int, depth: int, width: int) -> list[Shape]:
    """Every shape of exactly this many drafts."""
    if budget == 0:
        return [()]
    if depth == 0:
        return []
    found: list[Shape] = []
    for parts in product(range(1, budget + 1), repeat=width):
        for count in range(1, width + 1):
            if sum(parts[:count]) == budget and all(part == 1 for part in parts[count:]):
                below = [shapes(part - 1, depth - 1, width) for part in parts[:count]]
                found += [tuple(each) for each in product(*below)]
    return found


@pytest.mark.parametrize("rates", [[0.6, 0.2, 0.1], [0.4, 0.3, 0.2], [0.9, 0.05, 0.0]])
@pytest.mark.parametrize("budget", [1, 2, 4, 6])
def test_no_shape_of_the_budget_is_better(rates: list[float], budget: int) -> None:
    best = max(accepted(shape, rates) for shape in shapes(budget, 3, 3))
    found = budget_shape(rates, budget, 3)
    assert accepted(found, rates) == pytest.approx(best, abs=1e-12)


def test_regular_shapes() -> None:
    _, draft = model_pair("any", 0)
    tree = TokenTree(draft, (2, 3, 1))
    assert tree.depth == 3
    assert tree.shape == ((((),),) * 3,) * 2
    assert TokenTree(draft, tree.shape).shape == tree.shape


def test_drafts_run_out_with_the_tokens() -> None:
    target, draft = model_pair("certain", 0)
    law = TokenTree(draft, (3, 2))
    (tree,) = _trees(Context(target, law))
    assert len(tree) == 3
    assert output_distribution(Traversal(), target, law) == pytest.approx(
        target_distribution(target, 3), abs=1e-12
    )


# ---------------------------------------------------------------- choices


def test_every_outcome_of_a_small_game() -> None:
    def game(choices: RandomChoices) -> tuple[int, bool]:
        token = choices.token(np.array([0.2, 0.0, 0.8]))
        return token, token == 2 and choices.accepts(0.25)

    found = dict(every_outcome(game))
    assert found == pytest.approx({(0, False): 0.2, (2, True): 0.2, (2, False): 0.6})


def test_too_many_outcomes_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 10 outcomes"):
        list(every_outcome(lambda choices: [choices.accepts(0.5) for _ in range(9)], most=10))


def test_a_step_is_one_of_the_outcomes() -> None:
    target, draft = model_pair("any", 2)
    rng, law = np.random.default_rng(0), TokenTree(draft, (2, 2))
    steps = [Traversal().step(target, law, rng=rng) for _ in range(50)]
    assert {len(step) for step in steps} == {1, 2, 3}
    again = np.random.default_rng(0)
    assert steps == [Traversal().step(target, law, rng=again) for _ in range(50)]


# ---------------------------------------------------------------- bad input


def test_rules_refuse_trees_that_they_do_not_serve() -> None:
    target, draft = model_pair("any", 0)
    with pytest.raises(otmd.UnsupportedLaw, match="expected a single path"):
        block_efficiency(BlockVerification(), target, IIDPaths(draft, 2, 2))
    message = "which may be equal, expected .* distinct drafts, such as drafts without replacement"
    with pytest.raises(otmd.UnsupportedLaw, match=message):
        block_efficiency(Traversal(), target, IIDPaths(draft, 2, 2))
    with pytest.raises(otmd.UnsupportedLaw, match="KSequential"):
        block_efficiency(TokenLevel(otmd.KSequential()), target, TokenTree(draft, (2,)))


def test_input_that_makes_no_sense() -> None:
    target, draft = model_pair("any", 0)
    law, rule = IIDPaths(draft, 1, 2), BlockVerification()
    for make, message in [
        (lambda: IIDPaths(draft, 0, 2), "num_paths: got 0"),
        (lambda: TokenTree(draft, ()), r"branching: got \(\), expected at least one draft"),
        (lambda: TokenTree(draft, (2, 0)), "branching: got 0"),
        (lambda: TokenTree(draft, ((), 3)), "branching: got 3 in a shape"),
        (lambda: MostLikelyTree(draft, 0, 2), "budget: got 0"),
        (lambda: budget_shape([0.2, 0.5], 3, 2), "rank_rates: got"),
        (lambda: budget_shape([0.8, 0.5], 3, 2), "rank_rates: got"),
        (lambda: TableModel([]), "tables: got none"),
        (lambda: TableModel([np.eye(3)]), r"tables\[0\]: got the shape \(3, 3\)"),
        (lambda: TableModel([[0.5, 0.6]]), r"tables\[0\]"),
        (
            lambda: block_efficiency(rule, target, law, 1, rng=np.random.default_rng(0)),
            "num_samples",
        ),
        (lambda: block_efficiency(rule, lambda _: [0.3, 0.3], law), r"target_model\(\(\)\)"),
        (
            lambda: block_efficiency(rule, lambda _: np.eye(2), law),
            r"target_model\(\(\)\): got shape",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match="depth: got float"):
        IIDPaths(draft, 1, 1.5)
    with pytest.raises(TypeError, match="verifier: got str"):
        TokenLevel("RRS")
