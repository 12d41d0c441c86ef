"""Draw from the target and see whether the token was drafted."""

from collections.abc import Sequence

import numpy as np

from otmd.drafts import DraftLaw
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.rule import Rule, normalised


class TargetOnly(Verifier):
    """Draw y ~ p without looking at q; a draft counts as accepted where it is y.

    α = Σ p(y)·P(y is drafted). Lossless for every law, deterministic drafts included: naive sampling in
    SpecInfer, the target-only tree sampling of SGLang.
    """

    serves = (DraftLaw,)

    def supports(self, drafts: DraftLaw) -> bool:
        """Whether the verifier is lossless for this law: always."""
        return True

    def _prepare(self, target: FloatArray, law: DraftLaw) -> Rule:
        return _TargetOnlyRule(target, law)

    def _bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        return self._family_bounds(target, [law], tol)[0]

    def _family_bounds(
        self, target: FloatArray, laws: Sequence[DraftLaw], tol: float
    ) -> list[tuple[float, float]]:
        return [(hit, hit) for hit in laws[-1]._hit_rates(target, laws)]


class _TargetOnlyRule(Rule):
    def accept_probs(self, tokens: IntArray) -> FloatArray:
        chances = np.zeros(tokens.size)
        rest = self.target.copy()
        for i, token in enumerate(tokens):
            if rest[token] > 0:
                mass = rest[token]
                rest[token] = 0.0
                chances[i] = mass / (mass + rest.sum())
        return chances

    def residual(self, tokens: IntArray) -> FloatArray:
        rest = self.target.copy()
        rest[tokens] = 0.0
        return normalised(rest, self.target)
