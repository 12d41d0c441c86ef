"""The weights that give every class its target rate: Newton's method in the logarithms of the weights.

Weights at which the rates r equal the targets P minimise Φ(log w) − Σ P log w. Φ is the expected logarithm of
the sum of the drafted weights; it is smooth and convex, and its gradient is r. Rates depend on ratios of
weights alone, so the Hessian is a graph Laplacian: its diagonal is a sum of positive terms, and nothing
cancels. A step is judged by the gradient at its end, which suffers less from rounding than the function.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import copy_numbers
from otmd.kernel import REASSOCIATE, kernel
from otmd.probabilities import FloatArray

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
# Entries of the search's state: rounds, rounds since the search last stalled, scalings still to do, and
# whether a step is being tried.
_ROUNDS, _SINCE, _LEFT, _TRYING = range(4)


class WeightSearch(NamedTuple):
    """A search under way; arrays have the shape (G,) unless another is given.

    For ``targets``, ``likely``, ``capped`` and ``tol`` see :func:`balance`. ``counts`` marks the classes with
    enough mass to set the scale of the others; ``largest`` is the class with the largest target. A class
    whose rate changes with the weights by less than ``faint`` is not moved. The part ``scale`` (1,) of
    ``step`` is being tried: ``before`` are the log weights before it, ``rates`` the rates there, and
    ``wrong`` these rates less the targets. ``excess`` is by how much rates exceed targets in all, by round.
    """

    targets: np.ndarray
    likely: np.ndarray
    capped: bool
    tol: float
    counts: np.ndarray
    largest: int
    faint: np.ndarray
    before: np.ndarray
    rates: np.ndarray
    wrong: np.ndarray
    step: np.ndarray
    excess: np.ndarray
    state: np.ndarray
    scale: np.ndarray


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
    each class. It ends early where ``is_enough()`` is true after an evaluation.
    """
    log_weights = np.zeros(targets.size) if start is None else start.copy()
    likely = np.empty(0) if likely is None or start is not None else likely
    search = begin_search(targets, likely, capped, tol, log_weights)
    rates = np.empty(targets.size)
    coupling = np.empty((targets.size, targets.size))
    moved = True
    while moved:
        rates[:], coupling[:] = evaluate(log_weights)
        moved = not is_enough() and move_weights(search, log_weights, rates, coupling)
    return log_weights, rates


@kernel()
def begin_search(targets, likely, capped, tol, log_weights):
    """Begin a search at these log weights, which are brought within bounds in place.

    ``likely`` is empty if it is unknown. If it is known, the log weights must be 0, and are replaced.
    """
    size = targets.size
    largest = targets.argmax()
    # The scale must not rest on classes with hardly any mass.
    counts = np.empty(size, np.bool_)
    faint = np.empty(size)
    for g in range(size):
        counts[g] = g == largest or targets[g] * size > min(0.01 * tol, targets[largest])
        faint[g] = max(_ROUNDING * targets[g], 1e-4 * min(tol, 1e-6))
    has_likely = likely.size > 0
    state = np.zeros(4, np.int64)
    state[_LEFT] = 1 if has_likely and capped else 0
    if has_likely and not capped:
        for g in range(size):
            log_weights[g] = _first_weight(targets[g], likely[g], 0.0)
    allow_weights(log_weights, counts, largest, capped)
    before = np.zeros(size)
    rates = np.zeros(size)
    wrong = np.zeros(size)
    step = np.zeros(size)
    excess = np.empty(_MOST_ROUNDS)
    return WeightSearch(
        targets, likely, capped, tol, counts, largest, faint, before, rates, wrong, step, excess,
        state, np.ones(1),
    )  # fmt: skip


@kernel()
def _first_weight(target, likely, equal):
    """The log weight of a class if each of its drafts is alone, or meets others of weight 1.

    ``likely`` is the expected number of these drafts. ``equal`` is P(the class is chosen) if all weights are
    equal, where a draft that meets one other is chosen half of the time; 0 if none is ever alone.
    """
    alone = max(2.0 * equal - likely, 0.0)
    others = 1.0
    if equal > 0.0:
        others = max(likely / equal - 1.0, 1.0)
    chosen = max(target - alone, _RARE * likely)
    missed = max(likely - target, _NEAR_ONE * likely)
    return np.log(max(others * chosen, 1e-300) / max(missed, 1e-300))


