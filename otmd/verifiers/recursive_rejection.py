"""Recursive rejection sampling, with replacement, without, and for drafts of different laws."""

from collections.abc import Sequence

import numpy as np

from otmd.curve import RatioCurve
from otmd.curve._kernels import AT_A_TIME
from otmd.drafts import DraftLaw, Independent, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray
from otmd.race.containment import mass_beside_most
from otmd.race.quadrature import RATE_UNIT
from otmd.verifiers.base import Verifier
from otmd.verifiers.prepared import PreparedVerifier, accept_prob, normalised
from otmd.verifiers.rejection_paths import ONE, RejectionPaths, RejectionWalk

# About three seconds for a few drafts; a node costs more the more drafts are left below it.
_MOST_NODES = 3_000_000
# The first classes' mass times range, and by how much the bounds of a path's rest differ that is not looked
# into, in units of the tolerance.
_WIDEST, _UNOPENED = 0.25, 1e-3
_ROUNDING = 1e-14


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
            curve = RatioCurve.unchecked(target, law.draft_probs)
            rates = curve.recursive_rejection_rates(counts)
            return rates, rates
        return super().family_bounds(target, law, counts, tol)

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        if isinstance(law, WithoutReplacement):
            low, high = rejection_bounds(target, law, tol)
            return 1.0 - high, 1.0 - low
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


def rejection_bounds(
    target: FloatArray, law: WithoutReplacement, tol: float
) -> tuple[float, float]:
    """Certain bounds of P(all drafts are rejected) without replacement, equal for n ≤ 2.

    For more drafts, classes of tokens are refined until the bounds are ``tol`` apart or the work is too much.
    """
    paths = RejectionPaths(target, law)
    if law.num_drafts <= 2:
        rejected = paths.first if law.num_drafts == 1 else _two_rejected(paths, law)
        return rejected, rejected
    curve, low, high, work, count = paths.curve, 0.0, 1.0, 0, 0
    widest, negligible = _WIDEST * tol, _UNOPENED * tol
    while True:
        # One set of classes is held at a time: they are as large as the vocabulary.
        classes = walk = None
        classes = paths.classes(widest)
        equal = bool((classes.smallest == classes.largest).all())
        if classes.size.size == count and not equal:
            widest *= 2.0**-10
            continue
        count = classes.size.size
        walk = RejectionWalk(curve, classes, law.num_drafts, negligible, _MOST_NODES - work)
        least, most = walk.bounds()
        low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
        work += walk.looked
        if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
            return low, high
        # Mass times range: half the width has a quarter of it.
        widest, negligible = widest / 4.0, 0.0 if equal else negligible / 2.0


def _two_rejected(paths: RejectionPaths, law: WithoutReplacement) -> float:
    """P(both drafts are rejected): the mean of W over the first token."""
    curve, first, total = paths.curve, paths.first, 0.0
    # Without the cancellation of 1 − q where a token has more than half of q.
    beside = RATE_UNIT * mass_beside_most(law.draft_probs)
    nearest = int(np.searchsorted(curve.ratio, paths.interval[1], side="right"))
    # In parts, to hold few numbers at a time.
    for start in range(0, law.vocab_size, 8 * AT_A_TIME):
        own = slice(start, start + 8 * AT_A_TIME)
        q = RATE_UNIT * law.draft_probs[own]
        C = ONE + first / np.where(q > 0.5 * RATE_UNIT, beside, RATE_UNIT - q)
        # Most tokens have so little mass that C is before the next entry.
        k, far = np.full(q.size, nearest), curve.ratio[min(nearest, curve.ratio.size - 1)] <= C
        k[far] = np.searchsorted(curve.ratio, C[far], side="right")
        total += float(np.maximum(ONE * q - paths.target[own], 0.0) @ curve.at(C, k))
    return total / first if first > 0.0 else 0.0
