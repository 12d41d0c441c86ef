"""What may be set for a rule: a law and a tree, of levels that are alike or of nodes that differ.

Nodes differ where drafts are certain or where recursive rejection looks at them one after another: then the
slot is known in which a token is accepted, and what follows below that slot.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, product
from math import prod
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from otmd.harness.dataset import Dataset
from otmd.planning.latency import Shape
from otmd.planning.texts import Text, halves
from otmd.probabilities import FloatArray, IntArray
from otmd.sequences import tree_laws
from otmd.sequences.trees import Prefix

NEVER = np.iinfo(np.int64).max


class Choice(NamedTuple):
    """What is set: a variant of the law, the draft's temperature, and the tree.

    ``shape`` has the drafts a node by level. A tree whose nodes differ has a ``budget``, all its tokens, and
    ``shape`` the tokens of each level: of likeliest paths the most, of a static tree all. A static tree's
    ``nodes`` are the paths of ranks that lead to them.
    """

    variant: str
    draft_temperature: float
    shape: Shape
    budget: int = 0
    nodes: tuple[Prefix, ...] = ()

    @property
    def drafts(self) -> int:
        """How many tokens the tree holds."""
        return self.budget or int(np.cumprod(self.shape).sum())

    @property
    def tree(self) -> str:
        """The shape as it is shown."""
        if self.budget and not self.nodes:
            return f"{self.budget} nodes, {len(self.shape)} deep"
        return ("+" if self.nodes else "×").join(map(str, self.shape))


def shapes(counts: Sequence[int], budget: int, depth: int) -> Iterator[Shape]:
    """Every tree within budget and depth whose levels draft ever fewer a node, out of ``counts``."""
    for levels in range(1, depth + 1):
        for shape in combinations_with_replacement(sorted(counts, reverse=True), levels):
            if np.cumprod(shape).sum() <= budget:
                yield shape


class StaticTrees(NamedTuple):
    """Trees that are the same at every step, and take in the next node of an order as their budget grows.

    Attributes
    ----------
    draft_temperature : float
    slots : list of ndarray of float64, shape (N, B)
        For each text: P(token t is accepted as the draft of slot i | it is emitted).
    order : list of tuple of int
        The nodes, as the slots that lead to them; parents come first.
    """

    draft_temperature: float
    slots: list[FloatArray]
    order: list[Prefix]

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """The trees of these budgets, of every number of levels."""
        for budget, levels in product(budgets, range(1, max(map(len, self.order), default=0) + 1)):
            nodes = tuple(node for node in self.order if len(node) <= levels)[:budget]
            sizes = tuple(np.bincount([*map(len, nodes)])[1:].tolist())
            if len(sizes) == levels:
                yield Choice("", self.draft_temperature, sizes, len(nodes), nodes)

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """How far steps reach along a text, as :func:`otmd.planning.reached_by_chances` says it."""
        slots = self.slots[text]
        count = len(slots)
        reached = np.zeros((count, len(choice.shape) + 1))
        reached[:, 0] = 1.0
        to: dict[Prefix, FloatArray] = {(): reached[:, 0]}
        for node in choice.nodes:
            starts = max(count - len(node) + 1, 0)
            to[node] = to[node[:-1]][:starts] * slots[len(node) - 1 :, node[-1]]
            reached[:starts, len(node)] += to[node]
        return reached


class LikeliestTrees(NamedTuple):
    """The draft's likeliest paths at each token, which take in the next one as their budget grows.

    Attributes
    ----------
    width : int
        The most tokens of a level that the draft reads.
    before : list of ndarray of float64, shape (N, L, L)
        For each text, entry (t, d − 1, k − 1): how many nodes of at most d levels come before the one of the
        k tokens from token t on; inf where there is none.
    """

    width: int
    before: list[FloatArray]

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """The trees of these budgets, of every number of levels."""
        for budget, levels in product(budgets, range(1, self.before[0].shape[1] + 1)):
            # The draft need not grow more than are kept.
            grown = min(self.width, budget)
            most = grown + (levels - 1) * grown**2
            yield Choice("", 1.0, (grown,) * levels, min(budget, most))

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """See :class:`StaticTrees`."""
        levels = len(choice.shape)
        drafted = self.before[text][:, levels - 1, :levels] < choice.budget
        return np.pad(drafted.astype(np.float64), ((0, 0), (1, 0)), constant_values=1.0)


def _before(text: Sequence[int], orders: Iterable[Sequence[Prefix]], depth: int) -> FloatArray:
    before = np.full((len(text), depth, depth), np.inf)
    for t, order in enumerate(orders):
        for d in range(depth):
            place = {own: i for i, own in enumerate(own for own in order if len(own) <= d + 1)}
            for k in range(min(d + 1, len(text) - t)):
                before[t, d, k] = place.get(tuple(text[t : t + k + 1]), np.inf)
    return before


def likeliest_trees(dataset: Dataset, texts: Sequence[Text], depth: int) -> LikeliestTrees | None:
    """The draft's likeliest paths (EAGLE-2) of at most so many levels, if a dataset has them."""
    width, deepest, before = 0, 0, []
    for text in texts:
        paths = dataset.paths(text.rows)
        orders = [] if paths is None else [_order(rows) for rows in paths.tolist()]
        before.append(_before(text.tokens, orders, depth))
        width = max([width, *(sum(len(own) == 1 for own in order) for order in orders)])
        deepest = max([deepest, *(len(own) for order in orders for own in order)])
    deepest = min(deepest, depth)
    return (
        LikeliestTrees(width, [own[:, :deepest, :deepest] for own in before]) if deepest else None
    )


