"""Trees that adapt: exactly lossless, whatever is drawn above a layer decides about it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from small_models import model_pair

import otmd
from otmd.testing import check_tree_verifier
from otmd.trees import (
    AdaptiveTree,
    LayerVerification,
    SubtreeVerification,
    TableModel,
    TreeLaw,
)
from otmd.trees.adaptive import Leaf
from otmd.trees.base import Context, DraftTree, Prefix
from otmd.trees.random_choices import Sampled, every_outcome


class LooksAtAll(AdaptiveTree):
    """The number of drafts after a node depends on all tokens above its level, and on q at the level."""

    def num_drafts(self, leaves: Mapping[Prefix, Leaf], quota: int) -> dict[Prefix, int]:
        """From none to two drafts; at the root two."""
        if () in leaves:
            return {(): 2}
        drafted = sum(i * token for i, prefix in enumerate(leaves, 2) for token in prefix)
        peaks = sum(int(leaf.draft_probs.argmax()) for leaf in leaves.values())
        return {prefix: (drafted + peaks + i) % 3 for i, prefix in enumerate(leaves)}


@pytest.mark.parametrize("rule", [LayerVerification(), SubtreeVerification()], ids=repr)
def test_what_is_above_may_decide(rule) -> None:
    """Lossless, within the optimum, and the estimate has its mean, see the check."""
    for vocab_size, quotas in ((2, (2, 4, 8)), (3, (2, 4))):
        target, draft = model_pair("any", 2, vocab_size)
        check_tree_verifier(rule, LooksAtAll(draft, quotas), target)


def drawn(law: TreeLaw, seed: int = 0) -> DraftTree:
    return law.draft_tree(Context(law.draft_model, law), Sampled(np.random.default_rng(seed)))


def test_levels_have_their_quotas() -> None:
    draft = TableModel.random(20, 2, 0.3, rng=0)
    shapes = set()
    for seed in range(20):
        tree = drawn(AdaptiveTree(draft, (2, 3, 4)), seed)
        prefixes = tree.prefixes()
        depths = np.bincount([len(prefix) for prefix in prefixes])
        assert depths.tolist() == [1, 2, 3, 4]
        nodes = [node for prefix in prefixes if (node := tree.node(prefix))]
        shapes.add(tuple(node.tokens.size for node in nodes))
    assert len(shapes) > 2


@pytest.mark.parametrize("law", [otmd.Stratified, otmd.WithoutReplacement])
def test_gains_are_what_the_reach_below_grows_by(law) -> None:
    """Enumerated: the mean reach of the children is the sum of the gains; 3/2 stands in the docs."""
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    leaf = Leaf(probs, 0.7)
    assert leaf.gains(1)[0] == pytest.approx(0.7 * (1 - (1 - (probs**2).sum()) / 2.5))
    for count in (1, 2, 3):
        tree = AdaptiveTree(TableModel([probs]), (count,), law=law)
        context = Context(tree.draft_model, tree)

        def reach_below(choices, tree=tree, context=context) -> float:
            node = tree.draft_tree(context, choices).node(())
            assert node is not None
            return sum(leaf.reaches_below((), node).values())

        mean = sum(value * prob for value, prob in every_outcome(reach_below))
        assert mean == pytest.approx(leaf.gains(count).sum(), abs=1e-12)


def test_a_tree_grows_once_and_names_what_it_reads() -> None:
    draft = TableModel.random(5, 2, rng=0)
    for law in (AdaptiveTree(draft, (2, 3)), LooksAtAll(draft, (2, 4))):
        tree = drawn(law)
        read = [prefix for prefixes in tree.grow() for prefix in prefixes]
        assert set(read) >= {prefix for prefix in tree.prefixes() if tree.node(prefix)}
        assert list(tree.grow()) == []
        assert tree.prefixes() == tree.prefixes()
