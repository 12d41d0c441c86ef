"""The structure of a draft law at one position: its deterministic tokens, and how the other drafts are drawn.

The structure carries the mathematics: draws, probabilities, containment and inclusion follow from it. The
optimum and verifiers match on the kinds of this file, and not on classes of laws. So a law that returns its
structure is served by everything that serves this kind of structure.

The kinds have the methods of :class:`Structure`. They are of one position, and take checked input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import permutations, product
from math import factorial, prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import inclusion_probs, sum_where
from otmd.laws.race.containment import ExponentialRace, add_tokens
from otmd.laws.race.inclusion import RaceInclusion
from otmd.laws.race.quadrature import RATE_UNIT
from otmd.probabilities import BoolArray, FloatArray, IntArray, accumulated, wrong

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


def one_hot(token: int, vocab_size: int) -> FloatArray:
    """A distribution (V,) with all its mass on one token."""
    return np.eye(1, vocab_size, token)[0]


def padded(probs: FloatArray, vocab_size: int) -> FloatArray:
    """Probabilities (V,) with tokens of no mass at the end."""
    return np.append(probs, np.zeros(vocab_size - probs.size))


class Drafts(ABC):
    """The base of :class:`Slots`, :class:`Race` and :class:`Table`: lists the tuples, if there are few."""

    @abstractmethod
    def supports(self) -> list[IntArray]:
        """The tokens that each draft may be, ascending."""

    @abstractmethod
    def drafted(self) -> BoolArray:
        """See :meth:`Structure.drafted`."""

    @abstractmethod
    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        """See :meth:`Structure.tuple_prob`."""

    @property
    def num_tuples(self) -> int:
        """The number of tuples that :meth:`enumerate` goes through."""
        return prod(tokens.size for tokens in self.supports())

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        if self.num_tuples > MOST_TUPLES:
            raise wrong("enumerate", f"{self.num_tuples} tuples", f"at most {MOST_TUPLES}")
        axes = np.meshgrid(*self.supports(), indexing="ij")
        tokens = np.stack([axis.ravel() for axis in axes], axis=-1)
        probs = self.tuple_prob(tokens)
        return tokens[probs > 0], probs[probs > 0]

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return bool(self.tuple_prob(draft_tokens[None])[0] > 0)


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

    def supports(self) -> list[IntArray]:
        return [tokens[probs > 0] for tokens, probs, n in self._rows() for _ in range(n)]

    def drafted(self) -> BoolArray:
        drafted = np.zeros(self.vocab_size, bool)
        drafted[self.tokens[self.probs > 0]] = True
        return drafted

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
        elif self.disjoint and (self.copies == 1).all():
            drafted[self.tokens] = self.probs
        else:
            with np.errstate(divide="ignore"):
                missed = self.copies[self._row] * np.log1p(-self.probs)
            np.add.at(drafted, self.tokens, missed)
            drafted = -np.expm1(drafted)
        return drafted

    def widened(self, vocab_size: int) -> Slots:
        if self.is_single:
            return Slots.single(padded(self.probs, vocab_size), self.num_drafts)
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


@dataclass(frozen=True, eq=False)
class Race(Drafts):
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

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.probs.shape[-1]

    @cached_property
    def arrivals(self) -> ExponentialRace:
        """The exponential race of a single position, in which token i arrives at rate q_i."""
        return ExponentialRace(self.probs, self.num_drafts)

    def supports(self) -> list[IntArray]:
        return [np.flatnonzero(self.probs)] * self.num_drafts

    def drafted(self) -> BoolArray:
        return self.probs > 0

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        ascending = np.argsort(self.probs, kind="stable")
        cumulative = self.probs[ascending].cumsum()
        # In parts that fit the processor's cache.
        parts = np.array_split(rng.random((count, self.num_drafts)), 1 + count // 8192)
        return ascending[np.concatenate([draw_distinct(cumulative, part) for part in parts])]

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return can_draw_distinct(self.probs, draft_tokens)

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        mass = self.probs[draft_tokens]
        prob = np.where(are_distinct(draft_tokens), mass[:, 0], 0.0)
        for i in range(1, self.num_drafts):
            left = self.mass_left(draft_tokens[:, :i])
            possible = (prob > 0) & (left > 0)
            prob = np.where(possible, prob * (mass[:, i] / np.where(possible, left, 1.0)), 0.0)
        return prob

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        return mass_after(self.probs, prefix)

    def containment(self, subset: BoolArray) -> float:
        return self.arrivals.containment(subset, self.num_drafts)

    def inclusion_probs(self) -> FloatArray:
        if np.count_nonzero(self.probs) <= self.num_drafts:
            return (self.probs > 0).astype(np.float64)
        return RaceInclusion(self.probs, self.num_drafts, RATE_UNIT).probs(self.num_drafts)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        race, size = self.arrivals, order.size
        sums, block = np.zeros((size, race.width)), np.empty_like(order)
        block[order] = np.arange(size)
        add_tokens(np.zeros(size), self.probs[order], np.arange(size), race.scale, sums)
        return race.contained(block[race.heavy], sums, [self.num_drafts])[0]

    def widened(self, vocab_size: int) -> Race:
        return Race(padded(self.probs, vocab_size), self.num_drafts)

    def mass_left(self, drawn: IntArray) -> FloatArray:
        """1 − q(drawn) for rows of distinct tokens (T, k), without cancellation, shape (T,)."""
        left = 1.0 - self.probs[drawn].sum(axis=-1)
        for row in np.flatnonzero(left < 0.5):
            others = self.probs.copy()
            others[drawn[row]] = 0.0
            left[row] = others.sum()
        return left


def are_distinct(draft_tokens: IntArray) -> BoolArray:
    """Whether the tokens of each tuple (…, n) are all different, shape (…)."""
    return (np.diff(np.sort(draft_tokens, axis=-1), axis=-1) != 0).all(axis=-1)


def can_draw_distinct(probs: FloatArray, draft_tokens: IntArray) -> bool:
    """Whether all tokens (k,) have mass, and are distinct."""
    return bool((probs[draft_tokens] > 0).all() and are_distinct(draft_tokens))


def mass_after(probs: FloatArray, prefix: IntArray) -> FloatArray:
    """Masses (V,) without those of distinct drafts, renormalised; 0 if no draws begin with these drafts."""
    left = probs * can_draw_distinct(probs, prefix)
    left[prefix] = 0.0
    return left / (left.sum() or 1.0) if prefix.size else left


def draw_distinct(cumulative: FloatArray, uniforms: FloatArray) -> IntArray:
    """Draw n distinct indices in each row, each from the mass that is left; uniforms and indices are (S, n).

    The mass left is summed over the gaps between the indices drawn so far, so that its error stays small if
    the masses ascend.
    """
    before = np.concatenate([[0.0], cumulative])
    drawn = np.empty(uniforms.shape, np.int64)
    edge = np.zeros((len(uniforms), 1), np.int64)
    for i, uniform in enumerate(uniforms.T):
        before_it = np.sort(drawn[:, :i], axis=-1)
        starts, ends = (
            np.hstack([edge, before_it + 1]),
            np.hstack([before_it, edge + cumulative.size]),
        )
        gaps = (before[ends] - before[starts]).cumsum(axis=-1)
        total = gaps[:, -1:]
        # A number that is rounded up to the total belongs to the last index with mass in the last such gap.
        mass_before = uniform[:, None] * total
        place = np.minimum((gaps <= mass_before).sum(axis=-1), (gaps < total).sum(axis=-1))[:, None]
        start, end = (np.take_along_axis(ends, place, axis=-1)[:, 0] for ends in (starts, ends))
        outside = np.take_along_axis(np.hstack([0.0 * total, gaps]), place, axis=-1)
        mass, index = before[start] + (mass_before - outside)[:, 0], np.empty(len(uniforms), int)
        # Searching for ascending numbers is faster.
        order = np.argsort(mass)
        index[order] = np.searchsorted(cumulative, mass[order], side="right")
        over = np.flatnonzero(before[index] >= before[end])
        index[over] = np.searchsorted(cumulative, before[end[over]], side="left")
        drawn[:, i] = index
    return drawn


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

    probs: FloatArray | None = None
    """The distribution q, if for every p some optimal cut is a prefix of the tokens by p/q, ascending."""

    def __init__(self, tuples: IntArray, weights: FloatArray, vocab_size: int) -> None:
        drawn = weights > 0
        self._tuples, row = np.unique(tuples[drawn], axis=0, return_inverse=True)
        self._weights = np.bincount(row.ravel(), weights[drawn]).astype(np.float64)
        self.num_drafts, self.vocab_size = tuples.shape[1], vocab_size

    @property
    def num_tuples(self) -> int:
        return len(self._tuples)

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        return self._tuples, self._weights

    def supports(self) -> list[IntArray]:
        return [np.unique(tokens) for tokens in self.enumerate()[0].T]

    def drafted(self) -> BoolArray:
        drafted = np.zeros(self.vocab_size, bool)
        drafted[self.enumerate()[0]] = True
        return drafted

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        tokens, probs = self.enumerate()
        return tokens[draw_tokens(probs, rng, count)]

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        tokens, probs = self.enumerate()
        table = dict(zip(map(tuple, tokens.tolist()), probs.tolist(), strict=True))
        return np.array([table.get(tuple(drafts), 0.0) for drafts in draft_tokens.tolist()])

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        tokens, probs = self.enumerate()
        begins = (tokens[:, : prefix.size] == prefix).all(axis=-1)
        masses = np.bincount(tokens[begins, prefix.size], probs[begins], self.vocab_size)
        return masses / (masses.sum() or 1.0)

    def containment(self, subset: BoolArray) -> float:
        tokens, probs = self.enumerate()
        return min(float(probs[subset[tokens].all(axis=-1)].sum()), 1.0)

    def inclusion_probs(self) -> FloatArray:
        tokens, probs = self.enumerate()
        ordered = np.sort(tokens, axis=-1)
        weights = np.repeat(probs, self.num_drafts).reshape(ordered.shape)
        # A token that is drafted twice counts once.
        weights[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = 0.0
        drafted = np.bincount(ordered.ravel(), weights.ravel(), self.vocab_size)
        return np.minimum(drafted, 1.0)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        tokens, probs = self.enumerate()
        last = np.argsort(order)[tokens].max(axis=-1)
        return np.append(0.0, np.bincount(last, probs, self.vocab_size).cumsum())

    def widened(self, vocab_size: int) -> Table:
        return Table(*self.enumerate(), vocab_size)


_NO_TOKENS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Structure:
    """The drafts of a position: first the deterministic tokens, then the random drafts.

    Attributes
    ----------
    deterministic : ndarray of int64, shape (m,)
        Tokens that are always drafted, in this order. No random draft is one of them.
    random : Slots, Race, Table or None
        The structure of the other drafts; None if there are none.
    vocab_size : int
        V.

    Examples
    --------
    >>> import otmd
    >>> structure = otmd.Greedy([0.4, 0.3, 0.2, 0.1], num_drafts=3).position_structure
    >>> structure.deterministic
    array([0, 1])
    >>> structure.random.num_drafts
    1
    """

    deterministic: IntArray
    random: Slots | Race | Table | None
    vocab_size: int
    deterministic_first: ClassVar[bool] = True
    """Whether the deterministic tokens come before the random drafts, as in all structures but HubPairs."""

    @classmethod
    def of(cls, drafts: Structure | Slots | Race | Table) -> Structure:
        """The structure itself, or that of random drafts without deterministic tokens."""
        if isinstance(drafts, Structure):
            return drafts
        if isinstance(drafts, Table) and drafts.num_drafts == 1:
            drafts = Slots.single(drafts.inclusion_probs(), 1)
        return cls(_NO_TOKENS, drafts, drafts.vocab_size)

    @property
    def num_drafts(self) -> int:
        """The number of drafts n."""
        return self.deterministic.size + (self.random.num_drafts if self.random else 0)

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

    @property
    def num_tuples(self) -> int:
        """The number of tuples that :meth:`enumerate` goes through."""
        return self.random.num_tuples if self.random else 1

    @property
    def drafted(self) -> BoolArray:
        """Whether a token may be drafted, shape (V,)."""
        drafted = self.random.drafted() if self.random else np.zeros(self.vocab_size, bool)
        drafted[self.deterministic] = True
        return drafted

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw ``count`` tuples, shape (count, n)."""
        first = np.tile(self.deterministic, (count, 1))
        return np.hstack([first, self.random.sample(rng, count)]) if self.random else first

    def can_draw(self, draft_tokens: IntArray) -> bool:
        """Whether a draw may begin with drafts (k,). It may be True where Q underflows to 0."""
        first, others = np.split(draft_tokens, [self.deterministic.size])
        begins = bool((first == self.deterministic[: first.size]).all())
        return begins and (not others.size or self.random is None or self.random.can_draw(others))

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        """Q of tuples (T, n), shape (T,)."""
        first, others = np.split(draft_tokens, [self.deterministic.size], axis=1)
        begins = (first == self.deterministic).all(axis=-1)
        return begins * (self.random.tuple_prob(others) if self.random else 1.0)

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        """Distribution of draft k + 1 given the first k drafts (k,), k < n, shape (V,).

        Zero everywhere if no draws begin with these drafts.
        """
        first, others = np.split(prefix, [self.deterministic.size])
        begins = (first == self.deterministic[: first.size]).all()
        if self.random is None or first.size < self.deterministic.size:
            return begins * one_hot(self.deterministic[first.size], self.vocab_size)
        return begins * self.random.next_draft_probs(others)

    def containment(self, subset: BoolArray) -> float:
        """g(H) of a subset (V,): 0 if it lacks a deterministic token, else g of the random drafts."""
        if not subset[self.deterministic].all():
            return 0.0
        return self.random.containment(subset) if self.random else 1.0

    def inclusion_probs(self) -> FloatArray:
        """P(token is among the drafts), shape (V,)."""
        drafted = self.random.inclusion_probs() if self.random else np.zeros(self.vocab_size)
        drafted[self.deterministic] = 1.0
        return drafted

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        if self.random is None:
            return self.deterministic[None], np.ones(1)
        tokens, probs = self.random.enumerate()
        return np.hstack([np.tile(self.deterministic, (len(tokens), 1)), tokens]), probs

    def widened(self, vocab_size: int) -> Structure:
        """The same drafts in a larger vocabulary; they are never one of the additional tokens."""
        random = self.random.widened(vocab_size) if self.random else None
        return replace(self, random=random, vocab_size=vocab_size)

    def random_probs(self) -> FloatArray | None:
        """The distribution that a token is drawn from at random, q or that of its stratum, (V,).

        0 everywhere if all drafts are deterministic; None if a token may be drawn from several.
        """
        random = self.random
        if isinstance(random, Slots):
            single = random.is_single or (random.disjoint and random.num_drafts == random.copies.size)
            return random.token_probs if single else None
        return random.probs if random is not None else np.zeros(self.vocab_size)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        """Containment g of each prefix of the tokens in an order (V,), shape (V + 1,).

        The order begins with the deterministic tokens, and :meth:`random_probs` is not None.
        """
        contained = self.random.prefix_containment(order) if self.random else np.ones(order.size + 1)
        contained[: self.deterministic.size] = 0.0
        return contained

    def random_target(self, target: FloatArray) -> FloatArray:
        """The target (V,) with 0 for the deterministic tokens."""
        if self.deterministic.size:
            target = target.copy()
            target[self.deterministic] = 0.0
        return target
