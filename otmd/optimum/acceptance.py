"""The optimal acceptance rate α* = 1 + min over subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw, ProposalLaw, WithoutReplacement, WithReplacement
from otmd.drafts.proposal import order_from
from otmd.kernels.curve import mass_before, smallest_minimiser
from otmd.optimum.minimum_cut import minimum_cut
from otmd.optimum.race_cut import race_cut
from otmd.optimum.ratio_cut import prefix_values, ratio_cut
from otmd.probabilities import (
    BoolArray,
    FloatArray,
    IntArray,
    broadcast_index,
    validate_probs,
    validate_same_vocabulary,
)
from otmd.ratio_curve import RatioCurve
from otmd.ratio_histogram import RatioHistogram

# Rounding can make a prefix look better than a smaller one that is as good.
_SLACK = 1e-13
_CERTIFICATE_TOLERANCE = 1e-10
_TOO_UNLIKELY = 1e-250


@dataclass(frozen=True)
class OptimalAcceptance:
    """The optimal acceptance rate and the cut that proves it.

    Attributes
    ----------
    rate : float or ndarray of float64, shape (…) or (…, n)
        α*, computed from ``subset``: 1 + p(H*) − g(H*).
    subset : ndarray of bool, shape (…, V) or (…, n, V)
        The smallest minimiser H*; empty where α* = 1.
    """

    rate: FloatArray | float
    subset: BoolArray


def optimal_acceptance(
    target_probs: ArrayLike,
    drafts: DraftLaw,
    every_n: bool = False,
    curve: RatioCurve | None = None,
) -> OptimalAcceptance:
    """The largest acceptance rate of any lossless verifier, for a law of drafts.

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p; leading axes are broadcast against the law's.
    drafts : DraftLaw
        The law of the drafts.
    every_n : bool
        Answer for the law of the same family with 1, 2, … ``drafts.num_drafts`` drafts.
    curve : RatioCurve, optional
        The sorted ratio curve of (target_probs, drafts.draft_probs) for a single position, where it was
        built before; saves the sort.

    Returns
    -------
    OptimalAcceptance
        The rate is recomputed from the subset, by the law's own containment.

    Raises
    ------
    ValueError
        For an invalid distribution, another vocabulary than the drafts', a grouped curve, ``every_n`` for
        a law without smaller members, or an Independent or Joint law too large for a maximum flow.

    Notes
    -----
    Laws with one draft distribution are cut along the tokens in the order of p/q (Hu et al. 2025,
    Theorem 6): sorted, or, with and without replacement, grouped by p/q and sorted only where
    the cut may lie. Other laws take a maximum flow over their tuples.
    """
    p = validate_probs("target_probs", target_probs)
    validate_same_vocabulary(p, drafts.vocab_size, drafts.batch_shape)
    if curve is not None:
        _validate_curve(curve, drafts)
    batch = np.broadcast_shapes(p.shape[:-1], drafts.batch_shape)
    axes = (*batch, drafts.num_drafts) if every_n else batch
    rate = np.empty(axes)
    subset = np.empty((*axes, drafts.vocab_size), dtype=bool)
    for index, target, law in positions(p, drafts):
        laws = _family(law) if every_n else [law]
        cuts = _cuts(target, law, laws, curve)
        for n, (member, cut) in enumerate(zip(laws, cuts, strict=True)):
            where = (*index, n) if every_n else index
            subset[where], rate[where] = cut[0], _certified_rate(target, member, *cut)
    return OptimalAcceptance(rate if axes else float(rate), subset)


def positions(
    target_probs: FloatArray, drafts: DraftLaw
) -> Iterator[tuple[tuple[int, ...], FloatArray, DraftLaw]]:
    """Each position of the broadcast leading axes: its index, target distribution and law."""
    batch = np.broadcast_shapes(target_probs.shape[:-1], drafts.batch_shape)
    targets = np.broadcast_to(target_probs, (*batch, target_probs.shape[-1]))
    for index in np.ndindex(batch):
        yield index, targets[index], drafts[broadcast_index(index, drafts.batch_shape)]


def _family(law: DraftLaw) -> list[DraftLaw]:
    try:
        return [law.with_num_drafts(n) for n in range(1, law.num_drafts + 1)]
    except ValueError as reason:
        raise ValueError(
            f"every_n: got {law!r}, wanted a law that exists for every number of drafts from 1; {reason}"
        ) from reason


def _validate_curve(curve: RatioCurve, drafts: DraftLaw) -> None:
    if drafts.batch_shape or curve.order.shape != (drafts.vocab_size,):
        raise ValueError(
            f"curve: got {curve!r} for leading axes {drafts.batch_shape}, wanted the sorted curve of a "
            f"single position, of shape ({drafts.vocab_size},)"
        )


def _cuts(
    target: FloatArray, law: DraftLaw, laws: list[DraftLaw], curve: RatioCurve | None
) -> list[tuple[BoolArray, float]]:
    """The smallest best cut and its rate, for each of ``laws``: the law itself or its family."""
    if not isinstance(law, ProposalLaw):
        return [minimum_cut(target, member) for member in laws]
    if isinstance(law, WithReplacement | WithoutReplacement):
        histogram = RatioHistogram.of(target, law.draft_probs)
        return [_cut_by_groups(target, member, histogram) for member in laws]
    ratio_order = (curve or RatioCurve(target, law.draft_probs)).order
    if len(laws) > 1 and law.forced_tokens().size == 0:
        rows = law.prefix_containment(ratio_order, every_n=True)
        return [best_prefix(target, ratio_order, row) for row in rows]
    cuts = []
    for member in laws:
        assert isinstance(member, ProposalLaw)
        forced = member.forced_tokens()
        order = order_from(_order_of_rest(target, member, forced, ratio_order), forced)
        cuts.append(best_prefix(target, order, member.prefix_containment(order)))
    return cuts


def _order_of_rest(
    target: FloatArray, law: ProposalLaw, forced: IntArray, ratio_order: IntArray
) -> IntArray:
    """The ratio order, taken anew where all but the forced tokens are too unlikely to have ratios."""
    others = law.draft_probs.copy()
    others[forced] = 0.0
    if not 0.0 < others.max() < _TOO_UNLIKELY:
        return ratio_order
    return RatioCurve(target, others / others.sum()).order


def _cut_by_groups(
    target: FloatArray, law: DraftLaw, histogram: RatioHistogram
) -> tuple[BoolArray, float]:
    if isinstance(law, WithoutReplacement) and law.num_drafts > 1:
        cut = race_cut(target, law)
        return cut.subset, cut.rate
    # A single draft is the same with and without replacement.
    resolved, size = ratio_cut(histogram, law.num_drafts)
    subset = histogram.ratio < resolved.edges[size]
    return subset, 1.0 + float(prefix_values(resolved, law.num_drafts)[size])


def best_prefix(
    target: FloatArray, order: IntArray, contained: FloatArray
) -> tuple[BoolArray, float]:
    """The smallest best cut among the prefixes of an order, and 1 + p(H) − g(H).

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    order : ndarray of int64, shape (V,)
        A permutation of the tokens.
    contained : ndarray of float64, shape (V + 1,)
        g of each prefix.
    """
    mass = np.empty(order.size + 1)
    mass_before(target, order, mass)
    size = smallest_minimiser(mass, contained, _SLACK)
    subset = np.zeros(order.size, dtype=bool)
    subset[order[:size]] = True
    return subset, float(1.0 + (mass[size] - contained[size]))


def _certified_rate(target: FloatArray, law: DraftLaw, subset: BoolArray, found: float) -> float:
    rate = 1.0 + (float(target[subset].sum()) - float(law.containment(subset)))
    if not abs(rate - found) <= _CERTIFICATE_TOLERANCE:
        raise ArithmeticError(
            f"optimal_acceptance: the search found {found!r} and its cut gives {rate!r}, which should "
            f"agree to {_CERTIFICATE_TOLERANCE:g}; please report the target and draft distributions"
        )
    return min(max(rate, 0.0), 1.0)
