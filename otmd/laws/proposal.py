"""Laws of drafts built from one draft distribution."""

from __future__ import annotations

import copy
from math import comb, perm
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws.base import MOST_DRAFTS, DraftLaw, at_positions
from otmd.probabilities import BoolArray, FloatArray, IntArray, validate_count, validate_probs


class ProposalLaw(DraftLaw):
    """A law built from one draft distribution q.

    Sort the tokens in ascending order of p/q, the deterministic tokens first. Then some prefix of this order
    minimises p(H) − g(H) (Hu et al. 2025, Theorem 6), so a sort and one scan find the minimum.

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`otmd.WithReplacement`, for errors as well. If ``distinct`` is True, more drafts than
        tokens with mass are a ValueError too.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([[0.5, 0.5], [0.2, 0.8]], num_drafts=2)
    >>> isinstance(law, otmd.laws.ProposalLaw), law[1].draft_probs
    (True, array([0.2, 0.8]))
    """

    draft_probs: FloatArray
    distinct = False
    """Whether no token is drafted twice at a position."""

    def __init__(self, draft_probs: ArrayLike, num_drafts: int) -> None:
        self.draft_probs = validate_probs("draft_probs", draft_probs)
        self.vocab_size = self.draft_probs.shape[-1]
        self.batch_shape = self.draft_probs.shape[:-1]
        self.num_drafts = validate_count("num_drafts", num_drafts, maximum=MOST_DRAFTS)
        self._validate_count()
        self._validate_support()

    def __repr__(self) -> str:
        shape = (*self.batch_shape, self.vocab_size)
        return f"{type(self).__name__}(draft_probs{shape}, num_drafts={self.num_drafts})"

    def __getitem__(self, index: tuple[int, ...]) -> Self:
        return at_positions(self, index, own_axes=1)

    def with_num_drafts(self, num_drafts: int) -> Self:
        law = self if num_drafts == self.num_drafts else copy.copy(self)
        law.num_drafts = validate_count("num_drafts", num_drafts, maximum=MOST_DRAFTS)
        law._validate_count()
        # The support was large enough for the drafts so far, so it is for fewer.
        if law.num_drafts > self.num_drafts:
            law._validate_support()
        return law

    def position_support(self) -> IntArray:
        return np.flatnonzero(self.draft_probs > 0)

    def mass_after(self, prefix: IntArray) -> FloatArray:
        """The mass q without the drafts so far, renormalised (V,); 0 if no draws begin with these drafts."""
        left = self.draft_probs * self.have_mass(prefix)
        if prefix.size:
            left[prefix] = 0.0
            left /= left.sum() or 1.0
        return left

    def have_mass(self, draft_tokens: IntArray) -> bool:
        """Whether all tokens (k,) have mass, and are distinct where drafts must be."""
        drawn = bool((self.draft_probs[draft_tokens] > 0).all())
        return drawn and (not self.distinct or bool(are_distinct(draft_tokens)))

    def _validate_count(self) -> None:
        """Raise ValueError for a number of drafts that the law is not defined for."""

    def _validate_support(self) -> None:
        """Raise ValueError if too few tokens have mass for the number of drafts."""
        if self.distinct:
            validate_distinct_support(self.draft_probs, self.num_drafts)


def are_distinct(draft_tokens: IntArray) -> BoolArray:
    """Whether the tokens of each tuple (…, n) are all different, shape (…)."""
    return (np.diff(np.sort(draft_tokens, axis=-1), axis=-1) != 0).all(axis=-1)


def count_distinct(draft_probs: FloatArray, num_drafts: int, merge: bool) -> tuple[int, int]:
    """The :meth:`DraftLaw.count_sets` of a law that draws any distinct tokens with mass."""
    sets = (comb if merge else perm)(int(np.count_nonzero(draft_probs)), num_drafts)
    return sets, num_drafts * sets


def validate_distinct_support(draft_probs: FloatArray, num_drafts: int) -> None:
    """Raise ValueError unless every position has ``num_drafts`` tokens with mass."""
    # NumPy counts booleans several times faster than numbers, and fastest without an axis.
    support = np.count_nonzero(draft_probs > 0.0, axis=-1 if draft_probs.ndim > 1 else None)
    if np.min(support, initial=num_drafts) < num_drafts:
        raise ValueError(
            f"num_drafts: got {num_drafts} distinct drafts, expected at most {np.min(support)}, the "
            "number of tokens with mass in draft_probs"
        )
