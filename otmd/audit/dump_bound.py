"""A lower bound of a mean total variation over positions that depend on those before them."""

import numpy as np

from otmd.audit.cells import IMPOSSIBLE
from otmd.probabilities import BoolArray, FloatArray, IntArray

_DEVIATIONS = (0.0, 1.0, 2.0, 4.0, 8.0)


def mean_total_variation_bound(labels: IntArray, probs: FloatArray, level: float) -> float:
    """Lower bound of the mean total variation over the second half, too high with probability ≤ ``level``.

    The first half picks cells A that occur too often, and how far the bound is tilted; the second half says
    how likely A is. Unlike :func:`~otmd.audit.bounds.total_variation_bound` it holds for positions that
    depend on those before them.

    Parameters
    ----------
    labels : ndarray of int64, shape (M,)
        The cell of each sample; :data:`~otmd.audit.cells.IMPOSSIBLE` counts as too often.
    probs : ndarray of float64, shape (K,) or (M, K)
        What the claim gives the cells, at every position or at each one.
    level : float
        In (0, 1/4].

    Returns
    -------
    float
        0 if nothing shows.
    """
    half, cells = labels.size // 2, probs.shape[-1]
    if half == 0:
        return 0.0
    every = np.broadcast_to(probs, (labels.size, cells))
    first, second = _Half(labels[:half], every[:half]), _Half(labels[half:], every[half:])
    seen = np.bincount(first.labels[first.labels != IMPOSSIBLE], minlength=cells) / half
    score = (seen - first.expected) / np.sqrt(np.maximum(first.expected, 1e-9) / half)
    best = max(
        (score > deviations for deviations in _DEVIATIONS),
        key=lambda chosen: first.excess(chosen, first.tilt(chosen, level), level),
    )
    return max(0.0, second.excess(best, first.tilt(best, level), level))


class _Half:
    """One half of the samples: labels (M,) and the mean of what is expected, (K,)."""

    def __init__(self, labels: IntArray, probs: FloatArray) -> None:
        self.labels, self.expected = labels, probs.mean(axis=0)

    def rate(self, chosen: BoolArray) -> float:
        """How often one of the chosen cells occurred."""
        return float(np.mean((self.labels == IMPOSSIBLE) | chosen[self.labels]))

    def tilt(self, chosen: BoolArray, level: float) -> float:
        """λ for which the bound below is sharpest, if the other half is like this one."""
        rate = min(max(self.rate(chosen), 1e-6), 1.0 - 1e-6)
        spread = np.sqrt(2.0 * rate * (1.0 - rate) * np.log(1.0 / level) / self.labels.size)
        low = max(rate - spread, 1e-3 * rate)
        return max(1e-6, float(np.log(rate / (1.0 - rate)) - np.log(low / (1.0 - low))))

    def excess(self, chosen: BoolArray, tilt: float, level: float) -> float:
        """Lower bound of the mean chance of the chosen cells, less what the claim gives them.

        exp(λ ΣX − Σ log(1 + m(e^λ − 1))) is a martingale for events X of chances m given the past, and by
        concavity the sum of logarithms is at most that of the mean chance; Markov's inequality does the rest.
        """
        exponent = tilt * self.rate(chosen) - np.log(1.0 / level) / self.labels.size
        mean_chance = np.expm1(exponent) / np.expm1(tilt)
        return float(mean_chance - self.expected[chosen].sum())
