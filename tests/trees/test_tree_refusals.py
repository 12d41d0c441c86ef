"""Wrong arguments of trees and tree verifiers: the error and what it names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_models import model_pair

import otmd
from otmd.trees import (
    AdaptiveTree,
    BlockVerification,
    GreedyMultiPath,
    IIDPaths,
    InclusionBound,
    LayerVerification,
    MostLikelyTree,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    budget_shape,
    tokens_per_step,
)
from otmd.trees.random_choices import every_outcome

TARGET, DRAFT = model_pair("any", 0)
PATH, PATHS, DISTINCT = IIDPaths(DRAFT, 1, 2), IIDPaths(DRAFT, 2, 2), TokenTree(DRAFT, (2, 2))
WIDE = TableModel([np.full(400, 1 / 400)])
CONDITIONAL = TokenTree(WIDE, (3, 1), otmd.ConditionalPoisson)
OTHER = TableModel.random(4, 1, rng=1)


class Policy(AdaptiveTree):
    """Asks for the same drafts on each level."""

    def __init__(self, counts: dict) -> None:
        super().__init__(DRAFT, (2,))
        self.counts = counts

    def num_drafts(self, leaves, quota):
        return self.counts


def step(rule: object, law: object, target: object = TARGET) -> Callable[[], object]:
    return lambda: rule.step(target, law, rng=0)  # type: ignore[attr-defined]


REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (step(BlockVerification(), PATHS), otmd.UnsupportedLaw, "expected a single path"),
    (step(Traversal(), PATHS), otmd.UnsupportedLaw, "which may be equal, expected .* distinct"),
    (step(TokenLevel(otmd.KSequential()), DISTINCT), otmd.UnsupportedLaw, "KSequential"),
    (step(LayerVerification(), DISTINCT), otmd.UnsupportedLaw, "expected independent drafts"),
    (step(SubtreeVerification(), DISTINCT), otmd.UnsupportedLaw, "expected independent drafts"),
    (step(GreedyMultiPath(), DISTINCT), otmd.UnsupportedLaw, "expected IIDPaths"),
    (step(LayerVerification(), PATH, OTHER), ValueError, "target_probs: got 4 tokens"),
    (
        lambda: tokens_per_step(InclusionBound(), OTHER, PATH),
        ValueError,
        "target_probs: got 4 tokens",
    ),
    (
        lambda: tokens_per_step(InclusionBound(), TARGET, AdaptiveTree(DRAFT, (2,))),
        otmd.UnsupportedLaw,
        "drafts elsewhere",
    ),
    (
        lambda: tokens_per_step(InclusionBound(), WIDE, CONDITIONAL, 2, rng=0),
        otmd.UnsupportedLaw,
        "InclusionBound: got drafts of Conditional",
    ),
    (lambda: IIDPaths(DRAFT, 0, 2), ValueError, "num_paths: got 0"),
    (lambda: IIDPaths(DRAFT, 1, 1.5), TypeError, "depth: got float"),  # type: ignore[arg-type]
    (lambda: TokenLevel("RRS"), ValueError, "verifier: got 'RRS', .*is recursive-rejection meant"),
    (lambda: TokenTree(DRAFT, ()), ValueError, r"branching: got \(\), expected at least one draft"),
    (lambda: TokenTree(DRAFT, (2, 0)), ValueError, "branching: got 0"),
    (lambda: TokenTree(DRAFT, ((), 3)), ValueError, "branching: got 3 in a shape"),  # type: ignore[arg-type]
    (lambda: MostLikelyTree(DRAFT, 0, 2), ValueError, "budget: got 0"),
    (lambda: budget_shape([0.2, 0.5], 3, 2), ValueError, "rank_rates: got"),
    (lambda: TableModel([]), ValueError, "tables: got none"),
    (lambda: TableModel([np.eye(3)]), ValueError, r"tables\[0\]: got the shape \(3, 3\)"),
    (lambda: TableModel([[0.5, 0.6]]), ValueError, r"tables\[0\]"),
    (lambda: tokens_per_step(BlockVerification(), TARGET, PATH, 1, rng=0), ValueError, "num_trees"),
    (
        lambda: tokens_per_step(BlockVerification(), lambda _: np.eye(2), PATH),
        ValueError,
        r"target_model\(\(\)\): got shape",
    ),
    (lambda: AdaptiveTree(DRAFT, ()), ValueError, "quotas: got no level"),
    (lambda: AdaptiveTree(DRAFT, (2, 0)), ValueError, "quotas: got 0"),
    (step(SubtreeVerification(), Policy({(): 3})), ValueError, "at most 2 drafts"),
    (step(SubtreeVerification(), Policy({(9,): 1})), ValueError, "a node of the level"),
    (
        lambda: list(every_outcome(lambda c: [c.accepts(0.5) for _ in range(9)], most=10)),
        ValueError,
        "more than 10 outcomes",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
