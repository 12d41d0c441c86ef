"""Models, and draft trees that are drawn node by node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Self
from weakref import proxy

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw
from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import (
    FloatArray,
    IntArray,
    validate_count,
    validate_probs,
    validate_same_vocabulary,
    wrong,
)
from otmd.trees.random_choices import RandomChoices
from otmd.verifiers import UnsupportedLaw

Prefix = tuple[int, ...]
Model = Callable[[Prefix], ArrayLike]


class TableModel:
    """A model given by tables: the last tokens of the prefix determine the next token's law.

    Parameters
    ----------
    tables : sequence of array_like
        Table d has d + 1 axes of length V. It holds the law of the next token after each d tokens. The last
        table also serves longer prefixes, by their last tokens, so that ``[initial, transition]`` is a
        Markov chain. Other shapes, or rows that are no distribution, are a ValueError.

    Examples
    --------
    >>> from otmd import trees
    >>> model = trees.TableModel([[0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]])
    >>> model(()), model((0, 1))
    (array([0.5, 0.5]), array([0.2, 0.8]))
    """

    def __init__(self, tables: Sequence[ArrayLike]) -> None:
        if len(tables) == 0:
            raise wrong("tables", "none", "at least one")
        self.tables = [validate_probs(f"tables[{d}]", table) for d, table in enumerate(tables)]
        self.vocab_size = self.tables[0].shape[-1]
        for d, table in enumerate(self.tables):
            expected = (self.vocab_size,) * (d + 1)
            if table.shape != expected:
                raise wrong(f"tables[{d}]", f"the shape {table.shape}", expected)

    @classmethod
    def random(cls, vocab_size: int, order: int, concentration: float = 1.0, *, rng: RngLike = None) -> Self:
        """Draw every row from a Dirichlet distribution.

        Parameters
        ----------
        vocab_size : int
            V.
        order : int
            How many of the last tokens the next one depends on.
        concentration : float
            The parameter of the symmetric Dirichlet distribution; smaller means more peaked.
        rng : int, sequence of int, numpy.random.Generator or None
            A seed or a generator. Equal seeds give equal models.
        """
        validate_count("order", order, minimum=0)
        alpha = np.full(validate_count("vocab_size", vocab_size, minimum=1), concentration)
        generator = validate_rng(rng)
        return cls([generator.dirichlet(alpha, size=(vocab_size,) * d) for d in range(order + 1)])

    def __call__(self, prefix: Prefix) -> FloatArray:
        """The law of the token after a prefix, shape (V,)."""
        depth = min(len(prefix), len(self.tables) - 1)
        return self.tables[depth][tuple(prefix[len(prefix) - depth :])]


Distribution = Callable[[Prefix], FloatArray]


class TreeLaw(ABC):
    """The law of a draft tree.

    A node is a prefix after which tokens are drafted. Its :class:`~otmd.laws.DraftLaw` follows from the
    draft model and from the node's *state*, which determines what is drafted there and below. The drafts of
    different nodes are independent.

    Attributes
    ----------
    draft_model : callable
        Takes a prefix and returns the draft distribution (V,).
    depth : int
        The length of the longest path.
    by_prefix, by_layer : bool
        Whether the slots of a node follow from the drafts above it alone; and whether those of a layer follow
        from the drafts of all layers above, as :class:`LayerVerification` needs it.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> class TwoDrafts(trees.TreeLaw):
    ...     depth = 1
    ...     draft_model = trees.TableModel([[0.2, 0.3, 0.5]])
    ...     def root(self, draft):
    ...         return ((), ())
    ...     def node_law(self, draft_probs, state):
    ...         return otmd.WithReplacement(draft_probs, 2) if state else None
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> round(trees.tokens_per_step(trees.InclusionBound(), target, TwoDrafts()).value, 4)
    1.86
    """

    draft_model: Model
    depth: int
    by_prefix: bool = True
    by_layer: bool = True

    @abstractmethod
    def root(self, draft: Distribution) -> Hashable:
        """The state of the empty prefix. ``draft`` is the draft model with its answers cached."""

    @abstractmethod
    def node_law(self, draft_probs: FloatArray, state: Any) -> DraftLaw | None:
        """The law of the drafts at a node, None at a leaf; ``draft_probs`` (V,) has been checked."""

    def child(self, state: Any, tokens: IntArray, token: int) -> Hashable:
        """The state of the node below ``token``, one of the drafts ``tokens`` (n,).

        By default a state is the tuple of the states below the first draft, the second, and so on.
        """
        return state[int(np.flatnonzero(tokens == token)[0])]

    def draft_tree(self, context: Context, choices: RandomChoices) -> DraftTree:
        """A tree of this law whose drafts are not drawn yet."""
        return DraftTree(context, choices)

    def grow(self, tree: DraftTree) -> Iterator[list[Prefix]]:
        """Draw all nodes of a tree.

        Yields
        ------
        list of tuple of int
            Prefixes before drafts are drawn after them, so that the draft model can read them in one call.
        """
        level: list[Prefix] = [()]
        for _ in range(self.depth):
            yield level
            nodes = [(prefix, node) for prefix in level if (node := tree.node(prefix))]
            level = [child for prefix, node in nodes for child in children(prefix, node)]


class Node(NamedTuple):
    """The drafts ``tokens`` (n,) after a prefix, the law that drew them, and the node's ``state``."""

    law: DraftLaw
    tokens: IntArray
    state: Hashable


