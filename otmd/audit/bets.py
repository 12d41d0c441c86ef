"""Bets against a claim, by which a fault is found whenever one looks.

A bet starts with wealth 1 and multiplies it by factors, whose expectation given the past is at most 1 under
the claim. So the wealth ever reaches 1/a with probability at most a (Ville 1939): one may stop at any time.
"""

from collections.abc import Sequence

import numpy as np

from otmd.probabilities import BoolArray, FloatArray, IntArray

CAUTIONS = (30.0, 1_000.0, 30_000.0)
NUMBERS_OF_CELLS = (2, 4, 16, 64)
STAKES = (1 / 256, 1 / 64, 1 / 16, 1 / 4)
_ROWS_AT_ONCE = 4096
_LOST = np.finfo(np.float64).min


class CellBets:
    """A bet that cells occur as often as they did so far, not as often as the claim expects.

    The factor for a sample in cell k is r(k)/π(k). The claim expects π; the bet predicts
    r(k) ∝ π(k)·(O_k + cπ(k))/(E_k + cπ(k)), with O_k samples so far in k, and E_k expected. A large caution c
    suits small deviations. Several cautions (C,) are as many bets, and logarithms of their wealth (C,).
    """

    def __init__(self, num_cells: int, caution: float | Sequence[float]) -> None:
        self.caution = np.array(caution)
        self.log_wealth = np.zeros(self.caution.shape)
        self._observed = np.zeros(num_cells)
        self._expected = np.zeros(num_cells)

    def update(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        """Bet on samples in cells (M,), with π (K,) or (M, K); the log-wealth after each of them (…, M)."""
        expected = np.broadcast_to(probs, (labels.size, probs.shape[-1]))
        starts = range(0, labels.size, _ROWS_AT_ONCE)
        chunks = (slice(start, start + _ROWS_AT_ONCE) for start in starts)
        paths = [self._bet(labels[i], expected[i]) for i in chunks]
        return np.concatenate([np.empty((*self.caution.shape, 0)), *paths], axis=-1)

    def _bet(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        happened = np.eye(probs.shape[1])[labels]
        rows = np.arange(labels.size)
        observed = np.vstack([self._observed, happened]).cumsum(axis=0)
        expected = np.vstack([self._expected, probs]).cumsum(axis=0)
        trust = self.caution[..., None, None] * probs
        factor = (observed[:-1] + trust) / np.where(probs > 0, expected[:-1] + trust, 1.0)
        with np.errstate(divide="ignore"):
            gains = np.log(factor[..., rows, labels]) - np.log((probs * factor).sum(axis=-1))
        self._observed = observed[-1]
        self._expected = expected[-1]
        path = self.log_wealth[..., None] + np.cumsum(gains, axis=-1)
        self.log_wealth = path[..., -1]
        return path


class EventBets:
    """A bet that events are more likely than the claim allows, with a stake s in (0, 1), or one for each.

    The claim allows a probability of at most a. The factor is 1 + s(X/a − 1), where X is 1 if the event
    happens and 0 if not.
    """

    def __init__(self, stake: float | FloatArray) -> None:
        self.stake = stake
        self.log_wealth = 0.0

    def update(self, happened: BoolArray, largest: FloatArray | float) -> FloatArray:
        """Bet on events (M,) in turn, with the ``largest`` probability a of each; the log-wealth (M,)."""
        with np.errstate(divide="ignore"):
            paid = np.where(happened, 1.0 / np.asarray(largest), 0.0)
        path = self.log_wealth + np.cumsum(np.log1p(self.stake * (paid - 1.0)))
        self.log_wealth = float(path[-1]) if path.size else self.log_wealth
        return path


def mean_wealth(paths: Sequence[FloatArray] | FloatArray) -> FloatArray:
    """Logarithm of the mean wealth of several bets. It is itself a bet, which splits its stake among them."""
    stacked = np.array(paths)
    # A bet that lost all it had has −∞, and so may all of them.
    largest = np.maximum(stacked.max(axis=0), _LOST)
    with np.errstate(divide="ignore"):
        return largest + np.log(np.exp(stacked - largest).mean(axis=0))


def anytime_p_value(path: FloatArray) -> float:
    """1/(the largest wealth), from log-wealths (M,): under the claim, at most x with probability ≤ x."""
    return float(np.exp(-path.max(initial=0.0)))
