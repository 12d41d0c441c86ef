"""Draw from the target and see whether the token was drafted."""

from __future__ import annotations

import numpy as np

from otmd.curve import RatioCurve
from otmd.laws import DraftLaw, Structure
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, normalised


class TargetOnly(Verifier):
    """Draw y from p without looking at q; a draft counts as accepted if it is y.

    α = Σ p(y)·P(y is drafted). It is lossless for every law, deterministic drafts included. SpecInfer calls
    it naive sampling; SGLang uses it for trees (target-only sampling).

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> otmd.TargetOnly().acceptance_rate([0.5, 0.25, 0.25], law)  # 33/64
    0.515625
    """

    def serves(self, structure: Structure) -> bool:
        return True

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _PreparedTargetOnly(target, law)

    def curve_rates(self, curve: RatioCurve, num_drafts: int) -> FloatArray:
        return curve.target_only_rates([num_drafts])[..., 0]

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        rate = min(float(target @ law.position_structure.inclusion_probs()), 1.0)
        return rate, rate


class _PreparedTargetOnly(PreparedVerifier):
    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        probs = np.zeros(draft_tokens.size)
        rest = self.target.copy()
        for i, token in enumerate(draft_tokens):
            if rest[token] > 0:
                mass = rest[token]
                rest[token] = 0.0
                probs[i] = mass / (mass + rest.sum())
        return probs

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        rest = self.target.copy()
        rest[draft_tokens] = 0.0
        return normalised(rest, self.target)
