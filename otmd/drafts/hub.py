"""SpecHub's law of two drafts: every pair holds the likeliest token."""

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts.proposal import ProposalLaw
from otmd.drafts.top_then import TopThen
from otmd.drafts.with_replacement import WithReplacement
from otmd.probabilities import FloatArray, IntArray


class Hub(TopThen):
    """Two drafts, one of them the likeliest token a (SpecHub, Sun et al. 2024).

    The pair (x, a) is drawn with probability q(x) and (a, x) with probability q(a)q(x)/(1 − q(a)), for
    every x ≠ a. As a set of tokens it is the greedy law with n = 2, with the same α*; the order matters to
    SpecHub's verifier.

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. A single token with mass, or another number than 2, is a ValueError.
    """

    top, rest = 1, WithReplacement

    def __init__(self, draft_probs: ArrayLike, num_drafts: int = 2) -> None:
        ProposalLaw.__init__(self, draft_probs, num_drafts)

    @property
    def hub_token(self) -> int:
        """The likeliest token, ties to the lowest id, at a single position."""
        return int(self.draft_probs.argmax())

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        pairs = super().position_sample(rng, count)
        other_first = rng.random(count) >= self.draft_probs[self.hub_token]
        pairs[other_first] = pairs[other_first, ::-1]
        return pairs

    def can_draw(self, draft_tokens: IntArray) -> bool:
        is_hub = draft_tokens == self.hub_token
        return bool((self.draft_probs[draft_tokens] > 0).all() and is_hub[0] != is_hub[1])

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        q, hub = self.draft_probs, self.hub_token
        first, second = draft_tokens.T
        other_first = np.where((second == hub) & (first != hub), q[first], 0.0)
        given_other = super().position_tuple_prob(draft_tokens)
        return other_first + q[hub] * given_other

    def _validate_count(self) -> None:
        if self.num_drafts != 2:
            raise ValueError(f"num_drafts: got {self.num_drafts}, wanted 2: Hub draws pairs")
