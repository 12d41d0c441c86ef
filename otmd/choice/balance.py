"""Weights that give every class its share: Newton's method in the logarithms of the weights.

With rates r and targets P the weights minimise Φ(log w) − Σ P log w, where Φ is the expected logarithm
of the sum of the drafted weights: smooth, convex, and with the gradient r − P. Its Hessian is
a graph Laplacian (the rates depend on the ratios of the weights alone), so that nothing cancels. Steps
are judged by the gradient, which rounding hurts less than the function.
"""

from collections.abc import Callable

import numpy as np

from otmd.choice.weight_search import begin_search, move_weights
from otmd.probabilities import FloatArray


def balance(
    evaluate: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    targets: FloatArray,
    capped: bool,
    tol: float,
    start: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Find log weights whose rates are the targets.

    Parameters
    ----------
    evaluate : callable
        Of log weights (G,): the probability that each class is chosen, (G,), and −∂rates/∂log weights
        off the diagonal, or what comes near it, (G, G).
    targets : ndarray of float64, shape (G,)
        P > 0.
    capped : bool
        The rates do not change when all weights are scaled, and classes with the largest weight may
        fall short of their targets; without it the rates and the targets have the same sum.
    tol : float
        How much mass may be misplaced; rounding and targets out of reach end the search above it.
    start : ndarray of float64, shape (G,), optional
        Log weights to begin from.

    Returns
    -------
    log_weights, rates : ndarray of float64, shape (G,)
    """
    log_weights = np.zeros(targets.size) if start is None else start.copy()
    search = begin_search(targets, capped, tol, start is not None, log_weights)
    rates, coupling, moved = np.empty(targets.size), np.empty((targets.size, targets.size)), True
    while moved:
        rates[:], coupling[:] = evaluate(log_weights)
        moved = move_weights(search, log_weights, rates, coupling)
    return log_weights, rates
