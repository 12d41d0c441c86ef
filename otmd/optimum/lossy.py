"""Lossy verification with a budget: the largest acceptance rate for a divergence from the target.

Let K be the least concave function through (0, 0) and (1, 1) above all points (p(H), g(H)), and let s_y be
p_y times the slope of K at y. Of all distributions of the output with rate 1 − ℓ,
p′_y = p_y · min(max(s_y/p_y, low), high) has the least f-divergence for every f, if
Σ (s − high p)₊ = ℓ = Σ (low p − s)₊; see docs/theory_lossy.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import kl_div

from otmd.curve._kernels import SLACK, ratios_of
from otmd.curve.ratio_curve import RatioCurve
from otmd.kernel import kernel
from otmd.laws import DraftLaw, Slots, Structure
from otmd.laws.base import validate_law, validate_target
from otmd.optimum.acceptance import positions
from otmd.optimum.stratified_cut import entry_times
from otmd.probabilities import FloatArray, IntArray, accumulated, wrong, wrong_type

# A bisection halves its interval so many times, which is down to the rounding of its ends.
_HALVINGS = 64
_SMALLEST = float(np.nextafter(0.0, 1.0))


def _ratio(mass: ArrayLike, p: ArrayLike) -> FloatArray:
    """Mass over p; 0 where both are 0, and inf where only p is."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(np.equal(mass, 0.0), 0.0, np.divide(mass, p))


# What tokens of output mass p′ and target mass p add to the divergence, if they have one p′/p.
_PARTS: dict[str, Callable[[Any, Any], Any]] = {
    "total_variation": lambda mass, p: 0.5 * np.abs(mass - p),
    "kl": kl_div,
    "reverse_kl": lambda mass, p: kl_div(p, mass),
    "chi_squared": lambda mass, p: (mass - p) * _ratio(mass - p, p),
    "leniency": _ratio,
}


class LossyFrontier:
    """The Pareto front of acceptance rate against divergence, as :func:`lossy_frontier` returns it.

    Parameters
    ----------
    target : ndarray of float64, shape (…, V)
        p, known to be valid.
    law : DraftLaw
        The law of the drafts, over the same vocabulary, else ValueError for drafts of several distributions.
    divergence : str
        A name that :func:`lossy_frontier` knows.

    Attributes
    ----------
    lossless_rate : float or ndarray of float64, shape (…)
        α*, the rate at no divergence.
    """

    def __init__(self, target: FloatArray, law: DraftLaw, divergence: str) -> None:
        self.divergence = divergence
        self._size = law.vocab_size
        batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
        self._strings = np.empty(batch, dtype=object)
        for index, p, position in positions(target, law):
            self._strings[index] = _TautString(p, position, divergence)
        self.lossless_rate = self._each(0.0, lambda string, _: 1.0 - string.lossless.loss)

    def rate_at(self, budget: ArrayLike) -> FloatArray | float:
        """The largest acceptance rate of any rule whose output is within the budget, a divergence from p.

        Parameters
        ----------
        budget : array_like
            Numbers ≥ 0, or ≥ 1 for ``"leniency"``, else ValueError; broadcast against the leading axes.

        Returns
        -------
        float or ndarray of float64
            In the broadcast shape.
        """
        return self._each(self._budget(budget), lambda string, most: 1.0 - string.within(most).loss)

    def output_distribution(self, budget: ArrayLike) -> FloatArray:
        """Output distribution p′ (…, V) of least divergence at the rate that a budget allows.

        ``Optimal().verify(output_distribution, law, …)`` attains the rate. It is p where the budget is 0.
        For the budget see :meth:`rate_at`.
        """
        strings, given = np.broadcast_arrays(self._strings, self._budget(budget))
        laws = np.empty((*strings.shape, self._size))
        for index, string in np.ndenumerate(strings):
            laws[index] = string.output_distribution(string.within(float(given[index])))
        return laws

    def divergence_at(self, rate: ArrayLike) -> FloatArray | float:
        """The least divergence from p of any rule with this acceptance rate.

        A lossy rule wastes the difference between its divergence and this one at its rate. The result is 0,
        or 1 for ``"leniency"``, up to the lossless rate, and inf where no budget is enough.

        Parameters
        ----------
        rate : array_like
            Numbers in [0, 1], else ValueError; broadcast against the leading axes.

        Returns
        -------
        float or ndarray of float64
            In the broadcast shape.
        """
        given = _between("rate", rate, 0.0, 1.0)
        return self._each(given, lambda string, rate: string.cost(string.losing(1.0 - rate)))

    def _budget(self, budget: ArrayLike) -> FloatArray:
        return _between("budget", budget, 1.0 if self.divergence == "leniency" else 0.0, np.inf)

    def _each(self, values: ArrayLike, answer: Callable[[_TautString, float], float]) -> FloatArray | float:
        out = np.vectorize(answer, otypes=[np.float64])(self._strings, values)
        return out if out.shape else float(out)


