"""Recursive rejection sampling, with replacement, without, and for drafts of different laws."""

from collections.abc import Sequence

import numpy as np

from otmd.curve import RatioCurve
from otmd.curve._kernels import AT_A_TIME
from otmd.drafts import DraftLaw, Independent, WithoutReplacement, WithReplacement
from otmd.kernel import kernel
from otmd.probabilities import FloatArray, IntArray
from otmd.race.containment import mass_beside_most
from otmd.race.quadrature import RATE_UNIT
from otmd.verifiers.base import Verifier, bounds_by_position
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
        if not isinstance(law, WithoutReplacement):
            return super().family_bounds(target, law, counts, tol)

        def bounds(p: FloatArray, own: DraftLaw) -> list[tuple[float, float]]:
            assert isinstance(own, WithoutReplacement)
            paths = RejectionPaths(p, own.with_num_drafts(counts[-1]))
            rejected = [rejection_bounds(paths, n, tol) for n in counts]
            return [(1.0 - high, 1.0 - low) for low, high in rejected]

        return bounds_by_position(target, law, len(counts), bounds)

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


def rejection_bounds(paths: RejectionPaths, num_drafts: int, tol: float) -> tuple[float, float]:
    """Certain bounds of P(all drafts are rejected) without replacement, equal for n ≤ 2.

    For more drafts, classes of tokens are refined until the bounds are ``tol`` apart or the work is too much.
    """
    if num_drafts <= 2:
        rejected, draft = paths.first, paths.law.draft_probs
        if num_drafts == 2 and rejected > 0.0:
            beside = RATE_UNIT * mass_beside_most(draft)
            rejected = _two_rejected(paths.curve, paths.target, draft, paths.first, beside)
        return rejected, rejected
    curve, low, high, work, count = paths.curve, 0.0, 1.0, 0, 0
    # What was too wide for fewer drafts is too wide for these.
    widest, negligible = min(_WIDEST * tol, paths.widest), _UNOPENED * tol
    while True:
        # One set of classes is held at a time: they are as large as the vocabulary.
        classes = walk = None
        classes = paths.classes(widest)
        equal = bool((classes.smallest == classes.largest).all())
        if classes.size.size == count and not equal:
            widest *= 2.0**-10
            continue
        count = classes.size.size
        walk = RejectionWalk(curve, classes, num_drafts, negligible, _MOST_NODES - work)
        least, most = walk.bounds()
        low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
        work += walk.looked
        if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
            return low, high
        # Mass times range: half the width has a quarter of it.
        widest, negligible = widest / 4.0, 0.0 if equal else negligible / 2.0


@kernel(error_model="numpy")
def _two_rejected(curve, target, draft, first, beside):
    """P(both drafts are rejected): the mean of W over the first token.

    ``first`` is W(1), ``beside`` the mass of all tokens but the one of more than half, in the unit.
    """
    ratio, target_tail, draft_tail = curve
    nearest, total = np.searchsorted(ratio, ONE * (1.0 + first), side="right"), 0.0
    for start in range(0, target.size, AT_A_TIME):
        p, q, part = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME], 0.0
        for y in range(p.size):
            mass = RATE_UNIT * q[y]
            # Without the cancellation of 1 − q where a token has more than half of q.
            C = ONE + first / (beside if q[y] > 0.5 else RATE_UNIT - mass)
            # Most tokens have so little mass that C is before the next entry.
            k = nearest if ratio[nearest] > C else np.searchsorted(ratio, C, side="right")
            W = min(max(target_tail[k] - C * draft_tail[k], 0.0), 1.0)
            part += max(ONE * mass - p[y], 0.0) * W
        total += part
    return total / first
