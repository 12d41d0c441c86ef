"""Steps of the search for weights: which log weights are allowed, which may move, and Newton's step.

``counts`` (G,) says which classes have mass enough to set the scale of the others, and ``capped``
whether the largest weight is 0 by convention and classes that have it may fall short of their targets.
"""

import numpy as np
from numba import njit

# Where several cuts are tight at once weights differ by e^{−23} for each and for a loss of 1e-10.
FARTHEST, WIDEST = 200.0, 40.0
_RIDGE = 1e-3
_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True)
def copy_numbers(source, target):
    """Copy an array of the same size: a slice, which may be of another, takes a second to compile."""
    for g in range(source.size):
        target[g] = source[g]


@njit(cache=True, nogil=True)
def allow_weights(log_weights, counts, largest, capped):
    """Scale the weights and keep them within what acts as 0 and infinity, in place.

    Gaps between weights so wide that only rounding would decide how wide are narrowed, from the largest down.
    """
    # Those beyond the cap are as good as at it.
    top = 0.0 if capped else np.inf
    lowest, highest, scale = np.inf, -np.inf, -np.inf
    for g in range(counts.size):
        log_weights[g] = min(log_weights[g], top)
        lowest, highest = min(lowest, log_weights[g]), max(highest, log_weights[g])
    if highest - lowest > WIDEST:
        _narrow(log_weights)
    for g in range(counts.size):
        scale = max(scale, log_weights[g] if counts[g] else -np.inf)
    if not capped:
        scale = log_weights[largest]
    for g in range(counts.size):
        log_weights[g] = min(max(log_weights[g] - scale, -FARTHEST), 0.0 if capped else FARTHEST)


@njit(cache=True, nogil=True)
def _narrow(log_weights):
    """Narrow the gaps that are wider than WIDEST: what lies below moves up."""
    before = np.inf
    for _ in range(log_weights.size):
        # From the largest down, without a sort, which takes longer to compile than all else here.
        value = -np.inf
        for g in range(log_weights.size):
            value = max(value, log_weights[g] if log_weights[g] < before else -np.inf)
        if value == -np.inf:
            break
        gap = before - value - WIDEST if before < np.inf else 0.0
        for g in range(log_weights.size):
            log_weights[g] += gap if gap > 0.0 and log_weights[g] <= value else 0.0
        before = value + max(gap, 0.0)


@njit(cache=True, nogil=True)
def mark_free(log_weights, wrong, coupling, counts, largest, capped, faint, free):
    """Mark the classes that a step may move, where ``wrong`` is by how much each is chosen too often.

    Where a rate answers to the weights by less than ``faint`` there is nothing to be had.
    """
    held, least = False, -1
    for g in range(counts.size):
        stuck = log_weights[g] <= -FARTHEST and wrong[g] > 0.0
        free[g] = counts[g] and not stuck and coupling[g].sum() > faint[g]
        if capped and log_weights[g] >= 0.0 and wrong[g] <= 0.0:
            held, free[g] = held or counts[g], False
        if counts[g] and (least < 0 or wrong[g] < wrong[least]):
            least = g
    if not capped:
        free[largest] = False
    elif not held:
        free[least] = False


@njit(cache=True, nogil=True)
def newton_step(
    log_weights, wrong, coupling, targets, counts, largest, capped, faint, excess, step
):
    """Fill Newton's step, 0 for the classes that may not move; its longest entry.

    The Hessian is a graph Laplacian, so that its diagonal is a sum and nothing cancels. It is scaled to a
    diagonal of 1.
    """
    free = np.empty(wrong.size, np.bool_)
    mark_free(log_weights, wrong, coupling, counts, largest, capped, faint, free)
    tokens = np.flatnonzero(free)
    scale, gradient = np.empty(tokens.size), np.empty(tokens.size)
    # Where the scale of some weights hardly matters, rounding alone must not move it.
    ridge, total = _RIDGE * excess, 0.0
    for g in range(targets.size):
        total += targets[g]
    for i in range(tokens.size):
        g = tokens[i]
        scale[i] = np.sqrt(max(coupling[g].sum() + ridge * targets[g] / total, 1e-300))
    hessian, damping = np.empty((tokens.size, tokens.size)), 1e-14
    while True:
        for i in range(tokens.size):
            gradient[i] = -wrong[tokens[i]] / scale[i]
            for j in range(i):
                hessian[i, j] = -coupling[tokens[i], tokens[j]] / (scale[i] * scale[j])
            hessian[i, i] = 1.0 + damping
        if solve_positive(hessian, gradient):
            break
        damping *= 10.0
    longest = 0.0
    for g in range(step.size):
        step[g] = 0.0
    for i in range(tokens.size):
        step[tokens[i]] = gradient[i] / scale[i]
        longest = max(longest, abs(step[tokens[i]]))
    return longest


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_REASSOCIATE)
def solve_positive(matrix, vector):
    """Solve a positive definite system, given below the diagonal, in place; whether it is one.

    By Cholesky's factors: for a few dozen classes a call of LAPACK from outside costs more than the work.
    """
    size = vector.size
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
