"""The optimal acceptance rate α* = 1 + min over subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8)."""

from collections.abc import Callable, Iterator, Sequence

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

_CERTIFICATE_TOLERANCE = 1e-10


class OptimalAcceptance:
    """The optimal acceptance rate and the cut that proves it.

    Parameters
    ----------
    rate : float or ndarray of float64, shape (…) or (…, n)
        α* = 1 + p(H*) − g(H*). With replacement it is the least value of the search; for other laws it is
        computed once more over the subset, by the law's own containment, and must agree.
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

        With replacement it is computed at the first access, from the distributions as they are then.
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
    if type(law) is drafts.WithReplacement:
        cuts = RatioCurve.unchecked(target, law.draft_probs).cuts(counts)
        return OptimalAcceptance(np.clip(1.0 + cuts.value, 0.0, 1.0), cuts.subsets)
    batch = np.broadcast_shapes(target.shape[:-1], law.batch_shape)
    rate = np.empty((*batch, len(counts)))
    subset = np.empty((*batch, len(counts), law.vocab_size), dtype=bool)
    every = list(positions(target, law))

    def work(start: int, stop: int) -> None:
        for index, p, own_law in every[start:stop]:
            for i, (own, contained, found) in enumerate(_cuts_by_count(p, own_law, counts)):
                value = np.array(1.0 + (sum_where(p, own) - contained))
                subset[(*index, i)], rate[(*index, i)] = own, _certified(value, found)

    in_threads(work, len(every), law.vocab_size)
    return OptimalAcceptance(rate, subset)


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
    for index in np.ndindex(batch):
        own = target[broadcast_index(index, target.shape[:-1])]
        yield index, own, law[broadcast_index(index, law.batch_shape)]


def _cuts_by_count(
    target: FloatArray, law: drafts.DraftLaw, counts: Sequence[int]
) -> Iterator[tuple[BoolArray, float, float]]:
    """The smallest best cut at a single position, its g and its rate, for each number of drafts."""
    if type(law) is drafts.WithoutReplacement:
        curve = RaceCurve(target, law.race, counts)
        for n, cut in zip(counts, curve.smallest_cuts(), strict=True):
            subset = curve.subset(cut.end)
            yield subset, law.race.containment(subset, n), 1.0 + cut.value
        return
    for count in counts:
        own = law.with_num_drafts(count)
        subset, found = _cut_of_other_law(target, own)
        yield subset, float(own.position_containment(subset)), found


def _cut_of_other_law(target: FloatArray, law: drafts.DraftLaw) -> tuple[BoolArray, float]:
    """The smallest best cut and its rate under any other law, at a single position."""
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
    elif isinstance(rest, drafts.WithReplacement):
        cuts = RatioCurve.unchecked(target, rest.draft_probs).cuts([rest.num_drafts])
        subset, value = cuts.subsets()[0], float(cuts.value[0])
    elif isinstance(rest, drafts.WithoutReplacement):
        curve = RaceCurve(target, rest.race, [rest.num_drafts])
        (cut,) = curve.smallest_cuts()
        subset, value = curve.subset(cut.end), cut.value
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


def _certified(rate: FloatArray, found: FloatArray | float) -> FloatArray:
    """The rates computed from the cuts, after a check that the search found the same."""
    off = np.abs(rate - found) > _CERTIFICATE_TOLERANCE
    if off.any():
        raise ArithmeticError(
            f"optimal_acceptance: the search found {np.ravel(found)[np.ravel(off)][0]!r} and its cut "
            f"gives {rate[off][0]!r}, which should agree to {_CERTIFICATE_TOLERANCE:g}; please report "
            "the target and draft distributions"
        )
    return np.clip(rate, 0.0, 1.0)
