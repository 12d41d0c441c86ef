"""Drafts drawn independently from the draft distribution."""

from __future__ import annotations

from functools import cached_property
from math import comb

import numpy as np

from otmd.curve import RatioCurve
from otmd.curve._kernels import inclusion_probs, sum_where
from otmd.laws.base import draw_tokens
from otmd.laws.proposal import ProposalLaw
from otmd.laws.structure import Slots, Structure, all_random
from otmd.probabilities import BoolArray, FloatArray, IntArray


class WithReplacement(ProposalLaw):
    """n drafts drawn independently from q: g(H) = q(H)^n (SpecTr; SpecInfer).

    Parameters
    ----------
    draft_probs : array_like, shape (…, V)
        The draft model's next-token distribution.
    num_drafts : int
        How many tokens are drafted.

    Raises
    ------
    ValueError
        For an invalid distribution or ``num_drafts`` < 1.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.5, 0.25, 0.25], num_drafts=2)
    >>> law.containment([False, True, True]), law.inclusion_probs()
    (0.25, array([0.75  , 0.4375, 0.4375]))
    """

    def position_structure(self) -> Structure:
        return self._structure

    @cached_property
    def _structure(self) -> Structure:
        return all_random(Slots.single(self.draft_probs, self.num_drafts))

    def shared_structure(self) -> Structure:
        return self.position_structure()

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return self.have_mass(draft_tokens)

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        drawn = draw_tokens(self.draft_probs, rng, count * self.num_drafts)
        return drawn.reshape(count, self.num_drafts)

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        return self.draft_probs[draft_tokens].prod(axis=-1)

    def count_sets(self, merge: bool) -> tuple[int, int]:
        support, drawn = int(np.count_nonzero(self.draft_probs)), self.num_drafts
        if merge:
            sets = {size: comb(support, size) for size in range(1, min(drawn, support) + 1)}
            return sum(sets.values()), sum(size * number for size, number in sets.items())
        # A token is in all tuples except those made of the other tokens alone.
        return support**drawn, support * (support**drawn - (support - 1) ** drawn)

    def position_next_draft_probs(self, prefix: IntArray) -> FloatArray:
        return self.draft_probs * self.have_mass(prefix)

    def position_containment(self, subset: BoolArray) -> float:
        return min(sum_where(self.draft_probs, subset), 1.0) ** self.num_drafts

    def position_hit_rate(self, target: FloatArray) -> float:
        curve = RatioCurve.unchecked(target, self.draft_probs)
        return float(curve.target_only_rates([self.num_drafts])[0])

    def position_inclusion_probs(self) -> FloatArray:
        probs = np.empty(self.vocab_size)
        inclusion_probs(self.draft_probs, self.num_drafts, probs)
        return probs
