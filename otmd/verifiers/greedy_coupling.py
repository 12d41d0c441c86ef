"""The optimal rule for greedy drafts (Hu et al. 2025)."""

import numpy as np

from otmd.drafts import DraftLaw, Greedy
from otmd.drafts.proposal import ProposalLaw
from otmd.kernels.replacement_rates import least_sum_beside
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.rule import Rule, accept_prob, normalised


class GreedyCoupling(Verifier):
    """Maximal coupling of p with q restricted to the tokens that greedy drafting leaves.

    The last draft x is accepted with probability min(1, p(x)/q'(x)), q' = q/(1 − q(Top)) off Top; else the
    output is drawn from (p − q')₊, which counts as accepted where it hits one of the top tokens.
    α = p(Top) + Σ_{y∉Top} min(p(y), q'(y)) = α* (Hu et al. 2025, Section 5).
    """

    serves = (Greedy,)

    def _prepare(self, target: FloatArray, law: DraftLaw) -> Rule:
        assert isinstance(law, Greedy)
        return _GreedyCouplingRule(target, law)

    def _bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        assert isinstance(law, Greedy)
        rate = rate_beside_forced(target, law)
        return rate, rate


def rate_beside_forced(target: FloatArray, law: ProposalLaw) -> float:
    """All of p of the tokens that are always drafted, and what one draft of the others couples."""
    forced = law.forced_tokens()
    coupled = least_sum_beside(target, law.draft_probs, np.sort(forced))
    return float(target[forced].sum()) + coupled


class _GreedyCouplingRule(Rule):
    def __init__(self, target: FloatArray, law: Greedy) -> None:
        super().__init__(target, law)
        self.last_draft = law.inclusion_probs()
        self.last_draft[law.forced_tokens()] = 0.0

    def accept_probs(self, tokens: IntArray) -> FloatArray:
        chances = np.zeros(tokens.size)
        last = tokens[-1:]
        chances[-1:] = accept_prob(self.target[last], self.last_draft[last])
        return chances

    def residual(self, tokens: IntArray) -> FloatArray:
        return normalised(np.maximum(self.target - self.last_draft, 0.0), self.target)
