"""Loop-by-loop twins of the choice among drafts by clocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from reference import Law, Number, Probs


def clock_choice_probs(
    classes: Sequence[int], shares: Probs, weights: Probs, rejection: Number
) -> list[Number]:
    """P(draft i is chosen), each draft of its class or of the next one, drawn by its share."""
    probs: list[Number] = [0] * len(classes)
    for ups in product((0, 1), repeat=len(classes)):
        prob: Number = 1
        for up, share in zip(ups, shares, strict=True):
            prob = prob * (1 - share if up else share)
        if not prob:
            continue
        drawn = [g + up for g, up in zip(classes, ups, strict=True)]
        total = rejection + sum(weights[g] for g in drawn)
        for i, g in enumerate(drawn):
            if weights[g]:
                probs[i] += prob * weights[g] / total
    return probs


def race_choice_rates(
    law: Law, classes: Sequence[int], shares: Probs, weights: Probs, rejection: Number
) -> list[Number]:
    """P(a draft of class g is chosen) by clocks, the rejection last.

    Token y is of class classes[y] with probability shares[y] and of the next one otherwise.
    """
    rates: list[Number] = [0] * (len(weights) + 1)
    for tokens, mass in law.items():
        for ups in product((0, 1), repeat=len(tokens)):
            prob = mass
            for y, up in zip(tokens, ups, strict=True):
                prob = prob * (1 - shares[y] if up else shares[y])
            drawn = [classes[y] + up for y, up in zip(tokens, ups, strict=True)] if prob else []
            total = rejection + sum(weights[g] for g in drawn)
            for g in drawn:
                rates[g] += prob * weights[g] / total if total else 0
            rates[-1] += prob * rejection / total if total else 0
    return rates
