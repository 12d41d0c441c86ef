"""Recursive rejection without replacement: certain bounds over all paths of rejected tokens.

After k rejections the target is (p − Cq)₊/W(C), W(C) = Σ (p − Cq)₊, and the next draft comes from q off the
rejected tokens, divided by the mass left, 1 − R. The next constant is C' = C + W(C)/(1 − R). Token x is
drawn and rejected with weight (C'q(x) − max(p(x), Cq(x)))₊, which sums to W(C'). The probability that all n
drafts are rejected is the mean of the last W(C') over the paths. C' is convex in C and increases with R.
So where a path is known only by the classes of its tokens, each a range of q, the intervals of C and R that
follow are certain.

Draft masses are counted in units of 1/RATE_UNIT, and C accordingly: C is finite where the mass left is
subnormal, and C q has full precision.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import hockey_stick, ratios_of
from otmd.drafts import WithoutReplacement
from otmd.probabilities import FloatArray
from otmd.race.containment import mass_beside_most
from otmd.race.quadrature import RATE_UNIT
from otmd.verifiers.rejection_tables import (
    Classes,
    Curve,
    Interval,
    fill_tails,
    merged_tokens,
    tables_of_classes,
)
from otmd.verifiers.rejection_walk import FARTHEST, rejection_bounds, two_draft_rejection

# About three seconds for a few drafts; a node costs more the more drafts are left below it.
_MOST_NODES = 3_000_000
# The first classes' mass times range, in units of the tolerance.
_WIDEST = 0.25
# Subtrees whose bounds differ by less than this part of the tolerance are not opened.
_UNOPENED = 1e-3
_ROUNDING = 1e-14
# Above 0, where the walk starts and no token is left out yet, and below C = 1.
_FIRST = np.finfo(float).tiny
# More than the rounding of the largest C.
_MARGIN = 1e-9
_ONE = 1.0 / RATE_UNIT


class RejectionPaths:
    """Bounds of P(all drafts of one position are rejected), with C and q in units of 1/RATE_UNIT."""

    def __init__(self, target: FloatArray, law: WithoutReplacement) -> None:
        self.target, self.draft = target, RATE_UNIT * law.draft_probs
        self._num_drafts = law.num_drafts
        self._first = float(hockey_stick(target, law.draft_probs, 1.0))
        # Without the cancellation of 1 − q where a token has more than half of q.
        self._beside_most = RATE_UNIT * mass_beside_most(law.draft_probs)
        self.interval = Interval(
            _ONE, _ONE * (1.0 + self._first), self._farthest(law.draft_probs, law.num_drafts)
        )

    def _farthest(self, draft_probs: FloatArray, num_drafts: int) -> float:
        """A bound of every C: W falls, so each step is at most W over the mass the largest token leaves."""
        left = 1.0 - float(draft_probs.max()) * np.arange(1, num_drafts) - _MARGIN
        if num_drafts == 1 or left[-1] <= 0.0:
            return FARTHEST
        steps = np.full(num_drafts - 1, hockey_stick(self.target, draft_probs, 1.0 + self._first))
        steps[0] = self._first
        return _ONE * (1.0 + float((steps / left).sum())) * (1.0 + _MARGIN)

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int32], FloatArray]:
        """The tokens inside the interval, sorted by p/q, and the masses of the merged tokens (3, 2)."""
        merged = np.zeros((3, 2))
        tokens = merged_tokens(self.target, self.draft, self.interval, merged)
        return tokens[np.argsort(ratios_of(self.target, self.draft, tokens))], merged

    @cached_property
    def curve(self) -> Curve:
        """The ratio curve with merged tokens, exact at C = 0, C = 1 and inside the interval."""
        tokens, merged = self._kept
        ratio = np.empty(tokens.size + 3)
        ratio[:2], ratio[-1] = (_FIRST, self._middle), np.inf
        ratio[2:-1] = ratios_of(self.target, self.draft, tokens)
        tails = np.empty(tokens.size + 4), np.empty(tokens.size + 4)
        fill_tails(self.target, self.draft, tokens, merged, *tails)
        return Curve(ratio, *tails)

    @property
    def _middle(self) -> float:
        """A ratio between C = 1 and the next C, far enough from both for their rounding."""
        return _ONE * (1.0 + 0.5 * self._first)

    def bounds(self, tol: float) -> tuple[float, float]:
        """Certain bounds of P(all drafts are rejected), equal for n ≤ 2.

        For more drafts, classes of tokens are refined until the bounds are ``tol`` apart or the work is
        too much.
        """
        if self._num_drafts == 1:
            return self._first, self._first
        if self._num_drafts == 2:
            rejected = two_draft_rejection(
                self.curve, self.target, self.draft, self._first, self._beside_most
            )
            return rejected, rejected
        low, high, work, count = 0.0, 1.0, 0, 0
        widest, negligible = _WIDEST * tol, _UNOPENED * tol
        while True:
            # One set of classes is held at a time: they are as large as the vocabulary.
            classes = None
            classes = self.classes(widest)
            equal = bool((classes.smallest == classes.largest).all())
            if classes.size.size == count and not equal:
                widest *= 2.0**-10
                continue
            count = classes.size.size
            least, most, looked = rejection_bounds(
                self.curve, classes, self._num_drafts, negligible, _MOST_NODES - work
            )
            low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
            work += looked
            if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
                return low, high
            # Mass times range: half the width has a quarter of it.
            widest, negligible = widest / 4.0, 0.0 if equal else negligible / 2.0

    def classes(self, widest: float) -> Classes:
        """Tokens in classes of similar draft mass; total mass times range of q is at most ``widest``."""
        tokens = self._kept[0]
        scaled = widest * RATE_UNIT * RATE_UNIT
        return tables_of_classes(
            self.target, self.draft, tokens, self.interval, self._middle, scaled
        )
