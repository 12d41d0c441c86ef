"""Loop-by-loop twins of weights and clocks, and of what a choice among drafts accepts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from reference import Law, Number, Probs


def split_mass(q: Probs, ratio: Probs, nodes: Probs, low: Number, high: Number) -> list[Number]:
    """Each token's q between the two nodes around its ratio, so that their mean ratio is its own."""
    mass: list[Number] = [0] * len(nodes)
    for drawn, own in zip(q, ratio, strict=True):
        if not (low <= own < high and drawn > 0):
            continue
        if own >= nodes[-1]:
            mass[-1] += drawn
            continue
        above = next(g for g, node in enumerate(nodes) if node > own)
        to_above = (own - nodes[above - 1]) / (nodes[above] - nodes[above - 1])
        mass[above] += drawn * to_above
        mass[above - 1] += drawn * (1 - to_above)
    return mass


def clock_choice(
    weights: Probs, masses: Probs, n: int, never: Number, rejection: Number
) -> list[Number]:
    """P(class g is chosen) when one of n drafts is, in proportion to the weights; the rejection last.

    Drafts of the mass `never` have weight 0. Every tuple of classes is visited.
    """
    size = len(masses)
    rates: list[Number] = [0] * (size + 1)
    every = [*masses, never]
    for classes in product(range(size + 1), repeat=n):
        chance = math.prod(every[g] for g in classes)
        drafted = [g for g in classes if g < size]
        total = rejection + sum(weights[g] for g in drafted)
        for g in drafted:
            rates[g] += chance * weights[g] / total
        if rejection:
            rates[size] += chance * rejection / total
    return rates


def clock_potential(weights: Probs, masses: Probs, n: int, never: float, rejection: float) -> float:
    """E[log of the sum of the weights], over the tuples where that sum is positive."""
    every, heavy = [*masses, never], [*weights, 0.0]
    mean = 0.0
    for classes in product(range(len(every)), repeat=n):
        total = rejection + sum(heavy[g] for g in classes)
        if total > 0:
            mean += math.prod(every[g] for g in classes) * math.log(total)
    return mean


def clock_chances(
    classes: Sequence[int], shares: Probs, weights: Probs, rejection: Number
) -> list[Number]:
    """P(draft i is chosen), each draft of its class or of the next one, drawn by its share."""
    chances: list[Number] = [0] * len(classes)
    for ups in product((0, 1), repeat=len(classes)):
        chance: Number = 1
        for up, share in zip(ups, shares, strict=True):
            chance = chance * (1 - share if up else share)
        if not chance:
            continue
        drawn = [g + up for g, up in zip(classes, ups, strict=True)]
        total = rejection + sum(weights[g] for g in drawn)
        for i, g in enumerate(drawn):
            if weights[g]:
                chances[i] += chance * weights[g] / total
    return chances


def race_product(law: Law, silent: Probs) -> Number:
    """E[Π ℓ over the drafts], ℓ a number for each token."""
    return sum(mass * math.prod(silent[y] for y in tokens) for tokens, mass in law.items())


def race_slopes(law: Law, silent: Probs) -> list[Number]:
    """Its derivative by the ℓ of each token: the same sum over the other drafts of its tuples."""
    slopes: list[Number] = [0] * len(silent)
    for tokens, mass in law.items():
        for y in tokens:
            slopes[y] += mass * math.prod(silent[z] for z in tokens if z != y)
    return slopes


def arrivals(
    rates: Probs, silent: Probs, time: float, count: Probs, last: Probs
) -> tuple[list[float], list[float]]:
    """Multiply tokens onto two series at one time, by trying every set of those that have arrived.

    The first counts arrivals before the time, the second the others beside one at the time itself; every
    arrival is multiplied by the token's ℓ.
    """
    order, size = len(count), len(rates)
    counted, ended = [0.0] * order, [0.0] * order
    for came in product((False, True), repeat=size):
        chance, number = 1.0, sum(came)
        for rate, ell, here in zip(rates, silent, came, strict=True):
            chance *= -math.expm1(-rate * time) * ell if here else math.exp(-rate * time)
        # One of the absent arrives at this very time.
        rings = sum(r * ell for r, ell, here in zip(rates, silent, came, strict=True) if not here)
        for m in range(order - number):
            counted[m + number] += chance * count[m]
            ended[m + number] += chance * (last[m] + rings * count[m])
    return counted, ended


def race_choice_rates(
    law: Law, classes: Sequence[int], shares: Probs, weights: Probs, rejection: Number
) -> list[Number]:
    """P(a draft of class g is chosen) by clocks, the rejection last.

    Token y is of class classes[y] with probability shares[y] and of the next one otherwise.
    """
    rates: list[Number] = [0] * (len(weights) + 1)
    for tokens, mass in law.items():
        for ups in product((0, 1), repeat=len(tokens)):
            chance = mass
            for y, up in zip(tokens, ups, strict=True):
                chance = chance * (1 - shares[y] if up else shares[y])
            drawn = [classes[y] + up for y, up in zip(tokens, ups, strict=True)] if chance else []
            total = rejection + sum(weights[g] for g in drawn)
            for g in drawn:
                rates[g] += chance * weights[g] / total if total else 0
            rates[-1] += chance * rejection / total if total else 0
    return rates
