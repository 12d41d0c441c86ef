"""The weights of classes of independent drafts, and tiers of classes where no weights would do.

Where cuts are equally good, weights would have to be infinitely far apart. There the classes fall into tiers
instead, and the choice is among the drafts of the highest tier.
"""

import numpy as np

from otmd.curve._kernels import power
from otmd.kernel import kernel
from otmd.optimum.independent_cut import slopes
from otmd.probabilities import FloatArray, IntArray, accumulated
from otmd.verifiers.optimal.choice_plan import quadrature_for_weights
from otmd.verifiers.optimal.slots_grid import TINY
from otmd.verifiers.optimal.weights import balance

TIGHT = 2e-13
"""Cuts that are worse than the best by no more than this, the rounding of p − g, are tight."""


def excess_of(targets: FloatArray, drafts: FloatArray, never: FloatArray, copies: IntArray) -> FloatArray:
    """By how much p of the first 0, 1, … G classes exceeds what they get if all others take precedence."""
    drawn = never + accumulated(drafts).T
    contained = (drawn**copies).prod(axis=1)
    return accumulated(targets) - (contained - contained[0])


def tight_prefixes(targets: FloatArray, drafts: FloatArray, never: FloatArray, copies: IntArray) -> IntArray:
    """The lengths, less than G, of the prefixes of the classes that are tight cuts, or lower than all before.

    To part the classes there loses as much p as the lowest cut does, and no more.
    """
    excess = excess_of(targets, drafts, never, copies)[1:-1]
    lowest = np.minimum.accumulate(np.minimum(excess, 0.0))
    return np.flatnonzero(excess <= lowest + TIGHT) + 1


