"""Intervals for ratios of sums over prompts, by the jackknife.

Positions of one prompt resemble each other, so prompts are the independent units, and a mean over positions
is a ratio of two sums over prompts. The jackknife leaves out one prompt at a time. Its standard error, with
the quantiles of Student's t for the prompts less one, keeps the level over few prompts, where the percentiles
of a bootstrap are too narrow (Tukey 1958; Miller, "The jackknife: a review", Biometrika 1974).
"""

import numpy as np
from scipy.special import stdtrit

from otmd.probabilities import FloatArray

# Over fewer prompts an interval is wide, and skewed values make it miss the truth more often than it says.
FEW_PROMPTS = 12


def left_out(totals: FloatArray, sizes: FloatArray) -> FloatArray:
    """The ratio Σ totals/Σ sizes of all prompts but one, for each prompt; all have shape (N,), N ≥ 2."""
    return (totals.sum() - totals) / (sizes.sum() - sizes)


def student_quantile(prompts: int, confidence: float = 0.95) -> float:
    """The standard errors between a value and the end of its interval over so many prompts."""
    return float(stdtrit(prompts - 1, 0.5 + confidence / 2))


def standard_error(without: FloatArray) -> float:
    """The standard error of a value, from its values without each of the prompts (N,)."""
    return float(np.sqrt((without.size - 1) * without.var()))


def interval(value: float, without: FloatArray, confidence: float = 0.95) -> tuple[float, float]:
    """The ends of the interval of a value.

    Parameters
    ----------
    value : float
        A ratio, or a function of several ratios over the same prompts, such as their difference.
    without : ndarray of float64, shape (N,)
        The same without each of the prompts; see :func:`left_out`.
    confidence : float
        The coverage, in (0, 1).
    """
    margin = student_quantile(without.size, confidence) * standard_error(without)
    return value - margin, value + margin
