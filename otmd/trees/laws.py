"""Laws of draft trees: fixed shapes (Sequoia), i.i.d. paths (SpecTr), most likely paths (EAGLE-2)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import largest_entries
from otmd.laws import DraftLaw, Stratified, TopThen, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray, validate_count, wrong
from otmd.trees.base import Distribution, DraftTree, Model, Prefix, TreeLaw

# A shape is the tuple of the shapes below the first draft, the second draft, and so on. A leaf is ().
Shape = tuple["Shape", ...]


class TokenTree(TreeLaw):
    """A tree of fixed shape: the number of drafts of a node depends only on its position in the tree.

    Parameters
    ----------
    draft_model : callable
        Takes a prefix and returns the draft distribution (V,).
    branching : tuple
        The numbers (b1, b2, …) of drafts at the root, below each of its drafts, and so on. Or a shape, as
        :func:`budget_shape` returns it: the tuple of the shapes below the first draft, the second, and so on;
        () is a leaf. Anything else, or no draft at all, is a ValueError.
    law : callable
        ``law(draft_probs, num_drafts)`` is the law of the drafts at a node: a class of laws, or a
        ``functools.partial`` of one. Where a token is drafted twice, the tree continues below the first.

    Notes
    -----
    Drafts without replacement and from strata are distinct. Where fewer tokens have mass than the shape asks
    for, the node drafts all of them.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> trees.TokenTree(draft, (2, 1), otmd.Stratified)
    TokenTree((((),), ((),)), Stratified)
    """

    def __init__(
        self,
        draft_model: Model,
        branching: Sequence[int] | Shape,
        law: Callable[[FloatArray, int], DraftLaw] = WithoutReplacement,
    ) -> None:
        self.draft_model = draft_model
        self.law = law
        if branching and all(isinstance(count, (int, np.integer)) for count in branching):
            self.shape: Shape = ()
            for count in reversed([validate_count("branching", b, minimum=1) for b in branching]):
                self.shape = (self.shape,) * count
        else:
            self.shape = _checked(branching)
        if not self.shape:
            raise wrong("branching", repr(branching), "at least one draft")
        self.depth = _depth(self.shape)

    def __repr__(self) -> str:
        return f"TokenTree({self.shape}, {getattr(self.law, '__name__', self.law)})"

    def root(self, draft: Distribution) -> Hashable:
        return self.shape

    def node_law(self, draft_probs: FloatArray, state: Shape) -> DraftLaw | None:
        count = len(state)
        kind = getattr(self.law, "func", self.law)
        if isinstance(kind, type) and issubclass(kind, WithoutReplacement | Stratified):
            count = min(count, int(np.count_nonzero(draft_probs)))
        return self.law(draft_probs, count) if count else None


def budget_shape(rank_rates: ArrayLike, budget: int, depth: int) -> Shape:
    """The shape for a TokenTree that maximises the expected length of the accepted path (Sequoia).

    Parameters
    ----------
    rank_rates : array_like, shape (B,)
        P(the draft of rank i is accepted), descending, with a sum of at most 1, else ValueError. These
        are assumed to hold at every node, whatever happens at other nodes.
    budget, depth : int
        The most tokens that the tree may have, and the length of its longest path; at least 1, else
        ValueError.

    Returns
    -------
    tuple
        The shapes below the first draft, the second, and so on; () is a leaf.

    Notes
    -----
    The probability of reaching a node is the product of the rates along its path (Chen et al. 2024, prop.
    3.4). It is at most that of the node's parent and of its siblings of lower rank. So the best tree consists
    of the nodes with the largest products.

    Examples
    --------
    >>> from otmd import trees
    >>> trees.budget_shape([0.6, 0.2], budget=4, depth=3)
    ((((),),), ())
    """
    rates = np.asarray(rank_rates, dtype=np.float64)
    proper = rates.ndim == 1 and rates.size and (rates >= 0).all() and (np.diff(rates) <= 0).all()
    if not proper or rates.sum() > 1.0 + 1e-9:
        raise wrong("rank_rates", rates.tolist(), "probabilities of a sum of at most 1, descending")
    validate_count("depth", depth, minimum=1)
    validate_count("budget", budget, minimum=1)
    ranks = list(enumerate(rates.tolist()))
    return _best_shape(lambda _: ranks, budget, depth)


def _best_shape(children: Callable[[Prefix], list[tuple[int, float]]], budget: int, depth: int) -> Shape:
    """The shape of the ``budget`` nodes that are reached with the largest probabilities, or of all nodes.

    A node is the tuple of the ids that lead to it. ``children(node)`` lists the ids below a node with their
    probabilities, most likely first.
    """
    chosen: dict[Prefix, list[int]] = {}
    heap: list[tuple[float, int, Prefix]] = [(-1.0, 0, ())]
    while heap and len(chosen) <= budget:
        reached, _, node = heapq.heappop(heap)
        chosen[node] = []
        if node:
            chosen[node[:-1]].append(node[-1])
        if len(node) < depth:
            for rank, (child, rate) in enumerate(children(node)):
                heapq.heappush(heap, (reached * rate, rank, (*node, child)))

    def shape(node: Prefix) -> Shape:
        return tuple(shape((*node, child)) for child in chosen[node])

    return shape(())


def _checked(shape: object) -> Shape:
    if not isinstance(shape, (tuple, list)):
        raise wrong("branching", f"{shape!r} in a shape", "tuples all the way down")
    return tuple(_checked(below) for below in shape)


def _depth(shape: Shape) -> int:
    return 1 + max(map(_depth, shape)) if shape else 0


class IIDPaths(TreeLaw):
    """K sampled paths of L tokens from the draft model (SpecTr; Sun et al. 2023, section 5).

    As a tree: where k paths share a prefix, the k tokens after it are drafted with replacement.

    Parameters
    ----------
    draft_model : callable
        Takes a prefix and returns the draft distribution (V,).
    num_paths, depth : int
        K and L, at least 1, else ValueError.

    Examples
    --------
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> paths = trees.IIDPaths(draft, num_paths=2, depth=2)
    >>> round(trees.tokens_per_step(trees.InclusionBound(), target, paths).value, 4)
    2.5848
    """

    def __init__(self, draft_model: Model, num_paths: int, depth: int) -> None:
        self.draft_model = draft_model
        self.num_paths = validate_count("num_paths", num_paths, minimum=1)
        self.depth = validate_count("depth", depth, minimum=1)

    def __repr__(self) -> str:
        return f"IIDPaths(num_paths={self.num_paths}, depth={self.depth})"

    def root(self, draft: Distribution) -> Hashable:
        return self.num_paths, self.depth

    def node_law(self, draft_probs: FloatArray, state: tuple[int, int]) -> DraftLaw | None:
        paths, left = state
        return WithReplacement(draft_probs, paths) if left else None

    def child(self, state: tuple[int, int], tokens: IntArray, token: int) -> Hashable:
        return int(np.count_nonzero(tokens == token)), state[1] - 1


class MostLikelyTree(TreeLaw):
    """The tree of the ``budget`` nodes that are most likely under the draft model.

    EAGLE-2's dynamic draft tree (Li et al. 2024), without its limit on how many nodes of a layer are
    expanded. The drafts are deterministic given the prefix, so a verifier must not treat them as samples.

    Parameters
    ----------
    draft_model : callable
        Takes a prefix and returns the draft distribution (V,).
    budget, depth, width : int
        The number of tokens of the tree, the length of its longest path, and the most tokens drafted at a
        node; each at least 1, else ValueError.

    Examples
    --------
    >>> import otmd
    >>> from otmd import trees
    >>> target = trees.TableModel([[0.5, 0.3, 0.2]])
    >>> draft = trees.TableModel([[0.2, 0.3, 0.5]])
    >>> tree = trees.MostLikelyTree(draft, budget=3, depth=2)
    >>> rule = trees.TokenLevel(otmd.TargetOnly())
    >>> round(trees.tokens_per_step(rule, target, tree).value, 4)
    1.54
    """

    def __init__(self, draft_model: Model, budget: int, depth: int, width: int = 10) -> None:
        self.draft_model = draft_model
        self.budget = validate_count("budget", budget, minimum=1)
        self.depth = validate_count("depth", depth, minimum=1)
        self.width = validate_count("width", width, minimum=1)

    def __repr__(self) -> str:
        return f"MostLikelyTree(budget={self.budget}, depth={self.depth}, width={self.width})"

    def root(self, draft: Distribution) -> Hashable:

        def children(prefix: Prefix) -> list[tuple[int, float]]:
            probs = draft(prefix)
            tokens = largest_entries(probs, min(self.width, int(np.count_nonzero(probs))))
            return [(token, float(probs[token])) for token in tokens.tolist()]

        return _best_shape(children, self.budget, self.depth)

    def node_law(self, draft_probs: FloatArray, state: Shape) -> DraftLaw | None:
        return TopThen(draft_probs, len(state), top=len(state)) if state else None

    def grow(self, tree: DraftTree) -> Iterator[list[Prefix]]:
        # First the nodes that the tree has as far as the draft model was read, until there are no new ones.
        read: set[Prefix] = set()
        missing: set[Prefix] = set() if tree.nodes else {()}
        while missing:
            yield sorted(missing)
            read |= missing
            missing = set()

            def probs(prefix: Prefix, read: set[Prefix] = read, missing: set[Prefix] = missing):
                if prefix in read:
                    return tree.context.draft(prefix)
                missing.add(prefix)
                return np.zeros(1)

            self.root(probs)
        yield from super().grow(tree)
