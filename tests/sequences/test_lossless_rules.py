"""Whatever the models, the trees and the rule, what is emitted follows the target: exactly."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from small_models import KINDS, model_pair

import otmd
from otmd.sequences import (
    BlockVerification,
    IIDPaths,
    LikeliestTree,
    SequenceRule,
    TableModel,
    TokenLevel,
    TokenTree,
    Traversal,
    TreeLaw,
    output_law,
    target_law,
)
from otmd.sequences.chance import Chance
from otmd.sequences.tree_rules import chance_of_stopping, leftover
from otmd.sequences.trees import Context, DraftTree, Model, Node, Prefix

ROUNDING = 1e-12
UNEVEN = (((), ()), ())

CASES = [
    (BlockVerification(), lambda q: IIDPaths(q, 1, 3)),
    (BlockVerification(), lambda q: TokenTree(q, (1, 1), otmd.WithReplacement)),
    (Traversal(), lambda q: IIDPaths(q, 1, 3)),
    (Traversal(), lambda q: TokenTree(q, (2, 2))),
    (Traversal(), lambda q: TokenTree(q, (3, 2))),
    (Traversal(), lambda q: TokenTree(q, UNEVEN)),
    (TokenLevel(otmd.Preference()), lambda q: IIDPaths(q, 1, 3)),
    (TokenLevel(otmd.KSequential()), lambda q: IIDPaths(q, 2, 2)),
    (TokenLevel(otmd.KSequential()), lambda q: IIDPaths(q, 3, 2)),
    (TokenLevel(otmd.RecursiveRejection()), lambda q: IIDPaths(q, 2, 2)),
    (TokenLevel(otmd.RecursiveRejection()), lambda q: TokenTree(q, (2, 2))),
    (TokenLevel(otmd.RecursiveRejection()), lambda q: TokenTree(q, (2, 2), otmd.WithReplacement)),
    (TokenLevel(otmd.TargetOnly()), lambda q: TokenTree(q, UNEVEN)),
    (TokenLevel(otmd.TargetOnly()), lambda q: LikeliestTree(q, 4, 2, 2)),
    (TokenLevel(otmd.Optimal()), lambda q: IIDPaths(q, 2, 2)),
    (TokenLevel(otmd.Optimal()), lambda q: TokenTree(q, (2, 2))),
    (TokenLevel(otmd.Optimal()), lambda q: LikeliestTree(q, 5, 3, 3)),
    (TokenLevel(otmd.SpecHub()), lambda q: TokenTree(q, (2, 2), otmd.Hub)),
    (TokenLevel(otmd.Preference()), lambda q: TokenTree(q, (2, 2), otmd.Greedy)),
    (TokenLevel(otmd.Preference()), lambda q: TokenTree(q, (2, 2), otmd.Stratified)),
    (
        TokenLevel(otmd.Optimal()),
        lambda q: TokenTree(q, (3, 1), partial(otmd.Stratified, sharpness=2)),
    ),
]


class BreaksAtFirstRejection(BlockVerification):
    """Block verification that stops at the first rejected index; the last accepted one should count."""

    def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
        """See :class:`~otmd.sequences.SequenceRule`."""
        prefix: Prefix = ()
        reached, accepted, output = 1.0, prefix, context.target(prefix)
        while True:
            target, node = context.target(prefix), tree.node(prefix)
            draft = context.draft(prefix) if node else np.zeros(target.size)
            left, after = leftover(reached, target, draft) if node else (reached, target)
            warranted = chance_of_stopping(reached, left) if node else reached
            if prefix and not chance.accepts(warranted):
                return (*accepted, chance.token(output))
            accepted, output = prefix, after
            if node is None:
                return (*accepted, chance.token(output))
            token = int(node.tokens[0])
            reached = min(reached * float(target[token]) / float(draft[token]), 1.0)
            prefix = (*prefix, token)


def deviation(rule: SequenceRule, target: Model, law: TreeLaw) -> float:
    """The largest difference of a sequence's probability from the target's."""
    wanted = target_law(target, law.depth + 1)
    return float(np.abs(output_law(rule, target, law) - wanted).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rule", "make"), CASES)
def test_every_rule_is_lossless(rule: SequenceRule, make, kind: str) -> None:
    for seed in range(3):
        target, draft = model_pair(kind, seed)
        law = make(draft)
        fewest = min(np.count_nonzero(table, axis=-1).min() for table in draft.tables)
        if isinstance(law, TokenTree) and law.law in (otmd.Hub, otmd.Greedy) and fewest < 2:
            # Two such drafts exist where two tokens have mass.
            continue
        assert deviation(rule, target, law) <= ROUNDING, seed


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

    def _decide(self, context: Context, prefix: Prefix, node: Node, chance: Chance) -> int:
        tokens = np.array(list(dict.fromkeys(node.tokens.tolist())))
        law = node.law.with_num_drafts(tokens.size)
        rule = self.verifier.prepare(context.target(prefix), law)
        for token, prob in zip(tokens.tolist(), rule.accept_probs(tokens), strict=True):
            if chance.accepts(float(prob)):
                return token
        return chance.token(rule.residual(tokens))


def test_rules_with_a_fault_are_caught() -> None:
    """The same comparison, with a bound a hundred million times as large."""
    for seed in range(3):
        target, draft = model_pair("any", seed, vocab_size=4)
        path, paths = IIDPaths(draft, 1, 2), IIDPaths(draft, 2, 2)
        assert deviation(BlockVerification(), target, path) <= ROUNDING
        assert deviation(BreaksAtFirstRejection(), target, path) > 1e-4
        assert deviation(SkippedDuplicates(otmd.RecursiveRejection()), target, paths) > 1e-4


def test_a_draft_model_that_is_not_what_was_drawn_from_is_caught() -> None:
    target, draft = model_pair("any", 0)
    law = IIDPaths(draft, 1, 2)

    class Fooled(BlockVerification):
        def emit(self, context: Context, tree: DraftTree, chance: Chance) -> Prefix:
            other = Context(target, law)
            drawn_from = other.draft
            other.draft = lambda prefix: np.roll(drawn_from(prefix), 1)
            return super().emit(other, tree, chance)

    assert deviation(Fooled(), target, law) > 1e-3
