"""A lossless plan that chooses among the drafts by random clocks."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from otmd.choice.weighted_choice import chances_of_drafts
from otmd.probabilities import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Side(ABC):
    """The choice among the drafts on one side of the cut.

    Attributes
    ----------
    weights : ndarray of float64, shape (G,)
        The rate of each class's clock.
    rejection : float
        The rate of the clock that rejects all drafts; 0 for none.
    times, steps : ndarray of float64, shape (J,)
        Nodes of the integral over the time when the first clock rings.
    """

    weights: FloatArray
    rejection: float
    times: FloatArray
    steps: FloatArray

    @abstractmethod
    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray]:
        """The class of tokens (T,) and the probability to be of it; of the next one otherwise."""

    @abstractmethod
    def offered(self, tokens: IntArray) -> FloatArray:
        """Probability that each of these tokens (T,) of the side is chosen, before thinning, shape (T,)."""

    def chances(self, tokens: IntArray) -> FloatArray:
        """Probability that each of the drafts (n,), all of this side, is chosen."""
        classes, shares = self.locate(tokens)
        found = np.empty(tokens.size)
        chances_of_drafts(
            classes, shares, self.weights, self.rejection, self.times, self.steps, found
        )
        return found


@dataclass(frozen=True, eq=False)
class ChoicePlan:
    """How likely each draft is accepted, given the drafts.

    Where some draft lies outside H* one of those is chosen, else one of the others or none. What is
    chosen is kept with such a probability that no token gets more than its p.

    Attributes
    ----------
    target : ndarray of float64, shape (V,)
        p, of sum at most 1.
    subset : ndarray of bool, shape (V,)
        H*.
    bound : float
        1 + p(H*) − g(H*): what no lossless rule exceeds.
    inner, outer : Side or None
        Within H* and beside it; None where nothing is accepted there.
    """

    target: FloatArray
    subset: BoolArray
    bound: float
    inner: Side | None
    outer: Side | None

    @cached_property
    def accepted(self) -> FloatArray:
        """The accepted mass of each token, at most p, shape (V,)."""
        mass = np.zeros(self.target.size)
        for side, own in ((self.inner, self.subset), (self.outer, ~self.subset)):
            if side is not None:
                tokens = np.flatnonzero(own)
                mass[tokens] = np.minimum(side.offered(tokens), self.target[tokens])
        return mass

    @cached_property
    def rate(self) -> float:
        """The accepted mass."""
        return float(self.accepted.sum())

    @property
    def most_by_chance(self) -> float:
        """A bound of P(no draft is chosen, and the token drawn from the residual is one of them).

        Drafts within H* meet only what the residual holds of H*; those that reach beyond it are
        hardly ever rejected.
        """
        missing = np.maximum(self.target - self.accepted, 0.0)
        contained = 1.0 + float(self.target[self.subset].sum()) - self.bound
        chosen = float(self.accepted[self.subset].sum())
        inner = max(0.0, contained - chosen)
        outer = max(0.0, 1.0 - contained - float(self.accepted[~self.subset].sum()))
        meets = float(missing[self.subset].sum()) / max(
            1.0 - self.rate, float(missing.sum()), 1e-300
        )
        return min(max(self.bound - self.rate, 0.0), inner * meets + outer)

    def chances(self, tokens: IntArray) -> FloatArray:
        """Probability that each of the drafts (n,) is the output, shape (n,)."""
        outside = ~self.subset[tokens]
        side, able = (self.outer, outside) if outside.any() else (self.inner, ~outside)
        chances = np.zeros(tokens.size)
        if side is None:
            return chances
        able_tokens = tokens[able]
        offered = side.offered(able_tokens)
        accepted = np.minimum(offered, self.target[able_tokens])
        kept = np.divide(accepted, offered, out=np.zeros(offered.size), where=offered > 0)
        chances[able] = kept * side.chances(able_tokens)
        return chances
