"""Draw from the target and see whether the token was drafted."""

from collections.abc import Sequence

import numpy as np

from otmd.curve.rate_rows import hit_rates
from otmd.drafts import DraftLaw, WithReplacement
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.closed_form import ClosedForm
from otmd.verifiers.prepared import PreparedVerifier, normalised


class TargetOnly(Verifier):
    """Draw y ~ p without looking at q; a draft counts as accepted where it is y.

    α = Σ p(y)·P(y is drafted). Lossless for every law, deterministic drafts included: naive sampling in
    SpecInfer, the target-only tree sampling of SGLang.
    """

    serves = (DraftLaw,)

    def supports(self, law: DraftLaw) -> bool:
        """Whether the verifier is lossless for this law: always."""
        return True

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
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
        return [(hit, hit) for hit in laws[-1].hit_rates(target, [law.num_drafts for law in laws])]


class _TargetOnlyRule(PreparedVerifier):
    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        chances = np.zeros(draft_tokens.size)
        rest = self.target.copy()
        for i, token in enumerate(draft_tokens):
            if rest[token] > 0:
                mass = rest[token]
                rest[token] = 0.0
                chances[i] = mass / (mass + rest.sum())
        return chances

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        rest = self.target.copy()
        rest[draft_tokens] = 0.0
        return normalised(rest, self.target)
