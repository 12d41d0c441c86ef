"""A verifier prepared for one position: it accepts one of the drafts, or draws from the residual."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw
from otmd.laws.base import RngLike, validate_rng
from otmd.laws.drafts import draw_tokens
from otmd.probabilities import FloatArray, IntArray, wrong

# Rounding may move a probability so far outside [0, 1], and the sum of a distribution so far from 1.
_ROUNDING = 1e-9
_SAME_SUM = 1e-6


@dataclass(frozen=True)
class Verdict:
    """The decision of a verifier.

    Attributes
    ----------
    token : int or ndarray of int64, shape (…)
        The output token.
    draft_index : int or ndarray of int64, shape (…)
        The index of the output token among the drafts; −1 where it is none of them.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.5, 0.5], num_drafts=2)
    >>> otmd.TargetOnly().verify([1.0, 0.0], law, [1, 0], rng=0)
    Verdict(token=0, draft_index=1)
    """

    token: IntArray | int
    draft_index: IntArray | int


class PreparedVerifier(ABC):
    """A verifier prepared for one position, which decides on any number of draws of drafts.

    It looks at the drafts in order and accepts one of them or none. If it accepts none, it draws the output
    from the residual.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    law : DraftLaw
        The law of the drafts, without leading axes.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.5, 0.5], num_drafts=2)
    >>> prepared = otmd.TargetOnly().prepare([0.75, 0.25], law)
    >>> prepared.conditional_law([0, 0])
    array([0.75, 0.25])
    >>> prepared.verify([0, 1], rng=0)
    Verdict(token=1, draft_index=1)
    """

    def __init__(self, target: FloatArray, law: DraftLaw) -> None:
        self.target = target
        self.law = law

    @abstractmethod
    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        """Probability to accept draft i once all before it were rejected, shape (n,)."""

    @abstractmethod
    def residual(self, draft_tokens: IntArray) -> FloatArray:
        """Residual distribution: that of the output token once all drafts were rejected, shape (V,)."""

    def verify(self, draft_tokens: ArrayLike, *, rng: RngLike = None) -> Verdict:
        """Decide on drafts (n,); ``rng`` and errors are those of :meth:`Verifier.verify`."""
        ids = self.law.validate_drawable(draft_tokens)
        generator = decision_rng(rng)
        for i, accept in enumerate(self._checked_accept_probs(ids)):
            if generator.random() < accept:
                return Verdict(int(ids[i]), i)
        return verdict_of(int(draw_tokens(self._checked_residual(ids), generator, 1)[0]), ids)

    def conditional_law(self, draft_tokens: ArrayLike) -> FloatArray:
        """Distribution of the output token given the drafts (n,), shape (V,)."""
        ids = np.asarray(draft_tokens)
        output = np.zeros(self.target.size)
        undecided = 1.0
        for token, accept in zip(ids, self._checked_accept_probs(ids), strict=True):
            output[token] += undecided * accept
            undecided *= 1.0 - accept
        if undecided > 0:
            output += undecided * self._checked_residual(ids)
        return output

    def _checked_accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        """The result of :meth:`accept_probs`, checked, since a user may have written the subclass."""
        probs = np.asarray(self.accept_probs(draft_tokens))
        low = probs.min(initial=0.0)
        high = probs.max(initial=0.0)
        # Written so that NaN is refused as well.
        if probs.shape == draft_tokens.shape and low >= -_ROUNDING and high <= 1.0 + _ROUNDING:
            return probs
        expected = f"probabilities in [0, 1], shape {draft_tokens.shape}"
        raise wrong(f"{type(self).__name__}.accept_probs", probs.tolist(), expected)

    def _checked_residual(self, draft_tokens: IntArray) -> FloatArray:
        """The result of :meth:`residual`, checked."""
        probs = np.asarray(self.residual(draft_tokens))
        total = float(probs.sum())
        sums_to_one = abs(total - 1.0) <= _SAME_SUM
        if probs.shape == self.target.shape and sums_to_one and probs.min() >= -_ROUNDING:
            return probs
        given = f"shape {probs.shape} and sum {total!r}"
        expected = f"a distribution of shape {self.target.shape}"
        raise wrong(f"{type(self).__name__}.residual", given, expected)


class Choice(Protocol):
    """A choice of one of the random drafts, or of none, at one position.

    A subclass of your own defines :attr:`accepted` and :meth:`choice_probs`. The page *Add a law or a
    verifier* has a rule for two drafts.

    Examples
    --------
    Take the first draft wherever the target has all of its mass:

    >>> import numpy as np
    >>> from otmd.verifiers import Choice
    >>> class First(Choice):
    ...     accepted = np.array([0.5, 0.0])
    ...     def choice_probs(self, tokens):
    ...         return np.where((np.arange(len(tokens)) == 0) & (tokens == 0), 1.0, 0.0)
    >>> First().rate, First().choice_probs(np.array([0, 1])).tolist()
    (0.5, [1.0, 0.0])
    """

    @cached_property
    @abstractmethod
    def accepted(self) -> FloatArray:
        """Probability that each token is accepted, over the draw of the drafts, at most p, shape (V,)."""
        ...

    @cached_property
    def rate(self) -> float:
        """Probability that some draft is accepted."""
        return float(self.accepted.sum())

    @abstractmethod
    def choice_probs(self, tokens: IntArray, /) -> FloatArray:
        """Probability that each of the drafts (m,) is accepted, given these drafts, shape (m,)."""
        ...


class ChoosingVerifier(PreparedVerifier):
    """A prepared verifier that looks at all drafts at once and accepts one of them or none.

    The residual is what the choice leaves of p: (p − accepted)₊, normalised. Deterministic tokens are emitted
    only from the residual, and count as accepted there.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    law : DraftLaw
        The law of the drafts, without leading axes.
    choice : Choice or None
        The choice among the random drafts; None if there are none.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> prepared = otmd.Preference().prepare([0.5, 0.25, 0.25], law)
    >>> prepared.accepted, prepared.residual([2, 2])
    (array([0.4375, 0.25  , 0.25  ]), array([1., 0., 0.]))
    """

    def __init__(self, target: FloatArray, law: DraftLaw, choice: Choice | None) -> None:
        super().__init__(target, law)
        self.choice = choice
        self._deterministic = law.position_structure.deterministic

    @property
    def accepted(self) -> FloatArray:
        """Probability that each token is accepted by choice, shape (V,)."""
        return self.choice.accepted if self.choice else np.zeros(self.target.size)

    @property
    def rate(self) -> float:
        """The acceptance rate: p of the deterministic tokens, and the rate of the choice."""
        chosen = self.choice.rate if self.choice else 0.0
        return float(self.target[self._deterministic].sum()) + chosen

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        chosen = np.zeros(draft_tokens.size)
        if self.choice and self._deterministic.size == 0:
            chosen = self.choice.choice_probs(draft_tokens)
        elif self.choice:
            able = ~np.isin(draft_tokens, self._deterministic)
            chosen[able] = self.choice.choice_probs(draft_tokens[able])
        # Given that all drafts before were rejected : chosen / left
        left = 1.0 - np.concatenate([[0.0], chosen[:-1].cumsum()])
        return np.minimum(1.0, np.divide(chosen, left, out=np.zeros(chosen.size), where=left > 0))

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self._residual

    @cached_property
    def _residual(self) -> FloatArray:
        return normalised(np.maximum(self.target - self.accepted, 0.0), self.target)


def decision_rng(rng: RngLike) -> np.random.Generator:
    """Return the generator that decides on drafts.

    That of a seed is independent of the drafts that the same seed draws: with the same random numbers, no
    verifier would be lossless.
    """
    generator = validate_rng(rng)
    return generator if generator is rng else generator.spawn(1)[0]


def verdict_of(token: int, draft_tokens: IntArray) -> Verdict:
    """The verdict for an output token: its index among the drafts (n,), −1 if it is none of them."""
    drafted = np.flatnonzero(draft_tokens == token)
    return Verdict(token, int(drafted[0]) if drafted.size else -1)


def accept_prob(target: FloatArray, drawn: FloatArray) -> FloatArray:
    """min(1, target/drawn) without overflow; 1 where drawn is 0, which is never reached."""
    return np.divide(target, drawn, out=np.ones_like(drawn), where=drawn > target)


def normalised(mass: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Mass (V,) divided by its sum; ``otherwise``, any distribution, if the sum is 0: it is never reached."""
    total = mass.sum()
    return mass / total if total > 0 else otherwise
