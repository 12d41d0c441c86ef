"""The preference rule: accept the most preferred draft, thinned so that no token exceeds its p.

Drafts are drawn independently, slot j from q_j. Tokens are taken in an order that depends on p and the q_j
alone. Let s_j be the probability that slot j was not accepted at one of the tokens taken so far; it is 1 at
first. At token y, each slot that holds y is accepted with probability c, the largest c ≤ 1 for which

    a(y) = Π_j s_j − Π_j (s_j − c q_j(y)) ≤ p(y);    then s_j ← s_j − c q_j(y).

The rule is lossless for every order: a(y) is the probability that y is accepted, and the residual is
∝ (p − a)₊. A rejected draft y has a(y) = p(y), so no token of the residual is a draft, and the rate is
1 − Π_j s_j at the end.

The rule is optimal where all tokens that are accepted whole (c = 1) come before all others. Let H be the set
of the others. Then Π_j s_j = g(H) when the first token of H is reached, and each token of H takes p(y) of it.
So the rate is 1 − g(H) + p(H), which no lossless rule exceeds.
"""

import numpy as np

from otmd import drafts
from otmd.curve._kernels import hockey_stick
from otmd.probabilities import FloatArray
from otmd.verifiers.base import Verifier, beside_forced
from otmd.verifiers.prepared import ChoosingVerifier
from otmd.verifiers.taking import Order, take_tokens

# If the certain tokens leave less mass than this, the others are summed up.
_MOSTLY_CERTAIN = 0.01


class Preference(Verifier):
    """Accept the most preferred draft, thinned so that no token is emitted more often than p says.

    The default order for drafts with replacement is p/q descending. (Within a group of similar p/q it is by
    id where this does not change the rate.) For different drafters it is p/Σ_j q_j descending. For strata,
    the better of two orders is used at each position; the choice depends on p and q alone. One takes the
    tokens with p(y) ≥ q_j(y) first and then the others, both stratum by stratum from the tail to the head.
    The other divides the others by half octaves of p/q_j, and takes these in turn in the same way. Tokens
    that are always drafted come last.

    With one draft the rule is maximal coupling. On greedy drafts it is greedy coupling. On SpecHub's pairs it
    accepts as often as SpecHub. These three are optimal. With replacement it is optimal wherever the tokens
    that are accepted whole (c = 1) come before all others; :meth:`certificate` tells its gap.

    Parameters
    ----------
    order : callable, optional
        A function of p (V,) and the law at one position. It returns a permutation of the tokens, the most
        preferred first. The rule is lossless for every order. If some tokens are always drafted, p is given
        as 0 for these, and the law is that of the other drafts.
    """

    serves = (
        drafts.WithReplacement,
        drafts.Independent,
        drafts.Stratified,
        drafts.TopThen,
        drafts.Greedy,
        drafts.Hub,
    )

    def __init__(self, order: Order | None = None) -> None:
        self.order = order

    def supports(self, law: drafts.DraftLaw) -> bool:
        served = super().supports(law)
        if served and isinstance(law, drafts.TopThen):
            served = law.top >= law.num_drafts - 1 or law.rest in self.serves
        return served

    def prepare_position(self, target: FloatArray, law: drafts.DraftLaw) -> ChoosingVerifier:
        always, wanted, rest = beside_forced(target, law)
        taken = take_tokens(wanted, rest, self.order) if rest is not None else None
        return ChoosingVerifier(target, law, always, taken)

    def position_bounds(
        self, target: FloatArray, law: drafts.DraftLaw, tol: float
    ) -> tuple[float, float]:
        rate = _single_rate(target, law) if self.order is None else None
        if rate is None:
            rate = self.prepare_position(target, law).rate
        return rate, rate


def _single_rate(target: FloatArray, law: drafts.DraftLaw) -> float | None:
    """The rate if one draft is by chance and drawn by q, which needs no order; otherwise None.

    The rejected mass is Σ (p − q/left)₊ over the tokens that are not certain, whose mass is ``left``.
    """
    if not isinstance(law, drafts.ProposalLaw) or isinstance(law, drafts.Stratified):
        return None
    certain, q = law.forced_tokens(), law.draft_probs
    if law.num_drafts - certain.size != 1:
        return None
    left, p = 1.0 - float(q[certain].sum()), target[certain]
    if left < _MOSTLY_CERTAIN:
        # Here the difference has lost digits.
        q, left = law.mass_beside_forced(), 1.0
    rejected = hockey_stick(target, q, 1.0 / left) - np.maximum(p - q[certain] / left, 0.0).sum()
    return 1.0 - max(float(rejected), 0.0)


class MaximalCoupling(Preference):
    """Accept the one draft x with probability min(1, p(x)/q(x)), else draw from the residual ∝ (p − q)₊.

    α = Σ min(p, q), the optimum for n = 1 (Leviathan et al. 2023; Chen et al. 2023). The verifier serves
    every law of otmd that makes one draft from one draft distribution; q is the law of this draft.
    """

    serves = (
        drafts.WithReplacement,
        drafts.WithoutReplacement,
        drafts.ConditionalPoisson,
        drafts.Stratified,
        drafts.TopThen,
        drafts.Greedy,
    )

    def __init__(self) -> None:
        super().__init__()

    def supports(self, law: drafts.DraftLaw) -> bool:
        return type(law) in self.serves and law.num_drafts == 1


class GreedyCoupling(Preference):
    """Maximal coupling of p with the law of the last draft, for greedy drafts.

    Let Top be the n − 1 tokens that are always drafted, and q' = q/(1 − q(Top)) outside Top. The last draft x
    is accepted with probability min(1, p(x)/q'(x)). Otherwise the output is drawn from the residual
    ∝ (p − q')₊; it counts as accepted if it is a token of Top.
    α = p(Top) + Σ_{y∉Top} min(p(y), q'(y)) = α* (Hu et al. 2025, Section 5).
    """

    serves = (drafts.Greedy,)

    def __init__(self) -> None:
        super().__init__()

    def supports(self, law: drafts.DraftLaw) -> bool:
        return type(law) is drafts.Greedy
