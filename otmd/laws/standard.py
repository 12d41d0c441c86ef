"""Laws in few lines: drafts with and without replacement, the most likely tokens, pairs, a table."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import largest_entries
from otmd.laws.base import MOST_DRAFTS, DraftLaw, validate_distinct_support
from otmd.laws.distinct import Race
from otmd.laws.drafts import Table
from otmd.laws.slots import Slots
from otmd.laws.structure import Structure
from otmd.probabilities import (
    FloatArray,
    IntArray,
    validate_count,
    validate_probs,
    wrong,
    wrong_type,
)

MOST_TOKENS = 1 << 24
"""The largest vocabulary of a table. Other laws have no such limit: theirs is the length of an array."""


class WithReplacement(DraftLaw):
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

    batched = True

    def structure(self, q: FloatArray) -> Slots:
        return Slots.single(q, self.num_drafts)


class WithoutReplacement(DraftLaw):
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
    batched = True

    def structure(self, q: FloatArray) -> Race:
        return Race(q, self.num_drafts)


class Independent(DraftLaw):
    """Draft j drawn independently from q_j: g(H) = Π_j q_j(H).

    The distributions may overlap, as those of two drafters do. A row with a single 1 is a
    deterministic token.

    Parameters
    ----------
    draft_probs : array_like, shape (…, n, V)
        q_j, one next-token distribution for each draft, else ValueError.
    num_drafts : int, optional
        n; if given, it must be the length of that axis, else ValueError.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Independent([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    >>> law.inclusion_probs()
    array([0.5 , 0.75, 0.5 ])
    """

    _own_axes = 2

    def __init__(self, draft_probs: ArrayLike, num_drafts: int | None = None) -> None:
        shape = np.shape(draft_probs)
        if len(shape) < 2 or shape[-2] == 0:
            expected = "(…, n, V): one distribution for each of at least one draft"
            raise wrong("draft_probs", f"shape {shape}", expected)
        count = shape[-2] if num_drafts is None else validate_count("num_drafts", num_drafts)
        if count != shape[-2]:
            raise wrong("num_drafts", num_drafts, f"{shape[-2]}, the distributions given")
        super().__init__(draft_probs, count)

    def __repr__(self) -> str:
        return f"Independent(draft_probs{self.draft_probs.shape})"

    def structure(self, q: FloatArray) -> Slots:
        return Slots.overlapping(q)

    def with_num_drafts(self, num_drafts: int) -> Self:
        """Return the law of the first ``num_drafts`` drafts."""
        fewer = copy.copy(self)
        fewer.num_drafts = validate_count("num_drafts", num_drafts, maximum=self.num_drafts)
        fewer.draft_probs = self.draft_probs[..., :num_drafts, :]
        return fewer


class TopThen(DraftLaw):
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
    rest : callable
        ``rest(draft_probs, num_drafts)`` is the law of the other drafts, such as WithReplacement. It must
        never draw a token without mass.

    Raises
    ------
    ValueError
        For an invalid distribution, ``top`` outside [0, n], fewer tokens with mass than the law needs, or a
        ``rest`` that draws a top token.

    Examples
    --------
    >>> import otmd
    >>> otmd.TopThen([0.4, 0.3, 0.2, 0.1], num_drafts=2, top=1).next_draft_probs([0])
    array([0.        , 0.5       , 0.33333333, 0.16666667])
    """

    top: int = 0
    rest: Callable[[FloatArray, int], DraftLaw]

    def __init__(
        self,
        draft_probs: ArrayLike,
        num_drafts: int,
        top: int,
        rest: Callable[[FloatArray, int], DraftLaw] = WithoutReplacement,
    ) -> None:
        self.top = validate_count("top", top, minimum=0, maximum=MOST_DRAFTS)
        if not callable(rest):
            raise wrong_type("rest", rest, "a class of laws such as WithReplacement")
        self.rest = rest
        super().__init__(draft_probs, num_drafts)

    def structure(self, q: FloatArray) -> Structure:
        top, count = largest_entries(q, self.top), self.num_drafts - self.top
        if count == 0:
            return Structure(top, None, q.size)
        others = q
        if top.size:
            others = q.copy()
            others[top] = 0.0
            others /= others.sum()
        rest = self.rest(others, count).position_structure
        if not rest.deterministic_first or rest.drafted[top].any():
            raise wrong("rest", repr(self.rest), "a law that never draws a token without mass")
        return Structure(np.append(top, rest.deterministic), rest.random, q.size)

    def _set_num_drafts(self, num_drafts: int) -> None:
        super()._set_num_drafts(num_drafts)
        if self.top > self.num_drafts:
            raise wrong("top", self.top, f"at most num_drafts = {self.num_drafts}")

    def _validate_support(self) -> None:
        all_distinct = getattr(self.rest, "distinct", False)
        distinct = self.num_drafts if all_distinct else min(self.top + 1, self.num_drafts)
        validate_distinct_support(self.draft_probs, distinct)


class Greedy(TopThen):
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

    num_random = 1
    rest = WithReplacement

    def __init__(self, draft_probs: ArrayLike, num_drafts: int) -> None:
        DraftLaw.__init__(self, draft_probs, num_drafts)

    def _set_num_drafts(self, num_drafts: int) -> None:
        DraftLaw._set_num_drafts(self, num_drafts)
        self.top = self.num_drafts - self.num_random


class TopK(Greedy):
    """The n most likely tokens, all deterministic, as in a tree of most likely tokens (Medusa, EAGLE).

    g(H) is 1 if H contains them all, else 0, and α* = p(Top).

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.TopK([0.4, 0.3, 0.2, 0.1], num_drafts=2)
    >>> law.inclusion_probs()
    array([1., 1., 0., 0.])
    """

    num_random = 0


class Hub(Greedy):
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

    def structure(self, q: FloatArray) -> Structure:
        pair = super().structure(q)
        hub = pair.deterministic
        # Not 1 − q(a), which may be 0 where another token has mass.
        other_prob = float(np.delete(q, hub).sum())
        return HubPairs(hub, pair.random, q.size, float(q[hub[0]]), other_prob)

    def _set_num_drafts(self, num_drafts: int) -> None:
        super()._set_num_drafts(num_drafts)
        if self.num_drafts != 2:
            raise wrong("num_drafts", self.num_drafts, "2: Hub draws pairs")


@dataclass(frozen=True, eq=False)
class HubPairs(Structure):
    """The pairs of :class:`Hub`: a deterministic token a, first with probability q(a), and a slot.

    As sets, they are those of a :class:`Structure` with the same deterministic token and slot.

    Examples
    --------
    >>> import otmd
    >>> otmd.Hub([0.5, 0.3, 0.2]).position_structure.hub_prob
    0.5
    """

    hub_prob: float
    other_prob: float
    deterministic_first = False

    @property
    def num_tuples(self) -> int:
        return 2 * super().num_tuples

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        pairs = super().sample(rng, count)
        hub_second = rng.random(count) >= self.hub_prob
        pairs[hub_second] = pairs[hub_second, ::-1]
        return pairs

    def can_draw(self, draft_tokens: IntArray) -> bool:
        return super().can_draw(draft_tokens) or super().can_draw(draft_tokens[::-1])

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        hub_first, hub_second = map(super().tuple_prob, (draft_tokens, draft_tokens[:, ::-1]))
        return self.hub_prob * hub_first + self.other_prob * hub_second

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        hub, none = self.deterministic, prefix[:0]
        others = super().next_draft_probs(hub)
        if prefix.size == 0:
            return self.hub_prob * super().next_draft_probs(none) + self.other_prob * others
        if prefix[0] == hub[0]:
            return others
        return (others[prefix[0]] > 0) * super().next_draft_probs(none)

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        tokens, probs = super().enumerate()
        weights = np.append(self.hub_prob * probs, self.other_prob * probs)
        return Table(np.vstack([tokens, tokens[:, ::-1]]), weights, self.vocab_size).enumerate()


class Joint(DraftLaw):
    """An explicit table of draft tuples and their probabilities: the general case.

    Parameters
    ----------
    tuples : array_like of int, shape (T, n)
        The draft tuples, with tokens in [0, V), else ValueError. The probabilities of equal rows add up.
    probs : array_like, shape (T,)
        The probability of each row, of sum 1, else ValueError.
    vocab_size : int
        V, at most 2^24.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.Joint([[0, 1], [2, 1]], [0.25, 0.75], vocab_size=3)
    >>> law.inclusion_probs()
    array([0.25, 1.  , 0.75])
    """

    tuples: IntArray
    probs: FloatArray

    def __init__(self, tuples: ArrayLike, probs: ArrayLike, vocab_size: int) -> None:
        try:
            rows = np.asarray(tuples)
        except ValueError as reason:
            raise wrong("tuples", "rows of different lengths", "(T, n)") from reason
        self.vocab_size = validate_count("vocab_size", vocab_size, maximum=MOST_TOKENS)
        if rows.ndim != 2 or rows.shape[-1] == 0:
            raise wrong("tuples", f"shape {rows.shape}", "(T, n) with n ≥ 1")
        self.num_drafts = rows.shape[-1]
        self.probs = validate_probs("probs", probs)
        if self.probs.shape != rows.shape[:1]:
            raise wrong("probs", f"shape {self.probs.shape}", rows.shape[:1])
        self.tuples = self.validate_tokens(rows, "tuples")
        # There is no q: the table says everything.
        self.draft_probs = np.empty(0)

    def __repr__(self) -> str:
        return f"Joint({len(self.tuples)} tuples of {self.num_drafts}, vocab_size={self.vocab_size})"

    def structure(self, q: FloatArray) -> Table:
        return Table(self.tuples, self.probs, self.vocab_size)

    def with_num_drafts(self, num_drafts: int) -> Self:
        """Return the law of the first ``num_drafts`` drafts."""
        count = validate_count("num_drafts", num_drafts, maximum=self.num_drafts)
        return type(self)(self.tuples[:, :count], self.probs, self.vocab_size)


class WithStructure(DraftLaw):
    """The law of drafts of a given structure."""

    def __init__(self, structure: Structure) -> None:
        self.num_drafts, self.vocab_size = structure.num_drafts, structure.vocab_size
        self.draft_probs = np.empty(0)
        self.given = structure

    def __repr__(self) -> str:
        return f"WithStructure({self.num_drafts} drafts of {self.vocab_size} tokens)"

    def structure(self, q: FloatArray) -> Structure:
        return self.given
