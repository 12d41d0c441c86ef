"""The preference rule: accept the most preferred draft, thinned so that no token exceeds its p.

Drafts are drawn independently, slot j from q_j. Tokens are taken in an order that depends on p and the q_j
alone. s_j, 1 at first, is the chance that slot j has not been accepted by the tokens so far. At token y each
slot that holds y is accepted with probability c, the largest c ≤ 1 for which

    a(y) = Π_j s_j − Π_j (s_j − c q_j(y)) ≤ p(y);    then s_j ← s_j − c q_j(y).

The rule is lossless for every order: a(y) is the chance that y is accepted, and the residual is ∝ (p − a)₊.
A draft that is rejected has a(y) = p(y), so no residual token is a draft, and the rate is 1 − Π_j s_j.

It is optimal where all tokens that are accepted whole (c = 1) come before all others. Let H be those others.
Then Π_j s_j = g(H) when the first of H is reached, and each token of H takes p(y) of it. So the rate is
1 − g(H) + p(H), which no lossless rule exceeds.

With strata and the default order nothing is sorted. Liked tokens, p(y) ≥ q_j(y), are accepted whole. Let
d_j = Σ q_j(y) over the other tokens of stratum j, and A = Π_j d_j. Stratum by stratum from the tail to the
head, a(y) = min(p(y), A q_j(y)/d_j) for the others, and A falls by their sum. A is constant within a stratum,
as the chance of all other slots A/d_j is. The rate is 1 − A at the end.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve._kernels import power, ratios_of
from otmd.drafts import (
    DraftLaw,
    Greedy,
    Hub,
    Independent,
    ProposalLaw,
    Stratified,
    TopThen,
    WithReplacement,
)
from otmd.drafts.proposal import unchecked
from otmd.kernel import kernel
from otmd.optimum.acceptance import optimal_acceptance
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier, bounds_by_position, family
from otmd.verifiers.optimal import OptimalityCertificate
from otmd.verifiers.prepared import PreparedVerifier, normalised

Order = Callable[[FloatArray, DraftLaw], IntArray]

_MOST_STEPS = 100


class Preference(Verifier):
    """Accept the most preferred draft, thinned so that no token is emitted more often than p says.

    The default order takes the tokens by p/q descending (with replacement), by p/Σ_j q_j descending
    (different drafters), and for strata first the liked tokens, p(y) ≥ q_j(y), and then the others, both
    stratum by stratum from the tail to the head. Tokens that are always drafted come last.

    With one draft it is maximal coupling. On greedy drafts it is greedy coupling, and on SpecHub's pairs it
    accepts as often as SpecHub: both are optimal. With replacement it is optimal wherever the tokens that
    are accepted whole (c = 1) come before all others, see :meth:`certificate`.

    Parameters
    ----------
    order : callable, optional
        Of p (V,) and the law at one position; returns a permutation of the tokens, the most preferred
        first. The rule is lossless for every order. Where some tokens are always drafted, p is 0 there, and
        the law is that of the other drafts.
    """

    serves = (WithReplacement, Independent, Stratified, TopThen, Greedy, Hub)

    def __init__(self, order: Order | None = None) -> None:
        self.order = order

    def supports(self, law: DraftLaw) -> bool:
        """Whether the drafts beside those that are always drafted are independent."""
        if isinstance(law, TopThen):
            return law.top >= law.num_drafts - 1 or law.rest in self.serves
        return type(law) in self.serves

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _PreferencePrepared(target, law, self.order)

    def family_bounds(
        self, target: FloatArray, law: DraftLaw, counts: Sequence[int], tol: float
    ) -> tuple[FloatArray, FloatArray]:
        """See :class:`Verifier`."""

        def rates(p: FloatArray, own: DraftLaw) -> list[tuple[float, float]]:
            if self.order is None and isinstance(own, WithReplacement):
                # One sort serves every number of drafts.
                by_ratio = _default_order(p, own)
                every = [1.0 - _left_by_ratio(by_ratio, p, own.draft_probs, n) for n in counts]
            else:
                every = [_rate(p, each, self.order) for each in family(own, counts)]
            return [(rate, rate) for rate in every]

        return bounds_by_position(target, law, len(counts), rates)

    def certificate(self, target_probs: ArrayLike, law: DraftLaw) -> OptimalityCertificate:
        """Compare the rule's rate at one position with the optimum, recomputed from a cut.

        Parameters
        ----------
        target_probs : array_like, shape (V,)
            p.
        law : DraftLaw
            A law without leading axes.

        Returns
        -------
        OptimalityCertificate

        Raises
        ------
        ValueError
            For invalid input; UnsupportedLaw for a law not served.
        """
        prepared = self.prepare(target_probs, law)
        assert isinstance(prepared, _PreferencePrepared)
        upper = float(optimal_acceptance(target_probs, law).rate)
        return OptimalityCertificate(upper, prepared.rate, upper - prepared.rate)


class _PreferencePrepared(PreparedVerifier):
    """The rule at one position."""

    def __init__(self, target: FloatArray, law: DraftLaw, order: Order | None) -> None:
        super().__init__(target, law)
        self._always, rest = _parts(law)
        decided = _decide(_beside(target, self._always), rest, order)
        self._accepted, self._chance, self._rank, accepted = decided
        # On rejection the residual serves the tokens that are always drafted: these count as accepted.
        self.rate = float(accepted + target[self._always].sum())

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        able = ~np.isin(draft_tokens, self._always)
        chosen, left = np.zeros(draft_tokens.size), 1.0
        for i in np.argsort(self._rank[draft_tokens], kind="stable"):
            if able[i]:
                chosen[i] = left * self._chance[draft_tokens[i]]
                left -= chosen[i]
        # As asked for: draft by draft, each given that those before it were not chosen.
        undecided = 1.0 - np.concatenate([[0.0], chosen[:-1].cumsum()])
        return np.minimum(
            1.0, np.divide(chosen, undecided, out=np.zeros(chosen.size), where=undecided > 0)
        )

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(np.maximum(self.target - self._accepted, 0.0), self.target)


class _Decided(NamedTuple):
    """What is decided of each token: a and c, both (V,), its place in the order (V,), and Σ a."""

    accepted: FloatArray
    chance: FloatArray
    rank: IntArray
    rate: float


def _rate(target: FloatArray, law: DraftLaw, order: Order | None) -> float:
    """The acceptance rate at one position."""
    always, rest = _parts(law)
    beside, sure = _beside(target, always), float(target[always].sum())
    if order is None and isinstance(rest, Stratified):
        return sure + 1.0 - _shares_of_strata(beside, *rest.position_strata[1:])[2]
    if order is None and isinstance(rest, WithReplacement):
        by_ratio = _default_order(beside, rest)
        left = _left_by_ratio(by_ratio, beside, rest.draft_probs, rest.num_drafts)
        return sure + 1.0 - left
    return sure + _decide(beside, rest, order).rate


def _parts(law: DraftLaw) -> tuple[IntArray, DraftLaw | None]:
    """The tokens that are always drafted, and the law of the other drafts; None where there are none."""
    if not isinstance(law, ProposalLaw):
        return np.empty(0, np.int64), law
    always = law.forced_tokens()
    count = law.num_drafts - always.size
    if count == 0:
        return always, None
    if isinstance(law, Stratified) or (count > 1 and not isinstance(law, TopThen)):
        return always, law
    # A single draft is the same for all laws, and needs no order.
    kind = law.rest if isinstance(law, TopThen) and count > 1 else Stratified
    return always, unchecked(kind, law.mass_beside_forced(), count)


def _beside(target: FloatArray, always: IntArray) -> FloatArray:
    """P without the tokens that are always drafted."""
    if always.size == 0:
        return target
    beside = target.copy()
    beside[always] = 0.0
    return beside


def _decide(target: FloatArray, law: DraftLaw | None, order: Order | None) -> _Decided:
    if law is None:
        none = np.zeros(target.size)
        return _Decided(none, none, np.zeros(target.size, np.int64), 0.0)
    if order is None and isinstance(law, Stratified):
        return _decide_strata(target, law)
    own = _default_order(target, law) if order is None else order(target, law)
    rank = np.empty(target.size, np.int64)
    rank[own] = np.arange(target.size)
    accepted, chance = np.zeros((2, target.size))
    left = _accept_in_order(own, target, *_slots(law), accepted, chance)
    return _Decided(accepted, chance, rank, 1.0 - left)


def _decide_strata(target: FloatArray, law: Stratified) -> _Decided:
    number, *grouped = law.position_strata
    draft = law.position_strata.inclusion
    whole, thinned, left = _shares_of_strata(target, *grouped)
    liked = target >= draft
    most = np.where(liked, whole[number], thinned[number]) * draft
    accepted = np.minimum(target, most)
    chance = np.divide(accepted, most, out=np.ones(most.size), where=most > accepted)
    # Drafts are of different strata, so that tokens of one stratum may share a place.
    rank = law.num_drafts - 1 - number.astype(np.int64) + np.where(liked, 0, law.num_drafts)
    return _Decided(accepted, chance, rank, 1.0 - left)


def _slots(law: DraftLaw) -> tuple[FloatArray, IntArray]:
    """The distributions that slots draw from, (R, V), and how many slots draw from each, (R,)."""
    if isinstance(law, WithReplacement):
        return law.draft_probs[None], np.array([law.num_drafts])
    if isinstance(law, Independent):
        return law.draft_probs, np.ones(law.num_drafts, np.int64)
    assert isinstance(law, Stratified)
    probs = np.zeros((law.num_drafts, law.vocab_size))
    probs[law.position_strata.number, np.arange(law.vocab_size)] = law.position_strata.inclusion
    return probs, np.ones(law.num_drafts, np.int64)


def _default_order(target: FloatArray, law: DraftLaw) -> IntArray:
    assert isinstance(law, WithReplacement | Independent)
    draft = law.draft_probs if isinstance(law, WithReplacement) else law.draft_probs.mean(axis=0)
    ratio = ratios_of(target, draft, np.arange(target.size))
    # Any order is lossless, so that equal ratios need no stable sort.
    return np.argsort(-ratio)


@kernel(error_model="numpy")
def _shares_of_strata(target, tokens, starts, draft):
    """The chance of all other slots when liked and other tokens of each stratum come, and A at the end.

    ``tokens`` (V,) are grouped by stratum, ``starts`` (n + 1,); ``draft`` (V,) is q_j by token id.
    """
    size = starts.size - 1
    whole, thinned, disliked = np.empty(size), np.empty(size), np.zeros(size)
    left = 1.0
    for j in range(size - 1, -1, -1):
        mass = 0.0
        for i in range(starts[j], starts[j + 1]):
            y = np.uint64(tokens[i])
            # A factor in place of a branch, which would be mispredicted over and over.
            mass += draft[y] * (1.0 if target[y] < draft[y] else 0.0)
        disliked[j] = min(mass, 1.0)
        whole[j] = left
        left *= disliked[j]
    for j in range(size - 1, -1, -1):
        share = left / disliked[j] if disliked[j] > 0.0 else 0.0
        mass = 0.0
        for i in range(starts[j], starts[j + 1]):
            y = np.uint64(tokens[i])
            factor = 1.0 if target[y] < draft[y] else 0.0
            mass += factor * min(target[y], share * draft[y])
        thinned[j] = share
        left = max(left - mass, 0.0)
    return whole, thinned, left


@kernel(error_model="numpy")
def _left_by_ratio(order, target, draft, num_drafts):
    """S = s^n after all tokens, taken in this order, for drafts with replacement.

    A token that is thinned takes p of S, and s = S^(1/n) is worked out only where it decides.
    """
    total, s = 1.0, 1.0
    for i in range(order.size):
        y = np.uint64(order[i])
        p, q = target[y], draft[y]
        if q == 0.0:
            continue
        if s > q:
            # The s known is never below the true one, which is then at least S/s^(n − 1).
            least = total / power(s, num_drafts - 1) - q
            if least > 0.0 and num_drafts * q * power(least, num_drafts - 1) > p:
                total = max(total - p, 0.0)
                continue
        s = min(s, total ** (1.0 / num_drafts))
        after = power(max(s - q, 0.0), num_drafts)
        if total - after > p:
            total -= p
        else:
            total = after
            s = max(s - q, 0.0)
    return total


@kernel(error_model="numpy")
def _accept_in_order(order, target, probs, copies, accepted, chance):
    """Fill a(y) and c(y), both (V,), taking the tokens in this order; Π_j s_j at the end."""
    left = np.ones(copies.size)
    total = 1.0
    for i in range(order.size):
        y = order[i]
        after = 1.0
        for r in range(copies.size):
            after *= power(max(left[r] - probs[r, y], 0.0), copies[r])
        c = 1.0
        if total - after > target[y]:
            c = _thinned(left, probs, copies, y, total, target[y])
            after = 1.0
            for r in range(copies.size):
                after *= power(max(left[r] - c * probs[r, y], 0.0), copies[r])
        for r in range(copies.size):
            left[r] = max(left[r] - c * probs[r, y], 0.0)
        accepted[y] = min(max(total - after, 0.0), target[y])
        chance[y] = c
        total = after
    return total


@kernel(error_model="numpy")
def _thinned(left, probs, copies, y, total, wanted):
    """The c with total − Π (s_r − c q_r(y))^m_r = wanted, which c = 1 exceeds: Newton's method from below.

    The left side is concave in c, so the steps approach the root from one side. Slots that draw from one
    distribution have a closed form.
    """
    if copies.size == 1:
        step = -np.expm1(np.log1p(-wanted / total) / copies[0])
        return min(left[0] * step / probs[0, y], 1.0)
    c = 0.0
    for _ in range(_MOST_STEPS):
        product, slope = 1.0, 0.0
        for r in range(copies.size):
            s = left[r] - c * probs[r, y]
            product *= power(s, copies[r])
            slope += copies[r] * probs[r, y] / s
        step = (wanted - (total - product)) / (product * slope)
        c += max(step, 0.0)
        if not step > 1e-16 * c:
            break
    return min(c, 1.0)
