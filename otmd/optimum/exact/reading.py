"""Reads distributions without rounding, and imports sympy."""

from collections.abc import Iterable, Mapping, Set
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from itertools import islice
from numbers import Rational
from typing import Any

import numpy as np

_WANTED = "an int, a Fraction, a string such as '1/3', or a finite float"
# Enough tokens for every function here to refuse the vocabulary by its own limit.
_MOST_TOKENS = 10_000


def rational(name: str, value: object) -> Fraction:
    """Return ``value`` as a Fraction; a float is the binary fraction that it is, digit for digit."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (Rational, str, float, Decimal)):
        raise ValueError(f"{name}: got {value!r}, wanted {_WANTED}")
    try:
        return Fraction(value)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"{name}: got {value!r}, wanted {_WANTED}") from error


def sequence(name: str, value: object) -> list[Any]:
    """Return the entries of an ordered iterable, or raise ValueError."""
    if isinstance(value, str | Mapping | Set) or not isinstance(value, Iterable):
        raise ValueError(f"{name}: got {value!r}, wanted a list, a tuple or an array")
    try:
        entries = list(islice(value, _MOST_TOKENS + 1))
    except TypeError as error:  # an array without axes calls itself iterable
        raise ValueError(f"{name}: got {value!r}, wanted a list, a tuple or an array") from error
    if not 1 <= len(entries) <= _MOST_TOKENS:
        size = "none" if not entries else f"more than {_MOST_TOKENS}"
        raise ValueError(f"{name}: got {size}, wanted 1 to {_MOST_TOKENS} entries")
    return entries


def rational_probs(name: str, value: object) -> list[Fraction]:
    """Return a distribution as Fractions that sum to exactly 1, or raise ValueError."""
    probs = [rational(f"{name}[{i}]", entry) for i, entry in enumerate(sequence(name, value))]
    for i, prob in enumerate(probs):
        if prob < 0:
            raise ValueError(f"{name}[{i}]: got {prob}, wanted a number ≥ 0")
    total = sum(probs)
    if total != 1:
        raise ValueError(
            f"{name}: got numbers that sum to {_short(total)}, wanted exactly 1; a float such as 0.1 is a "
            "binary fraction near 1/10, write '1/10' or '0.1' in quotes"
        )
    return probs


def require_same_vocabulary(target_size: int, draft_size: int) -> None:
    """Raise ValueError unless target and drafts are over equally many tokens."""
    if target_size != draft_size:
        raise ValueError(
            f"target_probs: got {target_size} tokens, wanted {draft_size}, the vocabulary of the drafts"
        )


def require_small(target_probs: list[Any], most: int, why: str) -> None:
    """Raise ValueError for more than ``most`` tokens."""
    if len(target_probs) > most:
        raise ValueError(
            f"target_probs: got {len(target_probs)} tokens, wanted at most {most}: {why}"
        )


def require_sympy() -> Any:
    """Import sympy; ImportError says how to install it."""
    try:
        return import_module("sympy")
    except ImportError as error:
        raise ImportError(
            "algebraic numbers and symbols need sympy: pip install 'otmd[exact]'"
        ) from error


def _short(total: Fraction | int) -> str:
    if total.denominator < 10**9:
        return str(total)
    difference = float(total - 1)
    return f"1 {'+' if difference > 0 else '-'} {abs(difference):.3g}"
