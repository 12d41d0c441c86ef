"""When an exponential race is over: nodes of the integral over the time of the last win."""

from math import lgamma, log

import numpy as np

from otmd.drafts.without_replacement import quadrature_step
from otmd.probabilities import FloatArray

# e^{−42} is below half an ulp of 1.
_INVISIBLE = 42.0
_FASTEST = 2048


def latest_win(draft: FloatArray, num_drafts: int) -> float:
    """A time by which n tokens have arrived, but for a probability below the rounding of 1.

    Parameters
    ----------
    draft : ndarray of float64, shape (V,)
        q, the tokens' rates; at least n are positive.
    num_drafts : int
        n ≥ 2.

    Returns
    -------
    float
        The earlier of the time at which the n fastest have surely arrived, and of that at which Chernoff's
        bound P(N < n) ≤ e^{−μ}(eμ/(n − 1))^{n−1} is invisible, μ being at most the mean number of arrivals.
    """
    size = min(draft.size, max(_FASTEST, num_drafts))
    fast = np.sort(np.partition(draft, draft.size - size)[draft.size - size :])
    others = max(0.0, float(draft.sum() - fast.sum())) if size < draft.size else 0.0
    slowest = float(fast[-num_drafts])
    early, late = 0.0, _INVISIBLE / slowest
    for _ in range(60):
        time = 0.5 * (early + late)
        mean = float(-np.expm1(-fast * time).sum())
        if others > 0.0 and fast[0] > 0.0:
            # 1 − e^{−qt} is concave in q, so above its chord up to the slowest of the fast tokens.
            mean += others * float(-np.expm1(-fast[0] * time)) / float(fast[0])
        lost = num_drafts - 1
        over = mean > lost and mean - lost * (1.0 + log(mean / lost)) > _INVISIBLE
        early, late = (early, time) if over else (time, late)
    return late


def win_times(latest: float, num_drafts: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and steps of the integral over the time of the last win, in units of ``latest``.

    The trapezoidal rule in log t, from where t^n/n! is invisible.
    """
    step = quadrature_step(num_drafts)
    first = (lgamma(num_drafts + 1) - _INVISIBLE) / num_drafts - log(latest)
    log_times = np.arange(min(first, -1.0), step, step)
    times = np.exp(log_times)
    return times, step * times
