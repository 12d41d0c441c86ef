"""Distinct drafts of one position: what all laws of them share, and drafts without replacement, a race."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from otmd.laws.drafts import Drafts
from otmd.laws.race.containment import ExponentialRace, add_tokens
from otmd.laws.race.inclusion import race_inclusion
from otmd.probabilities import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Distinct(Drafts):
    """Distinct drafts, each a token with mass in q, ``probs`` (V,). At least ``num_drafts`` tokens have mass.

    The containment is q-convex: for every p some optimal cut is a prefix of the tokens by p/q.
    """

    probs: FloatArray
    num_drafts: int

    @property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """V."""
        return self.probs.shape[-1]

    def supports(self) -> list[tuple[IntArray, int]]:
        return [(np.flatnonzero(self.probs), self.num_drafts)]

    def drafted(self) -> BoolArray:
        return self.probs > 0

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return bool((self.probs[draft_tokens] > 0).all() and are_distinct(draft_tokens))

    def mass_after(self, prefix: IntArray) -> FloatArray:
        """Masses (V,) without those of the first drafts, renormalised; 0 if no draws begin with these."""
        left = self.probs * self.can_draw(prefix)
        left[prefix] = 0.0
        return left / (left.sum() or 1.0) if prefix.size else left

    def widened(self, vocab_size: int) -> Self:
        probs = np.pad(self.probs, (0, vocab_size - self.vocab_size))
        return type(self)(probs, self.num_drafts)


def are_distinct(draft_tokens: IntArray) -> BoolArray:
    """Whether the tokens of each tuple (…, n) are all different, shape (…)."""
    return (np.diff(np.sort(draft_tokens, axis=-1), axis=-1) != 0).all(axis=-1)


@dataclass(frozen=True, eq=False)
class Race(Distinct):
    """Distinct drafts: each is drawn from q without the tokens drawn before it, renormalised.

    Attributes
    ----------
    probs : ndarray of float64, shape (…, V)
        q, where at least ``num_drafts`` tokens have mass.
    num_drafts : int
        The number of drafts. A law of one draft has :class:`Slots` in its structure instead.

    Examples
    --------
    >>> import numpy as np
    >>> import otmd
    >>> race = otmd.laws.Race(np.array([0.5, 0.3, 0.2]), num_drafts=2)
    >>> race.prefix_containment(np.array([0, 1, 2])).round(6)
    array([0.      , 0.      , 0.514286, 1.      ])
    """

    @cached_property
    def arrivals(self) -> ExponentialRace:
        """The exponential race of a single position, in which token i arrives at rate q_i."""
        return ExponentialRace(self.probs, self.num_drafts)

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        ascending = np.argsort(self.probs, kind="stable")
        cumulative = self.probs[ascending].cumsum()
        # In parts that fit the processor's cache.
        parts = np.array_split(rng.random((count, self.num_drafts)), 1 + count // 8192)
        return ascending[np.concatenate([draw_distinct(cumulative, part) for part in parts])]

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        mass = self.probs[draft_tokens]
        prob = np.where(are_distinct(draft_tokens), mass[:, 0], 0.0)
        for i in range(1, self.num_drafts):
            left = self.mass_left(draft_tokens[:, :i])
            possible = (prob > 0) & (left > 0)
            prob = np.where(possible, prob * (mass[:, i] / np.where(possible, left, 1.0)), 0.0)
        return prob

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        return self.mass_after(prefix)

    def containment(self, subset: BoolArray) -> float:
        return self.arrivals.containment(subset)

    def inclusion_probs(self) -> FloatArray:
        if np.count_nonzero(self.probs) <= self.num_drafts:
            return (self.probs > 0).astype(np.float64)
        return race_inclusion(self.probs, self.num_drafts)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        race, size = self.arrivals, order.size
        sums, block = np.zeros((size, race.width)), np.empty_like(order)
        block[order] = np.arange(size)
        add_tokens(np.zeros(size), self.probs[order], np.arange(size), race.scale, sums)
        return race.contained(block[race.heavy], sums)

    def mass_left(self, drawn: IntArray) -> FloatArray:
        """1 − q(drawn) for rows of distinct tokens (T, k), without cancellation, shape (T,)."""
        left = 1.0 - self.probs[drawn].sum(axis=-1)
        for row in np.flatnonzero(left < 0.5):
            others = self.probs.copy()
            others[drawn[row]] = 0.0
            left[row] = others.sum()
        return left


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