def _order(rows: list[list[int]]) -> list[Prefix]:
    """The paths that rows of (parent, token) stand for."""
    found: list[Prefix] = []
    for parent, token in rows:
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return [path for path in found if path[-1] >= 0]


def certain_trees(dataset: Dataset, texts: Sequence[Text], budget: int, depth: int) -> StaticTrees:
    """The best static trees of certain tokens: a slot is a rank in the draft's distribution."""
    ranks = [draft_ranks(dataset, text) for text in texts]
    slots = [(own[:, None] == np.arange(budget)).astype(np.float64) for own in ranks]
    return static_trees(1.0, slots, halves(texts)[0], budget, depth)


def static_trees(
    draft_temperature: float, slots: list[FloatArray], fit: IntArray, budget: int, depth: int
) -> StaticTrees:
    """The best static trees within budget and depth, if slots along a text were independent.

    They are Sequoia's (Chen et al. 2024), for the mean chances of slots in the texts ``fit``, made to fall.
    """
    shares = np.concatenate([slots[i] for i in fit]).mean(axis=0)
    falling = isotonic_regression(shares, increasing=False).x.clip(0.0)
    rates = (falling / max(1.0, falling.sum())).tolist()
    best = (tree_laws.budget_shape(rates, budget, levels) for levels in range(1, depth + 1))
    nodes = {node for shape in best for node in _nodes(shape)}
    # Of equals the shorter, so that parents come first.
    order = sorted(nodes, key=lambda node: (-prod(rates[rank] for rank in node), len(node), node))
    return StaticTrees(draft_temperature, slots, order)


def _nodes(shape: tree_laws.Shape, node: Prefix = ()) -> Iterator[Prefix]:
    for rank, below in enumerate(shape):
        yield (*node, rank)
        yield from _nodes(below, (*node, rank))


def draft_ranks(dataset: Dataset, text: Text) -> IntArray:
    """Rank each token of a text in the draft's distribution, from 0; NEVER for one without mass there."""
    _, draft = dataset.arrays(text.rows)
    tokens = np.array(text.tokens)[:, None]
    own = np.take_along_axis(draft, tokens, axis=1)
    # Of equals the lower number is the likelier.
    earlier = np.arange(draft.shape[1]) < tokens
    ranks = np.count_nonzero((draft > own) | ((draft == own) & earlier), axis=1)
    return np.where(own[:, 0] == (0.0 if dataset.kind == "probs" else -np.inf), NEVER, ranks)
