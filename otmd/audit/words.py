"""Tables of tokens that a person can read at a glance."""

from dataclasses import dataclass

import numpy as np

from otmd.probabilities import FloatArray


@dataclass(frozen=True)
class TokenDeviation:
    """How far one token is from what was expected.

    Attributes
    ----------
    token : int
        Its id.
    observed, expected : float
        Counts, or probabilities where the output law is exact.
    """

    token: int
    observed: float
    expected: float


def largest_deviations(
    observed: FloatArray, expected: FloatArray, most: int = 5
) -> tuple[TokenDeviation, ...]:
    """The tokens with the largest (O − E)/√E, impossible ones first; those that deviate at all."""
    off = observed - expected
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(off == 0, 0.0, np.abs(off) / np.sqrt(expected))
    by_size = np.lexsort((-np.abs(off), -size))[:most]
    return tuple(
        TokenDeviation(int(y), float(observed[y]), float(expected[y])) for y in by_size if off[y]
    )


def deviation_table(worst: tuple[TokenDeviation, ...], number: str = ".1f") -> str:
    """Lines of token, observed, expected, difference and ratio."""
    lines = [f"  {'token':>8} {'observed':>12} {'expected':>12} {'difference':>12} {'ratio':>8}"]
    for own in worst:
        ratio = f"{own.observed / own.expected:8.3f}" if own.expected > 0 else f"{'∞':>8}"
        cells = (own.observed, own.expected, own.observed - own.expected)
        numbers = " ".join(f"{value:>12{number}}" for value in cells)
        lines.append(f"  {own.token:>8} {numbers} {ratio}")
    return "\n".join(lines)
