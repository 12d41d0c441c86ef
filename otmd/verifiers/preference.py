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
"""

from otmd import drafts
from otmd.curve._kernels import hockey_stick
from otmd.drafts.top_then import drafts_by_chance
from otmd.probabilities import FloatArray
from otmd.verifiers.base import Verifier, beside_forced
from otmd.verifiers.prepared import ChoosingVerifier
from otmd.verifiers.taking import Order, take_tokens


class Preference(Verifier):
    """Accept the most preferred draft, thinned so that no token is emitted more often than p says.

    By default tokens are taken by p/q descending (with replacement; within a group of similar p/q by id where
    the rate is the same) or by p/Σ_j q_j descending (different drafters). Of strata the better of two orders
    is taken at each position, which depends on p and q alone. One takes first the liked tokens, with p(y) at
    least q_j(y), and then the others, both stratum by stratum from the tail to the head. The other one does
    so for half octaves of p/q_j below 1, too. Tokens that are always drafted come last.

    With one draft it is maximal coupling. On greedy drafts it is greedy coupling. On SpecHub's pairs it
    accepts as often as SpecHub. These three are optimal. With replacement it is optimal wherever the tokens
    that are accepted whole (c = 1) come before all others, see :meth:`certificate`.

    Parameters
    ----------
    order : callable, optional
        Of p (V,) and the law at one position; returns a permutation of the tokens, the most preferred
        first. The rule is lossless for every order. Where some tokens are always drafted, p is 0 there, and
        the law is that of the other drafts.
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
        if isinstance(law, drafts.TopThen):
            return law.top >= law.num_drafts - 1 or law.rest in self.serves
        return type(law) in self.serves

    def prepare_position(self, target: FloatArray, law: drafts.DraftLaw) -> ChoosingVerifier:
        always, wanted, rest = beside_forced(target, law)
        taken = take_tokens(wanted, rest, self.order) if rest is not None else None
        return ChoosingVerifier(target, law, always, taken)

    def position_bounds(
        self, target: FloatArray, law: drafts.DraftLaw, tol: float
    ) -> tuple[float, float]:
        always, rest = drafts_by_chance(law)
        if self.order is None and type(rest) is drafts.WithReplacement and rest.num_drafts == 1:
            # Rejected are Σ (p − q)₊ of the other tokens: no order is needed.
            rejected = hockey_stick(target, rest.draft_probs, 1.0) - target[always].sum()
            rate = 1.0 - max(float(rejected), 0.0)
        else:
            rate = self.prepare_position(target, law).rate
        return rate, rate


class MaximalCoupling(Preference):
    """Accept the one draft x with probability min(1, p(x)/q(x)), else draw from (p − q)₊.

    α = Σ min(p, q), the optimum for n = 1 (Leviathan et al. 2023; Chen et al. 2023). It serves every law
    whose single draft is drawn from q.
    """

    serves = (drafts.WithReplacement,)

    def __init__(self) -> None:
        super().__init__()

    def supports(self, law: drafts.DraftLaw) -> bool:
        return isinstance(law, drafts.ProposalLaw) and law.num_drafts == 1


class GreedyCoupling(Preference):
    """Maximal coupling of p with q restricted to the tokens that greedy drafting leaves.

    The last draft x is accepted with probability min(1, p(x)/q'(x)), q' = q/(1 − q(Top)) off Top; else the
    output is drawn from (p − q')₊, which counts as accepted where it hits one of the top tokens.
    α = p(Top) + Σ_{y∉Top} min(p(y), q'(y)) = α* (Hu et al. 2025, Section 5).
    """

    serves = (drafts.Greedy,)

    def __init__(self) -> None:
        super().__init__()

    def supports(self, law: drafts.DraftLaw) -> bool:
        return type(law) is drafts.Greedy
