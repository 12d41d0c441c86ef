"""The choices of a plan for one candidate: the variant of a law, the temperature, and the tree.

All nodes of a level have the same number of drafts, unless it is known which draft of its node a token is,
its slot. Then nodes may differ: what follows the token is drafted below that slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np

from otmd.models.dataset import Dataset
from otmd.probabilities import FloatArray, IntArray
from otmd.study.planning.texts import (
    Text,
    at_most,
    halves,
    products,
    reached_by_block,
    reached_by_probs,
)
from otmd.trees.base import Prefix
from otmd.trees.laws import Shape

Valued = tuple[float, Shape]
NEVER = np.iinfo(np.int64).max


class Choice(NamedTuple):
    """A variant of the law, the draft's temperature, and the tree.

    ``shape`` has the drafts at a node, by level. If nodes differ, the tree has ``budget`` tokens, and
    ``shape`` has the tokens of each level; for most likely paths, those that the draft reads. The ``nodes``
    of a static tree, and of independent paths, are given by the paths of slots that lead to them. An
    ``adaptive`` tree has at most ``shape`` tokens on each level, at nodes that are chosen at every step.
    """

    variant: str
    draft_temperature: float
    shape: tuple[int, ...]
    budget: int = 0
    nodes: tuple[Prefix, ...] = ()
    adaptive: bool = False

    @property
    def drafts(self) -> int:
        """Number of tokens of the tree."""
        return self.budget or int(np.cumprod(self.shape).sum())

    @property
    def tree(self) -> str:
        """The shape as it is shown."""
        if self.adaptive or self.nodes:
            return "+".join(map(str, self.shape))
        if self.budget:
            return f"{self.budget} nodes, {len(self.shape)} deep"
        return "×".join(map(str, self.shape))

    def distance(self, choice: Choice) -> tuple[int, int]:
        """Differences from another tree in the numbers of tokens and levels."""
        return abs(choice.drafts - self.drafts), abs(len(choice.shape) - len(self.shape))


def shapes(counts: Sequence[int], budget: int, depth: int) -> Iterator[tuple[int, ...]]:
    """Every tree within budget and depth with drafts a node out of ``counts``, never more a level down."""
    for levels in range(1, depth + 1):
        for shape in combinations_with_replacement(sorted(counts, reverse=True), levels):
            if np.cumprod(shape).sum() <= budget:
                yield shape


class EqualLevels(NamedTuple):
    """Trees in which all nodes of a level have the same number of drafts.

    ``probs`` has, for n drafts at a node and each text, P(token t is drafted | it is emitted), shape (N,);
    for block verification q/p. ``included`` has P(token t is drafted), divided by the target's probability.
    """

    variant: str
    draft_temperature: float
    probs: Mapping[int, list[FloatArray]]
    included: Mapping[int, list[FloatArray]]
    depth: int
    is_block: bool

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """Every tree within the largest budget."""
        for shape in shapes(list(self.probs), max(budgets), self.depth):
            yield Choice(self.variant, self.draft_temperature, shape)

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """Reach of steps along a text, as :func:`otmd.study.planning.reached_by_probs` defines it."""
        if self.is_block:
            return reached_by_block(self.probs[1][text], len(choice.shape))
        return reached_by_probs(np.stack([self.probs[n][text] for n in choice.shape], axis=1))

    def bound(self, text: int, choice: Choice) -> FloatArray:
        """Reach that no lossless rule exceeds with these drafts."""
        return at_most(products(np.stack([self.included[n][text] for n in choice.shape], axis=1)))


class StaticTrees(NamedTuple):
    """Trees that are the same at every step: the best one of each budget, by the slots' mean probabilities.

    Attributes
    ----------
    variant, draft_temperature : str, float
        As in a :class:`Choice`.
    slots : dict of int to list of ndarray of float64
        For n drafts at a node and each text, (N, n): P(token t is accepted in slot i | it is emitted).
    included : dict of int to list of ndarray of float64
        P(token t is drafted in slot i), divided by the target's probability, in the same form.
    fit : ndarray of int64
        Numbers of the texts that the trees are chosen on.
    depth : int
        The most levels.
    """

    variant: str
    draft_temperature: float
    slots: Mapping[int, list[FloatArray]]
    included: Mapping[int, list[FloatArray]]
    fit: IntArray
    depth: int

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """The trees of these budgets, of every number of levels."""
        rates = {
            n: tuple(np.concatenate([by_text[i] for i in self.fit]).mean(axis=0).tolist())
            for n, by_text in self.slots.items()
        }
        for levels, best in enumerate(best_shapes(rates, max(budgets), self.depth), 1):
            for budget in budgets:
                nodes = tuple(_nodes(best[budget]))
                sizes = tuple(np.bincount([*map(len, nodes)])[1:].tolist())
                if len(sizes) == levels:
                    yield Choice(self.variant, self.draft_temperature, sizes, len(nodes), nodes)

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """See :class:`EqualLevels`."""
        return _summed(self.slots, text, self.nodes(choice))

    def bound(self, text: int, choice: Choice) -> FloatArray:
        """See :class:`EqualLevels`."""
        return at_most(_summed(self.included, text, self.nodes(choice)))

    def nodes(self, choice: Choice) -> Sequence[Prefix]:
        """The paths of slots to the nodes of a tree, parents before their children."""
        return choice.nodes


def _summed(
    slots: Mapping[int, list[FloatArray]], text: int, nodes: Sequence[Prefix]
) -> FloatArray:
    """Sums over the nodes of a level of the products along their slots, shape (N, levels + 1)."""
    below = Counter(node[:-1] for node in nodes)
    count = len(next(iter(slots.values()))[text])
    sums = np.zeros((count, 1 + max(map(len, nodes))))
    sums[:, 0] = 1.0
    to: dict[Prefix, FloatArray] = {(): sums[:, 0]}
    for node in nodes:
        factors = slots[below[node[:-1]]][text][len(node) - 1 :, node[-1]]
        to[node] = to[node[:-1]][: factors.size] * factors
        sums[: factors.size, len(node)] += to[node]
    return sums


class IndependentPaths(StaticTrees):
    """Paths drawn independently from the draft model: k of them, all of one length.

    Here a slot is how many paths continue with a token: ``slots`` has, for n paths, the probabilities that 1
    to n of them do, given that the token is emitted.
    """

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """Every number of paths and length within the largest budget."""
        for n, levels in product(self.slots, range(1, self.depth + 1)):
            if n * levels <= max(budgets):
                nodes = tuple((i, *(0,) * k) for i in range(n) for k in range(levels))
                yield Choice(self.variant, self.draft_temperature, (n,) * levels, n * levels, nodes)

    def nodes(self, choice: Choice) -> Sequence[Prefix]:
        """The paths by how many of the paths continue, level by level."""
        return [*_nodes(_continued(choice.shape[0], len(choice.shape)))]


def _continued(paths: int, levels: int) -> Shape:
    """The tree that branches by how many paths continue, level by level."""
    return tuple(_continued(n, levels - 1) for n in range(1, paths + 1)) if levels else ()


class MostLikelyTrees(NamedTuple):
    """Trees of the draft's most likely paths; a larger budget adds the next most likely node.

    Attributes
    ----------
    width : int
        The most tokens of a level that the draft reads.
    before : list of ndarray of float64, shape (N, L, L)
        For each text, entry (t, d − 1, k − 1): how many nodes of the d levels after token t − 1 come before
        the node that the k tokens from token t on lead to; inf if the draft has no such node.
    """

    width: int
    before: list[FloatArray]

    def choices(self, budgets: Sequence[int]) -> Iterator[Choice]:
        """The trees of these budgets, of every number of levels."""
        for budget, levels in product(budgets, range(1, self.before[0].shape[1] + 1)):
            # The draft need not grow more paths than the tree keeps.
            grown = min(self.width, budget)
            most = grown + (levels - 1) * grown**2
            yield Choice("", 1.0, (grown,) * levels, min(budget, most))

    def reached(self, text: int, choice: Choice) -> FloatArray:
        """See :class:`EqualLevels`."""
        levels = len(choice.shape)
        drafted = self.before[text][:, levels - 1, :levels] < choice.budget
        return np.pad(drafted.astype(np.float64), ((0, 0), (1, 0)), constant_values=1.0)

    def bound(self, text: int, choice: Choice) -> FloatArray:
        """The reach: a deterministic draft is accepted wherever it is emitted."""
        return self.reached(text, choice)


def _before(text: Sequence[int], orders: Iterable[Sequence[Prefix]], depth: int) -> FloatArray:
    before = np.full((len(text), depth, depth), np.inf)
    for t, order in enumerate(orders):
        for d in range(depth):
            shallow = [path for path in order if len(path) <= d + 1]
            index = {path: i for i, path in enumerate(shallow)}
            for k in range(min(d + 1, len(text) - t)):
                before[t, d, k] = index.get(tuple(text[t : t + k + 1]), np.inf)
    return before


def most_likely_trees(
    dataset: Dataset, texts: Sequence[Text], depth: int
) -> MostLikelyTrees | None:
    """The draft's most likely paths (EAGLE-2) of at most ``depth`` levels; None if a dataset has none."""
    width = 0
    deepest = 0
    before = []
    for text in texts:
        paths = dataset.paths(text.rows)
        orders = [] if paths is None else [_order(rows) for rows in paths.tolist()]
        before.append(_before(text.tokens, orders, depth))
        width = max([width, *(sum(len(path) == 1 for path in order) for order in orders)])
        deepest = max([deepest, *(len(path) for order in orders for path in order)])
    deepest = min(deepest, depth)
    kept = [counts[:, :deepest, :deepest] for counts in before]
    return MostLikelyTrees(width, kept) if deepest else None


