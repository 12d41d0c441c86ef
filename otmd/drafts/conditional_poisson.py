"""Subsets of n tokens with probability proportional to the product of their draft masses."""

from math import factorial

import numpy as np
from scipy.special import expit

from otmd.drafts.counts import add_counts_of_others, add_prefix_counts, counts
from otmd.drafts.draws import counts_from_the_end, draw_conditional_counts
from otmd.drafts.proposal import ProposalLaw, are_distinct, validate_distinct_support
from otmd.probabilities import FloatArray, IntArray


class ConditionalPoisson(ProposalLaw):
    """n distinct drafts in uniform order, the subset with probability Π q_i / e_n(q).

    It is the law of independent events, token i with odds c·q_i, given that exactly n occur, whatever
    c > 0 (Hájek 1964); c is chosen so that n are expected. g(H) = e_n(q_H)/e_n(q).

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
    Drawing tokens one after another gives another law, :class:`WithoutReplacement`: on
    q = (1/2, 3/10, 1/5) and n = 2, H = {0, 1} has g = 15/31 here and 18/35 there.
    """

    def prefix_containment(self, order: IntArray, every_n: bool = False) -> FloatArray:
        """Containment of every prefix of ``order``; see :class:`ProposalLaw`."""
        if every_n:
            numbers = range(1, self.num_drafts + 1)
            return np.stack([self.with_num_drafts(n).prefix_containment(order) for n in numbers])
        absent, present = self._events()
        all_in_prefix = np.zeros((self.num_drafts + 1, self.vocab_size + 1))
        scratch = np.empty(self.vocab_size + 1)
        chance = 1.0 / self._chance_of_n(absent, present)
        add_prefix_counts(absent[order], present[order], chance, scratch, all_in_prefix)
        return np.minimum(all_in_prefix[self.num_drafts], 1.0)

    def _events(self) -> tuple[FloatArray, FloatArray]:
        """P(absent) and P(present) of independent events of which n are expected."""
        log_odds = self._log_odds()
        return expit(-log_odds), expit(log_odds)

    def _log_odds(self) -> FloatArray:
        q, n = self.draft_probs, self.num_drafts
        with np.errstate(divide="ignore"):
            log_q = np.log(q)
        if np.count_nonzero(q) == n:
            return np.where(q > 0, 0.0, -np.inf)
        # Imported here: every worker process would wait for all of scipy.optimize.
        from scipy.optimize import brentq

        def surplus(log_scale: float) -> float:
            return float(expit(log_q + log_scale).sum()) - n

        high = 1.0
        while surplus(high) < 0:
            high *= 2.0
        return log_q + brentq(surplus, 0.0, high, xtol=1e-3)

    def _chance_of_n(self, absent: FloatArray, present: FloatArray) -> float:
        chances = np.empty(self.num_drafts + 1)
        counts(absent, present, chances)
        return float(chances[self.num_drafts])

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        absent, present = self._events()
        counts_after = np.empty((self.vocab_size + 1, self.num_drafts + 1))
        counts_from_the_end(absent, present, counts_after)
        drawn = np.empty((count, self.num_drafts), np.int64)
        for row in range(count):
            uniforms = rng.random((1, self.vocab_size))
            draw_conditional_counts(present, counts_after, uniforms, drawn[row : row + 1])
        return rng.permuted(drawn, axis=-1)

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return bool((self.draft_probs[draft_tokens] > 0).all() and are_distinct(draft_tokens))

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        log_odds = self._log_odds()
        none = -np.logaddexp(0.0, log_odds).sum()
        log_prob = np.where(
            are_distinct(draft_tokens), none + log_odds[draft_tokens].sum(axis=-1), -np.inf
        )
        orders = float(factorial(self.num_drafts))
        return np.exp(log_prob) / (self._chance_of_n(*self._events()) * orders)

    def position_inclusion_probs(self) -> FloatArray:
        absent, present = self._events()
        with_it = np.zeros((self.num_drafts, self.vocab_size))
        chance = 1.0 / self._chance_of_n(absent, present)
        add_counts_of_others(absent, present, present, chance, with_it)
        return np.minimum(with_it[self.num_drafts - 1], 1.0)

    def _validate_support(self) -> None:
        validate_distinct_support(self.draft_probs, self.num_drafts)
