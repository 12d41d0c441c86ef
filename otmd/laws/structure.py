"""The structure of a draft law at one position: its deterministic tokens, and how the other drafts are drawn.

The optimum and verifiers match on the kinds of this file, and not on classes of laws. So a law that declares
its structure is served by everything that serves this kind of structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product
from math import factorial, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.laws.race.containment import ExponentialRace, add_tokens
from otmd.probabilities import FloatArray, IntArray, accumulated


@dataclass(eq=False)
class Slots:
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
    >>> law.position_structure().slots.dense.round(4)
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
    def strata(
        cls, number: NDArray[np.int16], probs: FloatArray, drawn: IntArray, num_strata: int
    ) -> Slots:
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
        groups = [
            np.arange(end - copies, end) for copies, end in zip(self.copies, ends, strict=True)
        ]
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

    @cached_property
    def num_drafts(self) -> int:
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
        """The distribution that each token is drawn from, where these are disjoint, shape (V,)."""
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
        """See :meth:`Structure.prefix_containment`; for disjoint distributions."""
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


@lru_cache(maxsize=8)
def _whole_vocabulary(vocab_size: int) -> tuple[IntArray, IntArray]:
    """The tokens 0, 1, … V − 1, and where their distribution begins and ends; made once for each size."""
    tokens, starts = np.arange(vocab_size), np.array([0, vocab_size])
    tokens.flags.writeable = starts.flags.writeable = False
    return tokens, starts


@dataclass(frozen=True, eq=False)
class Race:
    """Distinct drafts: each is drawn from q without the tokens drawn before it, renormalised.

    Attributes
    ----------
    probs : ndarray of float64, shape (…, V)
        q, where at least ``num_drafts`` tokens have mass.
    num_drafts : int
        The number of drafts, at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> import otmd
    >>> race = otmd.laws.Race(np.array([0.5, 0.3, 0.2]), num_drafts=2)
    >>> race.prefix_containment(np.array([0, 1, 2])).round(6)
    array([0.      , 0.      , 0.514286, 1.      ])
    """

    probs: FloatArray
    num_drafts: int

    @cached_property
    def arrivals(self) -> ExponentialRace:
        """The exponential race of a single position, in which token i arrives at rate q_i."""
        return ExponentialRace(self.probs, self.num_drafts)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        """See :meth:`Structure.prefix_containment`."""
        race, size = self.arrivals, order.size
        sums, block = np.zeros((size, race.width)), np.empty_like(order)
        block[order] = np.arange(size)
        add_tokens(np.zeros(size), self.probs[order], np.arange(size), race.scale, sums)
        return race.contained(block[race.heavy], sums, [self.num_drafts])[0]

    def mass_left(self, drawn: IntArray) -> FloatArray:
        """1 − q(drawn) for rows of distinct tokens (T, k), without cancellation, shape (T,)."""
        left = 1.0 - self.probs[drawn].sum(axis=-1)
        for row in np.flatnonzero(left < 0.5):
            others = self.probs.copy()
            others[drawn[row]] = 0.0
            left[row] = others.sum()
        return left


@dataclass(frozen=True, eq=False)
class Table:
    """Drafts of any law that can be enumerated.

    Attributes
    ----------
    enumerate : callable
        Lists the draft tuples (T, n) and their probabilities (T,).
    probs : ndarray of float64, shape (V,), optional
        q, if some optimal cut is a prefix of the tokens in ascending order of p/q for every p.
    prefix_containment : callable, optional
        Maps an order of the tokens (V,) to g of each of its prefixes (V + 1,). Needed if ``probs`` is given.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Joint([[0, 1], [2, 1]], [0.25, 0.75], vocab_size=3)
    >>> tokens, probs = law.position_structure().random.enumerate()
    >>> tokens.tolist(), probs.tolist()
    ([[0, 1], [2, 1]], [0.25, 0.75])
    """

    enumerate: Callable[[], tuple[IntArray, FloatArray]]
    probs: FloatArray | None = None
    prefix_containment: Callable[[IntArray], FloatArray] | None = None


class Structure(NamedTuple):
    """The structure of a law: g(H) is 0 if H lacks a deterministic token, else g of the random drafts.

    Attributes
    ----------
    deterministic : ndarray of int64, shape (m,)
        Tokens that are always drafted. No random draft is one of them.
    random : Slots, Race, Table or None
        The structure of the other drafts; None if there are none.

    Examples
    --------
    >>> import otmd
    >>> structure = otmd.Greedy([0.4, 0.3, 0.2, 0.1], num_drafts=3).position_structure()
    >>> structure.deterministic
    array([0, 1])
    >>> structure.random.num_drafts
    1
    """

    deterministic: IntArray
    random: Slots | Race | Table | None

    @property
    def slots(self) -> Slots | None:
        """The slots, if all drafts are drawn independently and none is deterministic; else None."""
        random = self.random
        return random if isinstance(random, Slots) and not self.deterministic.size else None

    @property
    def single(self) -> Slots | None:
        """The slots, if all drafts are drawn from one distribution at random; else None."""
        slots = self.slots
        return slots if slots is not None and slots.is_single else None

    @property
    def race(self) -> Race | None:
        """The race, if all drafts are drawn without replacement and none is deterministic; else None."""
        random = self.random
        return random if isinstance(random, Race) and not self.deterministic.size else None

    def random_probs(self, vocab_size: int) -> FloatArray | None:
        """The distribution that a token is drawn from at random, q or that of its stratum, (V,).

        0 everywhere if all drafts are deterministic; None if a token may be drawn from several.
        """
        random = self.random
        if isinstance(random, Slots):
            single = random.is_single or (
                random.disjoint and random.num_drafts == random.copies.size
            )
            return random.token_probs if single else None
        return random.probs if random is not None else np.zeros(vocab_size)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        """Containment g of each prefix of the tokens in an order (V,), shape (V + 1,).

        The order begins with the deterministic tokens, and :meth:`random_probs` is not None.
        """
        contained = np.ones(order.size + 1)
        if self.random is not None and self.random.prefix_containment is not None:
            contained = self.random.prefix_containment(order)
        contained[: self.deterministic.size] = 0.0
        return contained

    def random_target(self, target: FloatArray) -> FloatArray:
        """The target (V,) with 0 for the deterministic tokens."""
        if self.deterministic.size:
            target = target.copy()
            target[self.deterministic] = 0.0
        return target


_NO_TOKENS = np.empty(0, np.int64)


def all_random(random: Slots | Race | Table) -> Structure:
    """The structure of a law without deterministic tokens."""
    return Structure(_NO_TOKENS, random)