class Context:
    """A target model and a law of trees, with a cache of their answers.

    ``target(prefix)`` and ``draft(prefix)`` are the distributions after a prefix, shape (V,).
    ``node_law(prefix, state)`` is the law of the drafts there, None at a leaf, and
    ``rule(verifier, prefix, state)`` the verifier prepared for them.
    """

    def __init__(self, target_model: Model, law: TreeLaw) -> None:
        self.law = law
        self._target_model = target_model
        # The target is not asked before the tree is drawn, so sizes are compared when both are known.
        self._target_size = self._draft_size = 0
        # Caches that held the context would keep the distributions until the garbage collector comes.
        me = proxy(self)
        self.target = cache(lambda prefix: me._target(prefix))
        self.draft = cache(partial(next_probs, "draft_model", law.draft_model))
        self.node_law = cache(lambda prefix, state: me._node_law(prefix, state))
        self.rule = cache(
            lambda verifier, prefix, state: verifier.prepare(me.target(prefix), me.node_law(prefix, state))
        )

    def _target(self, prefix: Prefix) -> FloatArray:
        probs = next_probs("target_model", self._target_model, prefix)
        self._target_size = probs.size
        self._compare_sizes()
        return probs

    def _node_law(self, prefix: Prefix, state: Hashable) -> DraftLaw | None:
        law = self.law.node_law(self.draft(prefix), state)
        if law is not None:
            self._draft_size = law.vocab_size
            self._compare_sizes()
        return law

    def _compare_sizes(self) -> None:
        if self._target_size and self._draft_size:
            validate_same_vocabulary(np.empty(self._target_size), self._draft_size)


def next_probs(name: str, model: Model, prefix: Prefix, size: int | None = None) -> FloatArray:
    """A model's distribution (V,) after a prefix, checked; V must be ``size``, if that is given."""
    probs = validate_probs(f"{name}({prefix})", model(prefix))
    if probs.ndim != 1 or size not in (None, probs.size):
        raise wrong(f"{name}({prefix})", f"shape {probs.shape}", f"({size or 'V'},)")
    return probs


class DraftTree:
    """A draft tree. The drafts of a node are drawn when they are first needed.

    ``nodes`` holds those that have been drawn, None where the law drafts nothing.
    """

    def __init__(self, context: Context, choices: RandomChoices) -> None:
        self.context = context
        self.nodes: dict[Prefix, Node | None] = {}
        self._choices = choices

    def node(self, prefix: Prefix) -> Node | None:
        """The drafts after a prefix; None where nothing is drafted, as after a leaf."""
        law = self.context.law
        # Below the deepest nodes the draft model need not be asked.
        if prefix not in self.nodes and len(prefix) < law.depth:
            if not prefix:
                self.draw(prefix, law.root(self.context.draft))
            elif (parent := self.node(prefix[:-1])) and prefix[-1] in parent.tokens:
                self.draw(prefix, law.child(parent.state, parent.tokens, prefix[-1]))
        return self.nodes.get(prefix)

    def grow(self) -> Iterator[list[Prefix]]:
        """Draw all nodes in the order of the law, see :meth:`TreeLaw.grow`."""
        return self.context.law.grow(self)

    def prefixes(self) -> list[Prefix]:
        """Every prefix that the tree holds, the empty one included, in ascending order."""
        for _ in self.grow():
            pass
        nodes = [(prefix, node) for prefix, node in self.nodes.items() if node]
        return sorted([(), *(child for prefix, node in nodes for child in children(prefix, node))])

    def draw(self, prefix: Prefix, state: Hashable) -> Node | None:
        """Draw the drafts of a node in a state."""
        law = self.context.node_law(prefix, state)
        node = self.nodes[prefix] = None if law is None else Node(law, self._choices.drafts(law), state)
        return node


def depends_on_others(law: TreeLaw) -> UnsupportedLaw:
    """The error where drafts after a prefix must depend on the prefix alone."""
    return UnsupportedLaw(
        f"law: got {law!r}, in which the drafts after a prefix depend on drafts elsewhere, expected a law in "
        "which they depend on the prefix alone, such as TokenTree or IIDPaths"
    )


def children(prefix: Prefix, node: Node) -> list[Prefix]:
    """The nodes below a node, by ascending token."""
    return [(*prefix, token) for token in np.unique(node.tokens).tolist()]
