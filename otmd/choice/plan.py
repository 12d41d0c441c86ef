"""A lossless plan that chooses among the drafts by random clocks.

A draft of class g rings after an exponential time of rate w_g, a rejection after one of rate w_0. Whichever
rings first is chosen, so that each is chosen in proportion to its weight. The time s of the first ring is
integrated out by a quadrature, whose nodes are the same for all drafts of a position.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray, IntArray

_SPACING = 0.25
# e^{−45} is below the rounding of 1.
_SILENT = 45.0


class Quadrature(NamedTuple):
    """Nodes and weights of ∫₀^∞ f(s) ds ≈ Σ steps·f(times), each of shape (J,)."""

    times: FloatArray
    steps: FloatArray


@kernel()
def clock_quadrature(slowest, fastest, spacing=_SPACING):
    """Nodes and steps for sums of exponentials with rates from ``slowest`` to ``fastest``.

    The substitution s = exp(v − e^{−v}) makes the trapezoidal rule converge double exponentially at the
    early end (Takahasi and Mori 1974). At the default spacing the rule is exact to rounding.
    """
    latest = np.log(_SILENT * fastest / slowest)
    first, last = int(np.floor(-3.7 / spacing)), int(np.ceil(latest / spacing))
    times, steps = np.empty(last - first + 1), np.empty(last - first + 1)
    for k in range(times.size):
        v = (first + k) * spacing
        times[k] = np.exp(v - np.exp(-v)) / fastest
        steps[k] = spacing * times[k] * (1.0 + np.exp(-v))
    return Quadrature(times, steps)


@kernel()
def quadrature_for_weights(log_weights, num_drafts):
    """Quadrature for clocks of these log weights (G,), of which ``num_drafts`` may run at once."""
    return clock_quadrature(np.exp(log_weights.min()), np.exp(log_weights.max()) * num_drafts)


@dataclass(frozen=True, eq=False)
class Side(ABC):
    """The choice among the drafts on one side of the cut: within H*, or outside.

    ``weights`` (G,) are the rates of the classes' clocks, ``rejection`` that of the clock that rejects all
    drafts, 0 if there is none. The quadrature is for the time of the first ring.
    """

    weights: FloatArray
    rejection: float
    quadrature: Quadrature

    @abstractmethod
    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray]:
        """The lower class of each token (T,), and the token's share of it; the rest is the next class's."""

    @abstractmethod
    def offered(self, tokens: IntArray) -> FloatArray:
        """Probability that each of these tokens (T,) of the side is chosen, before thinning, shape (T,)."""

    def chances(self, tokens: IntArray) -> FloatArray:
        """Probability that each of the drafts (n,), all of this side, is chosen."""
        found = np.empty(tokens.size)
        chances_of_drafts(
            *self.locate(tokens), self.weights, self.rejection, *self.quadrature, found
        )
        return found


@dataclass(frozen=True, eq=False)
class ChoicePlan:
    """How likely each draft is accepted, given the drafts.

    If some draft lies outside H*, the ``subset`` (V,), one of those is chosen. Otherwise one of the drafts or
    none is. What is chosen is kept with such a probability that no token is accepted with more than its p,
    the ``target`` (V,), of sum at most 1. No lossless rule exceeds the ``bound`` 1 + p(H*) − g(H*). A side
    is None where nothing is accepted.
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
        """A bound of P(no draft is chosen, and the token drawn from the residual is one of them)."""
        missing = np.maximum(self.target - self.accepted, 0.0)
        # Drafts within H* can only meet what the residual holds of H*. Others are hardly ever rejected.
        contained = 1.0 + float(self.target[self.subset].sum()) - self.bound
        chosen = float(self.accepted[self.subset].sum())
        inner = max(0.0, contained - chosen)
        outer = max(0.0, 1.0 - contained - float(self.accepted[~self.subset].sum()))
        unmet = max(1.0 - self.rate, float(missing.sum()), 1e-300)
        meets = float(missing[self.subset].sum()) / unmet
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


@kernel()
def chances_of_drafts(classes, shares, weights, rejection, times, steps, out):
    """Fill the probability that each draft is chosen, given the drafts.

    Draft i is of class classes[i] with probability shares[i] and of the next one otherwise. Class g has
    weight weights[g]; ``rejection`` is the weight w_0, 0 for none.
    """
    count = classes.size
    silent = np.empty(count)
    rings = np.empty(count)
    out[:] = 0.0
    for j in range(times.size):
        s = times[j]
        for i in range(count):
            g, share = classes[i], shares[i]
            silent[i] = share * np.exp(-s * weights[g])
            rings[i] = silent[i] * weights[g]
            if share < 1.0:
                other = (1.0 - share) * np.exp(-s * weights[g + 1])
                silent[i] += other
                rings[i] += other * weights[g + 1]
        waiting = steps[j] * np.exp(-s * rejection)
        for i in range(count):
            chosen = waiting * rings[i]
            for k in range(count):
                if k != i:
                    chosen *= silent[k]
            out[i] += chosen
