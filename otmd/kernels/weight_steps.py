"""Steps of the search for weights: which log weights are allowed, which may move, and Newton's equations.

``counts`` (G,) says which classes have mass enough to set the scale of the others, and ``capped``
whether the largest weight is 0 by convention and classes that have it may fall short of their targets.
"""

import numpy as np
from numba import njit

# Where several cuts are tight at once weights differ by e^{−23} for each and for a loss of 1e-10.
FARTHEST, WIDEST = 200.0, 40.0


@njit(cache=True, nogil=True)
def settle(log_weights, counts, largest, capped, settled):
    """Scale the weights and keep them within what acts as 0 and infinity.

    Gaps between weights so wide that only rounding would decide how wide are narrowed, from the largest down.
    """
    # Those beyond the cap are as good as at it.
    top = 0.0 if capped else np.inf
    order = np.argsort(-log_weights)
    before = value = min(log_weights[order[0]], top)
    for i in range(order.size):
        own = min(log_weights[order[i]], top)
        value -= min(before - own, WIDEST)
        settled[order[i]], before = value, own
    scale = settled[largest]
    if capped:
        scale = -np.inf
        for g in range(counts.size):
            if counts[g]:
                scale = max(scale, settled[g])
    for g in range(counts.size):
        settled[g] = min(max(settled[g] - scale, -FARTHEST), 0.0 if capped else FARTHEST)


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
def newton_equations(coupling, wrong, free, ridge):
    """The Hessian of the free classes, scaled to a diagonal of 1; minus the gradient, scaled; and the scale.

    The Hessian is a graph Laplacian, so that its diagonal is a sum and nothing cancels.
    """
    tokens = np.flatnonzero(free)
    scale, gradient = np.empty(tokens.size), np.empty(tokens.size)
    for i in range(tokens.size):
        scale[i] = np.sqrt(max(coupling[tokens[i]].sum() + ridge[tokens[i]], 1e-300))
        gradient[i] = -wrong[tokens[i]] / scale[i]
    hessian = np.empty((tokens.size, tokens.size))
    for i in range(tokens.size):
        for j in range(tokens.size):
            hessian[i, j] = -coupling[tokens[i], tokens[j]] / (scale[i] * scale[j])
        hessian[i, i] = 1.0
    return hessian, gradient, scale
