"""Lossy verification with a budget: the largest acceptance rate for a divergence from the target.

Let K be the least concave function through (0, 0) and (1, 1) above all points (p(H), g(H)), and let s_y be
p_y times the slope of K at y. Of all output laws with rate 1 − ℓ, p′_y = p_y · min(max(s_y/p_y, low), high)
has the least f-divergence for every f, if Σ (s − high p)₊ = ℓ = Σ (low p − s)₊; see docs/theory_lossy.md.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import kl_div

from otmd.curve._kernels import ratios_of
from otmd.curve.ratio_curve import RatioCurve
from otmd.drafts import DraftLaw, Race, Slots, Structure, Table
from otmd.drafts.base import validate_law, validate_target
from otmd.drafts.proposal import ProposalLaw, order_from
from otmd.kernel import kernel
from otmd.optimum.acceptance import positions
from otmd.optimum.stratified_cut import entry_times
from otmd.probabilities import FloatArray, IntArray, accumulated

# A bisection halves its interval so many times, which is down to the rounding of 1.
_HALVINGS = 60


# Of Σ p f(p′/p): f, convex with minimum f(1) = 0, and lim f(r)/r, the price of mass at p = 0.
_DIVERGENCES: dict[str, tuple[Callable[[FloatArray], FloatArray], float]] = {
    "total_variation": (lambda r: 0.5 * np.abs(r - 1.0), 0.5),
    "kl": (lambda r: kl_div(r, 1.0), np.inf),
    "reverse_kl": (lambda r: kl_div(1.0, r), 1.0),
    "chi_squared": (lambda r: (r - 1.0) ** 2, np.inf),
}


class LossyFrontier:
    """The Pareto front of acceptance rate against divergence, as :func:`lossy_frontier` returns it.

    Parameters
    ----------
    target : ndarray of float64, shape (…, V)
        p, known to be valid.
    law : ProposalLaw
        The law of the drafts, over the same vocabulary.
    divergence : str
        A name that :func:`lossy_frontier` knows.

    Attributes
    ----------
    lossless_rate : float or ndarray of float64, shape (…)
        α*, the rate at no divergence.
    """

    def __init__(self, target: FloatArray, law: ProposalLaw, divergence: str) -> None:
        self.divergence = divergence
        self._size = law.vocab_size
        batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
        self._strings = np.empty(batch, dtype=object)
        for index, p, own in positions(target, law):
            self._strings[index] = _TautString(p, own, divergence)
        self.lossless_rate = self._each(0.0, lambda string, _: 1.0 - string.most_loss)

    def rate_at(self, budget: ArrayLike) -> FloatArray | float:
        """The largest acceptance rate of any rule whose output law is within the budget, a divergence from p.

        Parameters
        ----------
        budget : array_like
            Numbers ≥ 0, or ≥ 1 for ``"leniency"``, else ValueError; broadcast against the leading axes.
        """
        return self._each(self._budget(budget), lambda string, each: 1.0 - string.loss_at(each))

    def output_law(self, budget: ArrayLike) -> FloatArray:
        """The output law p′ (…, V) that has the least divergence at the rate that a budget allows.

        ``Optimal().verify(output_law, law, …)`` attains the rate. The output law is p where the budget is 0.
        For the budget see :meth:`rate_at`.
        """
        strings, given = np.broadcast_arrays(self._strings, self._budget(budget))
        laws = np.empty((*strings.shape, self._size))
        for index, string in np.ndenumerate(strings):
            laws[index] = string.output_law(string.loss_at(float(given[index])))
        return laws

    def divergence_at(self, rate: ArrayLike) -> FloatArray | float:
        """The least divergence from p of any rule with this acceptance rate.

        A lossy rule wastes the difference between its divergence and this one at its rate. The result is 0,
        or 1 for ``"leniency"``, up to the lossless rate, and inf where no budget is enough.

        Parameters
        ----------
        rate : array_like
            Numbers in [0, 1], else ValueError; broadcast against the leading axes.
        """
        given = _between("rate", rate, 0.0, 1.0)
        return self._each(given, lambda string, each: string.cost(1.0 - each))

    def _budget(self, budget: ArrayLike) -> FloatArray:
        return _between("budget", budget, 1.0 if self.divergence == "leniency" else 0.0, np.inf)

    def _each(
        self, values: ArrayLike, answer: Callable[["_TautString", float], float]
    ) -> FloatArray | float:
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
        The divergence of the output law p′ from p: ``"total_variation"`` ½Σ|p′ − p|, ``"kl"``
        Σ p′ log(p′/p), ``"reverse_kl"`` Σ p log(p/p′), ``"chi_squared"`` Σ (p′ − p)²/p, or ``"leniency"``
        max p′/p, the least γ with p′ ≤ γp.

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
    """
    validate_law(law)
    names = [*_DIVERGENCES, "leniency"]
    if divergence not in names:
        raise ValueError(f"divergence: got {divergence!r}, wanted one of {', '.join(names)}")
    if not isinstance(law, ProposalLaw):
        raise ValueError(f"law: got {law!r}, wanted a law with one draft distribution")
    return LossyFrontier(validate_target(target_probs, law), law, divergence)


