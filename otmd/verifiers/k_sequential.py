"""K-SEQ, the sequential selection of SpecTr."""

import numpy as np

from otmd.drafts import DraftLaw, WithReplacement
from otmd.probabilities import FloatArray, IntArray
from otmd.ratio_curve import RatioCurve
from otmd.verifiers.base import Verifier
from otmd.verifiers.rule import Rule, accept_prob, normalised


class KSequential(Verifier):
    """Accept each draft x in turn with probability min(1, p(x)/(ρ q(x))) (SpecTr, Algorithm 3).

    With β = Σ min(p/ρ, q) the rate is 1 − (1 − β)^n and the residual ∝ (p − min(p/ρ, q)·α/β)₊. Every ρ from
    ρ* to n is lossless, and ρ* attains the largest rate: at least 1 − (1 − 1/n)^n of the optimum.
    """

    serves = (WithReplacement,)

    def _prepare(self, target: FloatArray, law: DraftLaw) -> Rule:
        assert isinstance(law, WithReplacement)
        return _KSequentialRule(target, law)

    def _bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        assert isinstance(law, WithReplacement)
        curve = RatioCurve(target, law.draft_probs)
        rate = float(curve.k_sequential_rates(law.num_drafts)[-1])
        return rate, rate


class _KSequentialRule(Rule):
    def __init__(self, target: FloatArray, law: WithReplacement) -> None:
        super().__init__(target, law)
        self.draft = law.draft_probs
        self.scale = float(RatioCurve(target, self.draft).k_sequential_scale(law.num_drafts))

    def accept_probs(self, tokens: IntArray) -> FloatArray:
        return accept_prob(self.target[tokens], self.scale * self.draft[tokens])

    def residual(self, tokens: IntArray) -> FloatArray:
        accepted_once = np.minimum(self.target / self.scale, self.draft)
        # α/β = Σ_{i<n} (1 − β)^i, which needs no division by a β that may be zero.
        tries = ((1.0 - accepted_once.sum()) ** np.arange(self.law.num_drafts)).sum()
        return normalised(np.maximum(self.target - tries * accepted_once, 0.0), self.target)
