"""The acceptance rate of recursive rejection without replacement, between certain bounds."""

from functools import cached_property

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.kernels.rejection_paths import (
    classes_of_mass,
    mass_before_in_class,
    rejection_bounds,
    two_draft_rejection,
)
from otmd.kernels.replacement_rates import hockey_stick
from otmd.probabilities import FloatArray, IntArray
from otmd.ratio_curve import RatioCurve

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
    def curve(self) -> RatioCurve:
        """The sorted curve of the position."""
        return RatioCurve(self.target, self.draft)

    @cached_property
    def by_mass(self) -> IntArray:
        """The tokens that are drafted, largest q first."""
        return np.argsort(-self.draft)[: np.count_nonzero(self.draft)]

    def bounds(self, num_drafts: int, tol: float) -> tuple[float, float]:
        """Bounds of P(all drafts are rejected).

        Parameters
        ----------
        num_drafts : int
            n.
        tol : float
            How far apart the bounds may be.

        Returns
        -------
        low, high : float
            Equal for n ≤ 2. For n ≥ 3 tokens are first merged into classes of similar draft mass, and
            the classes are refined until the bounds meet ``tol``, the masses of every class are equal,
            or the limit of work is reached; they are certain in every case, as long as the draft mass left
            by n − 1 rejections is a normal float64 (above 2.2e-308).
        """
        if num_drafts == 1:
            rejected = hockey_stick(self.target, self.draft, 1.0)
            return rejected, rejected
        arrays = self.curve.arrays(())
        if num_drafts == 2:
            left = self.law.mass_of_others()
            rejected = two_draft_rejection(*arrays, self.target, self.draft, left)
            return rejected, rejected
        low, high = 0.0, 1.0
        widest, negligible, work = tol, _UNOPENED * tol, 0
        while True:
            classes = self.classes(widest)
            least, most, looked = rejection_bounds(
                arrays, classes, num_drafts, negligible, _MOST_NODES - work
            )
            low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
            work += looked
            equal = bool((classes[0] == classes[1]).all())
            if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
                return low, high
            # Twice as many classes of half the width, where masses are evenly spread.
            widest /= 4.0
            negligible = 0.0 if equal else negligible / 2.0

    def classes(self, widest: float) -> tuple:
        """Tokens in classes of similar draft mass, largest masses first.

        What is not known of a path is the range of a class as often as its tokens are drafted: mass times
        range is at most ``widest``.

        Returns the smallest and largest mass and the total of each class, where it starts, and along all
        tokens sorted by class and ratio: the ratio p/q, and both masses accumulated from each class's start.
        """
        rank = np.empty(self.by_mass.size, np.int32)
        count = classes_of_mass(self.draft[self.by_mass], widest, rank)
        level = np.zeros(self.draft.size, np.int16 if count < 2**15 else np.int32)
        level[self.by_mass] = rank
        order = self.curve.order
        by_ratio = order[self.draft[order] > 0]
        # A stable sort of 16-bit numbers is by their digits, and keeps the order of ratios.
        tokens = by_ratio[np.argsort(level[by_ratio], kind="stable")]
        level, p, q = level[tokens], self.target[tokens], self.draft[tokens]
        with np.errstate(over="ignore"):
            ratio = p / q
        firsts = np.flatnonzero(np.diff(level, prepend=-1))
        starts = np.append(firsts, tokens.size)
        return (
            np.minimum.reduceat(q, firsts),
            np.maximum.reduceat(q, firsts),
            np.add.reduceat(q, firsts),
            starts,
            ratio,
            _accumulated(p, starts),
            _accumulated(q, starts),
        )


def _accumulated(mass: FloatArray, starts: IntArray) -> FloatArray:
    """Masses before each token within its class: one number more than tokens, for each class."""
    out = np.empty(mass.size + starts.size - 1)
    mass_before_in_class(mass, starts, out)
    return out
