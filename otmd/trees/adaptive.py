"""Laws of sampled trees that adapt: the drafts drawn so far determine where the next ones are drawn.

EAGLE-2 (Li et al. 2024) adapts trees of deterministic drafts. Here drafts are sampled.
``docs/theory_trees.md`` proves which trees are lossless with which verifier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from otmd.laws import DraftLaw, Stratified
from otmd.probabilities import FloatArray, validate_count, wrong
from otmd.trees.base import (
    Context,
    Distribution,
    DraftTree,
    Model,
    Node,
    Prefix,
    TreeLaw,
    depends_on_others,
)
from otmd.trees.random_choices import RandomChoices

# c in the estimate that n drafts of a node are all refused with probability (1 − Σ q²)/(n + c).
_MORE = 1.5


class Leaf(NamedTuple):
    """A node of a tree before anything is drawn after it.

    Attributes
    ----------
    draft_probs : ndarray of float64, shape (V,)
        The draft distribution after it.
    reach : float
        Estimate of the probability that the accepted path ends at it or below.
    """

    draft_probs: FloatArray
    reach: float

    @property
    def num_tokens(self) -> int:
        """The number of tokens that have mass."""
        return int(np.count_nonzero(self.draft_probs))

    def gains(self, most: int) -> FloatArray:
        """Increase of the children's expected reach by each of the first ``most`` drafts, shape (most,)."""
        spread = 1.0 - float(self.draft_probs @ self.draft_probs)
        counts = np.arange(1, most + 1)
        gains = self.reach * np.diff(1.0 - spread / (counts + _MORE), prepend=0.0)
        return np.where(counts <= self.num_tokens, gains, 0.0)

    def reaches_below(self, prefix: Prefix, node: Node) -> dict[Prefix, float]:
        """The reach of every drafted child."""
        tokens = np.unique(node.tokens)
        probs = self.draft_probs[tokens]
        accepted = 1.0 - (1.0 - probs) / (node.law.num_drafts + _MORE)
        reaches = self.reach * probs / node.law.inclusion_probs()[tokens] * accepted
        return {(*prefix, y): reach for y, reach in zip(tokens.tolist(), reaches, strict=True)}


class GrownTree(DraftTree):
    """A tree that is drawn in the order of its law, all of it when a node is first asked for."""

    def node(self, prefix: Prefix) -> Node | None:
        for _ in self.grow():
            pass
        return self.nodes.get(prefix)

    def grow(self) -> Iterator[list[Prefix]]:
        if not self.nodes:
            yield from super().grow()


class GrownLaw(TreeLaw):
    """The law of a tree in which the number of drafts at a node may depend on drafts elsewhere."""

    by_prefix = False

    def __init__(self, draft_model: Model, depth: int, law: Callable[[FloatArray, int], DraftLaw]) -> None:
        self.draft_model = draft_model
        self.depth = depth
        self.law = law

    @abstractmethod
    def grow(self, tree: DraftTree) -> Iterator[list[Prefix]]: ...

    def draft_tree(self, context: Context, choices: RandomChoices) -> GrownTree:
        return GrownTree(context, choices)

    def root(self, draft: Distribution) -> NoReturn:
        raise depends_on_others(self)

    def node_law(self, draft_probs: FloatArray, state: int) -> DraftLaw:
        return self.law(draft_probs, state)


