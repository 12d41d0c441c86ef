"""The preference rule: accept the most preferred draft, thinned so that no token exceeds its p.

Drafts are drawn independently, slot j from q_j. Tokens are taken in an order that depends on p and the q_j
alone. s_j, 1 at first, is the chance that slot j has not been accepted by the tokens so far. At token y each
slot that holds y is accepted with probability c, the largest c ≤ 1 for which

    a(y) = Π_j s_j − Π_j (s_j − c q_j(y)) ≤ p(y);    then s_j ← s_j − c q_j(y).

The rule is lossless for every order: a(y) is the chance that y is accepted, and the residual is ∝ (p − a)₊.
A draft that is rejected has a(y) = p(y), so no residual token is a draft, and the rate is 1 − Π_j s_j.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve import RatioCurve
from otmd.curve._kernels import power
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
    (different drafters), and for strata first the liked tokens, p(y) ≥ q_j(y), then stratum by stratum from
    the tail to the head. Tokens that are always drafted come last.

    With one draft it is maximal coupling. On greedy drafts it is greedy coupling, and on SpecHub's pairs it
    accepts as often as SpecHub: both are optimal. With replacement it is optimal wherever the tokens that
    are accepted whole (c = 1) come before all others, see :meth:`certificate`.

    Parameters
    ----------
    order : callable, optional
        Of p (V,) and the law at one position; returns a permutation of the tokens, the most preferred
        first. The rule is lossless for every order.
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
            every = [_PreferencePrepared(p, each, self.order).rate for each in family(own, counts)]
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
        self._always = (
            law.forced_tokens() if isinstance(law, ProposalLaw) else np.empty(0, np.int64)
        )
        self._accepted, self._chance = np.zeros((2, target.size))
        rest = _rest(law, self._always)
        self._rank = np.zeros(target.size, np.int64)
        if rest is not None:
            wanted = target.copy()
            wanted[self._always] = 0.0
            own = _default_order(wanted, rest) if order is None else order(wanted, rest)
            slots = _slots(rest)
            _accept_in_order(own, wanted, slots.probs, slots.copies, self._accepted, self._chance)
            self._rank[own] = np.arange(target.size)

    @property
    def rate(self) -> float:
        """The acceptance rate, exact."""
        # On rejection the residual serves the tokens that are always drafted: these count as accepted.
        return float(self._accepted.sum() + self.target[self._always].sum())

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


class _Slots(NamedTuple):
    """The distributions that slots draw from, (R, V), and how many slots draw from each, (R,)."""

    probs: FloatArray
    copies: IntArray


def _rest(law: DraftLaw, always: IntArray) -> DraftLaw | None:
    """The law of the drafts beside those that are always drafted; None where there are none."""
    if not isinstance(law, TopThen | Hub):
        return law
    count = law.num_drafts - always.size
    if count == 0:
        return None
    # A single draft is the same for all laws.
    kind = law.rest if isinstance(law, TopThen) and count > 1 else WithReplacement
    return unchecked(kind, law.mass_beside_forced(), count)


def _slots(law: DraftLaw) -> _Slots:
    if isinstance(law, WithReplacement):
        return _Slots(law.draft_probs[None], np.array([law.num_drafts]))
    if isinstance(law, Independent):
        return _Slots(law.draft_probs, np.ones(law.num_drafts, np.int64))
    assert isinstance(law, Stratified)
    tokens, starts, inclusion = law.position_strata
    probs = np.zeros((law.num_drafts, law.vocab_size))
    for j in range(law.num_drafts):
        own = tokens[starts[j] : starts[j + 1]]
        probs[j, own] = inclusion[own]
    return _Slots(probs, np.ones(law.num_drafts, np.int64))


def _default_order(target: FloatArray, law: DraftLaw) -> IntArray:
    if isinstance(law, Stratified):
        tokens, _, inclusion = law.position_strata
        from_tail = tokens[::-1]
        liked = target[from_tail] >= inclusion[from_tail]
        return np.concatenate([from_tail[liked], from_tail[~liked]])
    assert isinstance(law, WithReplacement | Independent)
    draft = law.draft_probs
    if draft.ndim > 1:
        draft = draft.mean(axis=0)
    return np.ascontiguousarray(RatioCurve.unchecked(target, draft).order[::-1])


@kernel(error_model="numpy")
def _accept_in_order(order, target, probs, copies, accepted, chance):
    """Fill a(y) and c(y), both (V,), taking the tokens in this order."""
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


@kernel(error_model="numpy")
def _thinned(left, probs, copies, y, total, wanted):
    """The c with total − Π (s_r − c q_r(y))^m_r = wanted, which c = 1 exceeds: Newton's method from below.

    The left side is concave in c, so the steps approach the root from one side.
    """
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
