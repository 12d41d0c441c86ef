"""SpecHub's law of two drafts: every pair holds the likeliest token."""

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts.proposal import ProposalLaw, unchecked, validate_distinct_support
from otmd.drafts.top_then import Greedy
from otmd.drafts.with_replacement import WithReplacement
from otmd.probabilities import BoolArray, FloatArray, IntArray


class Hub(ProposalLaw):
    """Two drafts, one of them the likeliest token a (SpecHub, Sun et al. 2024).

    The pair (x, a) is drawn with probability q(x) and (a, x) with probability q(a)q(x)/(1 − q(a)), for
    every x ≠ a. As a set of tokens it is the greedy law with n = 2, with the same α*; the order matters to
    SpecHub's verifier.

    Parameters
    ----------
    draft_probs : array_like, shape (…, V)
        The draft model's next-token distribution; at least two tokens with mass.
    num_drafts : int
        2, the only number that the law is defined for.

    Raises
    ------
    ValueError
        For an invalid distribution, one with a single token of mass, or ``num_drafts`` other than 2.
    """

    def __init__(self, draft_probs: ArrayLike, num_drafts: int = 2) -> None:
        super().__init__(draft_probs, num_drafts)

    @property
    def hub_token(self) -> int:
        """The likeliest token, ties to the lowest id, at a single position."""
        return int(self.draft_probs.argmax())

    def forced_tokens(self) -> IntArray:
        """Return the hub token."""
        return self._as_greedy.forced_tokens()

    def mass_beside_forced(self) -> FloatArray:
        """What q leaves beside the hub token; see :class:`ProposalLaw`."""
        return self._as_greedy.mass_beside_forced()

    @cached_property
    def _as_greedy(self) -> Greedy:
        greedy = unchecked(Greedy, self.draft_probs, 2)
        greedy.top, greedy.rest = 1, WithReplacement
        return greedy

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        pairs = self._as_greedy.position_sample(rng, count)
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
        given_other = self._as_greedy.position_tuple_prob(draft_tokens)
        return other_first + q[hub] * given_other

    def position_containment(self, subset: BoolArray) -> float:
        return self._as_greedy.position_containment(subset)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        """See :class:`ProposalLaw`."""
        return self._as_greedy.prefix_containment(order)

    def position_inclusion_probs(self) -> FloatArray:
        return self._as_greedy.position_inclusion_probs()

    def _validate_count(self) -> None:
        if self.num_drafts != 2:
            raise ValueError(f"num_drafts: got {self.num_drafts}, wanted 2: Hub draws pairs")

    def _validate_support(self) -> None:
        validate_distinct_support(self.draft_probs, 2)
