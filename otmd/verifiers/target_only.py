"""Draw from the target and see whether the token was drafted."""

from collections.abc import Sequence

import numpy as np

from otmd.curve import RatioCurve
from otmd.drafts import DraftLaw, WithReplacement
from otmd.optimum.acceptance import pairs_by_position
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, normalised


class TargetOnly(Verifier):
    """Draw y from p without looking at q; a draft counts as accepted if it is y.

    α = Σ p(y)·P(y is drafted). The rule is lossless for every law, certain drafts included. SpecInfer calls
    it naive sampling; SGLang uses it for trees (target-only sampling).
    """

    serves = (DraftLaw,)

    def supports(self, law: DraftLaw) -> bool:
        return True

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        return _TargetOnlyRule(target, law)

    def family_bounds(
        self, target: FloatArray, law: DraftLaw, counts: Sequence[int], tol: float
    ) -> tuple[FloatArray, FloatArray]:
        # A subclass may draft other tokens, so the type must be WithReplacement itself.
        if type(law) is WithReplacement:
            rates = RatioCurve.unchecked(target, law.draft_probs).target_only_rates(counts)
            return rates, rates

        def bounds(p: FloatArray, own: DraftLaw) -> list[tuple[float, float]]:
            hits = own.with_num_drafts(counts[-1]).hit_rates(p, counts)
            return [(hit, hit) for hit in hits]

        return pairs_by_position(target, law, len(counts), bounds)


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
