"""The weights that give every class its target rate: Newton's method in the logarithms of the weights.

Weights at which the rates r equal the targets P minimise Φ(log w) − Σ P log w. Φ is the expected logarithm of
the sum of the drafted weights; it is smooth and convex, and its gradient is r. Rates depend on ratios of
weights alone, so the Hessian is a graph Laplacian: its diagonal is a sum of positive terms, and nothing
cancels. A step is judged by the gradient at its end, which suffers less from rounding than the function.
"""

from collections.abc import Callable

import numpy as np

from otmd.probabilities import BoolArray, FloatArray

# Log weights stay within ±FARTHEST, and gaps wider than WIDEST between them act as infinite. For a loss of
# 1e-10 weights differ by a factor e^{−23} at each tight cut, of which there may be several.
FARTHEST = 200.0
WIDEST = 40.0
_MOST_ROUNDS = 100
# A misplaced mass below _LITTLE must halve within _PATIENCE rounds, or the search ends: weights that keep
# growing make each round more expensive.
_LITTLE = 1e-8
_PATIENCE = 8
# So many rounds of w ← w P/r are made where Newton's method stalls.
_SCALINGS = 3
_LONGEST_STEP = 3.0
_MOST_DAMPING = 1e-3
_ROUNDING = 1e-13
# In the first weights, probabilities count as no smaller than _RARE, and no nearer to 1 than _NEAR_ONE.
_RARE = 1e-15
_NEAR_ONE = 1e-9
# If the rate of a class is below this part of its target, rounds of w ← w P/r precede Newton's method.
_FAR = 1e-3
_SHORTEST = 1e-12
# The steepest rise of the objective at the end of a step, relative to its fall at the beginning.
_OVERSHOOT = 0.3
_RIDGE = 1e-3
_TINY = 1e-300


