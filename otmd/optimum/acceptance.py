"""The optimal acceptance rate α* = 1 + min over subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8)."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from otmd import drafts
from otmd.curve import RatioCurve
from otmd.curve._kernels import sum_where
from otmd.curve.blocks import SLACK
from otmd.drafts.base import validate_target
from otmd.drafts.proposal import order_from
from otmd.drafts.top_then import drafts_by_chance
from otmd.kernel import in_threads
from otmd.optimum.minimum_cut import minimum_cut
from otmd.optimum.stratified_cut import stratified_cut
from otmd.probabilities import BoolArray, FloatArray, IntArray, broadcast_index
from otmd.race.containment import RaceCurve

# A rate that is computed from its cut may differ so much from what the search found.
_CERTIFICATE_TOLERANCE = 1e-10


class OptimalAcceptance:
    """The optimal acceptance rate and the cut that proves it.

    Parameters
    ----------
    rate : float or ndarray of float64, shape (…) or (…, n)
        α* = 1 + p(H*) − g(H*).
    subset : ndarray of bool, shape (…, V) or (…, n, V), or a function that returns it
        A function is called when the subset is first asked for.
    """

    def __init__(
        self, rate: FloatArray | float, subset: BoolArray | Callable[[], BoolArray]
    ) -> None:
        self.rate = rate
        self._subset = subset

    @property
    def subset(self) -> BoolArray:
        """The smallest minimiser H*, shape (…, V) or (…, n, V); empty where α* = 1.

        With and without replacement it is worked out at the first access. Then α* is computed once more,
        over the subset and by the law's own containment, as it is at once for other laws. If it differs, as
        after a change of the target, that is an ArithmeticError.
        """
        if callable(self._subset):
            self._subset = self._subset()
        return self._subset

    def __repr__(self) -> str:
        return f"OptimalAcceptance(rate={self.rate!r})"

    def __reduce__(self) -> tuple[type, tuple[FloatArray | float, BoolArray]]:
        # A pickle holds the subset itself, not the distributions that it would be computed from.
        return OptimalAcceptance, (self.rate, self.subset)


def optimal_acceptance(
    target_probs: ArrayLike, law: drafts.DraftLaw, every_n: bool = False
) -> OptimalAcceptance:
    """The largest acceptance rate of any lossless verifier, for a law of drafts.

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p; leading axes are broadcast against the law's.
    law : DraftLaw
        The law of the drafts.
    every_n : bool
        Answer for the law of the same family with 1, 2, … ``law.num_drafts`` drafts.

    Raises
    ------
    ValueError
        For an invalid distribution, another vocabulary than the drafts', ``every_n`` for a law without
        smaller members, or an Independent or Joint law too large for a maximum flow.
    TypeError
        If ``law`` is not a DraftLaw.

    Notes
    -----
    Laws with one draft distribution are cut along the tokens in the order of p/q (Hu et al. 2025,
    Theorem 6), stratified drafts along that order in each stratum. Other laws take a maximum flow over
    their tuples.
    """
    p = validate_target(target_probs, law)
    if every_n:
        return optimal_rates(p, law, numbers_of_drafts(law))
    best = optimal_rates(p, law, [law.num_drafts])
    rate = np.asarray(best.rate)[..., 0]
    return OptimalAcceptance(
        rate if rate.ndim else float(rate), lambda: np.ascontiguousarray(best.subset[..., 0, :])
    )


def optimal_rates(
    target: FloatArray, law: drafts.DraftLaw, counts: Sequence[int]
) -> OptimalAcceptance:
    """α* of the laws of one family for N numbers of drafts, which ascend; the input is known to be valid.

    The rates are of shape (…, N), the subsets of (…, N, V).
    """
    # Only otmd's own classes have a short way: a class derived from one of them may be another law.
    if type(law) is drafts.WithReplacement or type(law) is drafts.WithoutReplacement:
        value, ends = _cuts(target, law, counts)

        def subset() -> BoolArray:
            subset = RatioCurve.unchecked(target, law.draft_probs).subsets_below(ends)
            for index, p, own in positions(target, law):
                for i, each in enumerate(map(own.with_num_drafts, counts)):
                    _recomputed(p, each, subset[(*index, i)], 1.0 + value[(*index, i)])
            return subset

        return OptimalAcceptance((1.0 + value).clip(0.0, 1.0), subset)
    every = list(positions(target, law))
    batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
    rate = np.empty((*batch, len(counts)))
    cuts = np.empty((*batch, len(counts), law.vocab_size), dtype=bool)

    def work(start: int, stop: int) -> None:
        for index, p, own in every[start:stop]:
            for i, each in enumerate(map(own.with_num_drafts, counts)):
                cut, found = _smallest_cut(p, each)
                cuts[(*index, i)], rate[(*index, i)] = cut, _recomputed(p, each, cut, found)

    in_threads(work, len(every), law.vocab_size)
    return OptimalAcceptance(rate, cuts)


def _recomputed(target: FloatArray, law: drafts.DraftLaw, subset: BoolArray, found: float) -> float:
    """1 + p(H) − g(H) of the cut (V,) at a single position, after a check that the search found the same."""
    rate = 1.0 + float(sum_where(target, subset) - law.position_containment(subset))
    if abs(rate - found) > _CERTIFICATE_TOLERANCE:
        raise ArithmeticError(
            f"optimal_acceptance: the search found {float(found)!r} and its cut gives {rate!r}, which "
            f"should agree to {_CERTIFICATE_TOLERANCE:g}; unless the target was changed in between, please "
            "report the target and draft distributions"
        )
    return min(max(rate, 0.0), 1.0)


def _cuts(
    target: FloatArray, law: drafts.ProposalLaw, counts: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """The smallest best cuts of drafts with or without replacement, see :meth:`RatioCurve.cuts`."""
    if not isinstance(law, drafts.WithoutReplacement):
        return RatioCurve.unchecked(target, law.draft_probs).cuts(counts)

    def cuts(p: FloatArray, own: drafts.DraftLaw) -> list[tuple[float, float]]:
        assert isinstance(own, drafts.WithoutReplacement)
        found = RaceCurve(p, own.race, counts).smallest_cuts()
        return [(cut.value, cut.end) for cut in found]

    return pairs_by_position(target, law, len(counts), cuts)


def numbers_of_drafts(law: drafts.DraftLaw) -> list[int]:
    """1, 2, … n, or a ValueError for a law that does not exist for each of them."""
    try:
        law.with_num_drafts(1)
    except ValueError as reason:
        raise ValueError(
            f"every_n: got {law!r}, wanted a law that exists for every number of drafts from 1; {reason}"
        ) from reason
    return list(range(1, law.num_drafts + 1))


def positions(
    target: FloatArray, law: drafts.DraftLaw
) -> Iterator[tuple[tuple[int, ...], FloatArray, drafts.DraftLaw]]:
    """Each position of the broadcast leading axes: its index, target distribution and law."""
    batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
    # NumPy's ndindex takes microseconds to begin.
    for index in product(*map(range, batch)):
        own = target[broadcast_index(index, target.shape[:-1])]
        yield index, own, law[broadcast_index(index, law.batch_shape)]


def pairs_by_position(
    target: FloatArray,
    law: drafts.DraftLaw,
    size: int,
    pairs: Callable[[FloatArray, drafts.DraftLaw], Sequence[tuple[float, float]]],
) -> tuple[FloatArray, FloatArray]:
    """Two arrays (…, N) from a function that gives the N pairs of one position."""
    every = list(positions(target, law))
    batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
    one, other = np.empty((2, *batch, size))

    def work(start: int, stop: int) -> None:
        for index, p, own in every[start:stop]:
            one[index], other[index] = zip(*pairs(p, own), strict=True)

    in_threads(work, len(every), law.vocab_size)
    return one, other


def _smallest_cut(target: FloatArray, law: drafts.DraftLaw) -> tuple[BoolArray, float]:
    """The smallest best cut and its rate at a single position, for any law without a short way."""
    if not isinstance(law, drafts.ProposalLaw):
        return minimum_cut(target, law)
    forced, rest = drafts_by_chance(law)
    known = (drafts.TopThen, drafts.Greedy, drafts.Hub, drafts.Stratified)
    if type(law) in known and not isinstance(rest, drafts.ConditionalPoisson):
        return _cut_beside(target, forced, rest)
    order = order_from(RatioCurve.unchecked(target, law.mass_beside_forced()).order, forced)
    return best_prefix(target, order, law.prefix_containment(order))


def _cut_beside(
    target: FloatArray, forced: IntArray, rest: drafts.DraftLaw | None
) -> tuple[BoolArray, float]:
    """The cut and its rate where some tokens are always drafted, and the others follow a law or are none.

    The cut is empty, or it holds all forced tokens and the best cut of the other drafts.
    """
    subset, value = np.zeros(target.size, dtype=bool), -1.0
    if isinstance(rest, drafts.Stratified):
        strata = rest.position_strata
        found = stratified_cut(target, strata)
        own = zip(found.curves, found.ends.tolist(), strict=True)
        subset[strata.tokens] = np.concatenate([curve.subset(end) for curve, end in own])
        value = found.value
    elif isinstance(rest, drafts.ProposalLaw) and rest.num_drafts == 1:
        subset = target < rest.draft_probs
        value = sum_where(target, subset) - sum_where(rest.draft_probs, subset)
    elif isinstance(rest, drafts.WithReplacement | drafts.WithoutReplacement):
        values, ends = _cuts(target, rest, [rest.num_drafts])
        subset = RatioCurve.unchecked(target, rest.draft_probs).subsets_below(ends)[0]
        value = float(values[0])
    value += float(target[forced].sum())
    if forced.size and value >= -SLACK:
        return np.zeros(target.size, dtype=bool), 1.0
    subset[forced] = True
    return subset, 1.0 + value


def best_prefix(
    target: FloatArray, order: IntArray, contained: FloatArray
) -> tuple[BoolArray, float]:
    """The smallest best cut among the prefixes of an order (V,) of the tokens, and 1 + p(H) − g(H).

    p need not sum to 1; ``contained`` (V + 1,) is g of each prefix.
    """
    values = np.concatenate([[0.0], target[order].cumsum()]) - contained
    size = int(np.argmax(values <= values.min() + SLACK))
    subset = np.zeros(order.size, dtype=bool)
    subset[order[:size]] = True
    return subset, 1.0 + float(values[size])
