"""Draft trees drawn at positions of a text, and the tokens that a step yields on each of them, by rule.

A rule that looks at all drafts of a layer needs the target at the siblings of a text's tokens, so its tokens
per step do not follow from the distributions along the text. They are estimated on drawn trees instead.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from otmd.laws import DraftLaw, Stratified
from otmd.laws.proposal import ProposalLaw
from otmd.models.continuations import Continuations, continuations
from otmd.models.dataset import DrawnTree
from otmd.models.draft_models import Draft
from otmd.models.language_models import LanguageModel
from otmd.models.tree_reading import read_trees
from otmd.probabilities import IntArray, Processing, wrong
from otmd.trees import (
    AdaptiveTree,
    LayerVerification,
    SubtreeVerification,
    TokenLevel,
    TokenTree,
    TreeLaw,
)
from otmd.trees.base import Context, DraftTree, Model, Prefix
from otmd.trees.random_choices import Sampled
from otmd.trees.whole_tree import SweptLayer
from otmd.verifiers import Preference


class SameDrafts(Sampled):
    """The drafts of a tree: for one seed the same ones after the same draft distribution.

    So the trees that are drawn at a position have most nodes in common, and the differences between them less
    variance. Where a distribution occurs in a tree again, its drafts are independent of the first.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.default_rng(seed))
        self._seed = seed
        self._times: Counter[int] = Counter()

    def drafts(self, law: DraftLaw) -> IntArray:
        """See :class:`otmd.trees.random_choices.RandomChoices`."""
        assert isinstance(law, ProposalLaw)
        key = zlib.crc32(law.draft_probs.tobytes())
        before = self._times[key]
        self._times[key] += 1
        return law.sample(rng=[self._seed, key, before])


def draw_trees(
    models: tuple[LanguageModel, Draft],
    tokens: Sequence[int],
    rows: dict[int, int],
    shapes: Sequence[tuple[int, ...]],
    processing: tuple[Processing, Processing],
    vocab_size: int,
    rng: np.random.Generator,
    quotas: Sequence[tuple[int, ...]] = (),
) -> list[DrawnTree]:
    """Draw trees from the draft after the first tokens of a text, and evaluate them.

    Parameters
    ----------
    models, processing
        Of the target and of the draft; from logits to probabilities.
    tokens : sequence of int
        The text.
    rows : dict of int to int
        After how many tokens trees are drawn, ascending and at least 1, and the rows of these positions.
    shapes : sequence of tuple of int
        The drafts at a node, by level; one tree of each shape is drawn at each position.
    vocab_size : int
        V: the logits after these are padding.
    rng : numpy.random.Generator
    quotas : sequence of tuple of int
        The drafts of each level; one adaptive tree of each is drawn at each position, after those above.

    Returns
    -------
    list of DrawnTree
        Position by position, in the order of the shapes.
    """
    kinds = [(TokenTree, tuple(shape)) for shape in shapes]
    kinds += [(AdaptiveTree, tuple(most)) for most in quotas]
    read = min(rows, default=1)
    target, draft = (continuations(model, tokens[:read]) for model in models)
    trees = []
    for length, row in rows.items():
        for text in (target, draft):
            text.extend(tokens[read:length])
        read = length
        seed = int(rng.integers(2**32))
        for kind, shape in kinds:
            make = partial(_stratified, kind, shape)
            numbers = _evaluated(target, draft, make, processing, vocab_size, SameDrafts(seed))
            trees.append(DrawnTree(row, shape, **numbers, adaptive=kind is AdaptiveTree))
    return trees


def _stratified(
    kind: type[TokenTree | AdaptiveTree], shape: tuple[int, ...], draft_model: Model
) -> TreeLaw:
    """A tree whose drafts come from strata."""
    return kind(draft_model, shape, law=Stratified)


def _evaluated(
    target: Continuations,
    draft: Continuations,
    law_of: Callable[[Model], TreeLaw],
    processing: tuple[Processing, Processing],
    vocab_size: int,
    choices: Sampled,
) -> dict[str, float]:
    """Draw a tree level by level, evaluate the target at its nodes in one call, and ask the rules."""
    verifying, drafting = processing
    law = law_of(lambda prefix: drafting(draft.logits([prefix])[0][:vocab_size]))
    context = Context(lambda prefix: verifying(target.logits([prefix])[0][:vocab_size]), law)
    tree = law.draft_tree(context, choices)
    read_trees([(tree, target, draft)])
    layers = LayerVerification().layers(context, tree)[1:]
    return {
        "layer": 1.0 + sum(float(layer.scores.sum()) for layer in layers),
        "node_by_node": node_by_node_tokens(context, tree),
        "token_level": TokenLevel(Preference()).expected_tokens(context, tree),
    }


def node_by_node_tokens(context: Context, tree: DraftTree) -> float:
    """Tokens that :class:`~otmd.trees.SubtreeVerification` is expected to emit on a tree of strata.

    1 and, for each level, P(the level or a deeper one is accepted | the drafts down to it). So the estimate
    is unbiased, and equals that of layer verification wherever the two rules do the same. The slots of a
    level must follow from the drafts above it, else ValueError.
    """
    if not context.law.by_layer:
        raise wrong("law", repr(context.law), "a tree that is drawn level by level")
    root = _scored(context, tree, (), 1.0)
    levels = range(1, context.law.depth + 1)
    return 1.0 + sum(_accepted(root, 0, level)[1] for level in levels)


class _Scored(NamedTuple):
    """A node: its score, P(it stops | no child's subtree accepts), and its children in the order asked."""

    score: float
    stops: float
    children: list[_Scored]


def _scored(context: Context, tree: DraftTree, prefix: Prefix, score: float) -> _Scored:
    layer = SweptLayer(SubtreeVerification(), context, tree, {prefix: score})
    children = [
        _scored(context, tree, child, accept) for child, accept in layer.children_in_order()
    ]
    # The root always accepts.
    return _Scored(score, layer.stopping_prob if prefix else 1.0, children)


def _accepted(node: _Scored, depth: int, level: int) -> tuple[float, float]:
    """P(a subtree accepts), and P(it accepts at this level or below), given the drafts down to the level."""
    if depth == level:
        return node.score, node.score
    undecided = 1.0
    deep = 0.0
    for child in node.children:
        accepts, accepts_deep = _accepted(child, depth + 1, level)
        deep += undecided * accepts_deep
        undecided *= 1.0 - accepts
    return 1.0 - undecided * (1.0 - node.stops), deep
