"""Confidence bounds that hold for any number of samples: of a chance, and of a total variation."""

import numpy as np
from scipy.special import betaincinv

from otmd.audit.cells import IMPOSSIBLE
from otmd.probabilities import BoolArray, FloatArray, IntArray

_DEVIATIONS = (0.0, 1.0, 2.0, 4.0, 8.0)


def chance_at_least(hits: int, trials: int, level: float) -> float:
    """Lower bound of a chance, too high with probability at most ``level`` (Clopper & Pearson 1934).

    Parameters
    ----------
    hits, trials : int
        How often it happened, in so many trials.
    level : float
        In (0, 1/4].

    Returns
    -------
    float

    Notes
    -----
    It bounds the mean chance of independent trials whose chances differ, too: their number of hits has
    no heavier tail than the binomial one with the same mean, one hit or more than its mean away
    (Hoeffding 1956). That leaves a single hit, for which the bound is Markov's.
    """
    if hits == 0:
        return 0.0
    if hits == 1:
        return level / trials
    return float(betaincinv(hits, trials - hits + 1, level))


def chance_at_most(hits: int, trials: int, level: float) -> float:
    """Upper bound of a chance, too low with probability at most ``level``; see :func:`chance_at_least`."""
    return 1.0 - chance_at_least(trials - hits, trials, level)


def total_variation_bound(labels: IntArray, probs: FloatArray, level: float) -> float:
    """Lower bound of the total variation from the expected law, too high with probability ≤ ``level``.

    The first half of the samples picks a set A of cells that occur too often, the second half says how
    likely A is: P(A) − expected(A) is at most the total variation, whatever A is.

    Parameters
    ----------
    labels : ndarray of int64, shape (M,)
        The cell of each sample; independent of one another.
    probs : ndarray of float64, shape (K,) or (M, K)
        Expected law of the cells, of all samples or of each one.
    level : float
        In (0, 1/4].

    Returns
    -------
    float
        Of the law of a sample, or of the mean over the second half's where they differ; 0 if nothing shows.
    """
    half, cells = labels.size // 2, probs.shape[-1]
    if half < 2:
        return 0.0
    expected = np.broadcast_to(probs, (labels.size, cells))
    chosen = _seen_too_often(labels[:half], expected[:half], level)
    return max(0.0, _excess(labels[half:], expected[half:], chosen, level))


def _excess(labels: IntArray, expected: FloatArray, chosen: BoolArray, level: float) -> float:
    """Lower bound of P(chosen) − expected(chosen), impossible outcomes being chosen too."""
    hits = int(np.count_nonzero((labels == IMPOSSIBLE) | chosen[labels]))
    return chance_at_least(hits, labels.size, level) - float(expected.mean(axis=0)[chosen].sum())


def _seen_too_often(labels: IntArray, expected: FloatArray, level: float) -> BoolArray:
    """The cells (K,) seen too often, by a number of standard deviations that served on a part of the samples.

    Cells that are off by chance alone would widen the bound and add nothing.
    """
    part = labels.size // 2
    by_deviations = {}
    for deviations in _DEVIATIONS:
        chosen = _above(labels[:part], expected[:part], deviations)
        by_deviations[deviations] = _excess(labels[part:], expected[part:], chosen, level)
    return _above(labels, expected, max(by_deviations, key=lambda own: by_deviations[own]))


def _above(labels: IntArray, expected: FloatArray, deviations: float) -> BoolArray:
    wanted = expected.sum(axis=0)
    seen = np.bincount(labels[labels != IMPOSSIBLE], minlength=wanted.size)
    return seen > wanted + deviations * np.sqrt(wanted)
