"""What may be set for a rule: a law and a tree, of levels that are alike or of nodes that differ.

Where nodes differ, drafts are certain and the rule is target-only sampling. It emits a token whatever was
drafted, and accepts it if it was: given the text, a step accepts exactly those nodes that lie on the text.
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


class Growing(NamedTuple):
    """Trees whose nodes differ, which take in the next node of an order as their budget grows.

    Attributes
    ----------
    width : int
        The most tokens of a level that the draft reads.
    before : list of ndarray of float64, shape (N, L, L)
        For each text, entry (t, d − 1, k − 1): how many nodes of at most d levels come before the one of the
        k tokens from token t on; inf where there is none.
    order : list of tuple of int
        Of static trees, the nodes.
    """

    width: int
    before: list[FloatArray]
    order: Sequence[Prefix] = ()

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """The trees of these budgets, of every number of levels."""
        for budget, levels in product(budgets, range(1, self.before[0].shape[1] + 1)):
            nodes = tuple(node for node in self.order if len(node) <= levels)[:budget]
            # Of likeliest paths the draft need not grow more than are kept.
            grown = min(self.width, budget)
            sizes = np.bincount([*map(len, nodes)])[1:].tolist() if nodes else [grown] * levels
            most = len(nodes) or grown + (levels - 1) * grown**2
            if len(sizes) == levels:
                yield Choice("", 1.0, tuple(sizes), min(budget, most), nodes)

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """How far steps reach along a text, as :func:`otmd.planning.reached_by_chances` says it."""
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


def likeliest_trees(dataset: Dataset, texts: Sequence[Text], depth: int) -> Growing | None:
    """The draft's likeliest paths (EAGLE-2) of at most so many levels, if a dataset has them."""
    width, deepest, before = 0, 0, []
    for text in texts:
        paths = dataset.paths(text.rows)
        orders = [] if paths is None else [_order(rows) for rows in paths.tolist()]
        before.append(_before(text.tokens, orders, depth))
        width = max([width, *(sum(len(own) == 1 for own in order) for order in orders)])
        deepest = max([deepest, *(len(own) for order in orders for own in order)])
    deepest = min(deepest, depth)
    return Growing(width, [own[:, :deepest, :deepest] for own in before]) if deepest else None


def _order(rows: list[list[int]]) -> list[Prefix]:
    """The paths that rows of (parent, token) stand for."""
    found: list[Prefix] = []
    for parent, token in rows:
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return [path for path in found if path[-1] >= 0]


def static_trees(dataset: Dataset, texts: Sequence[Text], budget: int, depth: int) -> Growing:
    """The best static trees within budget and depth, if ranks along a text were independent.

    They are Sequoia's (Chen et al. 2024), for the shares of the ranks in half of the texts, made to fall.
    """
    ranks = [draft_ranks(dataset, text) for text in texts]
    seen = np.concatenate([ranks[i] for i in halves(texts)[0]])
    shares = np.bincount(seen[seen < budget], minlength=budget) / seen.size
    rates = isotonic_regression(shares, increasing=False).x.tolist()
    best = (tree_laws.budget_shape(rates, budget, levels) for levels in range(1, depth + 1))
    nodes = {node for shape in best for node in _nodes(shape)}
    # Of equals the shorter, so that parents come first.
    order = sorted(nodes, key=lambda node: (-prod(rates[rank] for rank in node), len(node), node))
    before = [_before(own.tolist(), [order] * own.size, depth) for own in ranks]
    return Growing(budget, before, order)


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
