"""Independent drafts, each from a distribution of its own."""

from __future__ import annotations

import copy
from math import prod
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws.base import DraftLaw, at_positions, draw_tokens
from otmd.laws.structure import Slots, Structure, all_random
from otmd.probabilities import BoolArray, FloatArray, IntArray, validate_count, validate_probs


class Independent(DraftLaw):
    """Draft j drawn independently from q_j: g(H) = Π_j q_j(H).

    The distributions may overlap, as those of two drafters do. A row with a single 1 is a
    deterministic token.

    Parameters
    ----------
    draft_probs : array_like, shape (…, n, V)
        q_j, one next-token distribution for each draft, else ValueError.
    num_drafts : int, optional
        n; if given, it must be the length of that axis, else ValueError.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Independent([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    >>> law.inclusion_probs()
    array([0.5 , 0.75, 0.5 ])
    """

    draft_probs: FloatArray

    def __init__(self, draft_probs: ArrayLike, num_drafts: int | None = None) -> None:
        self.draft_probs = validate_probs("draft_probs", draft_probs)
        if self.draft_probs.ndim < 2 or self.draft_probs.shape[-2] == 0:
            raise ValueError(
                f"draft_probs: got shape {self.draft_probs.shape}, expected (…, n, V): one "
                "distribution for each of at least one draft"
            )
        *batch, self.num_drafts, self.vocab_size = self.draft_probs.shape
        self.batch_shape = tuple(batch)
        if num_drafts is not None and validate_count("num_drafts", num_drafts) != self.num_drafts:
            raise ValueError(
                f"num_drafts: got {num_drafts}, expected {self.num_drafts}, the distributions given"
            )

    def __repr__(self) -> str:
        return f"Independent(draft_probs{self.draft_probs.shape})"

    def __getitem__(self, index: tuple[int, ...]) -> Self:
        return at_positions(self, index, own_axes=2)

    def with_num_drafts(self, num_drafts: int) -> Self:
        """Return the law of the first ``num_drafts`` drafts."""
        fewer = copy.copy(self)
        fewer.num_drafts = validate_count("num_drafts", num_drafts, maximum=self.num_drafts)
        fewer.draft_probs = self.draft_probs[..., :num_drafts, :]
        return fewer

    def position_structure(self) -> Structure:
        return all_random(Slots.overlapping(self.draft_probs))

    def count_sets(self, merge: bool) -> tuple[int, int] | None:
        if merge and self.num_drafts > 1:
            return None
        has_mass = self.draft_probs > 0
        supports = has_mass.sum(axis=-1).tolist()
        tuples, arcs = prod(supports), 0
        # A token is in all tuples except those made of other tokens alone. Tokens that can be the same drafts
        # are in equally many tuples, so they are counted together.
        patterns, uses = np.unique(has_mass, axis=1, return_counts=True)
        for able, count in zip(patterns.T.astype(int).tolist(), uses.tolist(), strict=True):
            others = (size - has for size, has in zip(supports, able, strict=True))
            arcs += count * (tuples - prod(others))
        return tuples, arcs

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        return np.stack([draw_tokens(q, rng, count) for q in self.draft_probs], axis=-1)

    def position_support(self) -> IntArray:
        return np.flatnonzero((self.draft_probs > 0).any(axis=0))

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return bool((self.draft_probs[np.arange(draft_tokens.size), draft_tokens] > 0).all())

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        return self.draft_probs[np.arange(self.num_drafts), draft_tokens].prod(axis=-1)

    def position_next_draft_probs(self, prefix: IntArray) -> FloatArray:
        return self.draft_probs[prefix.size] * self.can_draw(prefix)

    def position_containment(self, subset: BoolArray) -> float:
        return float(np.minimum(self.draft_probs[:, subset].sum(axis=-1), 1.0).prod())

    def position_inclusion_probs(self) -> FloatArray:
        with np.errstate(divide="ignore"):
            return -np.expm1(np.log1p(-self.draft_probs).sum(axis=0))
