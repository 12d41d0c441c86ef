"""The optimal acceptance rate α* = 1 + min over subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from otmd import laws
from otmd.curve import RatioCurve
from otmd.curve._kernels import sum_where
from otmd.curve.blocks import SLACK
from otmd.kernel import in_threads
from otmd.laws.base import takes_law, validate_target
from otmd.laws.distinct import Distinct
from otmd.laws.drafts import Drafts
from otmd.laws.race.containment import RaceCurve
from otmd.optimum.independent_cut import independent_cut
from otmd.optimum.minimum_cut import minimum_cut
from otmd.optimum.stratified_cut import stratified_cut
from otmd.probabilities import BoolArray, FloatArray, IntArray, broadcast_index


class OptimalAcceptance:
    """The optimal acceptance rate and the cut that proves it.

    Parameters
    ----------
    rate : float or ndarray of float64, shape (…)
        α* = 1 + p(H*) − g(H*).
    subset : ndarray of bool, shape (…, V), or a function that returns it
        A function is called when the subset is first asked for.
    """

    def __init__(self, rate: FloatArray | float, subset: BoolArray | Callable[[], BoolArray]) -> None:
        # A float or an array, as the shapes decide, which no type of an array_like tells.
        self.rate: Any = rate
        self._subset = subset

    @property
    def subset(self) -> BoolArray:
        """The smallest minimiser H*, shape (…, V); empty where α* = 1.

        With and without replacement it is worked out at the first access.
        """
        if callable(self._subset):
            self._subset = self._subset()
        return self._subset

    def __float__(self) -> NoReturn:
        raise TypeError(f"float: got {self!r}, expected a number: take its .rate")

    def __repr__(self) -> str:
        return f"OptimalAcceptance(rate={self.rate!r})"

    def __reduce__(self) -> tuple[type, tuple[FloatArray | float, BoolArray]]:
        # A pickle holds the subset itself, not the distributions that it would be computed from.
        return OptimalAcceptance, (self.rate, self.subset)


@takes_law
def optimal_acceptance(target_probs: ArrayLike, law: laws.DraftLaw) -> OptimalAcceptance:
    """The largest acceptance rate of any lossless verifier, for a law of drafts.

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p; leading axes are broadcast against the law's.
    law : DraftLaw
        The law of the drafts.

    Returns
    -------
    OptimalAcceptance
        Its ``rate`` is a float or an array (…). Its ``subset`` is the cut H*.

    Raises
    ------
    ValueError
        For an invalid distribution, another vocabulary than the drafts', or a law that needs a maximum flow
        and has too many tuples for it.
    TypeError
        If ``law`` is not a DraftLaw.

    Notes
    -----
    Deterministic tokens are in every cut that is not empty. Random drafts from one q are cut along the tokens
    in the order of p/q (Hu et al. 2025, Theorem 6), stratified drafts along that order in each stratum. For
    independent drafts from several distributions the cut is a half-space, found by branch and bound. Other
    laws take a maximum flow over their tuples.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> best = otmd.optimal_acceptance([0.5, 0.25, 0.25], law)
    >>> best.rate, best.subset
    (0.9375, array([False,  True,  True]))
    """
    p = validate_target(target_probs, law)
    shared = law.shared_structure()
    drawn = shared and (shared.single or shared.race)
    if drawn:
        value, ends = _prefix_cuts(p, law, drawn)
        # The subset must not depend on the caller's target. By now the search has freed its memory.
        target = p.copy()
        return _optimum(
            value,
            lambda: RatioCurve.unchecked(target, drawn.probs).subsets_below(ends[..., None])[..., 0, :],
        )
    every = list(positions(p, law))
    batch = np.broadcast_shapes(p.shape[:-1], law.batch_shape)
    value, cuts = np.empty(batch), np.empty((*batch, law.vocab_size), dtype=bool)

    def work(start: int, stop: int) -> None:
        for index, target, position in every[start:stop]:
            cuts[index], value[index] = _smallest_cut(target, position)

    in_threads(work, len(every), law.vocab_size)
    return _optimum(value, cuts)


def _optimum(value: FloatArray, subset: BoolArray | Callable[[], BoolArray]) -> OptimalAcceptance:
    """The optimum from p(H) − g(H) of the best cuts (…)."""
    rate = (1.0 + value).clip(0.0, 1.0)
    return OptimalAcceptance(rate if rate.ndim else float(rate), subset)


def _prefix_cuts(
    target: FloatArray, law: laws.DraftLaw, drawn: laws.Slots | laws.Race
) -> tuple[FloatArray, FloatArray]:
    """p(H) − g(H) of the best cuts, and the ratios p/q below which their tokens lie, shape (…)."""
    if isinstance(drawn, laws.Slots):
        values, ends = RatioCurve.unchecked(target, drawn.probs).cuts([law.num_drafts])
        return values[..., 0], ends[..., 0]

    return pairs_by_position(target, law, lambda p, position: _race_cut(p, position.position_structure.race))


def _race_cut(target: FloatArray, race: laws.Race | None) -> tuple[float, float]:
    """p(H) − g(H) of the best cut, and the ratio p/q below which its tokens lie."""
    assert race is not None
    (cut,) = RaceCurve(target, race.arrivals).smallest_cuts()
    return cut.value, cut.end


def positions(
    target: FloatArray, law: laws.DraftLaw
) -> Iterator[tuple[tuple[int, ...], FloatArray, laws.DraftLaw]]:
    """Each position of the broadcast leading axes: its index, target distribution and law."""
    batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
    # NumPy's ndindex takes microseconds to begin.
    for index in product(*map(range, batch)):
        p = target[broadcast_index(index, target.shape[:-1])]
        yield index, p, law[broadcast_index(index, law.batch_shape)]


def pairs_by_position(
    target: FloatArray,
    law: laws.DraftLaw,
    pair: Callable[[FloatArray, laws.DraftLaw], tuple[float, float]],
) -> tuple[FloatArray, FloatArray]:
    """Two arrays (…) from a function of one position."""
    every = list(positions(target, law))
    batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
    first, second = np.empty(batch), np.empty(batch)

    def work(start: int, stop: int) -> None:
        for index, p, position in every[start:stop]:
            first[index], second[index] = pair(p, position)

    in_threads(work, len(every), law.vocab_size)
    return first, second


def _smallest_cut(target: FloatArray, law: laws.DraftLaw) -> tuple[BoolArray, float]:
    """The smallest best cut (V,), and p(H) − g(H), at a single position.

    The cut is empty, or it holds all deterministic tokens and the best cut of the random drafts.
    """
    structure = law.position_structure
    deterministic = structure.deterministic
    best = random_cut(structure.random_target(target), structure.random)
    if best is None:
        subset, rate = minimum_cut(target, law)
        return subset, rate - 1.0
    subset, value = best
    value += float(target[deterministic].sum())
    if deterministic.size and value >= -SLACK:
        return np.zeros(target.size, dtype=bool), 0.0
    subset[deterministic] = True
    return subset, value


def random_cut(target: FloatArray, random: Drafts | None) -> tuple[BoolArray, float] | None:
    """The smallest best cut (V,) of random drafts, and p(H) − g(H); None if a maximum flow is needed."""
    match random:
        case None:
            return np.zeros(target.size, dtype=bool), -1.0
        case laws.Slots(is_single=True, num_drafts=1):
            subset = target < random.probs
            return subset, float(sum_where(target, subset) - sum_where(random.probs, subset))
        case laws.Slots(is_single=True):
            curve = RatioCurve.unchecked(target, random.probs)
            values, ends = curve.cuts([random.num_drafts])
            return curve.subsets_below(ends)[0], float(values[0])
        case laws.Slots(is_strata=True):
            return stratified_cut(target, random)
        case laws.Slots():
            return independent_cut(target, random)
        case laws.Race():
            value, end = _race_cut(target, random)
            return RatioCurve.unchecked(target, random.probs).subsets_below(np.array([end]))[0], value
        case Distinct(probs=q):
            order = RatioCurve.unchecked(target, q).order
            return best_prefix(target, order, random.prefix_containment(order))
    return None


def best_prefix(target: FloatArray, order: IntArray, contained: FloatArray) -> tuple[BoolArray, float]:
    """The smallest best cut among the prefixes of an order (V,) of the tokens, and p(H) − g(H).

    p need not sum to 1; ``contained`` (V + 1,) is g of each prefix.
    """
    values = np.concatenate([[0.0], target[order].cumsum()]) - contained
    size = int(np.argmax(values <= values.min() + SLACK))
    subset = np.zeros(order.size, dtype=bool)
    subset[order[:size]] = True
    return subset, float(values[size])
