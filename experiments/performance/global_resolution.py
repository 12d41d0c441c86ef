"""Global Resolution (Thomas & Pal, arXiv 2511.15898), reimplemented to be compared with.

Written from the method as it is published in outline, not from its authors' code:

- only the k most likely tokens of the target are kept, in target and draft, and both are renormalised;
- the tuples of drafts are split by the optimal cut H*: if some drafts are outside H*, one of them is chosen,
  otherwise one of the drafts or none;
- a draft is chosen in proportion to a weight of its token (a softmax over what was drafted), and the
  logarithms of the weights minimise the convex E[log Σ weights] − Σ p log weight, by L-BFGS-B; where
  all of p cannot be served, no weight exceeds 1;
- the expectation runs over the multisets of drafts. Beyond ``MOST_SETS`` of them it is a mean over as
  many sampled tuples, which is this file's own choice.

The weights are used as the search leaves them. Nothing thins a token that is chosen too often, so the
output's distribution is off by the truncation and by the error of the search.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, factorial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

MOST_SETS = 20_000
TOLERANCE = 1e-6
Floats = NDArray[np.float64]
_LARGEST = 20.0
STEP = 0.08


@dataclass(frozen=True)
class Resolution:
    """Result of the method at one position.

    Attributes
    ----------
    seconds : float
        From the two distributions to the weights.
    converged : bool
        Whether both searches ended with a projected gradient of at most ``TOLERANCE``.
    rate : float
        Accepted mass for drafts from the truncated draft distribution.
    distance : float
        Total variation between the output's distribution and p.
    sampled : bool
        Whether the expectation was a mean over sampled tuples.
    """

    seconds: float
    converged: bool
    rate: float
    distance: float
    sampled: bool


def resolve(target: Floats, draft: Floats, k: int, num_drafts: int, seed: int = 0) -> Resolution:
    """Solve one position (V,) and judge the result by exact rates.

    Parameters
    ----------
    target, draft : ndarray of float64, shape (V,)
        p and q.
    k : int
        Number of the target's most likely tokens that are kept.
    num_drafts : int
        n.
    seed : int
        Of the sampled tuples, where there are any.
    """
    start = perf_counter()
    kept = np.argpartition(-target, k - 1)[:k]
    kept = kept[draft[kept] > 0]
    p, q = (mass[kept] / mass[kept].sum() for mass in (target, draft))
    subset = _best_cut(p, q, num_drafts)
    tuples, probs = _multisets(q, num_drafts, np.random.default_rng(seed))
    contained = subset[tuples].all(axis=1)
    outer, outer_ends = _outside(p, subset, tuples[~contained], probs[~contained])
    inner, inner_ends = _inside(p, q, subset, tuples[contained], probs[contained], num_drafts)
    seconds = perf_counter() - start
    accepted = np.zeros(kept.size)
    accepted[~subset] = exact_rates(outer, q[~subset], float(q[subset].sum()), num_drafts)
    accepted[subset] = exact_rates(inner[:-1] - inner[-1], q[subset], 0.0, num_drafts, 1.0)
    distance = _distance(target, kept, p, accepted)
    sampled = comb(kept.size + num_drafts - 1, num_drafts) > MOST_SETS
    converged = outer_ends and inner_ends
    return Resolution(seconds, converged, float(accepted.sum()), distance, sampled)


def _best_cut(p: Floats, q: Floats, num_drafts: int) -> NDArray[np.bool_]:
    order = np.argsort(p / q)
    value = np.append(0.0, p[order].cumsum() - q[order].cumsum() ** num_drafts)
    subset = np.zeros(p.size, dtype=bool)
    subset[order[: int(np.argmax(value <= value.min() + 1e-13))]] = True
    return subset


def _multisets(q: Floats, num_drafts: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Floats]:
    """Multisets of drafts and their probabilities, or as many sampled tuples."""
    if comb(q.size + num_drafts - 1, num_drafts) > MOST_SETS:
        drawn = rng.choice(q.size, size=(MOST_SETS, num_drafts), p=q)
        return drawn, np.full(MOST_SETS, 1.0 / MOST_SETS)
    sets = np.array(list(combinations_with_replacement(range(q.size), num_drafts)))
    orders = np.full(len(sets), float(factorial(num_drafts)))
    run = np.ones(len(sets))
    for i in range(1, num_drafts):
        run = np.where(sets[:, i] == sets[:, i - 1], run + 1.0, 1.0)
        orders /= run
    return sets, orders * q[sets].prod(axis=1)


def _outside(
    p: Floats, subset: NDArray[np.bool_], tuples: NDArray[np.int64], probs: Floats
) -> tuple[Floats, bool]:
    """Log weights of the tokens outside the cut, from tuples with such a draft; tokens inside have none."""
    tokens = np.flatnonzero(~subset)
    if tokens.size == 0 or tuples.size == 0:
        return np.zeros(tokens.size), True
    slot = np.maximum(np.cumsum(~subset) - 1, 0)
    present = ~subset[tuples]
    return _minimise(p[tokens], slot[tuples], present, probs, (-_LARGEST, 0.0))


def _inside(
    p: Floats,
    q: Floats,
    subset: NDArray[np.bool_],
    tuples: NDArray[np.int64],
    probs: Floats,
    num_drafts: int,
) -> tuple[Floats, bool]:
    """Log weights of the tokens inside the cut, and of rejection as the last one."""
    tokens = np.flatnonzero(subset)
    if tokens.size == 0 or tuples.size == 0:
        return np.zeros(tokens.size + 1), True
    rejected = max(0.0, float(q[subset].sum()) ** num_drafts - float(p[subset].sum()))
    slot = (np.cumsum(subset) - 1)[tuples]
    slot = np.column_stack([slot, np.full(len(slot), tokens.size)])
    targets = np.append(p[tokens], rejected)
    return _minimise(targets, slot, np.ones(slot.shape, bool), probs, (-_LARGEST, _LARGEST))


def _minimise(
    targets: Floats,
    slot: NDArray[np.int64],
    present: NDArray[np.bool_],
    probs: Floats,
    limits: tuple[float, float],
) -> tuple[Floats, bool]:
    objective = _objective(targets, slot, present, probs)
    start = np.zeros(targets.size)
    options = {"gtol": TOLERANCE, "ftol": 0.0, "maxiter": 500, "maxfun": 2000}
    bounds = [limits] * start.size
    end = minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    moved = np.clip(end.x - end.jac, *limits) - end.x
    return end.x, bool(np.abs(moved).max() <= TOLERANCE)


def _objective(
    targets: Floats, slot: NDArray[np.int64], present: NDArray[np.bool_], probs: Floats
) -> Callable[[Floats], tuple[float, Floats]]:
    def value(log_weights: Floats) -> tuple[float, Floats]:
        weights = np.where(present, np.exp(log_weights[slot]), 0.0)
        total = weights.sum(axis=1)
        share = weights * (probs / total)[:, None]
        rates = np.bincount(slot.ravel(), share.ravel(), minlength=targets.size)
        return float(probs @ np.log(total) - targets @ log_weights), rates - targets

    return value


def exact_rates(
    log_weights: Floats, mass: Floats, never: float, num_drafts: int, reject_weight: float = 0.0
) -> Floats:
    """The exact probability that each token is chosen, over all tuples of drafts.

    A token is chosen in proportion to its weight among the drafts and the rejection. Each of them is an
    exponential clock with its weight as the rate, and the first to ring is chosen:
    r_y = n q_y w_y ∫ e^(−t (w_y + c)) (never + Σ_z q_z e^(−t w_z))^(n−1) dt, with c the weight of rejecting
    and ``never`` the mass of drafts without a clock.
    """
    if mass.size == 0:
        return mass
    weights = np.exp(log_weights)
    scale = max(weights.max(), reject_weight)
    # The trapezoid rule in s, t = e^s, which converges faster than any power of the step.
    s = np.arange(-40.0 - np.log(scale), 6.0 - np.log(weights.min()), STEP)
    clocks = np.exp(-np.exp(s)[:, None] * weights)
    rest = (never + clocks @ mass) ** (num_drafts - 1) * np.exp(s - np.exp(s) * reject_weight)
    return num_drafts * mass * weights * STEP * (rest @ clocks)


def _distance(target: Floats, kept: NDArray[np.int64], truncated: Floats, accepted: Floats) -> float:
    residual = np.maximum(truncated - accepted, 0.0)
    left = max(0.0, 1.0 - float(accepted.sum()))
    output = np.zeros(target.size)
    output[kept] = accepted + left * residual / max(residual.sum(), 1e-300)
    return 0.5 * float(np.abs(output - target).sum())