@kernel()
def move_weights(search, log_weights, rates, coupling):
    """Move the log weights (G,) in place, given their rates and −∂rates/∂log weights off the diagonal.

    Returns false at the end of the search. The log weights and the rates are then the best so far.
    """
    state = search.state
    targets = search.targets
    if state[_TRYING]:
        if _judge(search, log_weights, rates):
            copy_numbers(search.before, log_weights)
            copy_numbers(search.rates, rates)
            return False
        if state[_TRYING]:
            return True
    if state[_LEFT] == 0 and not _begin_round(search, log_weights, rates, coupling):
        return False
    if state[_LEFT] > 0:
        # The iteration w ← w P/r converges from everywhere, but slowly.
        state[_LEFT] -= 1
        for g in range(targets.size):
            log_weights[g] += np.log(targets[g] / max(rates[g], 1e-300))
            if state[_ROUNDS] == 0 and search.likely.size > 0:
                log_weights[g] = _first_weight(targets[g], search.likely[g], rates[g])
        allow_weights(log_weights, search.counts, search.largest, search.capped)
    return True


@kernel()
def _begin_round(search, log_weights, rates, coupling):
    """Try a Newton step, or ask for scalings if the search has stalled; return false at the end."""
    state = search.state
    targets = search.targets
    wrong = search.wrong
    excess = 0.0
    far = False
    for g in range(targets.size):
        wrong[g] = rates[g] - targets[g]
        excess += max(wrong[g], 0.0)
        far = far or (log_weights[g] < 0.0 and rates[g] < _FAR * targets[g])
    since = state[_SINCE]
    search.excess[since] = excess
    stalled = since >= _PATIENCE and excess > 0.5 * search.excess[since + 1 - _PATIENCE]
    state[_ROUNDS] += 1
    state[_SINCE] += 1
    if excess <= search.tol or (stalled and excess < _LITTLE) or state[_ROUNDS] == _MOST_ROUNDS:
        return False
    if stalled or (far and state[_ROUNDS] == 1):
        # With weights far apart, one class can hold back the step of all others, or no class can be moved.
        state[_LEFT] = _SCALINGS
        state[_SINCE] = 0
        return True
    longest = newton_step(
        log_weights, wrong, coupling, targets, search.counts, search.largest, search.capped,
        search.faint, excess, search.step,
    )  # fmt: skip
    if longest <= _SHORTEST:
        return False
    copy_numbers(log_weights, search.before)
    copy_numbers(rates, search.rates)
    search.scale[0] = min(1.0, _LONGEST_STEP / longest)
    state[_TRYING] = True
    _take_step(search, log_weights)
    return True


@kernel()
def _judge(search, log_weights, rates):
    """Keep a step that does not pass the minimum, else try a shorter one; return whether none is left."""
    state = search.state
    scale = search.scale
    before = after = longest = 0.0
    for g in range(rates.size):
        longest = max(longest, abs(search.step[g]))
        chord = log_weights[g] - search.before[g]
        before += search.wrong[g] * chord
        after += (rates[g] - search.targets[g]) * chord
    if before < 0.0 and after <= -_OVERSHOOT * before:
        state[_TRYING] = False
        return False
    if scale[0] * longest <= _SHORTEST:
        return True
    # Where the slope along the chord would vanish if it were linear.
    secant = before / (before - after) if before < after else 0.5
    scale[0] *= min(max(secant, 0.1), 0.7)
    _take_step(search, log_weights)
    return False


@kernel()
def _take_step(search, log_weights):
    """Move to the end of the step."""
    for g in range(log_weights.size):
        log_weights[g] = search.before[g] + search.scale[0] * search.step[g]
    allow_weights(log_weights, search.counts, search.largest, search.capped)


@kernel()
def allow_weights(log_weights, counts, largest, capped):
    """Scale the log weights and bring them within ±FARTHEST, in place.

    Gaps wider than WIDEST are narrowed from the largest weight down, as their width is only rounding.
    """
    # Weights beyond the cap are set to it.
    cap = 0.0 if capped else np.inf
    for g in range(counts.size):
        log_weights[g] = min(log_weights[g], cap)
    if log_weights.max() - log_weights.min() > WIDEST:
        _narrow(log_weights)
    scale = -np.inf if capped else log_weights[largest]
    for g in range(counts.size):
        scale = max(scale, log_weights[g] if capped and counts[g] else -np.inf)
    for g in range(counts.size):
        log_weights[g] = min(max(log_weights[g] - scale, -FARTHEST), 0.0 if capped else FARTHEST)


