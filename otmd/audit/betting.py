"""Bets against a claim: wealth that is a fair game under it, at any time that one looks.

A bet pays a factor whose expectation is at most 1 under the claim, given what came before. By
Ville's inequality (1939) the product of the factors ever reaches 1/a with probability at most a, so one
may look after every sample and stop at will (Shafer & Vovk 2019; Waudby-Smith & Ramdas 2024).
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from otmd.probabilities import BoolArray, FloatArray, IntArray

_ROWS_AT_ONCE = 4096


class CellBets:
    """Bets that the cells occur as often as they did before, not as the claim expects.

    The factor for a sample in cell k is r(k)/π(k) with the predicted r(k) ∝ π(k)·(O_k + cπ(k))/(E_k + cπ(k)),
    O_k how often k occurred before and E_k how often it was expected. With one π for all samples this is the
    likelihood ratio of a Dirichlet mixture with parameters cπ against π.

    Parameters
    ----------
    num_cells : int
        K.
    caution : float
        c > 0, how many samples' worth of trust in the claim; the larger, the smaller the deviations sought.
    """

    def __init__(self, num_cells: int, caution: float) -> None:
        self.caution = caution
        self.log_wealth = 0.0
        self._observed = np.zeros(num_cells)
        self._expected = np.zeros(num_cells)

    def update(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        """Bet on samples in turn.

        Parameters
        ----------
        labels : ndarray of int64, shape (M,)
            Their cells.
        probs : ndarray of float64, shape (K,) or (M, K)
            π, of all samples or of each one; it may depend on the samples before.

        Returns
        -------
        ndarray of float64, shape (M,)
            Logarithm of the wealth after each.
        """
        expected = np.broadcast_to(probs, (labels.size, probs.shape[-1]))
        path = np.empty(labels.size)
        for start in range(0, labels.size, _ROWS_AT_ONCE):
            own = slice(start, start + _ROWS_AT_ONCE)
            path[own] = self._bet(labels[own], expected[own])
        return path

    def _bet(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        happened = np.zeros(probs.shape)
        happened[np.arange(labels.size), labels] = 1.0
        observed, expected = _before(self._observed, happened), _before(self._expected, probs)
        trust = self.caution * probs
        factor = (observed[:-1] + trust) / np.where(probs > 0, expected[:-1] + trust, 1.0)
        own = factor[np.arange(labels.size), labels]
        with np.errstate(divide="ignore"):
            gains = np.log(own) - np.log((probs * factor).sum(axis=-1))
        self._observed, self._expected = observed[-1], expected[-1]
        path = self.log_wealth + np.cumsum(gains)
        self.log_wealth = float(path[-1])
        return path


class ChanceBets:
    """Bets that something happens more often than a largest chance allows.

    The factor is 1 + s(X/a − 1) for a chance of at most a, with the stake s.

    Parameters
    ----------
    stake : float
        In (0, 1).
    """

    def __init__(self, stake: float) -> None:
        self.stake = stake
        self.log_wealth = 0.0

    def update(self, happened: BoolArray, largest: FloatArray | float) -> FloatArray:
        """Bet on events (M,) in turn, each with its largest chance; logarithms of wealth (M,)."""
        with np.errstate(divide="ignore"):
            paid = np.where(happened, 1.0 / np.asarray(largest), 0.0)
        path = self.log_wealth + np.cumsum(np.log1p(self.stake * (paid - 1.0)))
        self.log_wealth = float(path[-1]) if path.size else self.log_wealth
        return path


def mean_wealth(paths: Sequence[FloatArray]) -> FloatArray:
    """Logarithm of the mean of wealths: bets side by side, each with a part of the stake, are a bet."""
    return logsumexp(np.stack(paths), axis=0) - np.log(len(paths))


def _before(start: FloatArray, steps: FloatArray) -> FloatArray:
    """Running sums (M + 1, K) that begin with ``start``."""
    sums = np.empty((steps.shape[0] + 1, steps.shape[1]))
    sums[0] = start
    np.cumsum(steps, axis=0, out=sums[1:])
    sums[1:] += start
    return sums
