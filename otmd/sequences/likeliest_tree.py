"""Trees of the likeliest paths of the draft model: no chance is left in what is drafted (EAGLE-2)."""

import heapq
from collections.abc import Hashable

import numpy as np

from otmd.curve._kernels import likeliest
from otmd.drafts import DraftLaw, TopThen
from otmd.probabilities import FloatArray, IntArray, validate_count
from otmd.sequences.models import Model, Prefix
from otmd.sequences.token_tree import Shape
from otmd.sequences.trees import Distribution, TreeLaw


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
