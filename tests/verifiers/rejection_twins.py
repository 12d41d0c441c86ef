"""Loop-by-loop twins of the classes of tokens in which rejections are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reference import Number, Probs


def classes_of_mass(mass: Sequence[float], widest: float) -> list[int]:
    """Where each class of descending masses starts.

    A class is closed before its mass times its range would exceed ``widest``, or its range a factor of 8;
    equal masses are in one class.
    """
    starts = [0]
    for i, smallest in enumerate(mass):
        total, largest = sum(mass[starts[-1] : i + 1]), mass[starts[-1]]
        if total * (largest - smallest) > widest or largest > 8.0 * smallest:
            starts.append(mass.index(smallest))
    return starts


def part_of_ratio(ratio: float, interval: tuple[float, float]) -> int | None:
    """0 for a ratio up to 1, 1 from there to an interval above 1, 2 beyond it, None inside."""
    low, high = interval
    if low < ratio <= high:
        return None
    return 2 if ratio > high else 1 if ratio > 1 else 0


def merged_masses(p: Probs, q: Probs, interval: tuple[float, float]) -> list[list[Number]]:
    """Masses of p and q of the tokens outside an interval of p/q, in three parts."""
    merged: list[list[Number]] = [[0, 0] for _ in range(3)]
    for target, draft in zip(p, q, strict=True):
        part = part_of_ratio(target / draft if draft > 0 else math.inf, interval)
        if part is not None:
            merged[part][0] += target
            merged[part][1] += draft
    return merged


def tokens_by_class(
    level: Sequence[int], p: Sequence[float], q: Sequence[float], interval: tuple[float, float]
) -> tuple[list[float], list[float], list[float]]:
    """Class by class: ratios, and p and q before each entry and after the last one.

    The entries are the merged tokens between 1 and the interval, at the ratio 1, and each token inside it.
    """
    dealt: tuple[list[float], list[float], list[float]] = ([], [], [])
    for c in sorted(set(level)):
        own = [i for i, other in enumerate(level) if other == c]
        merged = merged_masses([p[i] for i in own], [q[i] for i in own], interval)
        inside = [i for i in own if part_of_ratio(p[i] / q[i], interval) is None]
        inside.sort(key=lambda i: p[i] / q[i])
        dealt[0].extend([1.0, *(p[i] / q[i] for i in inside)])
        for side, mass in enumerate((p, q)):
            before = [merged[0][side], merged[0][side] + merged[1][side]]
            for i in inside:
                before.append(before[-1] + mass[i])
            dealt[1 + side].extend(before)
    return dealt
