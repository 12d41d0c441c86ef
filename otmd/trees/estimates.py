"""Unbiased estimates from one drawn tree: of a rule's tokens per step, and of the inclusion bound."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from otmd.laws import DraftLaw
from otmd.probabilities import FloatArray
from otmd.trees.base import Context, DraftTree, Prefix
from otmd.trees.laws import IIDPaths
from otmd.trees.random_choices import RandomChoices, Sampled
from otmd.trees.verifiers import BottomUp, TokenLevel, TreeVerifier
from otmd.trees.whole_tree import LayerVerification
from otmd.verifiers import Verifier


class Refusing(Sampled):
    """Refuses whatever may be refused, and keeps the probabilities with which it would have been accepted."""

    def __init__(self) -> None:
        self.accept_probs: list[float] = []

    def accepts(self, prob: float) -> bool:
        """Never, but the probability is kept."""
        self.accept_probs.append(prob)
        return False

    def token(self, probs: FloatArray) -> int:
        """The last token of a step, which ends it whatever it is."""
        return 0


def expected_tokens(rule: TreeVerifier, context: Context, tree: DraftTree) -> float:
    """Tokens per step given a drawn tree; of the layer rule, given the drafts above each layer."""
    if isinstance(rule, LayerVerification):
        return 1.0 + sum(
            float(layer.scores.sum() - layer.masses.sum()) for layer in rule.layers(context, tree)
        )
    if isinstance(rule, TokenLevel):
        return token_level_tokens(context, tree, rule.verifier)
    lengths: list[int] = []
    choices = Refusing()
    if isinstance(rule, BottomUp):
        _note_lengths(rule, lengths).emit(context, tree, choices)
    else:
        depth = context.law.depth
        rule.emit(context, tree, choices)
        lengths = list(range(depth, depth - len(choices.accept_probs), -1))
    tokens, refused = 1.0, 1.0
    for length, accept in zip(lengths, choices.accept_probs, strict=True):
        tokens += refused * accept * length
        refused *= 1.0 - accept
    return tokens


def token_level_tokens(
    context: Context, tree: DraftTree, verifier: Verifier, prefix: Prefix = ()
) -> float:
    """Expected tokens that a verifier emits at a node and below it, given the drafts."""
    node = tree.node(prefix)
    if node is None:
        return 1.0
    emitted = context.rule(verifier, prefix, node.state).conditional_law(node.tokens)
    below = (
        float(emitted[token]) * token_level_tokens(context, tree, verifier, (*prefix, token))
        for token in np.unique(node.tokens).tolist()
        if emitted[token] > 0.0
    )
    return 1.0 + sum(below)


def _note_lengths(rule: BottomUp, lengths: list[int]) -> BottomUp:
    """The same rule, which notes the length of every prefix that is refused."""

    class Noting(type(rule)):
        def below(
            self,
            prefix: Prefix,
            prob: float,
            context: Context,
            tree: DraftTree,
            choices: RandomChoices,
        ) -> Prefix | None:
            emitted = super().below(prefix, prob, context, tree, choices)
            if emitted is None:
                lengths.append(len(prefix))
            return emitted

    return Noting()


class Walk(NamedTuple):
    """A prefix u: its mass, π(u), M(u), and min(1, min π(v)/M(v)) over u and its prefixes v.

    M is the target, π the probability that a prefix is drafted. The mass is that of a single path where the
    paths are independent, else π.
    """

    mass: float = 1.0
    drafted: float = 1.0
    target: float = 1.0
    share: float = 1.0


class Level:
    """The level below a prefix u in the inclusion bound: ``accepted`` is Σ_y M(uy) min(1, min π(v)/M(v)).

    That is at most π(u). The drafts below a node must not depend on its rank among its siblings.
    """

    def __init__(self, context: Context, prefix: Prefix, law: DraftLaw, walk: Walk) -> None:
        trees = context.law
        independent = isinstance(trees, IIDPaths)
        self.masses = walk.mass * (context.draft(prefix) if independent else law.inclusion_probs())
        self.drafted = self.masses
        if independent:
            with np.errstate(divide="ignore"):
                self.drafted = -np.expm1(trees.num_paths * np.log1p(-self.masses.clip(max=1.0)))
        self.targets = walk.target * context.target(prefix)
        self._share = walk.share
        self.accepted = float(np.minimum(walk.share * self.targets, self.drafted).sum())

    def below(self, token: int) -> Walk:
        """The prefix that is one token longer; the target may emit the token."""
        drafted, target = float(self.drafted[token]), float(self.targets[token])
        return Walk(float(self.masses[token]), drafted, target, min(self._share, drafted / target))


def bound_along(context: Context, text: Sequence[int]) -> float:
    """The inclusion bound from a text, each level given the text before it: Σ over levels of accepted/M."""
    walk, total = Walk(), 1.0
    state = context.law.root(context.draft)
    for i in range(context.law.depth):
        prefix = tuple(text[:i])
        law = context.node_law(prefix, state)
        assert law is not None
        level = Level(context, prefix, law, walk)
        total += level.accepted / walk.target
        walk = level.below(text[i])
        drafts = np.full(law.num_drafts, text[i])
        state = context.law.child(state, drafts, text[i])
    return total


def bound_on_tree(context: Context, tree: DraftTree) -> float:
    """The inclusion bound from a drawn tree: Σ of accepted/π over its nodes, each term at most 1."""

    def below(prefix: Prefix, walk: Walk) -> float:
        node = tree.node(prefix)
        if node is None or walk.target == 0.0:
            return 0.0
        level = Level(context, prefix, node.law, walk)
        total = level.accepted / walk.drafted
        for token in np.unique(node.tokens).tolist():
            if level.targets[token] > 0.0:
                total += below((*prefix, token), level.below(token))
        return total

    return 1.0 + below((), Walk())
