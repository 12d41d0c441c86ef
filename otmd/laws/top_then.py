"""The most likely tokens with probability 1, the other drafts by another law; SpecHub's pairs."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import largest_entries
from otmd.laws.base import MOST_DRAFTS, DraftLaw
from otmd.laws.conditional_poisson import ConditionalPoisson
from otmd.laws.proposal import ProposalLaw, count_distinct, validate_distinct_support
from otmd.laws.stratified import Stratified
from otmd.laws.structure import Structure
from otmd.laws.with_replacement import WithReplacement
from otmd.laws.without_replacement import WithoutReplacement
from otmd.probabilities import BoolArray, FloatArray, IntArray, validate_count, wrong


class _NoDrafts(DraftLaw):
    """The law that draws nothing: what is left where all drafts are deterministic."""

    num_drafts = 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def position_structure(self) -> Structure:
        return Structure(np.empty(0, np.int64), None)

    def position_support(self) -> IntArray:
        return np.empty(0, np.int64)

    def count_sets(self, merge: bool) -> tuple[int, int]:
        return 1, 0

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        return np.empty((count, 0), np.int64)

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        return np.ones(len(draft_tokens))


class _TopThenRest(ProposalLaw):
    """The ``top`` most likely tokens in order, then the other drafts by the law ``rest``, renormalised."""

    top: int
    rest: type[ProposalLaw] = WithReplacement

    def position_structure(self) -> Structure:
        return Structure(self.top_tokens, self._rest.position_structure().random)

    @cached_property
    def top_tokens(self) -> IntArray:
        """The tokens (m,) that are drafted with probability 1, most likely first, at a single position."""
        return largest_entries(self.draft_probs, self.top)

    @cached_property
    def _other_probs(self) -> FloatArray:
        """Q without the top tokens, renormalised, shape (V,)."""
        if self.top == 0:
            return self.draft_probs
        others = self.draft_probs.copy()
        others[self.top_tokens] = 0.0
        mass = others.sum()
        return others / mass if mass > 0.0 else others

    @cached_property
    def _rest(self) -> ProposalLaw | _NoDrafts:
        """The law of the random drafts at a single position."""
        count = self.num_drafts - self.top
        if count == 0:
            return _NoDrafts(self.vocab_size)
        # Every law draws a single draft in the same way.
        return (self.rest if count > 1 else WithReplacement)(self._other_probs, count)

    def with_ties_as(self, draft_tokens: IntArray) -> Self:
        first = draft_tokens[: self.top]
        tied = (self.draft_probs[first] == self.draft_probs[self.top_tokens]).all()
        if not tied or np.unique(first).size < self.top:
            return self
        law = copy.copy(self)
        vars(law)["top_tokens"] = first
        return law

    def count_sets(self, merge: bool) -> tuple[int, int] | None:
        others = self._rest.count_sets(merge)
        return None if others is None else (others[0], others[1] + self.top * others[0])

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        top = np.tile(self.top_tokens, (count, 1))
        return np.hstack([top, self._rest.position_sample(rng, count)])

    def position_support(self) -> IntArray:
        return np.union1d(self.top_tokens, self._rest.position_support())

    def can_draw(self, draft_tokens: IntArray) -> bool:
        begins = bool((draft_tokens[: self.top] == self.top_tokens).all())
        return begins and self._rest.can_draw(draft_tokens[self.top :])

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        begins = (draft_tokens[:, : self.top] == self.top_tokens).all(axis=-1)
        return np.where(begins, self._rest.position_tuple_prob(draft_tokens[:, self.top :]), 0.0)

    def position_next_draft_probs(self, prefix: IntArray) -> FloatArray:
        top = self.top_tokens
        begins = (prefix[: self.top] == top[: prefix.size]).all()
        if prefix.size < self.top:
            return begins * np.eye(1, self.vocab_size, top[prefix.size])[0]
        return begins * self._rest.position_next_draft_probs(prefix[self.top :])

    def position_containment(self, subset: BoolArray) -> float:
        if not subset[self.top_tokens].all():
            return 0.0
        return self._rest.position_containment(subset)

    def position_inclusion_probs(self) -> FloatArray:
        drafted = self._rest.position_inclusion_probs()
        drafted[self.top_tokens] = 1.0
        return drafted

    def position_hit_rate(self, target: FloatArray) -> float:
        # The other law never draws the top tokens.
        return float(target[self.top_tokens].sum()) + self._rest.position_hit_rate(target)

    def _validate_count(self) -> None:
        if self.top > self.num_drafts:
            raise wrong("top", self.top, f"at most num_drafts = {self.num_drafts}")

    def _validate_support(self) -> None:
        distinct = self.num_drafts
        if self.rest is WithReplacement:
            distinct = min(self.top + 1, self.num_drafts)
        validate_distinct_support(self.draft_probs, distinct)


class TopThen(_TopThenRest):
    """The m most likely tokens in order, then n − m drafts of another law on the other tokens, renormalised.

    g(H) is 0 unless H contains the m most likely tokens; in that case it is g(H) of the other law.

    Parameters
    ----------
    draft_probs : array_like, shape (…, V)
        The draft model's next-token distribution.
    num_drafts : int
        n, the top tokens included.
    top : int
        m ≤ n, how many of the most likely tokens (ties to the lowest id) are drafted with probability 1.
    rest : type
        The law of the other drafts: WithReplacement, WithoutReplacement, ConditionalPoisson or
        Stratified.

    Raises
    ------
    ValueError
        For an invalid distribution, ``top`` outside [0, n], another ``rest``, or fewer tokens with
        mass than the law needs.

    Examples
    --------
    >>> import otmd
    >>> otmd.TopThen([0.4, 0.3, 0.2, 0.1], num_drafts=2, top=1).next_draft_probs([0])
    array([0.        , 0.5       , 0.33333333, 0.16666667])
    """

    def __init__(
        self,
        draft_probs: ArrayLike,
        num_drafts: int,
        top: int,
        rest: type[ProposalLaw] = WithoutReplacement,
    ) -> None:
        self.top = validate_count("top", top, minimum=0, maximum=MOST_DRAFTS)
        if rest not in (WithReplacement, WithoutReplacement, ConditionalPoisson, Stratified):
            expected = "WithReplacement, WithoutReplacement, ConditionalPoisson or Stratified"
            raise wrong("rest", repr(rest), expected)
        self.rest = rest
        super().__init__(draft_probs, num_drafts)


class _TopFollows(_TopThenRest):
    """All drafts but ``num_random`` are deterministic, whatever their number."""

    num_random = 1

    @property
    def top(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of tokens that are drafted with probability 1."""
        return self.num_drafts - self.num_random


