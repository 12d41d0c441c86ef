"""Drafts drawn one after another, each from the tokens that the drafts before it left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from otmd.curve._kernels import sum_where
from otmd.laws.proposal import ProposalLaw, are_distinct, count_distinct
from otmd.laws.race.inclusion import RaceInclusion
from otmd.laws.race.quadrature import RATE_UNIT
from otmd.laws.structure import Race, Slots, Structure, all_random
from otmd.probabilities import BoolArray, FloatArray, IntArray


class WithoutReplacement(ProposalLaw):
    """n distinct drafts: each drawn from q without the tokens drawn before it, renormalised.

    The drafts are the first n arrivals of an exponential race, in which token i arrives at rate q_i. With
    λ = 1 − q(H) and N_H(t) the number of arrivals in H by time t, g(H) = 1 − λ ∫ e^{−λt} P(N_H(t) < n) dt;
    see :mod:`otmd.laws.race.containment`.

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithoutReplacement([0.5, 0.3, 0.2], num_drafts=2)
    >>> law.next_draft_probs([0])
    array([0. , 0.6, 0.4])
    """

    distinct = True

    def position_structure(self) -> Structure:
        if self.num_drafts == 1:
            return all_random(Slots.single(self.draft_probs, 1))
        return all_random(self.race)

    def shared_structure(self) -> Structure:
        return self.position_structure()

    @cached_property
    def race(self) -> Race:
        """The race that the drafts are the first arrivals of."""
        return Race(self.draft_probs, self.num_drafts)

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return self.have_mass(draft_tokens)

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        ascending = np.argsort(self.draft_probs, kind="stable")
        cumulative = self.draft_probs[ascending].cumsum()
        # In parts that fit the processor's cache.
        parts = np.array_split(rng.random((count, self.num_drafts)), 1 + count // 8192)
        return ascending[np.concatenate([draw_distinct(cumulative, part) for part in parts])]

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        mass = self.draft_probs[draft_tokens]
        prob = np.where(are_distinct(draft_tokens), mass[:, 0], 0.0)
        for i in range(1, self.num_drafts):
            left = self.race.mass_left(draft_tokens[:, :i])
            possible = (prob > 0) & (left > 0)
            prob = np.where(possible, prob * (mass[:, i] / np.where(possible, left, 1.0)), 0.0)
        return prob

    def count_sets(self, merge: bool) -> tuple[int, int]:
        return count_distinct(self.draft_probs, self.num_drafts, merge)

    def position_next_draft_probs(self, prefix: IntArray) -> FloatArray:
        return self.mass_after(prefix)

    def position_containment(self, subset: BoolArray) -> float:
        return self.race.arrivals.containment(subset, self.num_drafts)

    def position_inclusion_probs(self) -> FloatArray:
        draft, num_drafts = self.draft_probs, self.num_drafts
        if num_drafts == 1:
            return draft.copy()
        if np.count_nonzero(draft) <= num_drafts:
            return (draft > 0).astype(np.float64)
        return RaceInclusion(draft, num_drafts, RATE_UNIT).probs(num_drafts)

    def position_hit_rate(self, target: FloatArray) -> float:
        return self.hit_rates(target, [self.num_drafts])[0]

    def hit_rates(self, target: FloatArray, counts: Sequence[int]) -> list[float]:
        support = np.count_nonzero(self.draft_probs)
        raced = [n for n in counts if 1 < n < support]
        hits = dict.fromkeys(counts, float(sum_where(target, self.draft_probs > 0.0)))
        if 1 in hits:
            hits[1] = float(target @ self.draft_probs)
        if raced:
            race = RaceInclusion(self.draft_probs, max(raced), RATE_UNIT)
            hits |= zip(raced, race.hit_rates(target, raced), strict=True)
        return [hits[n] for n in counts]


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
