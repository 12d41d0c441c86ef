"""The acceptance rate of recursive rejection without replacement, between certain bounds."""

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.kernels.rejection_paths import (
    mass_before_in_class,
    rejection_bounds,
    two_draft_rejection,
)
from otmd.probabilities import FloatArray, IntArray
from otmd.ratio_curve import RatioCurve

# About three seconds for a few drafts; a node costs more the more drafts are left below it.
_MOST_NODES = 3_000_000
# Subtrees that matter less than this part of the tolerance stay closed: there are thousands of them.
_UNOPENED = 1e-4
_ROUNDING = 1e-14


def rejection_probability_bounds(
    target: FloatArray, law: WithoutReplacement, tol: float
) -> tuple[float, float]:
    """Bounds of P(all drafts are rejected) at a single position.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    law : WithoutReplacement
        n drafts drawn one after another.
    tol : float
        How far apart the bounds may be.

    Returns
    -------
    low, high : float
        Equal for n ≤ 2. For n ≥ 3 tokens are first merged into classes of similar draft mass, and
        the classes are refined until the bounds meet ``tol``, the masses of every class are equal, or the
        limit of work is reached; they are certain in every case, as long as the draft mass left by
        n − 1 rejections is a normal float64 (above 2.2e-308).
    """
    curve = RatioCurve(target, law.draft_probs)
    if law.num_drafts == 1:
        rejected = float(curve.hockey_stick(1.0))
        return rejected, rejected
    if law.num_drafts == 2:
        left = law.mass_of_others()
        rejected = two_draft_rejection(*curve.arrays(()), target, law.draft_probs, left)
        return rejected, rejected
    low, high = 0.0, 1.0
    spread, negligible, work = 1.0, _UNOPENED * tol, 0
    while True:
        classes = _classes(target, law.draft_probs, spread)
        least, most, looked = rejection_bounds(
            curve.arrays(()), classes, law.num_drafts, negligible, _MOST_NODES - work
        )
        low, high = max(low, least - _ROUNDING), min(high, most + _ROUNDING)
        work += looked
        equal = bool((classes[0] == classes[1]).all())
        if high - low <= tol or work >= _MOST_NODES or (equal and negligible == 0.0):
            return low, high
        spread /= 2.0
        negligible = 0.0 if equal else negligible / 2.0


def _classes(target: FloatArray, draft: FloatArray, spread: float) -> tuple:
    """Tokens in classes of draft masses within a factor 1 + ``spread``, largest masses first.

    Returns the smallest and largest mass and the total of each class, where it starts, and along all
    tokens sorted by class and ratio: the ratio p/q, and both masses accumulated from each class's start.
    """
    tokens = np.flatnonzero(draft)
    level = np.floor(-np.log(draft[tokens]) / np.log1p(spread)).astype(np.int64)
    with np.errstate(over="ignore"):
        ratio = target[tokens] / draft[tokens]
    order = np.lexsort((ratio, level))
    tokens, level, ratio = tokens[order], level[order], ratio[order]
    p, q = target[tokens], draft[tokens]
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
