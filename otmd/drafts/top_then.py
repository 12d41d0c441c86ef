"""The likeliest tokens for certain, the other drafts by another law; greedy drafts and SpecHub's pairs."""

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import likeliest
from otmd.drafts.base import MOST_DRAFTS, DraftLaw
from otmd.drafts.conditional_poisson import ConditionalPoisson
from otmd.drafts.proposal import ProposalLaw, unchecked, validate_distinct_support
from otmd.drafts.stratified import Stratified
from otmd.drafts.with_replacement import WithReplacement
from otmd.drafts.without_replacement import WithoutReplacement
from otmd.probabilities import BoolArray, FloatArray, IntArray, validate_count, wrong


class TopThen(ProposalLaw):
    """The m likeliest tokens in order, then n − m drafts of another law on the other tokens, renormalised.

    g(H) is 0 unless H contains the m likeliest tokens; in that case it is g(H) of the other law.

    Parameters
    ----------
    draft_probs : array_like, shape (…, V)
        The draft model's next-token distribution.
    num_drafts : int
        n, the top tokens included.
    top : int
        m ≤ n, how many of the likeliest tokens (ties to the lowest id) are always drafted.
    rest : type
        The law of the other drafts: WithReplacement, WithoutReplacement, ConditionalPoisson or
        Stratified.

    Raises
    ------
    ValueError
        For an invalid distribution, ``top`` outside [0, n], another ``rest``, or fewer tokens with
        mass than the law needs.
    """

    top: int
    rest: type[ProposalLaw]

    def __init__(
        self,
        draft_probs: ArrayLike,
        num_drafts: int,
        top: int,
        rest: type[ProposalLaw] = WithoutReplacement,
    ) -> None:
        self.top = validate_count("top", top, minimum=0, maximum=MOST_DRAFTS)
        if rest not in (WithReplacement, WithoutReplacement, ConditionalPoisson, Stratified):
            wanted = "WithReplacement, WithoutReplacement, ConditionalPoisson or Stratified"
            raise wrong("rest", repr(rest), wanted)
        self.rest = rest
        super().__init__(draft_probs, num_drafts)

    def forced_tokens(self) -> IntArray:
        return self._top_tokens

    def mass_beside_forced(self) -> FloatArray:
        return self._others

    @cached_property
    def _top_tokens(self) -> IntArray:
        return likeliest(self.draft_probs, self.top)

    @cached_property
    def _others(self) -> FloatArray:
        if self.top == 0:
            return self.draft_probs
        others = self.draft_probs.copy()
        others[self._top_tokens] = 0.0
        left = others.sum()
        if left > 0.0:
            others /= left
        return others

    @cached_property
    def _rest(self) -> ProposalLaw:
        """The law of the drafts that are not top tokens, at a single position."""
        count = self.num_drafts - self.top
        # All laws draw one token, or none, in the same way.
        return unchecked(self.rest if count > 1 else WithReplacement, self._others, count)

    def prefix_containment(self, order: IntArray) -> FloatArray:
        contained = self._rest.prefix_containment(order)
        contained[: self.top] = 0.0
        return contained

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        top = np.tile(self.forced_tokens(), (count, 1))
        return np.hstack([top, self._rest.position_sample(rng, count)])

    def position_support(self) -> IntArray:
        if self.top == self.num_drafts:
            return np.sort(self.forced_tokens())
        return super().position_support()

    def can_draw(self, draft_tokens: IntArray) -> bool:
        begins = bool((draft_tokens[: self.top] == self.forced_tokens()).all())
        return begins and self._rest.can_draw(draft_tokens[self.top :])

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        begins = (draft_tokens[:, : self.top] == self.forced_tokens()).all(axis=-1)
        return np.where(begins, self._rest.position_tuple_prob(draft_tokens[:, self.top :]), 0.0)

    def position_next_draft_probs(self, prefix: IntArray) -> FloatArray:
        top = self.forced_tokens()
        begins = (prefix[: self.top] == top[: prefix.size]).all()
        if prefix.size < self.top:
            return begins * np.eye(1, self.vocab_size, top[prefix.size])[0]
        return begins * self._rest.position_next_draft_probs(prefix[self.top :])

    def position_containment(self, subset: BoolArray) -> float:
        if not subset[self.forced_tokens()].all():
            return 0.0
        return self._rest.position_containment(subset)

    def position_inclusion_probs(self) -> FloatArray:
        drafted = np.zeros(self.vocab_size)
        if self.top < self.num_drafts:
            drafted = self._rest.position_inclusion_probs()
        drafted[self.forced_tokens()] = 1.0
        return drafted

    def position_hit_rate(self, target: FloatArray) -> float:
        top = float(target[self.forced_tokens()].sum())
        # The other law never draws the top tokens.
        return top + self._rest.position_hit_rate(target) if self.top < self.num_drafts else top

    def _validate_count(self) -> None:
        if self.top > self.num_drafts:
            raise wrong("top", self.top, f"at most num_drafts = {self.num_drafts}")

    def _validate_support(self) -> None:
        distinct = self.num_drafts
        if self.rest is WithReplacement:
            distinct = min(self.top + 1, self.num_drafts)
        validate_distinct_support(self.draft_probs, distinct)


class Greedy(TopThen):
    """The n − 1 likeliest tokens Top, then one draft from the others (Hu et al. 2025, Section 5).

    α* = p(Top) + Σ_{y∉Top} min(p(y), q(y)/(1 − q(Top))).

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.
    """

    rest = WithReplacement

    def __init__(self, draft_probs: ArrayLike, num_drafts: int) -> None:
        ProposalLaw.__init__(self, draft_probs, num_drafts)

    def _validate_count(self) -> None:
        # The number of top tokens follows from the number of drafts.
        self.top = self.num_drafts - 1


class Hub(TopThen):
    """Two drafts, one of them the likeliest token a (SpecHub, Sun et al. 2024).

    The pair (x, a) is drawn with probability q(x) and (a, x) with probability q(a)q(x)/(1 − q(a)), for
    every x ≠ a. As a set, the drafts are those of :class:`Greedy` with n = 2, so α* is the same. SpecHub's
    verifier needs the order.

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

    def position_next_draft_probs(self, prefix: IntArray) -> FloatArray:
        if prefix.size == 0:
            return self.draft_probs.copy()
        if prefix[0] == self.hub_token:
            return super().position_next_draft_probs(prefix)
        return (
            self.can_draw(np.append(prefix, self.hub_token))
            * np.eye(1, self.vocab_size, self.hub_token)[0]
        )

    def _validate_count(self) -> None:
        if self.num_drafts != 2:
            raise wrong("num_drafts", self.num_drafts, "2: Hub draws pairs")


def drafts_by_chance(law: DraftLaw) -> tuple[IntArray, DraftLaw | None]:
    """The tokens that are always drafted, and the law of the other drafts; None without other drafts."""
    if not isinstance(law, ProposalLaw):
        return np.empty(0, np.int64), law
    always = law.forced_tokens()
    count = law.num_drafts - always.size
    if count == 0:
        return always, None
    if isinstance(law, TopThen):
        return always, law._rest
    if isinstance(law, Stratified) or count > 1:
        return always, law
    return always, unchecked(WithReplacement, law.mass_beside_forced(), count)