class _TautString:
    """The front of one position: a string of pieces, steepest first, each of tokens with one slope s/p."""

    def __init__(self, target: FloatArray, law: DraftLaw, divergence: str) -> None:
        assert isinstance(law, ProposalLaw)
        self.target, self._divergence = target, divergence
        structure = law.position_structure()
        order = order_from(_order_of_corners(target, structure), structure.deterministic)
        x, contained = accumulated(target[order]), law.prefix_containment(order)
        contained[-1] = 1.0
        corners = np.empty(x.size, np.int64)
        corners = corners[: _fill_corners(x, contained, corners)]
        p, self._mass = np.diff(x[corners]), np.diff(contained[corners])
        self._slope = np.divide(self._mass, p, out=np.full(p.size, np.inf), where=p > 0.0)
        self._piece = np.empty(order.size, np.int64)
        self._piece[order] = np.repeat(np.arange(p.size), np.diff(corners))
        # Tokens with p = 0 share their output mass by q: by q-convexity, g of a set of these is no larger.
        self._fresh = self._mass[0] if p[0] == 0.0 else 0.0
        self._share = None
        if self._fresh:
            drawn = _random_probs(structure, target.size)
            self._share = _share(drawn, np.flatnonzero(self._piece == 0))
        steep = self._slope > 1.0
        self.most_loss = max(0.0, float((self._mass[steep] - p[steep]).sum()))
        self._above = _Levels(p, self._mass, self._slope)
        self._below = _Levels(p[::-1], self._mass[::-1], self._slope[::-1])
        if divergence != "leniency":
            f, _ = _DIVERGENCES[divergence]
            finite = np.where(np.isinf(self._slope), 1.0, self._slope)
            self._costs = accumulated(np.where(p > 0.0, p * f(finite), 0.0))

    def output_law(self, loss: float) -> FloatArray:
        """The cheapest output law (V,) with this loss."""
        if loss >= self.most_loss:
            return self.target.copy()
        slope = np.clip(self._slope, self._below.at(loss, 1.0)[1], self._above.at(loss, -1.0)[1])
        slope[np.isinf(slope)] = 0.0
        output = self.target * slope[self._piece]
        if self._share is not None:
            tokens, share = self._share
            output[tokens] = max(self._fresh - loss, 0.0) * share
        return output / output.sum()

    def cost(self, loss: float) -> float:
        """The least divergence of an output law with this loss."""
        lenient = self._divergence == "leniency"
        if loss >= self.most_loss:
            return 1.0 if lenient else 0.0
        (lowered, high), (raised, low) = self._above.at(loss, -1.0), self._below.at(loss, 1.0)
        if lenient:
            return high
        f, price = _DIVERGENCES[self._divergence]
        fresh = max(self._fresh - loss, 0.0)
        cost = price * fresh if fresh > 0.0 else 0.0
        between = self._costs[self._slope.size - raised] - self._costs[lowered]
        for mass, level in ((self._above.p[lowered], high), (self._below.p[raised], low)):
            if mass > 0.0 and np.isfinite(level):
                cost += mass * float(f(np.array(level)))
        return float(cost + between)

    def loss_at(self, budget: float) -> float:
        """The least loss within the budget."""
        if budget == 0.0 or self._divergence == "total_variation":
            return max(self.most_loss - budget, 0.0)
        if self.cost(0.0) <= budget:
            return 0.0
        if self._divergence == "leniency":
            over = self._slope > budget
            return float((self._mass - budget * np.diff(self._above.p))[over].sum())
        low, high = 0.0, self.most_loss
        for _ in range(_HALVINGS):
            loss = 0.5 * (low + high)
            low, high = (low, loss) if self.cost(loss) <= budget else (loss, high)
        return high