def _order(rows: list[list[int]]) -> list[Prefix]:
    """The paths that rows of (parent, token) stand for."""
    paths: list[Prefix] = []
    for parent, token in rows:
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    return [path for path in paths if path[-1] >= 0]


def deterministic_trees(
    dataset: Dataset, texts: Sequence[Text], budget: int, depth: int
) -> StaticTrees:
    """The static trees of deterministic tokens: a slot is a rank in the draft's distribution."""
    ranks = [draft_ranks(dataset, text)[:, None] for text in texts]
    slots = {
        n: [1.0 * (of_text == np.arange(n)) for of_text in ranks] for n in range(1, budget + 1)
    }
    # A deterministic draft is accepted wherever it is emitted: the reach is the bound.
    return StaticTrees("", 1.0, slots, slots, halves(texts)[0], depth)


def best_shapes(
    rates: Mapping[int, tuple[float, ...]], budget: int, depth: int
) -> list[list[Shape]]:
    """For 1 to ``depth`` levels, and 0 to ``budget`` tokens: the shape that is expected to accept most.

    ``rates[n]`` are the probabilities of the slots of a node with n drafts, alike at all nodes and
    independent. Below each slot stands the best shape of its share of the tokens (Sequoia, Chen et al. 2024,
    has this for slots whose probabilities do not depend on n).
    """
    none: list[Valued] = [(0.0, ())] * (budget + 1)
    best = none
    shapes_by_level = []
    for _ in range(depth):
        below, best = best, none.copy()
        # The most that the first drafts of a node bring, for each number of tokens below them.
        parts: dict[tuple[float, ...], list[Valued]] = {(): none}
        for n, probs in rates.items():
            for j in range(1, min(n, budget) + 1):
                if probs[:j] not in parts:
                    parts[probs[:j]] = _with_slot(parts[probs[: j - 1]], probs[j - 1], below)
            for size, part in enumerate(parts.get(probs, []), n):
                if part[0] > best[size][0] or not best[size][1]:
                    best[size] = part
        shapes_by_level.append([shape for _, shape in best])
    return shapes_by_level