def lossy_frontier(
    target_probs: ArrayLike, law: DraftLaw, divergence: str = "total_variation"
) -> LossyFrontier:
    """The largest acceptance rate of any rule, lossless or not, for each divergence of its output from p.

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p; leading axes are broadcast against the law's.
    law : DraftLaw
        The law of the drafts, with one draft distribution: any but Independent and Joint.
    divergence : str
        The divergence of the output's distribution p′ from p: ``"total_variation"`` ½Σ|p′ − p|, ``"kl"``
        Σ p′ log(p′/p), ``"reverse_kl"`` Σ p log(p/p′), ``"chi_squared"`` Σ (p′ − p)²/p, or ``"leniency"``
        max p′/p, the least γ with p′ ≤ γp.

    Returns
    -------
    LossyFrontier
        Its methods give the rate at a divergence, the divergence at a rate, and the output distribution.

    Raises
    ------
    ValueError
        For an invalid distribution, another vocabulary than the drafts', an unknown divergence, or a law
        without one draft distribution.
    TypeError
        If ``law`` is not a DraftLaw.

    Notes
    -----
    For one draft, the front of total variation is that of Yin et al. 2024 (Theorem 5), and mentored decoding
    (Tran-Thien 2023) attains that of KL.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> frontier = otmd.lossy_frontier([0.5, 0.25, 0.25], law)
    >>> round(frontier.rate_at(0.0), 4), round(frontier.rate_at(0.05), 4)
    (0.9375, 0.9875)
    """
    validate_law(law, target_probs)
    if divergence not in _PARTS:
        raise wrong("divergence", repr(divergence), f"one of {', '.join(_PARTS)}")
    return LossyFrontier(validate_target(target_probs, law, copy=True), law, divergence)


class _Side:
    """The pieces on one side of slope 1, from the end of the string on; the first are levelled to one slope.

    All sums run outwards or inwards on one side, since p′/p may be hundreds of orders of magnitude larger
    than on the other.
    """

    def __init__(self, p: FloatArray, mass: FloatArray, parts: FloatArray, join: np.ufunc) -> None:
        self.slope = _ratio(mass, p)
        self.p, self.mass = accumulated(p), accumulated(mass)
        # All but the first k pieces add this to the divergence.
        self.rest = np.append(join.accumulate(parts[::-1])[::-1], 0.0)
        # The loss at which all pieces before a piece are levelled to its slope.
        before = self.p[:-1]
        level = np.multiply(self.slope, before, out=np.zeros(p.size), where=before > 0.0)
        self._lost = np.maximum.accumulate(np.abs(self.mass[:-1] - level))

    def levelled_by(self, loss: float) -> int:
        """The number of pieces that a loss levels."""
        return int(np.searchsorted(self._lost, loss))


class _Point(NamedTuple):
    """A point of the front: the ``levelled`` steepest pieces keep a mass ``kept`` and lose ``loss``."""

    levelled: int
    kept: float
    loss: float


