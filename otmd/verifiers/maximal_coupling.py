"""Single-draft speculative sampling: the maximal coupling of p and q."""

from collections.abc import Sequence

import numpy as np

from otmd.curve import RatioCurve
from otmd.drafts import DraftLaw, ProposalLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, accept_prob, normalised


class MaximalCoupling(Verifier):
    """Accept the one draft x with probability min(1, p(x)/q(x)), else draw from (p − q)₊.

    α = Σ min(p, q), the optimum for n = 1 (Leviathan et al. 2023; Chen et al. 2023). It serves every law
    whose single draft is drawn from q.
    """

    serves = (WithReplacement,)

    def supports(self, law: DraftLaw) -> bool:
        """Whether the law draws one token from a draft distribution."""
        return isinstance(law, ProposalLaw) and law.num_drafts == 1

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _MaximalCouplingRule(target, law)

    def family_bounds(
        self, target: FloatArray, law: DraftLaw, counts: Sequence[int], tol: float
    ) -> tuple[FloatArray, FloatArray]:
        """See :class:`Verifier`."""
        if not isinstance(law, WithReplacement | WithoutReplacement):
            # Certain drafts may stand in for one that is drawn.
            return super().family_bounds(target, law, counts, tol)
        rate = np.asarray(RatioCurve.unchecked(target, law.draft_probs).maximal_coupling_rate())
        rates = np.repeat(rate[..., None], len(counts), axis=-1)
        return rates, rates

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        rate = float(np.minimum(target, law.inclusion_probs()).sum())
        return rate, rate


class _MaximalCouplingRule(PreparedVerifier):
    def __init__(self, target: FloatArray, law: DraftLaw) -> None:
        super().__init__(target, law)
        self.draft = law.inclusion_probs()

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        return accept_prob(self.target[draft_tokens], self.draft[draft_tokens])

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(np.maximum(self.target - self.draft, 0.0), self.target)
