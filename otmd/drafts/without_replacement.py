"""Drafts drawn one after another, each from what the ones before it left."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from otmd.drafts.proposal import ProposalLaw, are_distinct
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray, IntArray, accumulated
from otmd.race.containment import ExponentialRace, add_tokens, times_alone
from otmd.race.inclusion import RaceInclusion
from otmd.race.quadrature import RATE_UNIT


class WithoutReplacement(ProposalLaw):
    """n distinct drafts: each drawn from q without the tokens drawn before it, renormalised.

    The drafts are the first n arrivals of an exponential race, in which token i arrives at rate q_i. With
    λ = 1 − q(H) and N_H(t) the number of arrivals in H by time t, g(H) = 1 − λ ∫ e^{−λt} P(N_H(t) < n) dt;
    see :mod:`otmd.race.containment`.

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.
    """

    distinct = True

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        ascending = np.argsort(self.draft_probs, kind="stable")
        cumulative = self.draft_probs[ascending].cumsum()
        drawn = np.empty((count, self.num_drafts), np.int64)
        draw_distinct(cumulative, rng.random((count, self.num_drafts)), drawn)
        return ascending[drawn]

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        mass = self.draft_probs[draft_tokens]
        prob = np.where(are_distinct(draft_tokens), mass[:, 0], 0.0)
        for i in range(1, self.num_drafts):
            left = self.mass_left(draft_tokens[:, :i])
            possible = (prob > 0) & (left > 0)
            prob = np.where(possible, prob * (mass[:, i] / np.where(possible, left, 1.0)), 0.0)
        return prob

    def mass_left(self, taken: IntArray) -> FloatArray:
        """1 − q(taken) for rows of distinct tokens (T, k), without cancellation, shape (T,)."""
        left = 1.0 - self.draft_probs[taken].sum(axis=-1)
        for row in np.flatnonzero(left < 0.5):
            others = self.draft_probs.copy()
            others[taken[row]] = 0.0
            left[row] = others.sum()
        return left

    @property
    def race(self) -> ExponentialRace:
        """The race of a law at a single position."""
        return self._race

    @cached_property
    def _race(self) -> ExponentialRace:
        return ExponentialRace(self.draft_probs, self.num_drafts)

    def position_containment(self, subset: BoolArray) -> float:
        return self.race.containment(subset, self.num_drafts)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        ordered, place = self.draft_probs[order], np.arange(order.size)
        if self.num_drafts == 1:
            return np.minimum(accumulated(ordered), 1.0)
        race = self.race
        sums = np.zeros((order.size, race.width))
        # A target whose order by p/q is this one.
        target = np.empty(order.size)
        target[order] = ordered * place
        add_tokens(target[order], ordered, place, race.scale, np.empty((2, order.size)), sums)
        low = np.subtract(place, 0.5, dtype=np.float64)
        return race.contained(target, low, sums, [self.num_drafts])[0]

    def position_inclusion_probs(self) -> FloatArray:
        draft, num_drafts = self.draft_probs, self.num_drafts
        if num_drafts == 1:
            return draft.copy()
        if np.count_nonzero(draft) <= num_drafts:
            return (draft > 0).astype(np.float64)
        if num_drafts > 2:
            return RaceInclusion(draft, num_drafts, RATE_UNIT).probs(num_drafts)
        alone = times_alone(draft)
        # Σ_{j≠i}, without the cancellation of Σ_j alone_j − alone_i.
        others = accumulated(alone)[:-1] + accumulated(alone[::-1])[::-1][1:]
        return np.minimum(RATE_UNIT * draft * (1.0 / RATE_UNIT + others), 1.0)

    def position_hit_rate(self, target: FloatArray) -> float:
        return self.hit_rates(target, [self.num_drafts])[0]

    def hit_rates(self, target: FloatArray, counts: Sequence[int]) -> list[float]:
        support = np.count_nonzero(self.draft_probs)
        raced = [n for n in counts if 1 < n < support]
        hits = dict.fromkeys(counts, float(target @ (self.draft_probs > 0)))
        if 1 in hits:
            hits[1] = float(target @ self.draft_probs)
        if raced:
            race = RaceInclusion(self.draft_probs, max(raced), RATE_UNIT)
            hits |= zip(raced, race.hit_rates(target, raced), strict=True)
        return [hits[n] for n in counts]


@kernel()
def draw_distinct(cumulative, uniforms, out):
    """Draw n distinct indices a row, each from the mass that the ones before it left; shapes (S, n).

    The mass left is summed over gaps between indices taken: with ascending masses its error stays small.
    """
    size = cumulative.size
    num_rows, num_drafts = uniforms.shape
    taken = np.empty(num_drafts + 1, np.int64)
    for s in range(num_rows):
        for i in range(num_drafts):
            taken[i] = size
            remaining = 0.0
            start = 0
            for j in range(i + 1):
                remaining += _gap(cumulative, start, taken[j])
                start = taken[j] + 1
            wanted = uniforms[s, i] * remaining
            start = 0
            index = -1
            for j in range(i + 1):
                mass = _gap(cumulative, start, taken[j])
                if mass > 0.0:
                    if wanted < mass:
                        index = _within(cumulative, start, taken[j], wanted)
                        break
                    index = _within(cumulative, start, taken[j], mass)
                wanted -= mass
                start = taken[j] + 1
            out[s, i] = index
            j = i
            while j > 0 and taken[j - 1] > index:
                taken[j] = taken[j - 1]
                j -= 1
            taken[j] = index


@kernel()
def _gap(cumulative, start, stop):
    if stop <= start:
        return 0.0
    before = cumulative[start - 1] if start > 0 else 0.0
    return cumulative[stop - 1] - before


@kernel()
def _within(cumulative, start, stop, wanted):
    before = cumulative[start - 1] if start > 0 else 0.0
    gap = cumulative[start:stop]
    index = np.searchsorted(gap, before + wanted, side="right")
    if index == gap.size:
        index = np.searchsorted(gap, gap[gap.size - 1], side="left")
    return start + index