class _TautString:
    """The front of one position: a string of pieces, steepest first, each of tokens with one slope s/p."""

    def __init__(self, target: FloatArray, law: DraftLaw, divergence: str) -> None:
        self.target = target
        self._part = _PARTS[divergence]
        self._join, self._least = (np.maximum, 1.0) if divergence == "leniency" else (np.add, 0.0)
        structure = law.position_structure
        probs = structure.random_probs()
        if probs is None:
            raise wrong("law", repr(law), "a law with one draft distribution")
        corners = _order_of_corners(target, structure, probs)
        later = corners[~np.isin(corners, structure.deterministic)]
        order = np.append(structure.deterministic, later)
        contained = structure.prefix_containment(order)
        contained[-1] = 1.0
        p, mass = target[order], np.diff(np.maximum.accumulate(contained.clip(0.0, 1.0)))
        first = np.empty(order.size, np.int64)
        size = _pool_pieces(p, mass, first)
        p, mass = p[:size], mass[:size]
        self._piece = np.empty(order.size, np.int64)
        self._piece[order] = np.repeat(np.arange(size), np.diff(first[:size], append=order.size))
        self._slope, parts = _ratio(mass, p), self._part(mass, p)
        # Tokens with p = 0 share their output mass by q: by q-convexity, g of a set of these is no larger.
        self._fresh = float(mass[0]) if np.isinf(self._slope[0]) else 0.0
        self._share = None
        if self._fresh:
            fresh = np.flatnonzero(self._piece == 0)
            # Deterministic tokens, if there are any, take it all: no other set is contained.
            share = np.isin(fresh, structure.deterministic).astype(np.float64)
            share = share if share.any() else probs[fresh]
            self._share = fresh, share / share.sum()
        steep = np.count_nonzero(self._slope > 1.0)
        self._above = _Side(p[:steep], mass[:steep], parts[:steep], self._join)
        flat = p[steep:][::-1], mass[steep:][::-1], parts[steep:][::-1]
        self._below = _Side(*flat, self._join)
        finite = self._slope[np.isfinite(self._slope)]
        self._steepest = float(np.log(finite.max(initial=1.0)))
        self.lossless = self._lowered(0.0)

    def output_distribution(self, point: _Point) -> FloatArray:
        """The cheapest distribution (V,) of the output with the loss of a point."""
        if point.loss >= self.lossless.loss:
            return self.target.copy()
        slope, (raised, mass) = self._slope.copy(), self._raised(point.loss)
        slope[: point.levelled] = _ratio(point.kept, self._above.p[point.levelled])
        slope[slope.size - raised :] = _ratio(mass, self._below.p[raised])
        slope[np.isinf(slope)] = 0.0
        slope = slope[self._piece]
        output = self.target * slope
        # Where a subnormal p underflows to 0, the reverse KL divergence would be infinite.
        np.maximum(output, _SMALLEST, out=output, where=(self.target > 0.0) & (slope > 0.0))
        if self._share is not None:
            tokens, share = self._share
            output[tokens] = share * (self._fresh, point.kept, 0.0)[min(point.levelled, 2)]
        return output / output.sum()

    def cost(self, point: _Point) -> float:
        """The least divergence of an output with the loss of a point."""
        if point.loss >= self.lossless.loss:
            return self._least
        raised, mass = self._raised(point.loss)
        levelled = [
            self._part(point.kept, self._above.p[point.levelled]),
            self._part(mass, self._below.p[raised]),
        ]
        rest = [self._above.rest[point.levelled], self._below.rest[raised]]
        return float(self._join.reduce(levelled + rest))

    def losing(self, loss: float) -> _Point:
        """The point with a loss; the lossless one if the loss is larger, up to rounding."""
        if loss >= self.lossless.loss - SLACK:
            return self.lossless
        count = self._above.levelled_by(loss)
        return _Point(count, float(self._above.mass[count]) - loss, loss)

    def within(self, budget: float) -> _Point:
        """The point with the least loss within the budget."""
        low, high = 0.0, self._steepest + 1.0
        if budget <= self._least:
            return self.lossless
        if self.cost(self._lowered(high)) <= budget:
            return self._lowered(high)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            within = self.cost(self._lowered(middle)) <= budget
            low, high = (middle, high) if within else (low, middle)
        return self._lowered(low)

    def _lowered(self, log_level: float) -> _Point:
        """The point where steeper pieces are lowered to a slope, given by its logarithm.

        Above the steepest slope, the logarithm goes on for a length of 1, along which the part of the mass at
        p = 0 that is kept grows to 1.
        """
        beyond = min(log_level - self._steepest, 1.0)
        if beyond > 0.0:
            kept = beyond * self._fresh
            return _Point(1 if self._fresh else 0, kept, self._fresh - kept)
        level = np.exp(log_level)
        count = int(np.count_nonzero(self._above.slope > level))
        kept = level * self._above.p[count]
        return _Point(count, float(kept), max(0.0, float(self._above.mass[count] - kept)))

    def _raised(self, loss: float) -> tuple[int, float]:
        """The number of the flattest pieces that a loss raises to one slope, and their mass with it."""
        count = self._below.levelled_by(loss)
        return count, float(self._below.mass[count]) + loss


def _order_of_corners(target: FloatArray, structure: Structure, probs: FloatArray) -> IntArray:
    """The tokens (V,) in an order of which every corner of K is a prefix; deterministic ones are anywhere."""
    strata = structure.random
    if not isinstance(strata, Slots) or strata.is_single:
        return RatioCurve.unchecked(target, probs).order
    ordered, entry = np.empty_like(strata.tokens), np.empty(strata.tokens.size)
    for first, end in pairwise(strata.starts):
        tokens = strata.tokens[first:end]
        ratio = ratios_of(target, probs, tokens)
        ascending = np.argsort(ratio)
        ordered[first:end] = tokens[ascending]
        entry[first:end] = entry_times(ratio[ascending], probs[ordered[first:end]])
    # Stable: tokens of one stratum that enter together stay in their order. Those never drawn come last.
    never = np.ones(target.size, np.bool_)
    never[strata.tokens] = False
    return np.append(ordered[np.argsort(entry, kind="stable")], np.flatnonzero(never))


def _between(name: str, value: ArrayLike, least: float, most: float) -> FloatArray:
    """Numbers from ``least`` to ``most``; TypeError or ValueError for anything else."""
    given = np.asarray(value)
    if given.dtype.kind not in "fiu":
        raise wrong_type(name, value, f"numbers in [{least:g}, {most:g}]")
    given = given.astype(np.float64)
    # Written so that NaN is refused as well.
    if not ((given >= least) & (given <= most)).all():
        raise wrong(name, repr(value), f"numbers in [{least:g}, {most:g}]")
    return given


@kernel(error_model="numpy")
def _pool_pieces(p, mass, first):
    """Pool neighbours until mass/p falls from piece to piece; return the number of pieces.

    The pieces' p and mass replace those of the tokens, and ``first`` is filled with their first tokens. Sums
    are of a piece alone: differences of sums over all tokens would lose small masses.
    """
    size = 0
    for i in range(p.size):
        p[size], mass[size], first[size] = p[i], mass[i], i
        size += 1
        # Written so that 0/0 is pooled as well.
        while size > 1 and not mass[size - 2] / p[size - 2] > mass[size - 1] / p[size - 1]:
            size -= 1
            p[size - 1] += p[size]
            mass[size - 1] += mass[size]
    return size