def _order_of_corners(target: FloatArray, structure: Structure) -> IntArray:
    """The tokens (V,) in an order of which every corner of K is a prefix; deterministic ones are anywhere."""
    strata = structure.random
    if not isinstance(strata, Slots) or strata.is_single:
        return RatioCurve.unchecked(target, _random_probs(structure, target.size)).order
    ordered, entry = np.empty(target.size, np.int64), np.empty(target.size)
    for first, end in pairwise(strata.starts):
        own = strata.tokens[first:end]
        ratio = ratios_of(target, strata.token_probs, own)
        ascending = np.argsort(ratio)
        ordered[first:end] = own = own[ascending]
        entry[first:end] = entry_times(ratio[ascending], strata.token_probs[own])
    # Stable: tokens of one stratum that enter together stay in their order.
    return ordered[np.argsort(entry, kind="stable")]


class _Levels:
    """The pieces from one end of the string on: a loss levels the first of them to one slope."""

    def __init__(self, p: FloatArray, mass: FloatArray, slope: FloatArray) -> None:
        self.p, self._s, self._slope = accumulated(p), accumulated(mass), slope
        # The loss at which all pieces before a piece are levelled to its slope.
        before = self.p[:-1]
        level = np.multiply(slope, before, out=np.zeros(slope.size), where=before > 0.0)
        self._lost = np.maximum.accumulate(np.abs(self._s[:-1] - level))

    def at(self, loss: float, sign: float) -> tuple[int, float]:
        """The number of levelled pieces, and their slope; a sign of −1 lowers them, 1 raises them."""
        count = int(np.searchsorted(self._lost, loss))
        if count == 0:
            return 0, float(self._slope[0])
        p = self.p[count]
        return count, float((self._s[count] + sign * loss) / p) if p > 0.0 else np.inf


def _between(name: str, value: ArrayLike, least: float, most: float) -> FloatArray:
    """Numbers from ``least`` to ``most``, or a ValueError."""
    given = np.asarray(value, dtype=np.float64)
    # Written so that NaN is refused as well.
    if not ((given >= least) & (given <= most)).all():
        raise ValueError(f"{name}: got {value!r}, wanted numbers in [{least:g}, {most:g}]")
    return given


def _random_probs(structure: Structure, vocab_size: int) -> FloatArray:
    """The distribution that each token is drawn from at random, shape (V,): q, or q_j of its stratum."""
    random = structure.random
    if isinstance(random, Slots):
        return random.token_probs
    if isinstance(random, Race | Table) and random.probs is not None:
        return random.probs
    return np.zeros(vocab_size)


def _share(probs: FloatArray, tokens: IntArray) -> tuple[IntArray, FloatArray]:
    """The shares of an output mass for tokens with p = 0: in proportion to how they are drafted (V,)."""
    share = probs[tokens]
    if not share.any():
        share = np.ones(tokens.size)
    return tokens, share / share.sum()


@kernel()
def _fill_corners(x, y, corners):
    """Fill the corners of the least concave function above points with ascending x; return their number."""
    size = 0
    for i in range(x.size):
        while size > 1:
            a, b = corners[size - 2], corners[size - 1]
            if (y[i] - y[b]) * (x[b] - x[a]) < (y[b] - y[a]) * (x[i] - x[b]):
                break
            size -= 1
        corners[size] = i
        size += 1
    return size