def balance(
    evaluate: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    targets: FloatArray,
    capped: bool,
    tol: float,
    start: FloatArray | None = None,
    likely: FloatArray | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> tuple[FloatArray, FloatArray]:
    """Find log weights (G,) whose rates are the targets (G,), all positive; return log weights and rates.

    ``evaluate`` takes log weights. It returns the rate of each class, which is the probability that the class
    is chosen, and −∂rates/∂log weights off the diagonal or an approximation of it (G, G). If ``capped``, no
    weight exceeds 1, and classes of weight 1 may fall short of their targets; if not, rates and targets have
    the same sum. Rates exceed targets by ``tol`` in all, or by more where rounding or unattainable targets
    allow no less. The search begins at ``start``, or uses ``likely`` (G,), the expected number of drafts of
    each class. It ends early where ``is_enough()`` is true after a step.
    """
    # The scale must not rest on classes with hardly any mass.
    counts = targets * targets.size >= min(0.01 * tol, targets.max())
    log_weights = np.zeros(targets.size) if start is None else start
    if start is None and likely is not None:
        equal = evaluate(log_weights)[0] if capped else np.zeros(targets.size)
        log_weights = _first_weights(targets, likely, equal)
    log_weights = _allowed(log_weights, targets, counts, capped)
    rates, coupling = evaluate(log_weights)
    excesses = []
    for number in range(_MOST_ROUNDS - 1):
        wrong = rates - targets
        excess = float(np.maximum(wrong, 0.0).sum())
        excesses.append(excess)
        stalled = len(excesses) > _PATIENCE and excess > 0.5 * excesses[-_PATIENCE]
        if excess <= tol or (stalled and excess < _LITTLE) or is_enough():
            break
        if stalled or (number == 0 and ((log_weights < 0.0) & (rates < _FAR * targets)).any()):
            # With weights far apart, one class can hold back the step of all others, or no class can be
            # moved. The iteration w ← w P/r converges from everywhere, but slowly.
            for _ in range(_SCALINGS):
                log_weights = log_weights + np.log(targets / np.maximum(rates, _TINY))
                log_weights = _allowed(log_weights, targets, counts, capped)
                rates, coupling = evaluate(log_weights)
            excesses.clear()
            continue
        free = movable(log_weights, wrong, coupling, targets, counts, capped, tol)
        step = newton_step(free, wrong, coupling, targets, excess)
        longest = np.abs(step).max()
        scale = min(1.0, _LONGEST_STEP / max(longest, _TINY))
        moved = None
        while moved is None and scale * longest > _SHORTEST and not is_enough():
            end = _allowed(log_weights + scale * step, targets, counts, capped)
            end_rates, end_coupling = evaluate(end)
            # A step that passes the minimum is shortened to where the slope along it would vanish if it
            # were linear.
            before = wrong @ (end - log_weights)
            after = (end_rates - targets) @ (end - log_weights)
            if before < 0.0 and after <= -_OVERSHOOT * before:
                moved = end, end_rates, end_coupling
            elif before < after:
                scale *= min(max(before / (before - after), 0.1), 0.7)
            else:
                scale *= 0.5
        if moved is None:
            break
        log_weights, rates, coupling = moved
    return log_weights, rates


def _first_weights(targets: FloatArray, likely: FloatArray, equal: FloatArray) -> FloatArray:
    """The log weight of each class if each of its drafts is alone, or meets others of weight 1.

    ``likely`` is the expected number of these drafts. ``equal`` is P(the class is chosen) if all weights are
    equal, where a draft that meets one other is chosen half of the time; 0 if none is ever alone.
    """
    alone = np.maximum(2.0 * equal - likely, 0.0)
    drafted = np.divide(likely, np.maximum(equal, _TINY), out=np.zeros(likely.size), where=equal > 0.0)
    others = np.maximum(drafted - 1.0, 1.0)
    chosen = np.maximum(targets - alone, _RARE * likely)
    missed = np.maximum(likely - targets, _NEAR_ONE * likely)
    return np.log(np.maximum(others * chosen, _TINY) / np.maximum(missed, _TINY))


def _allowed(log_weights: FloatArray, targets: FloatArray, counts: BoolArray, capped: bool) -> FloatArray:
    """The log weights (G,), scaled and brought within ±FARTHEST.

    Gaps wider than WIDEST are narrowed from the largest weight down, as their width is only rounding.
    """
    allowed = np.minimum(log_weights, 0.0) if capped else log_weights.copy()
    order = np.argsort(allowed)
    too_wide = np.maximum(np.diff(allowed[order]) - WIDEST, 0.0)
    allowed[order[:-1]] += too_wide[::-1].cumsum()[::-1]
    allowed -= allowed[counts].max() if capped else allowed[targets.argmax()]
    return allowed.clip(-FARTHEST, 0.0 if capped else FARTHEST)


def movable(
    log_weights: FloatArray,
    wrong: FloatArray,
    coupling: FloatArray,
    targets: FloatArray,
    counts: BoolArray,
    capped: bool,
    tol: float,
) -> BoolArray:
    """The classes that a step may move, shape (G,); ``wrong`` (G,) are the rates less the targets."""
    # Rates of the others hardly change with their weights.
    least = np.maximum(_ROUNDING * targets, 1e-4 * min(tol, 1e-6))
    stuck = (log_weights <= -FARTHEST) & (wrong > 0.0)
    free = counts & ~stuck & (coupling.sum(axis=1) > least)
    if not capped:
        free[targets.argmax()] = False
        return free
    held = (log_weights >= 0.0) & (wrong <= 0.0)
    if not (held & counts).any():
        held[np.where(counts, wrong, np.inf).argmin()] = True
    return free & ~held


def newton_step(
    free: BoolArray, wrong: FloatArray, coupling: FloatArray, targets: FloatArray, excess: float
) -> FloatArray:
    """Newton's step (G,), which is 0 for the classes that are not ``free`` (G,).

    The Hessian is scaled to a diagonal of 1. A long step is damped, not shortened: where the rates
    hardly depend on one direction, the step shall stay long in all others.
    """
    # A small ridge: where the rates hardly depend on some weights, rounding alone must not move these.
    ridge = _RIDGE * excess * targets[free] / targets.sum()
    scale = np.sqrt(np.maximum(coupling[free].sum(axis=1) + ridge, _TINY))
    # (D^{−1/2} H D^{−1/2} + damping I) (D^{1/2} step) = −D^{−1/2} wrong, with scale = D^{1/2}
    hessian = -coupling[np.ix_(free, free)] / scale / scale[:, None]
    step = np.zeros(wrong.size)
    damping = 1e-14
    while True:
        np.fill_diagonal(hessian, 1.0 + damping)
        step[free] = np.linalg.solve(hessian, -wrong[free] / scale) / scale
        if np.abs(step).max() <= _LONGEST_STEP or damping > _MOST_DAMPING:
            return step
        damping *= 10.0
