"""Choosing among drafts by random clocks: the integrals behind the optimal rule.

A draft of class g rings after a time of rate w_g, and a rejection, where one is possible, after a time of
rate w_0; whichever rings first is chosen. Every integral over the time s is a sum over the same nodes.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def choice_rates(weights, masses, num_drafts, never, with_rejection, times, steps, rates, coupling):
    """Probability that each class is chosen, for drafts with replacement.

    ``masses`` are the classes' draft masses and ``never`` that of the drafts that are never chosen. With
    a rejection ``weights``, ``rates`` and ``coupling`` have one entry more, for it. Coupling is filled with
    −∂rates/∂log weights off the diagonal.
    """
    size, count = masses.size, weights.size
    rates[:] = 0.0
    coupling[:] = 0.0
    chosen = np.empty(count)
    for j in range(times.size):
        s = times[j]
        mix = never
        for g in range(size):
            chosen[g] = masses[g] * np.exp(-s * weights[g])
            mix += chosen[g]
        if mix <= 0.0:
            continue
        waiting = np.exp(-s * weights[size]) if with_rejection else 1.0
        density = steps[j] * mix ** (num_drafts - 1) * waiting
        for g in range(size):
            chosen[g] *= num_drafts * weights[g]
            rates[g] += density * chosen[g]
        pair = density * s / mix
        both = pair * (num_drafts - 1) / num_drafts
        if with_rejection:
            chosen[size] = weights[size] * mix
            rates[size] += density * chosen[size]
            for h in range(size):
                coupling[size, h] += pair * chosen[size] * chosen[h]
        for g in range(size):
            for h in range(g):
                coupling[g, h] += both * chosen[g] * chosen[h]
    for g in range(count):
        for h in range(g):
            coupling[h, g] = coupling[g, h]


@njit(cache=True, nogil=True, error_model="numpy")
def pair_rates(weights, pairs, alone, idle, with_rejection, rates, coupling):
    """Probability that each class is chosen, for two drafts: of classes with w and w' by w/(w + w' + w_0).

    ``pairs`` (A, A) says how often two classes are drafted together, twice for two of one class, ``alone``
    (A,) how often one with what is never chosen, and ``idle`` how often nothing else is drafted. Fills
    rates and coupling as :func:`choice_rates` does.
    """
    size = alone.size
    rejection = weights[size] if with_rejection else 0.0
    rates[:] = 0.0
    coupling[:] = 0.0
    rejected = idle
    for g in range(size):
        for h in range(g + 1):
            wait = 1.0 / (weights[g] + weights[h] + rejection)
            meet = pairs[g, h] * wait * (0.5 if g == h else 1.0)
            answers = meet * wait
            rates[g] += meet * weights[g]
            rates[h] += meet * weights[h]
            rejected += meet * rejection
            if g != h:
                coupling[g, h] = coupling[h, g] = answers * weights[g] * weights[h]
            if with_rejection:
                coupling[g, size] += answers * weights[g] * rejection
                coupling[h, size] += answers * weights[h] * rejection
        wait = 1.0 / (weights[g] + rejection)
        rates[g] += alone[g] * wait * weights[g]
        rejected += alone[g] * wait * rejection
        if with_rejection:
            coupling[g, size] += alone[g] * wait * wait * weights[g] * rejection
    if with_rejection:
        rates[size] = rejected
        for g in range(size):
            coupling[size, g] = coupling[g, size]


@njit(cache=True, nogil=True)
def chances_of_drafts(classes, shares, weights, rejection, times, steps, out):
    """Probability that each draft is chosen, given the drafts.

    Draft i is of class classes[i] with probability shares[i] and of the next one otherwise; class g has
    weight weights[g]. ``rejection`` is the weight w_0, 0 for none.
    """
    count = classes.size
    silent = np.empty(count)
    rings = np.empty(count)
    out[:] = 0.0
    for j in range(times.size):
        s = times[j]
        for i in range(count):
            g, share = classes[i], shares[i]
            silent[i] = share * np.exp(-s * weights[g])
            rings[i] = silent[i] * weights[g]
            if share < 1.0:
                other = (1.0 - share) * np.exp(-s * weights[g + 1])
                silent[i] += other
                rings[i] += other * weights[g + 1]
        waiting = steps[j] * np.exp(-s * rejection)
        for i in range(count):
            chosen = waiting * rings[i]
            for k in range(count):
                if k != i:
                    chosen *= silent[k]
            out[i] += chosen
