"""The most likely tree against all paths, and the best shape against every shape."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from small_models import along, model_pair

from otmd.trees import MostLikelyTree, budget_shape
from otmd.trees.base import Context
from otmd.trees.laws import Shape
from otmd.trees.optimum import _trees


@pytest.mark.parametrize("budget", [1, 6])
def test_the_likeliest_tree_holds_the_likeliest_paths(budget: int) -> None:
    for seed in range(2):
        target, draft = model_pair("any", seed)
        paths = [path for d in (1, 2, 3) for path in product(range(3), repeat=d)]
        likeliest = sorted(paths, key=lambda path: -np.prod(along(draft, path)))[:budget]
        (found,) = _trees(Context(target, MostLikelyTree(draft, budget, 3, 3)))
        assert found == {(), *likeliest}


def accepted(shape: Shape, rates: list[float]) -> float:
    """The mean length of the accepted path of a shape."""
    return sum(rate * (1.0 + accepted(below, rates)) for rate, below in zip(rates, shape, strict=False))


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


@pytest.mark.parametrize("rates", [[0.6, 0.2, 0.1], [0.9, 0.05, 0.0]])
@pytest.mark.parametrize("budget", [4, 6])
def test_no_shape_of_the_budget_is_better(rates: list[float], budget: int) -> None:
    best = max(accepted(shape, rates) for shape in shapes(budget, 3, 3))
    found = budget_shape(rates, budget, 3)
    assert accepted(found, rates) == pytest.approx(best, abs=1e-12)
