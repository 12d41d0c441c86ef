"""Tree verifiers that look right and are lossy, and drafts that the draft model did not draw: exactly.

tests/test_conformance.py runs the checks over all tree verifiers of the registry.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from small_models import model_pair

import otmd
from otmd.trees import (
    BlockVerification,
    IIDPaths,
    MostLikelyTree,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeLaw,
    TreeVerifier,
    output_distribution,
    target_distribution,
    tokens_per_step,
)
from otmd.trees.base import Context, DraftTree, Model, Node, Prefix
from otmd.trees.random_choices import RandomChoices
from otmd.trees.verifiers import leftover, stopping_prob

ROUNDING = 1e-12


class BreaksAtFirstRejection(BlockVerification):
    """Block verification that stops at the first rejected index; the last accepted one should count."""

    def emit(self, context: Context, tree: DraftTree, choices: RandomChoices) -> Prefix:
        """See :class:`~otmd.trees.TreeVerifier`."""
        prefix: Prefix = ()
        reached, accepted, output = 1.0, prefix, context.target(prefix)
        while True:
            target, node = context.target(prefix), tree.node(prefix)
            draft = context.draft(prefix) if node else np.zeros(target.size)
            left, after = leftover(reached, target, draft) if node else (reached, target)
            warranted = stopping_prob(reached, left) if node else reached
            if prefix and not choices.accepts(warranted):
                return (*accepted, choices.token(output))
            accepted, output = prefix, after
            if node is None:
                return (*accepted, choices.token(output))
            token = int(node.tokens[0])
            reached = min(reached * float(target[token]) / float(draft[token]), 1.0)
            prefix = (*prefix, token)


def deviation(rule: TreeVerifier, target: Model, law: TreeLaw) -> float:
    """The largest difference of a sequence's probability from the target's."""
    wanted = target_distribution(target, law.depth + 1)
    return float(np.abs(output_distribution(rule, target, law) - wanted).max())


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.3, 0.3, 0.4], [1.0, 1e-310, 1e-310]),
        ([0.3, 0.3, 0.4], [1.0, 5e-324, 1e-323]),
        *(
            [otmd.probs_from_logits(np.array(x), temperature=0.02) for x in logits]
            for logits in (([0, 0.01, 0.02], [15, 0.5, 0.51]), ([0, 0, -0.01], [14.7, 0, 0.01]))
        ),
    ],
)
@pytest.mark.parametrize("width", [2, 3])
def test_traversal_is_lossless_where_hardly_any_draft_mass_is_left(p, q, width: int) -> None:
    target = TableModel([p, np.tile(p, (3, 1))])
    for shape in ((width,), (width, 2)):
        law = TokenTree(TableModel([q]), shape)
        assert deviation(Traversal(), target, law) <= ROUNDING


class SkippedDuplicates(TokenLevel):
    """Recursive rejection that passes over a draft it has refused before, and leaves the residual alone."""

    def _decide(self, context: Context, prefix: Prefix, node: Node, choices: RandomChoices) -> int:
        tokens = np.array(list(dict.fromkeys(node.tokens.tolist())))
        law = node.law.with_num_drafts(tokens.size)
        rule = self.verifier.prepare(context.target(prefix), law)
        for token, prob in zip(tokens.tolist(), rule.accept_probs(tokens), strict=True):
            if choices.accepts(float(prob)):
                return token
        return choices.token(rule.residual(tokens))


def test_rules_with_a_fault_are_caught() -> None:
    """The same comparison, with a bound a hundred million times as large."""
    for seed in range(3):
        target, draft = model_pair("any", seed, vocab_size=4)
        path, paths = IIDPaths(draft, 1, 2), IIDPaths(draft, 2, 2)
        assert deviation(BlockVerification(), target, path) <= ROUNDING
        assert deviation(BreaksAtFirstRejection(), target, path) > 1e-4
        assert deviation(SkippedDuplicates(otmd.RecursiveRejection()), target, paths) > 1e-4


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda q: MostLikelyTree(q, 1, 1, 1), 1.5),
        (lambda q: TokenTree(q, (1,), partial(otmd.Stratified, sharpness=2.0)), 1.6),
        (lambda q: TokenTree(q, (1,), otmd.Stratified), 1.75),
    ],
)
@pytest.mark.parametrize("rule", [BlockVerification(), Traversal()])
def test_a_draft_is_verified_by_the_law_that_drew_it(rule, make, expected: float) -> None:
    target, law = TableModel([[0.5, 0.5]]), make(TableModel([[0.75, 0.25]]))
    assert deviation(rule, target, law) <= ROUNDING
    assert tokens_per_step(rule, target, law).value == pytest.approx(expected, abs=1e-12)