@kernel()
def _narrow(log_weights):
    """Narrow the gaps that are wider than WIDEST by moving up all that lies below."""
    before = np.inf
    for _ in range(log_weights.size):
        # The next smaller value is searched for: a sort takes longer to compile than all else here.
        value = -np.inf
        for g in range(log_weights.size):
            value = max(value, log_weights[g] if log_weights[g] < before else -np.inf)
        if value == -np.inf:
            break
        gap = before - value - WIDEST if before < np.inf else 0.0
        for g in range(log_weights.size):
            log_weights[g] += gap if gap > 0.0 and log_weights[g] <= value else 0.0
        before = value + max(gap, 0.0)


@kernel()
def mark_free(log_weights, wrong, coupling, counts, largest, capped, faint, free):
    """Mark the classes that a step may move; see :class:`WeightSearch` for the parameters."""
    held = False
    least = -1
    for g in range(counts.size):
        stuck = log_weights[g] <= -FARTHEST and wrong[g] > 0.0
        free[g] = counts[g] and not stuck and coupling[g].sum() > faint[g]
        if capped and log_weights[g] >= 0.0 and wrong[g] <= 0.0:
            held = held or counts[g]
            free[g] = False
        if counts[g] and (least < 0 or wrong[g] < wrong[least]):
            least = g
    if not capped:
        free[largest] = False
    elif not held:
        free[least] = False


@kernel()
def newton_step(log_weights, wrong, coupling, targets, counts, largest, capped, faint, excess, step):
    """Fill Newton's step, which is 0 for the classes that may not move; return its largest absolute entry.

    The Hessian is scaled to a diagonal of 1. A long step is damped, not shortened: where the rates
    hardly depend on one direction, the step shall stay long in all others.
    """
    free = np.empty(wrong.size, np.bool_)
    mark_free(log_weights, wrong, coupling, counts, largest, capped, faint, free)
    tokens = np.flatnonzero(free)
    scale = np.empty(tokens.size)
    gradient = np.empty(tokens.size)
    # A small ridge: where the rates hardly depend on some weights, rounding alone must not move these.
    ridge = _RIDGE * excess
    total = targets.sum()
    for i in range(tokens.size):
        g = tokens[i]
        scale[i] = np.sqrt(max(coupling[g].sum() + ridge * targets[g] / total, 1e-300))
    hessian = np.empty((tokens.size, tokens.size))
    damping = 1e-14
    # (D^{−1/2} H D^{−1/2} + damping I) (D^{1/2} step) = −D^{−1/2} wrong, with scale = D^{1/2} : gradient
    while True:
        for i in range(tokens.size):
            gradient[i] = -wrong[tokens[i]] / scale[i]
            for j in range(i):
                hessian[i, j] = -coupling[tokens[i], tokens[j]] / (scale[i] * scale[j])
            hessian[i, i] = 1.0 + damping
        positive = solve_positive(hessian, gradient)
        longest = 0.0
        for i in range(tokens.size):
            longest = max(longest, abs(gradient[i]) / scale[i])
        if positive and (longest <= _LONGEST_STEP or damping > _MOST_DAMPING):
            break
        damping *= 10.0
    step[:] = 0.0
    for i in range(tokens.size):
        step[tokens[i]] = gradient[i] / scale[i]
    return longest


@kernel(error_model="numpy", fastmath=REASSOCIATE)
def solve_positive(matrix, vector):
    """Solve a linear system in place by Cholesky's method; return false if it is not positive definite.

    Only the diagonal and what is below it are read. For a few dozen classes a call of LAPACK would cost more
    than the work.
    """
    size = vector.size
    # A = L Lᵀ, L in the lower triangle : matrix; then L z = b, then Lᵀ x = z : vector
    for i in range(size):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            if i > j:
                matrix[i, j] = total / matrix[j, j]
            elif total > 0.0:
                matrix[i, i] = np.sqrt(total)
            else:
                return False
        total = vector[i]
        for k in range(i):
            total -= matrix[i, k] * vector[k]
        vector[i] = total / matrix[i, i]
    for i in range(size - 1, -1, -1):
        vector[i] /= matrix[i, i]
        for k in range(i):
            vector[k] -= matrix[i, k] * vector[i]
    return True