def _with_slot(before: list[Valued], rate: float, below: list[Valued]) -> list[Valued]:
    """Add a slot to a node; entry b has b tokens below all slots."""
    values = np.array([value for value, _ in before]), np.array([value for value, _ in below])
    combined: list[Valued] = []
    for size in range(len(before) - 1):
        sums = values[0][size::-1] + rate * (1.0 + values[1][: size + 1])
        share = int(sums.argmax())
        combined.append((float(sums[share]), (*before[size - share][1], below[share][1])))
    return combined


def _nodes(shape: Shape, node: Prefix = ()) -> Iterator[Prefix]:
    for rank, below in enumerate(shape):
        yield (*node, rank)
        yield from _nodes(below, (*node, rank))


def draft_ranks(dataset: Dataset, text: Text) -> IntArray:
    """Rank each token of a text in the draft's distribution, from 0; NEVER for a token without mass."""
    _, draft = dataset.arrays(text.rows)
    tokens = np.array(text.tokens)[:, None]
    values = np.take_along_axis(draft, tokens, axis=1)
    # Of equally likely tokens, the lower number comes first.
    earlier = np.arange(draft.shape[1]) < tokens
    ranks = np.count_nonzero((draft > values) | ((draft == values) & earlier), axis=1)
    return np.where(values[:, 0] == (0.0 if dataset.kind == "probs" else -np.inf), NEVER, ranks)
