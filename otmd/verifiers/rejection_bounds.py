"""The acceptance rate of recursive rejection without replacement, between certain bounds."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from otmd.curve.ratio_groups import ratios_of
from otmd.curve.replacement_rates import hockey_stick
from otmd.drafts import WithoutReplacement
from otmd.probabilities import FloatArray
from otmd.race.containment import mass_beside_most
from otmd.verifiers.rejection_classes import classes_of_mass, masses_by_class, tokens_by_class
from otmd.verifiers.rejection_curve import fill_tails, merged_tokens, two_draft_rejection
from otmd.verifiers.rejection_node import FARTHEST
from otmd.verifiers.rejection_paths import rejection_bounds

# About three seconds for a few drafts; a node costs more the more drafts are left below it.
_MOST_NODES = 3_000_000
# The first classes' mass times range, in units of the tolerance.
_WIDEST = 0.25
# Subtrees that matter less than this part of the tolerance stay closed: there are thousands of them.
_UNOPENED = 1e-3
_ROUNDING = 1e-14
# Above 0, where the walk starts and no token is left out yet, and below 1.
_FIRST = np.finfo(float).tiny
# How far the largest C may be off by rounding, amply.
_MARGIN = 1e-9


class RejectionPaths:
    """What the bounds for every number of drafts need of a single position.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    law : WithoutReplacement
        Drafts drawn one after another; its number of drafts is the most that will be asked for.

    Attributes
    ----------
    farthest : float
        No C is larger.
    """

    def __init__(self, target: FloatArray, law: WithoutReplacement) -> None:
        self.target, self.draft = target, law.draft_probs
        self._first = float(hockey_stick(target, self.draft, 1.0))
        self.farthest = self._farthest(law.num_drafts)
        self._interval = 1.0 + self._first, self.farthest
        self._last: tuple[float, tuple] | None = None

    def _farthest(self, num_drafts: int) -> float:
        """The largest C, if each step adds W, which falls, over the mass left by tokens as large as any."""
        left = 1.0 - float(self.draft.max()) * np.arange(1, num_drafts) - _MARGIN
        if num_drafts == 1 or left[-1] <= 0.0:
            return FARTHEST
        steps = np.full(num_drafts - 1, hockey_stick(self.target, self.draft, 1.0 + self._first))
        steps[0] = self._first
        return min((1.0 + float((steps / left).sum())) * (1.0 + _MARGIN), FARTHEST)

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int32], FloatArray]:
        """The tokens with p/q in the interval, in this order, and the masses of the others."""
        merged = np.zeros((3, 2))
        tokens = merged_tokens(self.target, self.draft, self._interval, merged)
        return tokens[np.argsort(ratios_of(self.target, self.draft, tokens))], merged

    @cached_property
    def curve(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """P/q ascending, and what p and q have from each entry on: :mod:`otmd.verifiers.rejection_curve`."""
        tokens, merged = self._kept
        ratio = np.empty(tokens.size + 3)
        ratio[:2], ratio[-1] = (_FIRST, self._middle), np.inf
        ratio[2:-1] = ratios_of(self.target, self.draft, tokens)
        tails = np.empty(tokens.size + 4), np.empty(tokens.size + 4)
        fill_tails(self.target, self.draft, tokens, merged, *tails)
        return ratio, *tails

    @property
    def _middle(self) -> float:
        """Any ratio on the same side of each C as the merged tokens above 1, whatever way C is rounded."""
        return 1.0 + 0.5 * self._first

    def bounds(self, counts: Sequence[int], tol: float) -> list[tuple[float, float]]:
        """Bounds of P(all drafts are rejected), for several numbers of drafts.

        Parameters
        ----------
        counts : sequence of int
            The numbers n, ascending.
        tol : float
            How far apart the bounds may be.

        Returns
        -------
        list of (low, high)
            Equal for n ≤ 2. For n ≥ 3 tokens are first merged into classes of similar draft mass, and
            the classes are refined until the bounds meet ``tol``, the masses of every class are equal,
            or the limit of work is reached; they are certain in every case, as long as the draft mass left
            by n − 1 rejections is a normal float64 (above 2.2e-308).
        """
        found = []
        for n in counts:
            if n <= 2:
                rejected = self._first if n == 1 else self._two()
                found.append((rejected, rejected))
                continue
            low, high = self._of_classes(n, tol)
            found.append((low, high))
            # What is too wide for fewer drafts is too wide for more.
            if high - low > tol:
                self._last = None
        return found

    def _two(self) -> float:
        others = mass_beside_most(self.draft)
        return two_draft_rejection(self.curve, self.target, self.draft, self._first, others)

    def _of_classes(self, num_drafts: int, tol: float) -> tuple[float, float]:
        """Bounds for n ≥ 3 drafts from the last classes on, or from some that mostly do at once."""
        low, high, work = 0.0, 1.0, 0
        widest, classes = self._last or (_WIDEST * tol, self.classes(_WIDEST * tol))
        negligible = _UNOPENED * tol
        while True:
            self._last = widest, classes
            least, most, looked = rejection_bounds(
                self.curve, classes, num_drafts, negligible, _MOST_NODES - work
            )
            low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
            work += looked
            equal = bool((classes[0] == classes[1]).all())
            if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
                return low, high
            # Twice as many classes of half the width, where masses are evenly spread.
            widest /= 4.0
            # One set of classes is held at a time.
            self._last = classes = None
            classes = self.classes(widest)
            negligible = 0.0 if equal else negligible / 2.0

    def classes(self, widest: float) -> tuple:
        """Tokens in classes of similar draft mass, largest masses first.

        What is not known of a path is the range of a class as often as its tokens are drafted: mass times
        range is at most ``widest``.

        Returns the smallest and largest mass, the total and the number of tokens of each class, where it
        starts, and along the curve's tokens sorted by class and ratio: the ratio p/q, and both masses
        accumulated from each class's start.
        """
        mass = np.sort(self.draft)
        mass = mass[mass.size - np.count_nonzero(mass) :][::-1]
        ends = classes_of_mass(mass, widest)
        low, high = mass[ends[1:] - 1], mass[ends[:-1]]
        del mass
        smallest, merged = low[::-1].copy(), np.zeros((low.size, 3, 2))
        masses = self.target, self.draft
        kept = masses_by_class(*masses, self._interval, smallest, merged)
        starts = np.append(0, np.cumsum(1 + kept))
        ratio, before = np.empty(starts[-1]), np.empty((2, starts[-1] + low.size))
        tokens = self._kept[0]
        tokens_by_class(*masses, tokens, smallest, starts, merged, self._middle, ratio, *before)
        total = before[1][starts[1:] + np.arange(low.size)] + merged[:, 2, 1]
        return low, high, total, np.diff(ends), starts, ratio, *before
