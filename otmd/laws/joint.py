"""Any law of drafts, given as a table of tuples."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws.base import DraftLaw, draw_tokens
from otmd.probabilities import FloatArray, IntArray, validate_count, validate_probs, wrong

MOST_TOKENS = 1 << 24
"""The largest vocabulary. Other laws have no such limit: their vocabulary is the length of an array."""


class Joint(DraftLaw):
    """An explicit table of draft tuples and their probabilities: the general case.

    Parameters
    ----------
    tuples : array_like of int, shape (T, n)
        The draft tuples, with tokens in [0, V), else ValueError. The probabilities of equal rows add up.
    probs : array_like, shape (T,)
        The probability of each row, of sum 1, else ValueError.
    vocab_size : int
        V, at most 2^24.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Joint([[0, 1], [2, 1]], [0.25, 0.75], vocab_size=3)
    >>> law.inclusion_probs()
    array([0.25, 1.  , 0.75])
    """

    tuples: IntArray
    probs: FloatArray

    def __init__(self, tuples: ArrayLike, probs: ArrayLike, vocab_size: int) -> None:
        try:
            rows = np.asarray(tuples)
        except ValueError as reason:
            raise wrong("tuples", "rows of different lengths", "(T, n)") from reason
        self.vocab_size = validate_count("vocab_size", vocab_size, maximum=MOST_TOKENS)
        if rows.ndim != 2 or rows.shape[-1] == 0:
            raise wrong("tuples", f"shape {rows.shape}", "(T, n) with n ≥ 1")
        self.num_drafts = rows.shape[-1]
        self.probs = validate_probs("probs", probs)
        if self.probs.shape != rows.shape[:1]:
            raise wrong("probs", f"shape {self.probs.shape}", rows.shape[:1])
        self.tuples = self.validate_tokens(rows, "tuples")

    def __repr__(self) -> str:
        return (
            f"Joint({len(self.tuples)} tuples of {self.num_drafts}, vocab_size={self.vocab_size})"
        )

    def with_num_drafts(self, num_drafts: int) -> Self:
        """Return the law of the first ``num_drafts`` drafts."""
        count = validate_count("num_drafts", num_drafts, maximum=self.num_drafts)
        return type(self)(self.tuples[:, :count], self.probs, self.vocab_size)

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        """List every tuple with positive probability once; see :meth:`DraftLaw.enumerate`."""
        tokens, row = np.unique(self.tuples[self.probs > 0], axis=0, return_inverse=True)
        return tokens, np.bincount(row.ravel(), self.probs[self.probs > 0]).astype(np.float64)

    def can_enumerate(self) -> bool:
        """True: the tuples are stored."""
        return True

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        return self.tuples[draw_tokens(self.probs, rng, count)]

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return bool((self.tuples[self.probs > 0] == draft_tokens).all(axis=-1).any())

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        tokens, probs = self.enumerate()
        table = dict(zip(map(tuple, tokens.tolist()), probs.tolist(), strict=True))
        return np.array([table.get(tuple(drafts), 0.0) for drafts in draft_tokens.tolist()])