class Greedy(_TopFollows):
    """The n − 1 most likely tokens Top, then one draft from the others (Hu et al. 2025, Section 5).

    α* = p(Top) + Σ_{y∉Top} min(p(y), q(y)/(1 − q(Top))).

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Greedy([0.4, 0.3, 0.2, 0.1], num_drafts=2)
    >>> law.inclusion_probs().round(4)
    array([1.    , 0.5   , 0.3333, 0.1667])
    """


class CertainTop(_TopFollows):
    """The n most likely tokens, all deterministic, as in a tree of most likely tokens (Medusa, EAGLE).

    g(H) is 1 if H contains them all, else 0, and α* = p(Top).

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.CertainTop([0.4, 0.3, 0.2, 0.1], num_drafts=2)
    >>> law.inclusion_probs()
    array([1., 1., 0., 0.])
    """

    num_random = 0


class Hub(_TopFollows):
    """Two drafts, one of them the most likely token a (SpecHub, Sun et al. 2024).

    The pair (x, a) is drawn with probability q(x) and (a, x) with probability q(a)q(x)/(1 − q(a)), for
    every x ≠ a. As a set, the drafts are those of :class:`Greedy` with n = 2, so α* is the same. SpecHub's
    verifier needs the order.

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. A single token with mass, or another number than 2, is a ValueError.

    Examples
    --------
    >>> import otmd
    >>> tokens, probs = otmd.Hub([0.5, 0.3, 0.2]).enumerate()
    >>> tokens.tolist()
    [[0, 1], [0, 2], [1, 0], [2, 0]]
    >>> probs.round(4)
    array([0.3, 0.2, 0.3, 0.2])
    """

    def __init__(self, draft_probs: ArrayLike, num_drafts: int = 2) -> None:
        super().__init__(draft_probs, num_drafts)

    @property
    def hub_token(self) -> int:
        """The most likely token, ties to the lowest id, at a single position."""
        return int(self.draft_probs.argmax())

    def position_structure(self) -> Structure:
        # The structure is about sets: either of the two may come first.
        return super().position_structure()

    def with_ties_as(self, draft_tokens: IntArray) -> Self:
        # Either draft may be the hub token.
        return self

    def count_sets(self, merge: bool) -> tuple[int, int]:
        sets, arcs = count_distinct(self._other_probs, 1, merge)
        # The hub token is drafted as well, in either order.
        orders = 1 if merge else 2
        return orders * sets, orders * (arcs + sets)

    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        pairs = super().position_sample(rng, count)
        token_first = rng.random(count) >= self.draft_probs[self.hub_token]
        pairs[token_first] = pairs[token_first, ::-1]
        return pairs

    def can_draw(self, draft_tokens: IntArray) -> bool:
        is_hub = draft_tokens == self.hub_token
        return bool((self.draft_probs[draft_tokens] > 0).all() and is_hub[0] != is_hub[1])

    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        q, hub = self.draft_probs, self.hub_token
        first, second = draft_tokens.T
        token_first = np.where((second == hub) & (first != hub), q[first], 0.0)
        given_hub = super().position_tuple_prob(draft_tokens)
        return token_first + q[hub] * given_hub

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
