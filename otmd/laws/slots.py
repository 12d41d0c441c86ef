"""Independent drafts of one position: each is drawn from a distribution of its own, or from a shared one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import permutations, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import inclusion_probs, sum_where
from otmd.laws.drafts import Drafts, draw_tokens
from otmd.probabilities import BoolArray, FloatArray, IntArray, accumulated


@dataclass(eq=False)
class Slots(Drafts):
    """Independent drafts: slot j, one for each draft, is drawn from q_j.

    The slots share R distributions, called rows; ``copies[r]`` slots in a row have distribution r.

    The containment is g(H) = P(all drafts lie in H) = Π_r q_r(H)^copies[r]. Without deterministic tokens, the
    drafts of a position come in the order of the distributions.

    Attributes
    ----------
    tokens : ndarray of int64, shape (E,)
        The tokens that each distribution may draw, one distribution after another, ascending in each.
    probs : ndarray of float64, shape (E,)
        Their probabilities. If R = 1, they are over all tokens, (V,), and may have leading axes.
    starts : ndarray of int64, shape (R + 1,)
        Where each distribution begins in ``tokens``, and E at the end.
    copies : ndarray of int64, shape (R,)
        The number of drafts drawn from each distribution.
    vocab_size : int
        V.
    disjoint : bool
        Whether no token can be drawn from two of the distributions.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Stratified([0.4, 0.2, 0.2, 0.1, 0.1], num_drafts=2)
    >>> law.position_structure.slots.dense.round(4)
    array([[0.6667, 0.3333, 0.    , 0.    , 0.    ],
           [0.    , 0.    , 0.5   , 0.25  , 0.25  ]])
    """

    tokens: IntArray
    probs: FloatArray
    starts: IntArray
    copies: IntArray
    vocab_size: int
    disjoint: bool

    @classmethod
    def single(cls, probs: FloatArray, num_drafts: int) -> Slots:
        """All drafts are drawn from one distribution (…, V)."""
        size = probs.shape[-1]
        tokens, starts = _whole_vocabulary(size)
        return cls(tokens, probs, starts, np.array([num_drafts]), size, True)

    @classmethod
    def strata(cls, number: NDArray[np.int16], probs: FloatArray, drawn: IntArray, num_strata: int) -> Slots:
        """Draft j is drawn from the tokens of ``number`` j (V,) among ``drawn``, by ``probs`` (V,)."""
        of_drawn = number[drawn]
        tokens = drawn[np.argsort(of_drawn, kind="stable")]
        starts = np.append(0, np.bincount(of_drawn, minlength=num_strata).cumsum())
        copies = np.ones(num_strata, np.int64)
        slots = cls(tokens, probs[tokens], starts, copies, number.size, True)
        # Known already, so not computed again.
        vars(slots).update(number=number, token_probs=probs)
        return slots

    @classmethod
    def overlapping(cls, probs: FloatArray) -> Slots:
        """Draft r is drawn from the distribution ``probs[r]``, shape (R, V)."""
        count, size = probs.shape
        if count == 1:
            return cls.single(probs[0], 1)
        tokens = np.tile(np.arange(size), count)
        starts = size * np.arange(count + 1)
        return cls(tokens, probs.ravel(), starts, np.ones(count, np.int64), size, False)

    @classmethod
    def joined(cls, parts: Sequence[Slots], vocab_size: int) -> Slots:
        """The slots of all parts, which have no token in common."""
        ends = np.cumsum([0, *(part.tokens.size for part in parts)])
        starts = [part.starts[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.probs for part in parts]),
            np.concatenate([*starts, ends[-1:]]),
            np.concatenate([part.copies for part in parts]),
            vocab_size,
            all(part.disjoint for part in parts),
        )

    def assignments(self, most: int) -> Iterator[IntArray]:
        """Permutations (n,) of the slots that only exchange copies of the same distribution.

        Parameters
        ----------
        most : int
            If there are more, only the cyclic ones are listed.

        Yields
        ------
        ndarray of int64, shape (n,)
            For each draft the slot that takes its place.
        """
        ends = self.copies.cumsum()
        groups = [np.arange(end - copies, end) for copies, end in zip(self.copies, ends, strict=True)]
        if prod(map(factorial, self.copies.tolist())) <= most:
            for permuted in product(*map(permutations, groups)):
                yield np.concatenate(permuted)
        else:
            for shift in range(int(self.copies.max())):
                yield np.concatenate([np.roll(group, shift) for group in groups])

    @property
    def is_single(self) -> bool:
        """True if all drafts are drawn from one distribution."""
        return self.copies.size == 1

    @property
    def is_strata(self) -> bool:
        """True if each draft is drawn from a distribution of its own, and these are disjoint."""
        return self.disjoint and self.num_drafts == self.copies.size

    @cached_property
    def num_drafts(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of drafts drawn from all distributions together."""
        return int(self.copies.sum())

    @cached_property
    def dense(self) -> FloatArray:
        """The distributions over all tokens, shape (R, V)."""
        dense = np.zeros((self.copies.size, self.vocab_size))
        dense[self._row, self.tokens] = self.probs
        return dense

    @cached_property
    def number(self) -> NDArray[np.int16]:
        """The distribution that each token is drawn from, where these are disjoint; else 0. Shape (V,)."""
        number = np.zeros(self.vocab_size, np.int16)
        number[self.tokens] = self._row
        return number

    @cached_property
    def token_probs(self) -> FloatArray:
        """The probability of each token in its distribution, where these are disjoint, shape (V,)."""
        if self.is_single:
            return self.probs
        probs = np.zeros(self.vocab_size)
        probs[self.tokens] = self.probs
        return probs

    def prefix_containment(self, order: IntArray) -> FloatArray:
        contained = np.ones(order.size + 1)
        for r, copies in enumerate(self.copies.tolist()):
            probs = self.token_probs[order]
            if not self.is_single:
                probs = np.where(self.number[order] == r, probs, 0.0)
            contained *= np.minimum(accumulated(probs), 1.0) ** copies
        return contained

    @cached_property
    def row_of_slot(self) -> IntArray:
        """The distribution that each draft is drawn from, shape (n,)."""
        return np.repeat(np.arange(self.copies.size), self.copies)

    @cached_property
    def expected_copies(self) -> FloatArray:
        """The expected number of drafts that hold each token, shape (V,)."""
        if self.disjoint:
            return self.expected_copies_of(_whole_vocabulary(self.vocab_size)[0])
        return self.copies @ self.dense

    def expected_copies_of(self, tokens: IntArray) -> FloatArray:
        """The entries of :attr:`expected_copies` for tokens (m,)."""
        if self.disjoint:
            copies = self.copies[self.number[tokens]] if not self.is_single else self.num_drafts
            return copies * self.token_probs[tokens]
        return self.expected_copies[tokens]

    def prob(self, rows: IntArray, tokens: IntArray) -> FloatArray:
        """The probability of tokens (m,) in the distributions ``rows`` (m,)."""
        if self.disjoint:
            inside = True if self.is_single else self.number[tokens] == rows
            return np.where(inside, self.token_probs[tokens], 0.0)
        return self.dense[rows, tokens]

    def slots_of(self, draft_tokens: IntArray) -> IntArray:
        """The slots (n,) that drew the draft tokens (n,)."""
        slots = np.arange(draft_tokens.size)
        if self.disjoint and not self.is_single:
            # The drafts may come in another order. Drafts of the same distribution are alike.
            slots[np.argsort(self.number[draft_tokens], kind="stable")] = slots.copy()
        return slots

    @cached_property
    def _row(self) -> IntArray:
        return np.repeat(np.arange(self.copies.size), np.diff(self.starts))

    def supports(self) -> list[tuple[IntArray, int]]:
        return [(tokens[probs > 0], copies) for tokens, probs, copies in self._rows()]

    def drafted(self) -> BoolArray:
        return self.token_probs > 0 if self.disjoint else super().drafted()

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        drafts = []
        for tokens, probs, copies in self._rows():
            drawn = draw_tokens(probs, rng, count * copies)
            drafts.append(tokens[drawn].reshape(count, copies))
        return np.hstack(drafts)

    def can_draw(self, draft_tokens: IntArray) -> bool:
        rows = self.row_of_slot[: draft_tokens.size]
        return bool((self.prob(rows, draft_tokens) > 0).all())

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        return self.prob(self.row_of_slot, draft_tokens).prod(axis=-1)

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        row = self.row_of_slot[prefix.size]
        part = slice(self.starts[row], self.starts[row + 1])
        probs = np.zeros(self.vocab_size)
        if self.can_draw(prefix):
            probs[self.tokens[part]] = self.probs[part]
        return probs

    def containment(self, subset: BoolArray) -> float:
        return prod(
            min(float(sum_where(probs, subset[tokens])), 1.0) ** copies
            for tokens, probs, copies in self._rows()
        )

    def inclusion_probs(self) -> FloatArray:
        drafted = np.zeros(self.vocab_size)
        if self.is_single:
            inclusion_probs(self.probs, self.num_drafts, drafted)
        elif self.is_strata:
            drafted[self.tokens] = self.probs
        else:
            with np.errstate(divide="ignore"):
                missed = self.copies[self._row] * np.log1p(-self.probs)
            np.add.at(drafted, self.tokens, missed)
            drafted = -np.expm1(drafted)
        return drafted

    def widened(self, vocab_size: int) -> Slots:
        if self.is_single:
            return Slots.single(np.pad(self.probs, (0, vocab_size - self.vocab_size)), self.num_drafts)
        return replace(self, vocab_size=vocab_size)

    def _rows(self) -> Iterator[tuple[IntArray, FloatArray, int]]:
        """The tokens of each distribution, their probabilities, and how many drafts are drawn from it."""
        for r, copies in enumerate(self.copies.tolist()):
            part = slice(self.starts[r], self.starts[r + 1])
            yield self.tokens[part], self.probs[part], copies


@lru_cache(maxsize=8)
def _whole_vocabulary(vocab_size: int) -> tuple[IntArray, IntArray]:
    """The tokens 0, 1, … V − 1, and where their distribution begins and ends; made once for each size."""
    tokens, starts = np.arange(vocab_size), np.array([0, vocab_size])
    tokens.flags.writeable = starts.flags.writeable = False
    return tokens, starts
