"""Random drafts of one position: what all kinds of them can tell, and the general case, a table of tuples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Self

import numpy as np

from otmd.probabilities import BoolArray, FloatArray, IntArray, wrong

MOST_TUPLES = 5_000_000
"""The largest number of tuples that are enumerated."""


def draw_tokens(probs: FloatArray, rng: np.random.Generator, count: int) -> IntArray:
    """Draw ``count`` tokens from masses (V,), which need not sum to 1."""
    return invert(probs.cumsum(), rng.random(count))


def invert(cumulative: FloatArray, uniforms: FloatArray) -> IntArray:
    """Sample by inversion: the first index whose cumulative mass is above uniforms (S,) times the total."""
    total = cumulative[-1]
    index = np.searchsorted(cumulative, uniforms * total, side="right")
    # If uniform · total is rounded up to the total, the last index with mass is taken.
    return np.minimum(index, np.searchsorted(cumulative, total))


class Drafts(ABC):
    """The base of all random drafts; its methods are those of :class:`Structure`."""

    num_drafts: int
    vocab_size: int

    @abstractmethod
    def supports(self) -> list[tuple[IntArray, int]]:
        """Tokens, ascending, that a draft may be, and how many drafts in a row may be these."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, count: int) -> IntArray: ...

    @abstractmethod
    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray: ...

    @abstractmethod
    def next_draft_probs(self, prefix: IntArray) -> FloatArray: ...

    @abstractmethod
    def containment(self, subset: BoolArray) -> float: ...

    @abstractmethod
    def inclusion_probs(self) -> FloatArray: ...

    @abstractmethod
    def prefix_containment(self, order: IntArray) -> FloatArray: ...

    @abstractmethod
    def widened(self, vocab_size: int) -> Self: ...

    @property
    def num_tuples(self) -> int:
        """The number of tuples that :meth:`enumerate` goes through."""
        return prod(tokens.size**count for tokens, count in self.supports())

    def drafted(self) -> BoolArray:
        """See :attr:`Structure.drafted`."""
        drafted = np.zeros(self.vocab_size, bool)
        for tokens, _ in self.supports():
            drafted[tokens] = True
        return drafted

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        if self.num_tuples > MOST_TUPLES:
            raise wrong("enumerate", f"{self.num_tuples} tuples", f"at most {MOST_TUPLES}")
        supports = [tokens for tokens, count in self.supports() for _ in range(count)]
        tokens = np.stack([axis.ravel() for axis in np.meshgrid(*supports, indexing="ij")], axis=-1)
        probs = self.tuple_prob(tokens)
        return tokens[probs > 0], probs[probs > 0]

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return bool(self.tuple_prob(draft_tokens[None])[0] > 0)


class Table(Drafts):
    """Drafts of any law: the tuples with positive probability, listed.

    Parameters
    ----------
    tuples : ndarray of int64, shape (T, n)
        The draft tuples; the probabilities of equal rows add up.
    weights : ndarray of float64, shape (T,)
        The probability of each row.
    vocab_size : int
        V.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Joint([[0, 1], [2, 1]], [0.25, 0.75], vocab_size=3)
    >>> tokens, probs = law.position_structure.random.enumerate()
    >>> tokens.tolist(), probs.tolist()
    ([[0, 1], [2, 1]], [0.25, 0.75])
    """

    def __init__(self, tuples: IntArray, weights: FloatArray, vocab_size: int) -> None:
        drawn = weights > 0
        self._tokens, row = np.unique(tuples[drawn], axis=0, return_inverse=True)
        self._probs = np.bincount(row.ravel(), weights[drawn]).astype(np.float64)
        self.num_drafts, self.vocab_size = tuples.shape[1], vocab_size

    @property
    def num_tuples(self) -> int:
        return len(self._tokens)

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        return self._tokens, self._probs

    def supports(self) -> list[tuple[IntArray, int]]:
        return [(np.unique(tokens), 1) for tokens in self._tokens.T]

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        return self._tokens[draw_tokens(self._probs, rng, count)]

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        table = dict(zip(map(tuple, self._tokens.tolist()), self._probs.tolist(), strict=True))
        return np.array([table.get(tuple(drafts), 0.0) for drafts in draft_tokens.tolist()])

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        begins = (self._tokens[:, : prefix.size] == prefix).all(axis=-1)
        masses = np.bincount(self._tokens[begins, prefix.size], self._probs[begins], self.vocab_size)
        return masses / (masses.sum() or 1.0)

    def containment(self, subset: BoolArray) -> float:
        return min(float(self._probs[subset[self._tokens].all(axis=-1)].sum()), 1.0)

    def inclusion_probs(self) -> FloatArray:
        ordered = np.sort(self._tokens, axis=-1)
        weights = np.repeat(self._probs, self.num_drafts).reshape(ordered.shape)
        # A token that is drafted twice counts once.
        weights[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = 0.0
        drafted = np.bincount(ordered.ravel(), weights.ravel(), self.vocab_size)
        return np.minimum(drafted, 1.0)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        last = np.argsort(order)[self._tokens].max(axis=-1)
        return np.append(0.0, np.bincount(last, self._probs, self.vocab_size).cumsum())

    def widened(self, vocab_size: int) -> Table:
        return Table(self._tokens, self._probs, vocab_size)
