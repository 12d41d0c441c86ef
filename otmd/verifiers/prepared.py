"""A verifier prepared for one position: what it accepts, and what it draws when it accepts nothing."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw
from otmd.drafts.base import draw_tokens, validate_rng
from otmd.probabilities import FloatArray, IntArray, wrong

# How far rounding may move a probability outside [0, 1], and the sum of a distribution from 1.
_ROUNDING, _SAME_SUM = 1e-9, 1e-6


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    Attributes
    ----------
    token : int or ndarray of int64, shape (…)
        The output token.
    draft_index : int or ndarray of int64, shape (…)
        Which draft it is; −1 where the output token is none of the drafts.
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
    law : DraftLaw
        The law of the drafts, without leading axes.
    """

    def __init__(self, target: FloatArray, law: DraftLaw) -> None:
        self.target = target
        self.law = law

    @abstractmethod
    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        """Probability to accept draft i once all before it were rejected, shape (n,)."""

    @abstractmethod
    def residual(self, draft_tokens: IntArray) -> FloatArray:
        """Law of the output token once all drafts were rejected, shape (V,)."""

    def verify(self, draft_tokens: ArrayLike, rng: np.random.Generator) -> Verdict:
        """Decide on drafts (n,): the output token and which draft it is, or −1."""
        ids = self.law.validate_drawable(draft_tokens)
        validate_rng(rng)
        for i, chance in enumerate(self._chances(ids)):
            if rng.random() < chance:
                return Verdict(int(ids[i]), i)
        token = int(draw_tokens(self._checked_residual(ids), rng, 1)[0])
        drafted = np.flatnonzero(ids == token)
        return Verdict(token, int(drafted[0]) if drafted.size else -1)

    def conditional_law(self, draft_tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), shape (V,)."""
        output = np.zeros(self.target.size)
        undecided = 1.0
        for token, chance in zip(draft_tokens, self._chances(draft_tokens), strict=True):
            output[token] += undecided * chance
            undecided *= 1.0 - chance
        if undecided > 0:
            output += undecided * self._checked_residual(draft_tokens)
        return output

    def _chances(self, draft_tokens: IntArray) -> FloatArray:
        """The result of :meth:`accept_probs`, checked, since a user may have written the subclass."""
        chances = np.asarray(self.accept_probs(draft_tokens))
        low, high = chances.min(initial=0.0), chances.max(initial=0.0)
        # Written so that NaN is refused as well.
        if chances.shape == draft_tokens.shape and low >= -_ROUNDING and high <= 1.0 + _ROUNDING:
            return chances
        wanted = f"{draft_tokens.size} probabilities in [0, 1]"
        raise wrong(f"{type(self).__name__}.accept_probs", chances.tolist(), wanted)

    def _checked_residual(self, draft_tokens: IntArray) -> FloatArray:
        """The result of :meth:`residual`, checked."""
        law = np.asarray(self.residual(draft_tokens))
        total = float(law.sum())
        whole = abs(total - 1.0) <= _SAME_SUM
        if law.shape == self.target.shape and whole and law.min() >= -_ROUNDING:
            return law
        found = f"shape {law.shape} and sum {total!r}"
        wanted = f"a distribution of shape {self.target.shape}"
        raise wrong(f"{type(self).__name__}.residual", found, wanted)


class Choice(Protocol):
    """How one of the random drafts, or none, is accepted at one position."""

    @cached_property
    @abstractmethod
    def accepted(self) -> FloatArray:
        """Probability that each token is accepted, shape (V,)."""
        ...

    @cached_property
    def rate(self) -> float:
        """Probability that some draft is accepted."""
        ...

    def choice_probs(self, tokens: IntArray, /) -> FloatArray:
        """Probability that each of the drafts (m,) is accepted, given these drafts, shape (m,)."""
        ...


class ChoosingVerifier(PreparedVerifier):
    """A prepared verifier that looks at all drafts at once and accepts one of them or none.

    The ``choice`` is among the random drafts. ``deterministic`` tokens (m,) are emitted only from the
    residual, and count as accepted there.
    """

    def __init__(
        self, target: FloatArray, law: DraftLaw, deterministic: IntArray, choice: Choice | None
    ) -> None:
        super().__init__(target, law)
        self._deterministic, self.choice = deterministic, choice

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
        # The probability asked for is given that all drafts before were rejected.
        left = 1.0 - np.concatenate([[0.0], chosen[:-1].cumsum()])
        return np.minimum(1.0, np.divide(chosen, left, out=np.zeros(chosen.size), where=left > 0))

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self._residual

    @cached_property
    def _residual(self) -> FloatArray:
        return normalised(np.maximum(self.target - self.accepted, 0.0), self.target)


def accept_prob(wanted: FloatArray, drawn: FloatArray) -> FloatArray:
    """min(1, wanted/drawn) without overflow; 1 where drawn is 0, which is never reached."""
    return np.divide(wanted, drawn, out=np.ones_like(drawn), where=drawn > wanted)


def normalised(mass: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Mass (V,) divided by its sum; ``otherwise``, any distribution, if the sum is 0: it is never reached."""
    total = mass.sum()
    return mass / total if total > 0 else otherwise
