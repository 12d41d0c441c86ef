"""Draft paths drawn independently of one another, as SpecTr draws them."""

from collections.abc import Hashable

import numpy as np

from otmd.drafts import DraftLaw, WithReplacement
from otmd.drafts.proposal import unchecked
from otmd.probabilities import FloatArray, IntArray, validate_count
from otmd.sequences.models import Model
from otmd.sequences.trees import Distribution, TreeLaw


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
