"""Loop-by-loop twins of the choice among drafts by clocks.

A draft is of its class or of the next one, drawn by its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from reference import Law, Number, Probs


def _drawn(classes: Sequence[int], shares: Probs) -> Iterator[tuple[list[int], Number]]:
    for ups in product((0, 1), repeat=len(classes)):
        prob: Number = 1
        for up, share in zip(ups, shares, strict=True):
            prob = prob * (1 - share if up else share)
        if prob:
            yield [g + up for g, up in zip(classes, ups, strict=True)], prob


def clock_choice_probs(
    classes: Sequence[int], shares: Probs, weights: Probs, rejection: Number
) -> list[Number]:
    """P(draft i is chosen)."""
    probs: list[Number] = [0] * len(classes)
    for drawn, prob in _drawn(classes, shares):
        total = rejection + sum(weights[g] for g in drawn)
        for i, g in enumerate(drawn):
            probs[i] += prob * weights[g] / total if weights[g] else 0
    return probs


def race_choice_rates(
    law: Law, classes: Sequence[int], shares: Probs, weights: Probs, rejection: Number
) -> list[Number]:
    """P(a draft of class g is chosen) by clocks, the rejection last; token y is of ``classes[y]``."""
    rates: list[Number] = [0] * (len(weights) + 1)
    for tokens, mass in law.items():
        for drawn, prob in _drawn([classes[y] for y in tokens], [shares[y] for y in tokens]):
            total = rejection + sum(weights[g] for g in drawn)
            for g, weight in [*((g, weights[g]) for g in drawn), (-1, rejection)]:
                rates[g] += mass * prob * weight / total if total else 0
    return rates
