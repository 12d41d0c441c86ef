"""When an exponential race is over."""

import numpy as np
from numba import njit

# However many tokens there are: no race is so short beside the wait for the n fastest.
_SHORTEST = 1e-12


@njit(cache=True, nogil=True)
def race_end(fast, others, num_drafts, invisible):
    """The earlier of two times: when the n fastest have surely arrived, and when n of all have.

    ``fast`` are the rates of the fastest tokens, ascending, and ``others`` that of all others together. Sure
    is what fails with a probability below e^{−invisible}: by Chernoff's bound
    P(N < n) ≤ e^{−μ}(eμ/(n − 1))^{n−1}, μ being at most the mean number of arrivals.
    """
    lost = num_drafts - 1
    latest = invisible / fast[fast.size - num_drafts]
    early, late = 0.0, latest
    # A race that is taken for longer than it is costs a few nodes.
    while late > 1.05 * early and late > latest * _SHORTEST:
        time, mean = 0.5 * (early + late), 0.0
        for y in range(fast.size):
            # Rates may lie so far apart that a product overflows: the token has arrived.
            mean -= np.expm1(-fast[y] * time)
        if others > 0.0 and fast[0] > 0.0:
            # 1 − e^{−qt} is concave in q, so above its chord up to the slowest of the fast tokens.
            mean -= others * np.expm1(-fast[0] * time) / fast[0]
        over = mean > lost and mean - lost * (1.0 + np.log(mean / lost)) > invisible
        early, late = (early, time) if over else (time, late)
    return late
