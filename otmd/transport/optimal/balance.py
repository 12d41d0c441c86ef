"""Weights that give every class its share: Newton's method in the logarithms of the weights.

With rates r and targets P the weights minimise Φ(log w) − Σ P log w, where Φ is the expected logarithm
of the sum of the drafted weights: smooth, convex, and with the gradient r − P. Its Hessian is
a graph Laplacian (the rates depend on the ratios of the weights alone), so that nothing cancels. Steps
are judged by the gradient, which rounding hurts less than the function.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import get_lapack_funcs

from otmd.kernels.weight_steps import mark_free, newton_equations, settle
from otmd.probabilities import BoolArray, FloatArray

_MOST_ROUNDS = 100
# So little misplaced mass must halve in so many rounds, or the search ends: weights that travel on and on
# make each round dearer.
_LITTLE, _PATIENCE = 1e-8, 8
_SCALINGS = 3
_LONGEST_STEP = 3.0
_ROUNDING = 1e-13
# Steps shorter than this are the same, straight or bent.
_SHORT = 0.1
_SHORTEST = 1e-12
# How steep the objective may rise at the end of a step, beside how it fell at its beginning.
_OVERSHOOT = 0.3
_RIDGE = 1e-3

# By Cholesky's factors; scipy's own wrappers would cost as much again.
(_solve_positive,) = get_lapack_funcs(("posv",))


@dataclass(frozen=True, eq=False)
class Choice:
    """What a choice of log weights gives.

    Attributes
    ----------
    rates : ndarray of float64, shape (G,)
        Probability that each class is chosen.
    coupling : ndarray of float64, shape (G, G)
        −∂rates/∂log weights off the diagonal, or what comes near it.
    """

    rates: FloatArray
    coupling: FloatArray


def balance(
    evaluate: Callable[[FloatArray], Choice],
    targets: FloatArray,
    capped: bool,
    tol: float,
    start: FloatArray | None = None,
) -> tuple[FloatArray, Choice]:
    """Find log weights whose rates are the targets.

    Parameters
    ----------
    evaluate : callable
        The :class:`Choice` at given log weights.
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
    log_weights : ndarray of float64, shape (G,)
    choice : Choice
        At these weights.
    """
    settle = _Settle(targets, capped, tol)
    log_weights = settle(np.zeros(targets.size) if start is None else start)
    now = evaluate(log_weights)
    if start is None:
        log_weights, now = _scaled(evaluate, settle, targets, log_weights, now)
    history: list[float] = []
    for _ in range(_MOST_ROUNDS):
        wrong = now.rates - targets
        excess = float(np.maximum(wrong, 0.0).sum())
        history.append(excess)
        stalled = len(history) > _PATIENCE and excess > 0.5 * history[-_PATIENCE]
        if excess <= tol or (stalled and excess < _LITTLE):
            break
        if stalled:
            # Where weights lie far apart a step may be too long for all of them but one.
            log_weights, now = _scaled(evaluate, settle, targets, log_weights, now)
            history.clear()
            continue
        free = settle.free(log_weights, wrong, now.coupling)
        if not free.any():
            break
        step = np.zeros(targets.size)
        # Where the scale of some weights hardly matters, rounding alone must not move it.
        ridge = _RIDGE * excess / targets.sum() * targets
        step[free] = _newton_step(now.coupling, wrong, free, ridge)
        found = _search(evaluate, settle, targets, log_weights, step, now)
        if found is None:
            break
        log_weights, now = found
    return log_weights, now


class _Settle:
    """Which log weights are allowed, and which may move."""

    def __init__(self, targets: FloatArray, capped: bool, tol: float) -> None:
        self.capped = capped
        # Classes of hardly any mass would leave the scale of the others undecided.
        self.counts = targets * targets.size > min(0.01 * tol, targets.max())
        self.largest = int(np.argmax(targets))
        self.counts[self.largest] |= not self.counts.any()
        self.faint = np.maximum(_ROUNDING * targets, 1e-4 * min(tol, 1e-6))

    def __call__(self, log_weights: FloatArray) -> FloatArray:
        """Scale the weights and keep them within what acts as 0 and infinity."""
        settled = np.empty(log_weights.size)
        settle(log_weights, self.counts, self.largest, self.capped, settled)
        return settled

    def free(self, log_weights: FloatArray, wrong: FloatArray, coupling: FloatArray) -> BoolArray:
        """The classes that a step may move."""
        free = np.empty(wrong.size, dtype=bool)
        known = self.counts, self.largest, self.capped, self.faint
        mark_free(log_weights, wrong, coupling, *known, free)
        return free


def _scaled(
    evaluate: Callable[[FloatArray], Choice],
    settle: _Settle,
    targets: FloatArray,
    log_weights: FloatArray,
    now: Choice,
) -> tuple[FloatArray, Choice]:
    """Some rounds of w ← w P/r, which converges from everywhere, slowly."""
    for _ in range(_SCALINGS):
        rates = np.maximum(now.rates, 1e-300)
        log_weights = settle(log_weights + np.log(targets / rates))
        now = evaluate(log_weights)
    return log_weights, now


def _newton_step(
    coupling: FloatArray, wrong: FloatArray, free: BoolArray, ridge: FloatArray
) -> FloatArray:
    hessian, gradient, scale = newton_equations(coupling, wrong, free, ridge)
    damping = 1e-14
    while True:
        damped = hessian + damping * np.eye(scale.size)
        _, step, refused = _solve_positive(damped, gradient)
        if not refused:
            return step / scale
        damping *= 10.0


def _search(
    evaluate: Callable[[FloatArray], Choice],
    settle: _Settle,
    targets: FloatArray,
    log_weights: FloatArray,
    step: FloatArray,
    now: Choice,
) -> tuple[FloatArray, Choice] | None:
    """The first of a far step, a straight one and shorter ones that does not go past the minimum."""
    longest = np.abs(step).max()
    if longest <= _SHORTEST:
        return None
    straight = step * min(1.0, _LONGEST_STEP / longest)
    # A small weight's rate is nearly linear in it: taken in the weight itself, a step goes far.
    falling = np.log1p(np.maximum(step, -0.9999))
    bent = np.where(step < 0, falling, np.minimum(step, _LONGEST_STEP))
    ways = [bent, straight] if longest > _SHORT else [straight]
    while ways:
        way = ways.pop(0)
        moved = settle(log_weights + way)
        choice = evaluate(moved)
        chord = moved - log_weights
        before = float((now.rates - targets) @ chord)
        after = float((choice.rates - targets) @ chord)
        if before < 0.0 and after <= -_OVERSHOOT * before:
            return moved, choice
        if not ways and np.abs(way).max() > _SHORTEST:
            # Where the slope along the chord would vanish, were it linear.
            secant = before / (before - after) if before < after else 0.5
            ways.append(way * min(max(secant, 0.1), 0.7))
    return None
