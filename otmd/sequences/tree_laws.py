"""Laws of draft trees: of a fixed shape (Sequoia), i.i.d. paths (SpecTr), the likeliest paths (EAGLE-2)."""

import heapq
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import likeliest
from otmd.drafts import DraftLaw, Stratified, TopThen, WithoutReplacement, WithReplacement
from otmd.drafts.proposal import unchecked
from otmd.probabilities import FloatArray, IntArray, validate_count
from otmd.sequences.trees import Distribution, Model, Prefix, TreeLaw

# A shape is the tuple of the shapes below the first draft, the second, …; () is a leaf.
Shape = tuple["Shape", ...]


class TokenTree(TreeLaw):
    """A tree in which every node drafts a number of tokens that depends on its place alone.

    Parameters
    ----------
    draft_model : callable
        From a prefix to the draft distribution (V,).
    branching : tuple
        Numbers (b1, b2, …) of drafts at the root, below each of its drafts, and so on; or a shape, such as
        :func:`budget_shape` makes: the tuple of the shapes below the first draft, the second, ….
    law : callable
        The law of the drafts at each node, made with ``law(draft_probs, num_drafts)``: a class of laws, or a
        ``functools.partial`` of one. Where a token is drafted twice the tree goes on below the first.

    Raises
    ------
    ValueError
        For an empty or malformed shape.

    Notes
    -----
    A node whose draft distribution has fewer tokens than it is to draft without replacement, or from
    strata, drafts them all.
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
            self.shape = _regular(
                tuple(validate_count("branching", b, minimum=1) for b in branching)
            )
        else:
            self.shape = _checked(branching)
        if not self.shape:
            raise ValueError(f"branching: got {branching!r}, wanted at least one draft")
        self.depth = _depth(self.shape)

    def __repr__(self) -> str:
        return f"TokenTree({self.shape}, {getattr(self.law, '__name__', self.law)})"

    def root(self, draft: Distribution) -> Hashable:
        """See :class:`TreeLaw`."""
        return self.shape

    def node_law(self, draft_probs: FloatArray, state: Shape) -> DraftLaw | None:
        """See :class:`TreeLaw`."""
        count = len(state)
        kind = getattr(self.law, "func", self.law)
        if isinstance(kind, type) and issubclass(kind, WithoutReplacement | Stratified):
            count = min(count, int(np.count_nonzero(draft_probs)))
        return self.law(draft_probs, count) if count else None

    def child(self, state: Shape, tokens: IntArray, token: int) -> Hashable:
        """See :class:`TreeLaw`."""
        return state[int(np.flatnonzero(tokens == token)[0])]


def budget_shape(rank_rates: ArrayLike, budget: int, depth: int) -> Shape:
    """The shape of at most ``budget`` drafts whose accepted path is longest on average (Sequoia).

    Parameters
    ----------
    rank_rates : array_like, shape (B,)
        P(the draft of rank i is accepted), not ascending, and taken to be the same at every node, whatever
        happens at others.
    budget : int
        How many tokens the tree may hold.
    depth : int
        The longest path.

    Returns
    -------
    tuple
        A shape for :class:`TokenTree`.

    Raises
    ------
    ValueError
        For rates outside [0, 1], ascending, or of a sum above 1, and counts below 1.

    Notes
    -----
    A node is reached with the product of the rates along its path (Chen et al. 2024, proposition 3.4), which
    is no larger than its parent's and its elder sibling's: the best tree holds the largest products.
    """
    rates = np.asarray(rank_rates, dtype=np.float64)
    proper = rates.ndim == 1 and rates.size and (rates >= 0).all() and (np.diff(rates) <= 0).all()
    if not proper or rates.sum() > 1.0 + 1e-9:
        raise ValueError(
            f"rank_rates: got {rates.tolist()}, wanted probabilities of a sum of at most 1, descending"
        )
    validate_count("depth", depth, minimum=1)
    left = validate_count("budget", budget, minimum=1)
    chosen: set[tuple[int, ...]] = set()
    heap: list[tuple[float, tuple[int, ...]]] = [(-float(rates[0]), (0,))]
    while heap and left:
        reached, node = heapq.heappop(heap)
        chosen.add(node)
        left -= 1
        rank = node[-1]
        if rank + 1 < rates.size and rates[rank] > 0:
            sibling = reached / float(rates[rank]) * float(rates[rank + 1])
            heapq.heappush(heap, (sibling, (*node[:-1], rank + 1)))
        if len(node) < depth:
            heapq.heappush(heap, (reached * float(rates[0]), (*node, 0)))
    return _shape_of(chosen, ())


def _shape_of(nodes: set[tuple[int, ...]], node: tuple[int, ...]) -> Shape:
    count = 0
    while (*node, count) in nodes:
        count += 1
    return tuple(_shape_of(nodes, (*node, i)) for i in range(count))


def _regular(branching: tuple[int, ...]) -> Shape:
    below: Shape = ()
    for count in reversed(branching):
        below = (below,) * count
    return below


def _checked(shape: object) -> Shape:
    if not isinstance(shape, (tuple, list)):
        raise ValueError(f"branching: got {shape!r} in a shape, wanted tuples all the way down")
    return tuple(_checked(below) for below in shape)


def _depth(shape: Shape) -> int:
    return 1 + max(map(_depth, shape)) if shape else 0


class IIDPaths(TreeLaw):
    """K paths of L tokens from the draft model, independent and identically distributed.

    Seen as a tree: the drafts after a prefix are the next tokens of the paths that begin with it, drawn with
    replacement (SpecTr; Sun et al. 2023, section 5).

    Parameters
    ----------
    draft_model : callable
        From a prefix to the draft distribution (V,).
    num_paths : int
        K.
    depth : int
        L.

    Raises
    ------
    ValueError
        For counts below 1.
    """

    def __init__(self, draft_model: Model, num_paths: int, depth: int) -> None:
        self.draft_model = draft_model
        self.num_paths = validate_count("num_paths", num_paths, minimum=1)
        self.depth = validate_count("depth", depth, minimum=1)

    def __repr__(self) -> str:
        return f"IIDPaths(num_paths={self.num_paths}, depth={self.depth})"

    def root(self, draft: Distribution) -> Hashable:
        """See :class:`TreeLaw`."""
        return self.num_paths, self.depth

    def node_law(self, draft_probs: FloatArray, state: tuple[int, int]) -> DraftLaw | None:
        """See :class:`TreeLaw`."""
        paths, left = state
        return unchecked(WithReplacement, draft_probs, paths) if left else None

    def child(self, state: tuple[int, int], tokens: IntArray, token: int) -> Hashable:
        """See :class:`TreeLaw`."""
        return int(np.count_nonzero(tokens == token)), state[1] - 1


class LikeliestTree(TreeLaw):
    """The tree of the ``budget`` paths that the draft model holds likeliest.

    What EAGLE-2 calls a dynamic draft tree (Li et al. 2024), without its limit on how many nodes of a layer
    are expanded. The drafts are a function of the prefix: they are certain, and a verifier may not treat
    them as samples.

    Parameters
    ----------
    draft_model : callable
        From a prefix to the draft distribution (V,).
    budget : int
        How many tokens the tree holds.
    depth : int
        The longest path.
    width : int
        The most tokens that are drafted at a node.

    Raises
    ------
    ValueError
        For counts below 1.
    """

    def __init__(self, draft_model: Model, budget: int, depth: int, width: int = 10) -> None:
        self.draft_model = draft_model
        self.budget = validate_count("budget", budget, minimum=1)
        self.depth = validate_count("depth", depth, minimum=1)
        self.width = validate_count("width", width, minimum=1)

    def __repr__(self) -> str:
        return f"LikeliestTree(budget={self.budget}, depth={self.depth}, width={self.width})"

    def root(self, draft: Distribution) -> Hashable:
        """See :class:`TreeLaw`."""
        counts: dict[Prefix, int] = {}
        heap = self._children((), 1.0, draft)
        heapq.heapify(heap)
        for _ in range(self.budget):
            if not heap:
                break
            prob, _, prefix = heapq.heappop(heap)
            counts[prefix[:-1]] = counts.get(prefix[:-1], 0) + 1
            if len(prefix) < self.depth:
                for child in self._children(prefix, -prob, draft):
                    heapq.heappush(heap, child)
        return self._shape((), counts, draft)

    def node_law(self, draft_probs: FloatArray, state: Shape) -> DraftLaw | None:
        """See :class:`TreeLaw`."""
        return TopThen(draft_probs, len(state), top=len(state)) if state else None

    def child(self, state: Shape, tokens: IntArray, token: int) -> Hashable:
        """See :class:`TreeLaw`."""
        return state[int(np.flatnonzero(tokens == token)[0])]

    def _top(self, probs: FloatArray) -> IntArray:
        return likeliest(probs, min(self.width, int(np.count_nonzero(probs))))

    def _children(
        self, prefix: Prefix, prob: float, draft: Distribution
    ) -> list[tuple[float, int, Prefix]]:
        probs = draft(prefix)
        # The rank decides between equals, as it does among the drafts of a node.
        return [
            (-prob * float(probs[token]), rank, (*prefix, int(token)))
            for rank, token in enumerate(self._top(probs))
        ]

    def _shape(self, prefix: Prefix, counts: dict[Prefix, int], draft: Distribution) -> Shape:
        if prefix not in counts:
            return ()
        tokens = self._top(draft(prefix))[: counts[prefix]].tolist()
        return tuple(self._shape((*prefix, token), counts, draft) for token in tokens)
