"""Drafts drawn one after another, each from what the ones before it left."""

from collections.abc import Sequence

import numpy as np

from otmd.curve.sorted_curve import mass_after, mass_before
from otmd.drafts.base import DraftLaw
from otmd.drafts.counts import nth_largest_before
from otmd.drafts.draws import draw_distinct
from otmd.drafts.proposal import ProposalLaw, are_distinct, validate_distinct_support
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.exponential_race import quadrature_step
from otmd.race.race import prefix_counts
from otmd.race.race_inclusion import RaceInclusion
from otmd.race.subset_race import RATE_UNIT, SubsetRace, times_alone

# e^{−42} is below half an ulp of 1: what lies beyond it cannot be seen in the result.
_INVISIBLE = 42.0
# ∫ of t² from 0 to this is below half an ulp of 1, and counts of two or more are at most t²/2.
_EARLIEST = 4e-6 / RATE_UNIT


class WithoutReplacement(ProposalLaw):
    """n distinct drafts: each drawn from q without the tokens drawn before it, renormalised.

    The drafts are the first n arrivals of an exponential race (token i arrives at rate q_i), so
    with λ = 1 − q(H) and N_H(t) the number of arrivals in H by time t,
    g(H) = 1 − λ ∫ e^{−λt} P(N_H(t) < n) dt. Counts of none and one are integrated in closed form, the
    rest by the trapezoidal rule in log t, whose error is below 1e-14.

    Parameters
    ----------
    draft_probs : array_like, shape (…, V)
        The draft model's next-token distribution.
    num_drafts : int
        How many tokens are drafted.

    Raises
    ------
    ValueError
        For an invalid distribution, ``num_drafts`` < 1, or more drafts than tokens with mass.

    Notes
    -----
    The law proportional to the product of q over the subset is a different one, see
    :class:`ConditionalPoisson`.
    """

    def prefix_containment(self, order: IntArray, every_n: bool = False) -> FloatArray:
        """Containment of every prefix of ``order``; see :class:`ProposalLaw`. O(V n) a quadrature node."""
        size, num_drafts = self.vocab_size, self.num_drafts
        rates = RATE_UNIT * self.draft_probs[order]
        outside = np.empty(size + 1)
        mass_after(self.draft_probs, order, outside)
        outside *= RATE_UNIT
        counts = np.zeros((num_drafts, size + 1))
        counts[0] = 1.0 / RATE_UNIT
        if num_drafts > 1:
            counts[1, 1:] = np.cumsum(self.times_alone()[order])
        if num_drafts > 2:
            times, weights = _nodes(_latest_time(rates, outside, num_drafts), num_drafts)
            prefix_counts(rates, outside, times, weights, counts)
        contained = 1.0 - np.cumsum(outside * counts, axis=0)
        inside = np.concatenate([[0], np.cumsum(rates > 0)])
        contained[inside < np.arange(1, num_drafts + 1)[:, None]] = 0.0
        np.clip(contained, 0.0, 1.0, out=contained)
        return contained if every_n else contained[-1]

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        ascending = np.argsort(self.draft_probs, kind="stable")
        cumulative = self.draft_probs[ascending].cumsum()
        drawn = np.empty((count, self.num_drafts), np.int64)
        draw_distinct(cumulative, rng.random((count, self.num_drafts)), drawn)
        return ascending[drawn]

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return bool((self.draft_probs[draft_tokens] > 0).all() and are_distinct(draft_tokens))

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

    def position_containment(self, subset: BoolArray) -> float:
        return SubsetRace(self.draft_probs, self.num_drafts).containment(subset, self.num_drafts)

    def position_inclusion_probs(self) -> FloatArray:
        draft, num_drafts = self.draft_probs, self.num_drafts
        if num_drafts == 1:
            return draft.copy()
        if np.count_nonzero(draft) <= num_drafts:
            return (draft > 0).astype(np.float64)
        if num_drafts > 2:
            return RaceInclusion(draft, num_drafts, RATE_UNIT).probs(num_drafts)
        times_missed = 1.0 / RATE_UNIT + self._sum_of_others(self.times_alone())
        return np.minimum(RATE_UNIT * draft * times_missed, 1.0)

    def position_hit_rate(self, target: FloatArray) -> float:
        return self._hit_rates(target, [self])[0]

    def _hit_rates(self, target: FloatArray, family: Sequence[DraftLaw]) -> list[float]:
        counts = [law.num_drafts for law in family]
        support = np.count_nonzero(self.draft_probs)
        raced = [n for n in counts if 1 < n < support]
        hits = dict.fromkeys(counts, float(target @ (self.draft_probs > 0)))
        if 1 in hits:
            hits[1] = float(target @ self.draft_probs)
        if raced:
            race = RaceInclusion(self.draft_probs, max(raced), RATE_UNIT)
            hits |= zip(raced, race.hit_rates(target, raced), strict=True)
        return [hits[n] for n in counts]

    def times_alone(self) -> FloatArray:
        """See :func:`otmd.drafts.subset_race.times_alone`, shape (V,)."""
        return times_alone(self.draft_probs)

    def _sum_of_others(self, values: FloatArray) -> FloatArray:
        """Σ_{j≠i} values_j, without the cancellation of Σ_j values_j − values_i."""
        identity = np.arange(values.size)
        before, after = np.empty(values.size + 1), np.empty(values.size + 1)
        mass_before(values, identity, before)
        mass_after(values, identity, after)
        return before[:-1] + after[1:]

    def _validate_support(self) -> None:
        validate_distinct_support(self.draft_probs, self.num_drafts)


def _nodes(latest: float, num_drafts: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of ∫ f(t) dt from _EARLIEST to ``latest``, evenly spaced in log t."""
    step = quadrature_step(num_drafts)
    # log t is laid out in the unit of q, near 0 where the integrand lives, lest its rounding show in t.
    log_times = np.arange(
        np.log(_EARLIEST * RATE_UNIT), np.log(latest) + np.log(RATE_UNIT) + step, step
    )
    times = (np.exp(0.5 * log_times) / np.sqrt(RATE_UNIT)) ** 2
    return times, step * times


def _latest_time(rates: FloatArray, outside: FloatArray, num_drafts: int) -> float:
    """A time after which λe^{−λt} P(N_H(t) < k) is invisible for every prefix H of the order and 3 ≤ k ≤ n.

    It is so once a token from outside H has arrived, or the k fastest tokens of H all have. Prefixes with
    fewer than k tokens of mass do not count: their g is 0.
    """
    latest = 1.0 / RATE_UNIT
    slowest_needed = np.empty(rates.size + 1)
    for k in range(3, num_drafts + 1):
        nth_largest_before(rates, k, slowest_needed)
        relevant = (outside > 0) & (slowest_needed > 0)
        if relevant.any():
            slowest = float(np.maximum(outside, slowest_needed)[relevant].min())
            latest = max(latest, _INVISIBLE / slowest)
    return latest
