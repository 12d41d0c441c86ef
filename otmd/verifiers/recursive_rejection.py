"""Recursive rejection sampling, with replacement, without, and for drafts of different laws."""

from collections.abc import Sequence

import numpy as np

from otmd.curve import RatioCurve
from otmd.drafts import DraftLaw, Independent, WithoutReplacement, WithReplacement
from otmd.optimum.acceptance import pairs_by_position
from otmd.probabilities import FloatArray, IntArray
from otmd.race.quadrature import RATE_UNIT
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, accept_prob, normalised
from otmd.verifiers.rejection_bounds import rejection_bounds
from otmd.verifiers.rejection_classes import RejectionPosition


class RecursiveRejection(Verifier):
    """Try each draft in turn against what the rejections before it left of the target.

    Draft x_i is accepted with probability min(1, p_i(x_i)/q_i(x_i)), and p_{i+1} ∝ (p_i − q_i)₊. With
    replacement q_i = q (SpecInfer, Miao et al. 2024); without, q_i is q off the rejected tokens, renormalised
    (Sequoia, Chen et al. 2024); for independent drafts q_i is each draft's own.

    The rate is a closed form except without replacement for n ≥ 3, where ``acceptance_bounds`` gives certain
    bounds.
    """

    serves = (WithReplacement, WithoutReplacement, Independent)

    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        if isinstance(law, WithReplacement):
            return _WithReplacementRule(target, law)
        if isinstance(law, WithoutReplacement):
            return _WithoutReplacementRule(target, law)
        assert isinstance(law, Independent)
        return _IndependentRule(target, law)

    def family_bounds(
        self, target: FloatArray, law: DraftLaw, counts: Sequence[int], tol: float
    ) -> tuple[FloatArray, FloatArray]:
        if isinstance(law, WithReplacement):
            rates = RatioCurve.unchecked(target, law.draft_probs).recursive_rejection_rates(counts)
            return rates, rates
        if not isinstance(law, WithoutReplacement):
            return super().family_bounds(target, law, counts, tol)

        def bounds(p: FloatArray, own: DraftLaw) -> list[tuple[float, float]]:
            assert isinstance(own, WithoutReplacement)
            position = RejectionPosition(p, own.with_num_drafts(counts[-1]))
            rejected = [rejection_bounds(position, n, tol) for n in counts]
            return [(1.0 - high, 1.0 - low) for low, high in rejected]

        return pairs_by_position(target, law, len(counts), bounds)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        assert isinstance(law, Independent)
        rate = _IndependentRule(target, law).rate
        return rate, rate


class _WithReplacementRule(PreparedVerifier):
    def __init__(self, target: FloatArray, law: WithReplacement) -> None:
        super().__init__(target, law)
        self.draft = law.draft_probs
        # C_1 … C_{n+1} and W at each: see RatioCurve.recursive_rejection_chain.
        curve = RatioCurve.unchecked(target, law.draft_probs)
        self.scales, self.left = curve.recursive_rejection_chain(law.num_drafts)

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        p, q = self.target[draft_tokens], self.draft[draft_tokens]
        wanted = np.maximum(p - self.scales[:-1] * q, 0.0)
        return accept_prob(wanted, self.left[:-1] * q)

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(np.maximum(self.target - self.scales[-1] * self.draft, 0.0), self.target)


class _WithoutReplacementRule(PreparedVerifier):
    law: WithoutReplacement

    def __init__(self, target: FloatArray, law: WithoutReplacement) -> None:
        super().__init__(target, law)
        self.draft = RATE_UNIT * law.draft_probs

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        return self._walk(draft_tokens)[0]

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return normalised(self._unserved(self._walk(draft_tokens)[1]), self.target)

    def _walk(self, draft_tokens: IntArray) -> tuple[FloatArray, float]:
        """Acceptance probabilities along the path on which every draft is rejected, and its last C."""
        chances = np.empty(draft_tokens.size)
        scale = 0.0
        for i, token in enumerate(draft_tokens):
            unserved = self._unserved(scale)
            left = RATE_UNIT * float(self.law.mass_left(draft_tokens[None, :i])[0])
            step = unserved.sum() / left
            chances[i] = accept_prob(unserved[token], step * self.draft[token])
            scale += step
        return chances, scale

    def _unserved(self, scale: float) -> FloatArray:
        """(p − C q)₊, by definition: a curve's C is not finite where subnormal masses are left."""
        with np.errstate(over="ignore"):
            return np.maximum(self.target - scale * self.draft, 0.0)


class _IndependentRule(PreparedVerifier):
    def __init__(self, target: FloatArray, law: Independent) -> None:
        super().__init__(target, law)
        self.draft = law.draft_probs
        self.targets = [target]
        rejected = 1.0
        for q in law.draft_probs:
            left = np.maximum(self.targets[-1] - q, 0.0)
            rejected *= float(left.sum())
            self.targets.append(normalised(left, target))
        self.rate = 1.0 - rejected

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        stages = np.arange(draft_tokens.size)
        return accept_prob(
            np.array(self.targets)[stages, draft_tokens], self.draft[stages, draft_tokens]
        )

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self.targets[-1]
