"""K-SEQ, the sequential selection of SpecTr."""

import numpy as np

from otmd.drafts import DraftLaw, WithReplacement
from otmd.kernels.ratio_groups import group_edges
from otmd.kernels.replacement_rates import k_sequential_scales
from otmd.probabilities import FloatArray, IntArray
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
        scale, left = _scale(target, law)
        rate = 1.0 - (1.0 - (1.0 - left) / scale) ** law.num_drafts
        return rate, rate


def _scale(target: FloatArray, law: WithReplacement) -> tuple[float, float]:
    """ρ* and W there."""
    scales, left = np.empty(law.num_drafts), np.empty(law.num_drafts)
    k_sequential_scales(target, law.draft_probs, group_edges(), scales, left)
    return float(scales[-1]), float(left[-1])


class _KSequentialRule(Rule):
    def __init__(self, target: FloatArray, law: WithReplacement) -> None:
        super().__init__(target, law)
        self.draft = law.draft_probs
        self.scale, _ = _scale(target, law)

    def accept_probs(self, tokens: IntArray) -> FloatArray:
        return accept_prob(self.target[tokens], self.scale * self.draft[tokens])

    def residual(self, tokens: IntArray) -> FloatArray:
        accepted_once = np.minimum(self.target / self.scale, self.draft)
        # α/β = Σ_{i<n} (1 − β)^i, which needs no division by a β that may be zero.
        tries = ((1.0 - accepted_once.sum()) ** np.arange(self.law.num_drafts)).sum()
        return normalised(np.maximum(self.target - tries * accepted_once, 0.0), self.target)
