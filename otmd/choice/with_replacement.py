"""The optimal plan for drafts with replacement, at a language model's vocabulary."""

from dataclasses import dataclass

import numpy as np

from otmd.choice.balance import balance
from otmd.choice.classes import RatioClasses, nodes_between, split_masses
from otmd.choice.plan import ChoicePlan, Side
from otmd.choice.times import times_for_weights
from otmd.choice.weighted_choice import choice_rates
from otmd.curve.ratio_histogram import RatioHistogram
from otmd.curve.replacement_cuts import prefix_values, ratio_cut
from otmd.probabilities import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class RatioSide(Side):
    """A side whose tokens are classed by p/q alone.

    Attributes
    ----------
    classes : RatioClasses
        The nodes of the ratio.
    rates : ndarray of float64, shape (G,)
        Chosen mass in units of the class's draft mass.
    ratio, draft : ndarray of float64, shape (V,)
        p/q and q.
    """

    classes: RatioClasses
    rates: FloatArray
    ratio: FloatArray
    draft: FloatArray

    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`Side`."""
        return self.classes.locate(self.ratio[tokens])

    def offered(self, tokens: IntArray) -> FloatArray:
        """See :class:`Side`."""
        # A class is chosen in proportion to q, and a token's ratio is the mean of its classes'.
        return self.draft[tokens] * np.interp(self.ratio[tokens], self.classes.nodes, self.rates)


def plan_with_replacement(
    target: FloatArray, draft: FloatArray, num_drafts: int, tol: float
) -> ChoicePlan:
    """Find the optimal plan for drafts with replacement.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it may sum to less than 1, the rest being no draft's.
    draft : ndarray of float64, shape (V,)
        q, of sum 1.
    num_drafts : int
        n.
    tol : float
        How much acceptance may be lost; never correctness.

    Returns
    -------
    ChoicePlan
    """
    # Two sides share the tolerance; the classes' corners must leave the weights some of it.
    tol = 0.25 * tol
    histogram, size = ratio_cut(RatioHistogram.of(target, draft), num_drafts)
    cut = float(histogram.edges[size])
    value = float(prefix_values(histogram, num_drafts)[size])
    contained = float(histogram.draft_before[size])
    inner = outer = None
    curve = histogram, histogram.draft_before**num_drafts, num_drafts
    if size > 0:
        nodes = nodes_between(*curve, 0, size, 0.2 * tol)
        rejected = max(0.0, contained**num_drafts - float(histogram.target_before[size]))
        classes = split_masses(histogram, nodes, 0, size)
        inner = _side(histogram.ratio, draft, classes, num_drafts, 0.0, rejected, tol)
    if cut < np.inf:
        last = max(size, int(np.searchsorted(histogram.edges, num_drafts)))
        nodes = nodes_between(*curve, size, last, 0.2 * tol)
        classes = split_masses(histogram, nodes, size, histogram.single.size)
        outer = _side(histogram.ratio, draft, classes, num_drafts, contained, None, tol)
    return ChoicePlan(target, histogram.ratio < cut, 1.0 + value, inner, outer)


def _side(
    ratio: FloatArray,
    draft: FloatArray,
    classes: RatioClasses,
    num_drafts: int,
    never: float,
    rejected: float | None,
    tol: float,
) -> Side | None:
    """Solve for the weights of one side; ``rejected`` is the mass to be rejected, where any may be."""
    able = (classes.mass > 0) & (classes.nodes > 0)
    mass, wanted = classes.mass[able], classes.nodes[able]
    if mass.size == 0:
        return None
    never += float(classes.mass[classes.nodes == 0].sum())
    targets = mass * wanted
    if rejected:
        targets = np.append(targets, rejected)
    evaluate = _Evaluate(mass, num_drafts, never, bool(rejected))
    log_weights, found = balance(evaluate, targets, rejected is None, tol)
    weights, rates = np.zeros(able.size), np.zeros(able.size)
    weights[able] = np.exp(log_weights[: mass.size])
    rates[able] = found[: mass.size] / mass
    rejection = float(np.exp(log_weights[-1])) if rejected else 0.0
    times = evaluate.nodes(log_weights)
    return RatioSide(weights, rejection, *times, classes, rates, ratio, draft)


class _Evaluate:
    """The rates of the classes with replacement, as :func:`balance` asks for them."""

    def __init__(self, mass: FloatArray, num_drafts: int, never: float, rejects: bool) -> None:
        self.mass, self.num_drafts, self.never, self.rejects = mass, num_drafts, never, rejects

    def nodes(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Times and steps that serve these weights."""
        return times_for_weights(log_weights, self.num_drafts)

    def __call__(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        size = log_weights.size
        rates, coupling = np.empty(size), np.empty((size, size))
        choice_rates(
            np.exp(log_weights),
            self.mass,
            self.num_drafts,
            self.never,
            self.rejects,
            *self.nodes(log_weights),
            rates,
            coupling,
        )
        return rates, coupling
