"""Loop-by-loop twins of the sums over the arrivals of an exponential race."""

from __future__ import annotations

import math

from reference import Probs


def counts_of_arrivals(rates: Probs, time: float, most: int) -> list[float]:
    """P(exactly m tokens of an exponential race have arrived by a time) for m < most."""
    counts = [1.0] + [0.0] * (most - 1)
    for rate in rates:
        absent, present = math.exp(-rate * time), -math.expm1(-rate * time)
        counts = [counts[m] * absent + (counts[m - 1] * present if m else 0.0) for m in range(most)]
    return counts


def race_sums(p: float, q: float, heaviest: float, end: float, powers: int) -> list[float]:
    """p, q/(1 − q), q and powers of the rate of a token in a race, which a heavy one has none of."""
    rate = q * end if q <= heaviest else 0.0
    return [p, q / (1 - q), q, *(rate**r for r in range(1, powers + 1))]
