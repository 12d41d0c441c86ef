"""The acceptance rate of recursive rejection without replacement, between certain bounds."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.kernels.curve import mass_after
from otmd.kernels.ratio_groups import fill_ratios
from otmd.kernels.rejection_classes import classes_of_mass, tokens_by_class
from otmd.kernels.rejection_paths import rejection_bounds, two_draft_rejection
from otmd.kernels.replacement_rates import hockey_stick
from otmd.probabilities import FloatArray, IntArray

# About three seconds for a few drafts; a node costs more the more drafts are left below it.
_MOST_NODES = 3_000_000
# Subtrees that matter less than this part of the tolerance stay closed: there are thousands of them.
_UNOPENED = 1e-4
_ROUNDING = 1e-14


class RejectionPaths:
    """What the bounds for every number of drafts need of a single position.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    law : WithoutReplacement
        Drafts drawn one after another; its number of drafts does not matter here.
    """

    def __init__(self, target: FloatArray, law: WithoutReplacement) -> None:
        self.target, self.law, self.draft = target, law, law.draft_probs

    @cached_property
    def order(self) -> IntArray:
        """The tokens by p/q, ascending."""
        return np.argsort(self._ratio)

    @cached_property
    def curve(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """P/q in that order, and what p and q have from each token on."""
        tails = np.empty(self.order.size + 1), np.empty(self.order.size + 1)
        for mass, tail in zip((self.target, self.draft), tails, strict=True):
            mass_after(mass, self.order, tail)
        return self._ratio[self.order], *tails

    @cached_property
    def by_mass(self) -> IntArray:
        """The tokens that are drafted, largest q first."""
        return np.argsort(-self.draft)[: np.count_nonzero(self.draft)]

    @cached_property
    def _ratio(self) -> FloatArray:
        ratio = np.empty(self.draft.size)
        fill_ratios(self.target, self.draft, ratio)
        return ratio

    @cached_property
    def _drafted(self) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
        """P/q, p and q of the tokens that are drafted, by their ratio, and their ranks by mass."""
        rank = np.empty(self.draft.size, np.int64)
        rank[self.by_mass] = np.arange(self.by_mass.size)
        tokens = self.order[self.draft[self.order] > 0]
        return self._ratio[tokens], self.target[tokens], self.draft[tokens], rank[tokens]

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
        start = None
        for n in counts:
            if n <= 2:
                rejected = self._one() if n == 1 else self._two()
                found.append((rejected, rejected))
                continue
            low, high, last = self._of_classes(n, tol, start or (tol, self.classes(tol)))
            found.append((low, high))
            # What is too wide for fewer drafts is too wide for more.
            start = last if high - low <= tol else None
        return found

    def _one(self) -> float:
        return hockey_stick(self.target, self.draft, 1.0)

    def _two(self) -> float:
        masses = self.target, self.draft, self.law.mass_of_others()
        return two_draft_rejection(self.curve, *(mass[self.by_mass] for mass in masses))

    def _of_classes(
        self, num_drafts: int, tol: float, start: tuple[float, tuple]
    ) -> tuple[float, float, tuple[float, tuple]]:
        """Bounds for n ≥ 3 drafts from classes of some width on, and the width and classes of the last."""
        low, high, work = 0.0, 1.0, 0
        widest, classes = start
        negligible = _UNOPENED * tol
        while True:
            least, most, looked = rejection_bounds(
                self.curve, classes, num_drafts, negligible, _MOST_NODES - work
            )
            low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
            work += looked
            equal = bool((classes[0] == classes[1]).all())
            if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
                return low, high, (widest, classes)
            # Twice as many classes of half the width, where masses are evenly spread.
            widest /= 4.0
            classes = self.classes(widest)
            negligible = 0.0 if equal else negligible / 2.0

    def classes(self, widest: float) -> tuple:
        """Tokens in classes of similar draft mass, largest masses first.

        What is not known of a path is the range of a class as often as its tokens are drafted: mass times
        range is at most ``widest``.

        Returns the smallest and largest mass and the total of each class, where it starts, and along all
        tokens sorted by class and ratio: the ratio p/q, and both masses accumulated from each class's start.
        """
        mass = self.draft[self.by_mass]
        level = np.empty(mass.size, np.int32)
        starts = classes_of_mass(mass, widest, level)
        *tokens, rank = self._drafted
        ratio = np.empty(mass.size)
        before = np.empty((2, mass.size + starts.size - 1))
        tokens_by_class(level[rank], starts, tuple(tokens), ratio, *before)
        firsts, lasts = starts[:-1], starts[1:]
        total = before[1][lasts + np.arange(firsts.size)]
        return mass[lasts - 1], mass[firsts], total, starts, ratio, *before
