"""A verifier prepared for one position: what it accepts, and what it draws when it accepts nothing."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw
from otmd.drafts.base import draw_tokens, validate_rng
from otmd.probabilities import FloatArray, IntArray


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
    """A verifier prepared for one position: decide many times, for any drafts.

    It looks at the drafts in order, accepts one of them or none, and falls back on a residual law.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
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
        """Law of the output token once every draft is rejected, shape (V,)."""

    def verify(self, draft_tokens: ArrayLike, rng: np.random.Generator) -> Verdict:
        """Decide on drafts (n,): the output token and which draft it is, or −1."""
        ids = self.law.validate_drawable(draft_tokens)
        validate_rng(rng)
        for i, chance in enumerate(self.accept_probs(ids)):
            if rng.random() < chance:
                return Verdict(int(ids[i]), i)
        token = int(draw_tokens(self.residual(ids), rng, 1)[0])
        drafted = np.flatnonzero(ids == token)
        return Verdict(token, int(drafted[0]) if drafted.size else -1)

    def conditional_law(self, draft_tokens: IntArray) -> FloatArray:
        """Law of the output token given the drafts (n,), shape (V,)."""
        output = np.zeros(self.target.size)
        undecided = 1.0
        for token, chance in zip(draft_tokens, self.accept_probs(draft_tokens), strict=True):
            output[token] += undecided * chance
            undecided *= 1.0 - chance
        if undecided > 0:
            output += undecided * self.residual(draft_tokens)
        return output


def accept_prob(wanted: FloatArray, drawn: FloatArray) -> FloatArray:
    """min(1, wanted/drawn) without overflow; 1 where nothing is drawn, which has probability zero."""
    return np.divide(wanted, drawn, out=np.ones_like(drawn), where=drawn > wanted)


def normalised(mass: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Mass (V,) as a distribution; ``otherwise`` where there is none.

    A residual without mass is reached with probability zero, up to rounding, so that any law serves.
    """
    total = mass.sum()
    return mass / total if total > 0 else otherwise
