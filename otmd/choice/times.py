"""Nodes of the integrals over the time at which the first clock rings."""

import numpy as np

from otmd.probabilities import FloatArray

_SPACING = 0.25
# e^{−45} is below the rounding of 1.
_SILENT = 45.0


def clock_times(slowest: float, fastest: float) -> tuple[FloatArray, FloatArray]:
    """Nodes and steps of ∫₀^∞ f(s) ds for sums of exponentials with rates between these two.

    The substitution s = exp(v − e^{−v}) makes the trapezoidal rule converge double exponentially at the
    early end (Takahasi and Mori 1974); at this spacing the rule is exact to rounding.

    Parameters
    ----------
    slowest, fastest : float
        The smallest and the largest rate, positive.

    Returns
    -------
    times, steps : ndarray of float64, shape (J,)
    """
    latest = np.log(_SILENT * fastest / slowest)
    v = np.arange(np.floor(-3.7 / _SPACING), np.ceil(latest / _SPACING) + 1) * _SPACING
    times = np.exp(v - np.exp(-v)) / fastest
    return times, _SPACING * times * (1.0 + np.exp(-v))


def times_for_weights(log_weights: FloatArray, num_drafts: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and steps that serve clocks of these log weights, as many of which as drafts may run at once."""
    slowest, fastest = np.exp([log_weights.min(), log_weights.max()]).tolist()
    return clock_times(slowest, fastest * num_drafts)
