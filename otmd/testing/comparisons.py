"""Comparisons that say what was compared, on which input, what was given and what was expected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.statistics import exact_p_value
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers import UnsupportedLaw

FALSE_ALARM = 1e-5
"""With what probability, at most, a single test by samples fails what is right."""
# How far a distribution, and a rate or a containment, may be off.
SAME, SAME_RATE = 1e-12, 1e-10
NUM_SAMPLES = 2_000


def agree(what: str, given: ArrayLike, expected: ArrayLike, by: float) -> None:
    """Fail unless numbers are the same up to ``by``, element by element; NaN never is."""
    given, expected = np.asarray(given, np.float64), np.asarray(expected, np.float64)
    if given.shape != expected.shape:
        raise AssertionError(f"{what}: got shape {given.shape}, expected {expected.shape}")
    if not (np.abs(given - expected) <= by).all():
        numbers = f"got {given.tolist()}, expected {expected.tolist()} to {by:g}"
        raise AssertionError(f"{what}: {numbers}")


def within(what: str, given: float, low: float, high: float, by: float) -> None:
    """Fail unless a number is in an interval, up to ``by``; NaN never is."""
    if not low - by <= given <= high + by:
        raise AssertionError(f"{what}: got {given!r}, expected between {low!r} and {high!r}")


def follows(what: str, seen: IntArray, probs: FloatArray, rng: np.random.Generator) -> None:
    """Exact G-test of counts (K,) against probabilities (K,)."""
    possible = probs > 0
    counts = f"got counts {seen.tolist()}, expected {(seen.sum() * probs).tolist()}"
    if seen[~possible].any():
        raise AssertionError(f"{what}: {counts}")
    p_value = exact_p_value(seen[possible], probs[possible], FALSE_ALARM, rng=rng)
    if p_value <= FALSE_ALARM:
        raise AssertionError(f"{what}: {counts}; p-value {p_value:.1e}, alarm at {FALSE_ALARM:g}")


def refuses(what: str, call: Callable[..., object], *arguments: object) -> None:
    """Fail unless a call raises UnsupportedLaw."""
    try:
        given = call(*arguments)
    except UnsupportedLaw:
        return
    raise AssertionError(f"{what}: got {given!r}, expected an UnsupportedLaw error")
