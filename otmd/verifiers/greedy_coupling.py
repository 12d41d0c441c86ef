"""The optimal rule for greedy drafts (Hu et al. 2025)."""

from collections.abc import Sequence

import numpy as np

from otmd.curve import RatioCurve
from otmd.drafts import DraftLaw, Greedy
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, accept_prob, normalised


class GreedyCoupling(Verifier):
    """Maximal coupling of p with q restricted to the tokens that greedy drafting leaves.

    The last draft x is accepted with probability min(1, p(x)/q'(x)), q' = q/(1 − q(Top)) off Top; else the
    output is drawn from (p − q')₊, which counts as accepted where it hits one of the top tokens.
    α = p(Top) + Σ_{y∉Top} min(p(y), q'(y)) = α* (Hu et al. 2025, Section 5).
    """

    serves = (Greedy,)

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        assert isinstance(law, Greedy)
        return _GreedyCouplingRule(target, law)

    def family_bounds(
        self, target: FloatArray, law: DraftLaw, counts: Sequence[int], tol: float
    ) -> tuple[FloatArray, FloatArray]:
        """See :class:`Verifier`."""
        assert isinstance(law, Greedy)
        curve = RatioCurve.unchecked(target, law.draft_probs)
        rates = curve.top_coupling_rates([n - 1 for n in counts])
        return rates, rates


class _GreedyCouplingRule(PreparedVerifier):
    def __init__(self, target: FloatArray, law: Greedy) -> None:
        super().__init__(target, law)
        self.last_draft = law.inclusion_probs()
        self.last_draft[law.forced_tokens()] = 0.0

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        chances = np.zeros(draft_tokens.size)
        last = draft_tokens[-1:]
        chances[-1:] = accept_prob(self.target[last], self.last_draft[last])
        return chances

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(np.maximum(self.target - self.last_draft, 0.0), self.target)