def weights_in_tiers(
    targets: FloatArray, drafts: FloatArray, never: FloatArray, copies: IntArray, tol: float
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Log weights (G,), P(chosen) by row (R, G), and tiers (G,) of classes by p/σ ascending, outside H*.

    For the arguments see :func:`find_weights`. The classes are split into tiers at tight prefixes of their
    order, or, where no weights are found, of the order of the weights.
    """
    order = np.arange(targets.size)
    ends = tight_prefixes(targets, drafts, never, copies)
    if not ends.size and targets.size > 1:
        log_weights, by_row, excess = find_weights(targets, drafts, never, copies, None, tol)
        if excess > tol:
            order = np.argsort(log_weights, kind="stable")
            ends = tight_prefixes(targets[order], drafts[:, order], never, copies)
        if not ends.size:
            return log_weights, by_row, np.zeros(targets.size, int)
    starts = np.append(0, ends)
    sizes = np.diff(starts, append=order.size)
    below = never[:, None] + accumulated(drafts[:, order])[:, starts]
    log_weights, by_row = np.zeros(targets.size), np.zeros_like(drafts)
    tiers, spans = np.zeros(targets.size, int), np.ones(sizes.size, int)
    # A class that is a tier alone needs no weight.
    alone = order[starts[sizes == 1]]
    by_row[:, alone] = rates_alone(drafts[:, alone], below[:, sizes == 1], copies)
    for i in np.flatnonzero(sizes > 1):
        part = order[starts[i] : starts[i] + sizes[i]]
        part_tol = tol / np.count_nonzero(sizes > 1)
        log_weights[part], by_row[:, part], tiers[part] = weights_in_tiers(
            targets[part], drafts[:, part], below[:, i], copies, part_tol
        )
        spans[i] = tiers[part].max() + 1
    tiers[order] += np.repeat(spans.cumsum() - spans, sizes)
    return log_weights, by_row, tiers


def rates_alone(drafts: FloatArray, below: FloatArray, copies: IntArray) -> FloatArray:
    """P(chosen) by row (R, T) of classes (T,), each alone in its tier above draft masses ``below`` (R, T).

    All drafts of a class are alike: one of row r is chosen with ∫₀¹ d_r ∂_r g(below + u d) du, where g is a
    polynomial of degree n.
    """
    points, steps = np.polynomial.legendre.leggauss(int(copies.sum() + 1) // 2)
    drawn = below[..., None] + drafts[..., None] * (0.5 + 0.5 * points)
    return drafts * (slopes(drawn.T, copies).T @ (0.5 * steps))


def find_weights(
    targets: FloatArray,
    drafts: FloatArray,
    never: FloatArray,
    copies: IntArray,
    rejected: float | None,
    tol: float,
) -> tuple[FloatArray, FloatArray, float]:
    """Log weights with which classes are chosen with their ``targets`` (G,), see :func:`balance`.

    ``drafts`` (R, G) are the draft masses of the classes, and ``never`` (R,) those that are never chosen. All
    drafts are rejected with probability ``rejected``, if this is not None, and the last log weight is that of
    the rejection. Returns also P(chosen) by row (R, G), and the excess over the targets.
    """
    rejects = [] if rejected is None else [rejected]
    goal = np.append(targets, rejects)
    likely = np.append(copies @ drafts, np.ones(len(rejects)))
    # Tolerances of the search are for rates that sum to about 1.
    in_all = goal.sum()
    # For other layouts in memory the kernel would be compiled anew.
    drafts, never = np.ascontiguousarray(drafts), np.ascontiguousarray(never)

    def rates_at(log_weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        times, steps = quadrature_for_weights(log_weights, int(copies.sum()))
        return choice_rates(np.exp(log_weights), drafts, never, copies, times, steps)

    def evaluate(log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        _, rates, coupling = rates_at(log_weights)
        return rates / in_all, coupling / in_all

    scaled = goal / in_all
    log_weights, rates = balance(evaluate, scaled, rejected is None, tol / in_all, likely=likely / in_all)
    excess = in_all * float(np.maximum(rates - scaled, 0.0).sum())
    return log_weights, rates_at(log_weights)[0], excess


@kernel(error_model="numpy")
def choice_rates(weights, drafts, never, copies, times, steps):
    """P(chosen) by row and class (R, G) and by class, and −∂rates/∂log weights off the diagonal.

    A weight beyond G is that of the rejection. A draft of row r is silent until s with probability mix[r],
    all are with probability density/ds, and one of row r and class g then rings at the rate rings[r, g]. So
    rates[g] = ∫ Σ_r rings[r, g] density.
    """
    rows, size = drafts.shape
    by_row, rates = np.zeros(drafts.shape), np.zeros(weights.size)
    coupling = np.zeros((weights.size, weights.size))
    silent, every = np.empty(weights.size), np.empty(weights.size)
    rings = np.empty((rows, size))
    for j in range(times.size):
        s = times[j]
        for g in range(weights.size):
            # Beyond 745 the exponential is 0; the library takes longer to find that out.
            silent[g] = np.exp(-s * weights[g]) if s * weights[g] < 745.0 else 0.0
            every[g] = weights[g] if g >= size else 0.0
        density = steps[j]
        for g in range(size, weights.size):
            density *= silent[g]
        for r in range(rows):
            mix = never[r]
            for g in range(size):
                rings[r, g] = drafts[r, g] * silent[g]
                mix += rings[r, g]
            density *= power(mix, copies[r])
            for g in range(size):
                # The quotient comes first: any other factor over a mix near zero would overflow.
                rings[r, g] = rings[r, g] / max(mix, TINY) * weights[g] * copies[r]
                every[g] += rings[r, g]
        if density <= 0.0:
            continue
        for g in range(weights.size):
            rates[g] += density * every[g]
            part = density * s * every[g]
            for h in range(g):
                coupling[g, h] += part * every[h]
        for r in range(rows):
            for g in range(size):
                by_row[r, g] += density * rings[r, g]
                # Of m drafts from one row there are m (m − 1) ordered pairs, not m².
                part = density * s * rings[r, g] / copies[r]
                if part > 0.0:
                    for h in range(g):
                        coupling[g, h] -= part * rings[r, h]
    for g in range(weights.size):
        for h in range(g):
            coupling[g, h] = max(coupling[g, h], 0.0)
            coupling[h, g] = coupling[g, h]
    return by_row, rates, coupling
