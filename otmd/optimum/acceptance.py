"""The optimal acceptance rate α* = 1 + min over subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8)."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve.ratio_curve import RatioCurve
from otmd.curve.replacement_cuts import cut_with_replacement, cuts_with_replacement
from otmd.curve.replacement_rates import sum_where
from otmd.curve.sorted_curve import mass_before, smallest_minimiser
from otmd.drafts import DraftLaw, Hub, ProposalLaw, TopThen, WithoutReplacement, WithReplacement
from otmd.drafts.base import validate_law
from otmd.drafts.proposal import order_from
from otmd.optimum.minimum_cut import minimum_cut
from otmd.parallel import in_threads
from otmd.probabilities import (
    BoolArray,
    FloatArray,
    IntArray,
    broadcast_index,
    target_rows,
    validate_probs,
    validate_same_vocabulary,
)
from otmd.race.containment import ExponentialRace
from otmd.race.cut import race_cut, race_cuts
from otmd.rows import Rows

# Rounding can make a prefix look better than a smaller one that is as good.
_SLACK = 1e-13
_CERTIFICATE_TOLERANCE = 1e-10
_TOO_UNLIKELY = 1e-250


class OptimalAcceptance:
    """The optimal acceptance rate and the cut that proves it.

    Parameters
    ----------
    rate : float or ndarray of float64, shape (…) or (…, n)
    subset : ndarray of bool, shape (…, V) or (…, n, V), or a function that returns it
        A function is called when the subset is first asked for.

    Attributes
    ----------
    rate : float or ndarray of float64, shape (…) or (…, n)
        α*, computed over the subset: 1 + p(H*) − g(H*).
    """

    def __init__(
        self, rate: FloatArray | float, subset: BoolArray | Callable[[], BoolArray]
    ) -> None:
        self.rate = rate
        self._subset = subset

    @property
    def subset(self) -> BoolArray:
        """The smallest minimiser H*, shape (…, V) or (…, n, V); empty where α* = 1.

        With replacement it is written down when first asked for: the rate needs only its masses.

        Raises
        ------
        ValueError
            If the target or the law's distribution has been changed meanwhile.
        """
        if callable(self._subset):
            self._subset = self._subset()
        return self._subset

    def __repr__(self) -> str:
        return f"OptimalAcceptance(rate={self.rate!r})"

    def __reduce__(self) -> tuple[type, tuple[FloatArray | float, BoolArray]]:
        # A copy stands alone: nothing of the distributions goes with it.
        return OptimalAcceptance, (self.rate, self.subset)


def optimal_acceptance(
    target_probs: ArrayLike,
    law: DraftLaw,
    every_n: bool = False,
    curve: RatioCurve | None = None,
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
    validate_law(law)
    if curve is not None:
        _validate_curve(curve, law)
    if isinstance(law, WithReplacement):
        return _optimum_with_replacement(target_probs, law, every_n)
    p = validate_probs("target_probs", target_probs, copy=False)
    validate_same_vocabulary(p, law.vocab_size, law.batch_shape)
    batch = np.broadcast_shapes(p.shape[:-1], law.batch_shape)
    axes = (*batch, law.num_drafts) if every_n else batch
    rate = np.empty(axes)
    subset = np.empty((*axes, law.vocab_size), dtype=bool)
    every = list(positions(p, law))

    def work(start: int, stop: int) -> None:
        for index, target, own_law in every[start:stop]:
            laws = own_law.family() if every_n else [own_law]
            cuts = _cuts(target, own_law, laws, curve)
            for n, (own, contained, found) in enumerate(cuts):
                where = (*index, n) if every_n else index
                subset[where], rate[where] = own, _rate_of_cut(target, own, contained, found)

    in_threads(work, len(every), law.vocab_size)
    return OptimalAcceptance(rate if axes else float(rate), subset)


def _optimum_with_replacement(
    target_probs: ArrayLike, law: WithReplacement, every_n: bool
) -> OptimalAcceptance:
    batch, target = target_rows(target_probs, law.vocab_size, law.batch_shape)
    axes = (*batch, law.num_drafts) if every_n else batch
    first = 1 if every_n else law.num_drafts
    draft = Rows.of(law.draft_probs, batch)
    cuts = cuts_with_replacement(target, draft, first, law.num_drafts)
    rate = _certified(1.0 + cuts.value, 1.0 + cuts.found).reshape(axes)
    return OptimalAcceptance(
        rate if axes else float(rate), lambda: cuts.subsets().reshape(*axes, law.vocab_size)
    )


def family_rates(target: FloatArray, laws: Sequence[DraftLaw]) -> list[float]:
    """α* at a single position, for laws that differ in the number of drafts alone.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p, known to be valid.
    laws : sequence of DraftLaw
        Without leading axes, the number of drafts ascending.

    Returns
    -------
    list of float
    """
    most = laws[-1]
    if isinstance(most, WithReplacement):
        first = laws[0].num_drafts
        rows = Rows.of(target), Rows.of(most.draft_probs)
        cuts = cuts_with_replacement(*rows, first, most.num_drafts)
        rates = _certified(1.0 + cuts.value, 1.0 + cuts.found)[0]
        return [float(rates[law.num_drafts - first]) for law in laws]
    cuts = _cuts(target, most, list(laws), None)
    return [float(_rate_of_cut(target, *cut)) for cut in cuts]


def positions(
    target_probs: FloatArray, law: DraftLaw
) -> Iterator[tuple[tuple[int, ...], FloatArray, DraftLaw]]:
    """Each position of the broadcast leading axes: its index, target distribution and law."""
    batch = np.broadcast_shapes(target_probs.shape[:-1], law.batch_shape)
    targets = np.broadcast_to(target_probs, (*batch, target_probs.shape[-1]))
    for index in np.ndindex(batch):
        yield index, targets[index], law[broadcast_index(index, law.batch_shape)]


def _validate_curve(curve: RatioCurve, law: DraftLaw) -> None:
    if law.batch_shape or curve.order.shape != (law.vocab_size,):
        raise ValueError(
            f"curve: got {curve!r} for leading axes {law.batch_shape}, wanted the sorted curve of a "
            f"single position, of shape ({law.vocab_size},)"
        )


def _cuts(
    target: FloatArray, law: DraftLaw, laws: list[DraftLaw], curve: RatioCurve | None
) -> Iterator[tuple[BoolArray, float, float]]:
    """The smallest best cut, its g and its rate, for each of ``laws``: the law itself or its family."""
    if isinstance(law, WithoutReplacement):
        yield from _cuts_of_race(target, law.draft_probs, [member.num_drafts for member in laws])
        return
    found = _cuts_of_others(target, law, laws, curve)
    for member, (subset, rate) in zip(laws, found, strict=True):
        yield subset, float(member.containment(subset)), rate


def _cuts_of_race(
    target: FloatArray, draft: FloatArray, counts: list[int]
) -> Iterator[tuple[BoolArray, float, float]]:
    """The same for several numbers of drafts without replacement, whose race is one."""
    several = [n for n in counts if n > 1]
    if len(several) < len(counts):
        # A single draft is the same with and without replacement.
        subset, value = cut_with_replacement(target, draft, 1)
        yield subset, sum_where(draft, subset), 1.0 + value
    if several:
        race = ExponentialRace(draft, max(several))
        for n, cut in zip(several, race_cuts(target, race, several), strict=True):
            subset = cut.subset
            yield subset, race.containment(subset, n), cut.rate


def _cuts_of_others(
    target: FloatArray, law: DraftLaw, laws: list[DraftLaw], curve: RatioCurve | None
) -> list[tuple[BoolArray, float]]:
    """The smallest best cut and its rate under any other law."""
    if not isinstance(law, ProposalLaw):
        return [minimum_cut(target, member) for member in laws]
    if _rest_of(law) in (WithReplacement, WithoutReplacement):
        return [
            _cut_by_groups(target, member) for member in laws if isinstance(member, ProposalLaw)
        ]
    ratio_order = (curve or RatioCurve(target, law.draft_probs)).order
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


def _rest_of(law: ProposalLaw) -> type[DraftLaw]:
    """The law of the drafts beside those that are always drafted."""
    if isinstance(law, Hub):
        return WithReplacement
    return law.rest if isinstance(law, TopThen) else type(law)


def _cut_by_groups(target: FloatArray, law: ProposalLaw) -> tuple[BoolArray, float]:
    """The cut of a law with top tokens, if any, and others with or without replacement.

    Any cut but the empty one holds the top tokens; beside them it is that of the others, which holds
    no token that they leave without mass.
    """
    forced = law.forced_tokens()
    count = law.num_drafts - forced.size
    others = law.mass_beside_forced()
    if count == 0:
        subset, value = np.zeros(target.size, dtype=bool), -1.0
    # A single draft is the same with and without replacement.
    elif count == 1 or _rest_of(law) is WithReplacement:
        subset, value = cut_with_replacement(target, others, count)
    else:
        best = race_cut(target, others, count)
        subset, value = best.subset, best.rate - 1.0
    value += float(target[forced].sum())
    if forced.size and value >= -_SLACK:
        return np.zeros(target.size, dtype=bool), 1.0
    subset[forced] = True
    return subset, 1.0 + value


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


def _rate_of_cut(
    target: FloatArray, subset: BoolArray, contained: float, found: float
) -> FloatArray:
    return _certified(np.array(1.0 + (sum_where(target, subset) - contained)), found)


def _certified(rate: FloatArray, found: FloatArray | float) -> FloatArray:
    """The rates of the cuts themselves, if the search found them as well."""
    off = np.abs(rate - found) > _CERTIFICATE_TOLERANCE
    if off.any():
        raise ArithmeticError(
            f"optimal_acceptance: the search found {np.ravel(found)[np.ravel(off)][0]!r} and its cut "
            f"gives {rate[off][0]!r}, which should agree to {_CERTIFICATE_TOLERANCE:g}; please report "
            "the target and draft distributions"
        )
    return np.clip(rate, 0.0, 1.0)
