"""Draw from the target and see whether the token was drafted."""

from collections.abc import Sequence

import numpy as np

from otmd.drafts import DraftLaw, WithReplacement
from otmd.kernels.rate_rows import hit_rates
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.closed_form import ClosedForm
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

    def _closed_form(self, laws: Sequence[DraftLaw]) -> ClosedForm | None:
        most = laws[-1]
        # Not of a class of one's own that is derived from it: this may include other tokens.
        if type(most) is not WithReplacement:
            return None
        counts = np.array([law.num_drafts for law in laws])
        return ClosedForm(most.draft_probs, len(laws), hit_rates, (counts,))

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
