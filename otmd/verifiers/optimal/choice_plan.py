"""A lossless plan at one position: random clocks choose one of the drafts.

A token is of one of several classes at random. The clock of a draft of class g rings after an exponential
time of rate w_g, the weight of the class, and that of the rejection after one of rate w_0. Whichever rings
first is chosen, so each is chosen with probability proportional to its weight. A quadrature integrates over
the time s of the first ring (docs/optimal_verifier.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.verifiers.prepared import Choice

_SPACING = 0.25
# The index of the first node: at v = −3.75, s = exp(v − e^{−v}) is below rounding.
_FIRST = -15
# e^{−45} is below the rounding of 1.
_SILENT = 45.0


class Quadrature(NamedTuple):
    """Nodes and steps of ∫₀^∞ f(s) ds ≈ Σ steps·f(times), each of shape (J,)."""

    times: FloatArray
    steps: FloatArray


def clock_quadrature(slowest: float, fastest: float) -> Quadrature:
    """Nodes and steps to integrate sums of exponentials e^{−rs} with rates r from ``slowest`` to ``fastest``.

    The substitution s = exp(v − e^{−v}) makes the trapezoidal rule converge double exponentially at the
    early end (Takahasi and Mori 1974). The rule is exact to rounding.
    """
    latest = np.log(_SILENT * fastest / slowest)
    v = _SPACING * np.arange(_FIRST, np.ceil(latest / _SPACING) + 1.0)
    # s = exp(v − e^{−v})/fastest : times, ds/dv dv : steps
    times = np.exp(v - np.exp(-v)) / fastest
    return Quadrature(times, _SPACING * times * (1.0 + np.exp(-v)))


def quadrature_for_weights(log_weights: FloatArray, num_drafts: int) -> Quadrature:
    """The quadrature for clocks with these log weights (G,), of which ``num_drafts`` may run at once."""
    return clock_quadrature(np.exp(log_weights.min()), np.exp(log_weights.max()) * num_drafts)


@dataclass(frozen=True, eq=False)
class Side:
    """Classes, weights and clocks that choose among the drafts on one side of the cut: in H*, or outside.

    ``weights`` (G,) are the rates of the classes' clocks. Only the clocks of the highest of the ``tiers``
    (G,) among the drafts run. ``rejection`` is the rate of the clock that rejects all drafts, 0 without one.
    The quadrature integrates over the time of the first ring.

    ``offered`` takes tokens (T,) of this side, and returns the probability that each is chosen, before
    thinning. ``classes_of`` takes drafts (T,) and the rows of their distributions (T,). It returns the K
    classes of each and their probabilities, (T, K); the rest up to 1 is of no class.
    """

    weights: FloatArray
    tiers: IntArray
    rejection: float
    quadrature: Quadrature
    offered: Callable[[IntArray], FloatArray]
    classes_of: Callable[[IntArray, IntArray], tuple[IntArray, FloatArray]]

    def clocks(self, classes: IntArray, probs: FloatArray, tier: int) -> tuple[FloatArray, FloatArray]:
        """P(silent) and the density of a ring by time (T, J), of drafts of these classes, if a tier runs."""
        tiers, weights = self.tiers[classes], self.weights[classes]
        running = probs * (tiers == tier)
        ringing = running[..., None] * np.exp(-weights[..., None] * self.quadrature.times)
        lower = np.where(tiers < tier, probs, 0.0).sum(axis=1) + np.maximum(1.0 - probs.sum(axis=1), 0.0)
        return lower[:, None] + ringing.sum(axis=1), (weights[..., None] * ringing).sum(axis=1)

    def choice_probs(self, tokens: IntArray, rows: IntArray) -> FloatArray:
        """Probability that each of the drafts (T,) is chosen, drawn from the distributions ``rows`` (T,)."""
        classes, probs = self.classes_of(tokens, rows)
        waiting = self.quadrature.steps * np.exp(-self.quadrature.times * self.rejection)
        chosen = np.zeros(tokens.size)
        for tier in np.unique(self.tiers[classes]).tolist():
            silent, ringing = self.clocks(classes, probs, tier)
            for i in range(tokens.size):
                chosen[i] += ringing[i] * np.delete(silent, i, axis=0).prod(axis=0) @ waiting
        return chosen


@dataclass(frozen=True, eq=False)
class ChoicePlan(Choice):
    """A lossless verifier at one position: it chooses one of the drafts or none.

    If some drafts lie outside H*, one of them is chosen; otherwise one of the drafts or none is. A chosen
    draft is thinned, that is kept with a probability such that no token is accepted with more than its p.
    ``target`` (V,) is p, with a sum of at most 1. ``row_of_slot`` (n,) is the distribution of each draft, and
    ``subset`` (V,) is H*. No lossless verifier exceeds the ``bound`` 1 + p(H*) − g(H*). A side is None if it
    accepts nothing.
    """

    target: FloatArray
    row_of_slot: IntArray
    subset: BoolArray
    bound: float
    inner: Side | None
    outer: Side | None

    @cached_property
    def accepted(self) -> FloatArray:
        """The probability that each token is accepted, at most p, shape (V,)."""
        mass = np.zeros(self.target.size)
        for side, members in ((self.inner, self.subset), (self.outer, ~self.subset)):
            if side is not None:
                tokens = np.flatnonzero(members)
                mass[tokens] = np.minimum(side.offered(tokens), self.target[tokens])
        return mass

    @property
    def residual_hit_bound(self) -> float:
        """An upper bound of P(no draft is accepted, and the token drawn from the residual is a draft)."""
        missing = np.maximum(self.target - self.accepted, 0.0)
        # If all drafts lie in H*, only the residual's mass in H* can be one of them. Otherwise a rejection
        # is rare, and is counted whole.
        target_inside, accepted_inside, missing_inside = (
            float(np.where(self.subset, mass, 0.0).sum()) for mass in (self.target, self.accepted, missing)
        )
        contained = 1.0 + target_inside - self.bound
        rejected_inside = max(0.0, contained - accepted_inside)
        rejected_outside = max(0.0, 1.0 - contained - (self.rate - accepted_inside))
        drawn_inside = missing_inside / max(1.0 - self.rate, float(missing.sum()), 1e-300)
        bound = rejected_inside * drawn_inside + rejected_outside
        return min(max(self.bound - self.rate, 0.0), bound)

    def choice_probs(self, tokens: IntArray) -> FloatArray:
        """Probability that each of the drafts (n,) is accepted, given these drafts, shape (n,)."""
        inside = self.subset[tokens]
        side = self.inner if inside.all() else self.outer
        probs = np.zeros(tokens.size)
        if side is not None:
            drafts = np.flatnonzero(inside == inside.all())
            y = tokens[drafts]
            offered = side.offered(y)
            accepted = np.minimum(offered, self.target[y])
            kept = np.divide(accepted, offered, out=np.zeros(y.size), where=offered > 0.0)
            probs[drafts] = kept * side.choice_probs(y, self.row_of_slot[drafts])
        return probs