class AdaptiveTree(GrownLaw):
    """Sampled tree with a quota of drafts for each level, at the nodes of the largest estimated acceptance.

    The *reach* of a node estimates the probability that the accepted path ends at it or below. It is 1 at the
    root. Let u have the reach r and n drafts, q be the draft distribution after u, and π(y) the probability
    that y is drafted. The reach of a drafted child is r q(y)/π(y) [1 − (1 − q(y))/(n + 3/2)]. So the
    expected sum over the children is r [1 − (1 − Σ q²)/(n + 3/2)]. The drafts of a level are assigned one
    after another, each to the node where this sum grows most.

    The drafts above a level, and q after its nodes, determine the slots of the level. So
    :class:`LayerVerification` and :class:`SubtreeVerification` are lossless; the estimate affects the tokens
    per step alone. A level has at most as many nodes as its quota, so an engine can use static shapes.

    Parameters
    ----------
    draft_model : callable
        Takes a prefix and returns the draft distribution (V,).
    quotas : sequence of int
        The most drafts on each level, each at least 1, else ValueError; their number is the depth.
    law : callable
        ``law(draft_probs, num_drafts)`` is the law of the drafts at a node. They must be independent or
        deterministic for the verifiers above.

    Notes
    -----
    Where fewer tokens have mass, a level has fewer drafts. The number 3/2 was
    fitted once, to one pair of models. For a policy of your own override :meth:`num_drafts`.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.6, 0.3, 0.1], [[0.3, 0.4, 0.3], [0.2, 0.7, 0.1], [0.3, 0.4, 0.3]]])
    >>> draft = trees.TableModel([[0.7, 0.2, 0.1], [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]])
    >>> tree = trees.AdaptiveTree(draft, (2, 2))
    >>> round(trees.tokens_per_step(trees.LayerVerification(), target, tree).value, 4)
    2.993
    """

    def __init__(
        self,
        draft_model: Model,
        quotas: Sequence[int],
        law: Callable[[FloatArray, int], DraftLaw] = Stratified,
    ) -> None:
        self.quotas = tuple(validate_count("quotas", quota, minimum=1) for quota in quotas)
        if not self.quotas:
            raise wrong("quotas", "no level", "at least one")
        super().__init__(draft_model, len(self.quotas), law)

    def __repr__(self) -> str:
        return f"AdaptiveTree({self.quotas}, {getattr(self.law, '__name__', self.law)})"

    def num_drafts(self, leaves: Mapping[Prefix, Leaf], quota: int) -> dict[Prefix, int]:
        """The number of drafts after each node of a level; nodes of no drafts may be left out.

        Parameters
        ----------
        leaves : mapping of tuple of int to Leaf
            The nodes of the level, whose prefixes say all that was drafted directly above.
        quota : int
            The most drafts on the level; more, or drafts after other nodes, are a ValueError.

        Returns
        -------
        dict of tuple of int to int
            The number of drafts by prefix, at most ``quota`` in all.
        """
        most = min(quota, max(leaf.num_tokens for leaf in leaves.values()))
        gains = np.concatenate([leaf.gains(most) for leaf in leaves.values()])
        largest = np.argsort(-gains, kind="stable")[:quota]
        chosen = largest[gains[largest] > 0.0] // most
        counts = np.bincount(chosen, minlength=len(leaves))
        return dict(zip(leaves, counts.tolist(), strict=True))

    def grow(self, tree: DraftTree) -> Iterator[list[Prefix]]:
        """Draw a tree level by level.

        Yields
        ------
        list of tuple of int
            The nodes of a level, before drafts are drawn after them.
        """
        level: dict[Prefix, float] = {(): 1.0}
        for quota in self.quotas:
            if not level:
                return
            yield list(level)
            leaves = {prefix: Leaf(tree.context.draft(prefix), reach) for prefix, reach in level.items()}
            level = {}
            counts = self.num_drafts(leaves, quota)
            _validate_counts(counts, leaves, quota)
            for prefix, count in counts.items():
                if count and (node := tree.draw(prefix, count)):
                    level |= leaves[prefix].reaches_below(prefix, node)


def _validate_counts(counts: Mapping[Prefix, int], leaves: Mapping[Prefix, Leaf], quota: int) -> None:
    for prefix, count in counts.items():
        if prefix not in leaves:
            raise wrong("num_drafts", prefix, "a node of the level")
        validate_count("num_drafts", count, minimum=0)
    if sum(counts.values()) > quota:
        raise wrong("num_drafts", sum(counts.values()), f"at most {quota} drafts on the level")
