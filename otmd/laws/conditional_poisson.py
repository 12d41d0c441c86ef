"""Subsets of n tokens with probability proportional to the product of their draft masses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import factorial

import numpy as np
from scipy.special import expit

from otmd.kernel import kernel
from otmd.laws.base import DraftLaw
from otmd.laws.distinct import Distinct, are_distinct
from otmd.probabilities import BoolArray, FloatArray, IntArray


class ConditionalPoisson(DraftLaw):
    """n distinct drafts in random order; a subset S has probability Π_{i∈S} q_i / e_n(q).

    Here e_n is the elementary symmetric polynomial, and g(H) = e_n(q_H)/e_n(q). Let each token i be drafted
    independently, with odds c·q_i. Given that exactly n tokens are, their set has this law for every c > 0
    (Hájek 1964). The code takes the c for which n tokens are expected.

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.

    Notes
    -----
    Drawing tokens one after another gives another law, :class:`WithoutReplacement`: for
    q = (1/2, 3/10, 1/5), n = 2 and H = {0, 1}, g is 15/31 here and 18/35 there.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.ConditionalPoisson([0.5, 0.3, 0.2], num_drafts=2)
    >>> round(law.containment([True, True, False]), 6), round(15 / 31, 6)
    (0.483871, 0.483871)
    """

    distinct = True

    def structure(self, q: FloatArray) -> PoissonSets:
        return PoissonSets(q, self.num_drafts)


@dataclass(frozen=True, eq=False)
class PoissonSets(Distinct):
    """The drafts of :class:`ConditionalPoisson`, with sums in closed form."""

    def prefix_containment(self, order: IntArray) -> FloatArray:
        absent, present = self._events()
        contained = prefix_probs(absent[order], present[order], self.num_drafts)
        return np.minimum(contained / contained[-1], 1.0)

    def containment(self, subset: BoolArray) -> float:
        inside_first = np.argsort(~subset, kind="stable")
        return float(self.prefix_containment(inside_first)[np.count_nonzero(subset)])

    def _events(self) -> tuple[FloatArray, FloatArray]:
        """P(absent) and P(present) of independent events of which n are expected."""
        return expit(-self._log_odds), expit(self._log_odds)

    @cached_property
    def _log_odds(self) -> FloatArray:
        q, n = self.probs, self.num_drafts
        with np.errstate(divide="ignore"):
            log_q = np.log(q)
        if np.count_nonzero(q) == n:
            return np.where(q > 0, 0.0, -np.inf)
        # Imported here, since importing scipy.optimize would delay every worker process.
        from scipy.optimize import brentq

        def surplus(log_scale: float) -> float:
            return float(expit(log_q + log_scale).sum()) - n

        high = 1.0
        while surplus(high) < 0:
            high *= 2.0
        return log_q + brentq(surplus, 0.0, high, xtol=1e-3)

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        absent, present = self._events()
        counts_after = counts_from(absent, present, self.num_drafts + 1)
        drawn = np.empty((count, self.num_drafts), np.int64)
        for row in range(count):
            fill_conditional_draw(present, counts_after, rng.random(self.vocab_size), drawn[row])
        return rng.permuted(drawn, axis=-1)

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        log_odds = self._log_odds
        none = -np.logaddexp(0.0, log_odds).sum()
        log_prob = np.where(are_distinct(draft_tokens), none + log_odds[draft_tokens].sum(axis=-1), -np.inf)
        orders = float(factorial(self.num_drafts))
        drawn = prefix_probs(*self._events(), self.num_drafts)[-1]
        return np.minimum(np.exp(log_prob) / (drawn * orders), 1.0)

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        left, count = self.mass_after(prefix), self.num_drafts - prefix.size
        if not left.any():
            return left
        # The remaining drafts are conditional Poisson too, in uniform order.
        return left if count == 1 else PoissonSets(left, count).inclusion_probs() / count

    def inclusion_probs(self) -> FloatArray:
        absent, present = self._events()
        others = probs_of_others(absent, present, self.num_drafts - 1)
        exactly = prefix_probs(absent, present, self.num_drafts)[-1]
        return np.minimum(present * others / exactly, 1.0)


def probs_of_others(absent: FloatArray, present: FloatArray, count: int) -> FloatArray:
    """P(``count`` of the events other than y occur) for each event y, shape (V,)."""
    after = counts_from(absent, present, count + 1)[1:]
    before = counts_from(absent[::-1].copy(), present[::-1].copy(), count + 1)[:0:-1]
    return (before * after[:, ::-1]).sum(axis=-1)


@kernel()
def _count_one_more(counts, absent, present):
    """Add one event to counts[m] = P(m events occur) in place. No term is negative, so nothing cancels."""
    for m in range(counts.size - 1, 0, -1):
        counts[m] = counts[m] * absent + counts[m - 1] * present
    counts[0] *= absent


@kernel()
def counts_from(absent, present, size):
    """P(m of the events i, i + 1, … occur) for each i and m < size, shape (V + 1, size)."""
    counts = np.zeros((absent.size + 1, size))
    counts[-1, 0] = 1.0
    for i in range(absent.size - 1, -1, -1):
        for m in range(size):
            counts[i, m] = counts[i + 1, m]
        _count_one_more(counts[i], absent[i], present[i])
    return counts


@kernel()
def prefix_probs(absent, present, count):
    """P(``count`` of the first k events occur and none of the others) for each k, shape (V + 1,)."""
    probs = np.ones(absent.size + 1)
    for k in range(absent.size - 1, -1, -1):
        probs[k] = probs[k + 1] * absent[k]
    counts = np.zeros(count + 1)
    counts[0] = 1.0
    probs[0] *= counts[count]
    for k in range(absent.size):
        _count_one_more(counts, absent[k], present[k])
        probs[k + 1] *= counts[count]
    return probs


@kernel()
def fill_conditional_draw(present, counts_after, uniforms, out):
    """Draw a set of n events, from counts_after[i, m] = P(m of the events i, i + 1, … occur)."""
    left, i = out.size, 0
    while left > 0 and i < present.size:
        prob = present[i] * counts_after[i + 1, left - 1] / counts_after[i, left]
        if uniforms[i] < prob:
            out[out.size - left] = i
            left -= 1
        i += 1
