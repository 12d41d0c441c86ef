"""Which tokens came out too often: classes of tokens, over all positions."""

from array import array
from dataclasses import dataclass

import numpy as np

from otmd.probabilities import FloatArray, IntArray

_RATIOS = (0.5, 1.0, 2.0, 4.0)
_MASSES = (0.001, 0.01, 0.1)
BY_RATIO = (
    "drafted much more than wanted (p/q < 1/2)",
    "drafted more than wanted (1/2 ≤ p/q < 1)",
    "drafted less than wanted (1 ≤ p/q < 2)",
    "drafted less than half of it (2 ≤ p/q < 4)",
    "drafted much less than wanted (p/q ≥ 4)",
    "never drafted (q = 0)",
)
BY_MASS = (
    "p below 0.001",
    "p from 0.001 to 0.01",
    "p from 0.01 to 0.1",
    "p of 0.1 or more, not the likeliest",
    "the likeliest token",
)


@dataclass(frozen=True)
class Band:
    """A class of tokens.

    Attributes
    ----------
    name : str
    observed : int
        How many output tokens were of the class.
    expected : float
        How many the target gives it.
    deviations : float
        The difference in standard deviations, given the targets; 0 where nothing may vary.
    """

    name: str
    observed: int
    expected: float
    deviations: float


class BandCounts:
    """Which class each output token is of, and what the target gives the classes at its position."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._labels, self._probs = array("q"), array("d")

    def add(self, target: FloatArray, bands: IntArray, token: int) -> None:
        """Count an output token, given p (V,) and the class of each token (V,)."""
        masses = np.bincount(bands, target, minlength=len(self._names))
        self._labels.append(int(bands[token]))
        self._probs.extend(masses / masses.sum())

    def arrays(self) -> tuple[IntArray, FloatArray]:
        """Classes (M,) and the targets' masses of the classes (M, K)."""
        probs = np.array(self._probs, np.float64).reshape(-1, len(self._names))
        return np.array(self._labels, np.int64), probs

    def found(self) -> tuple[Band, ...]:
        """The classes that any mass or token was in."""
        labels, probs = self.arrays()
        observed = np.bincount(labels, minlength=len(self._names))
        expected, spread = probs.sum(axis=0), np.sqrt((probs * (1.0 - probs)).sum(axis=0))
        off = observed - expected
        deviations = np.divide(off, spread, out=np.zeros(off.size), where=spread > 1e-6)
        return tuple(
            Band(self._names[k], int(observed[k]), float(expected[k]), float(deviations[k]))
            for k in np.flatnonzero((observed > 0) | (expected > 0))
        )


def ratio_bands(target: FloatArray, draft_probs: FloatArray) -> IntArray:
    """The class of each token (V,) in :data:`BY_RATIO`."""
    bands = np.zeros(target.size, np.int64)
    for bound in _RATIOS:
        bands += target >= bound * draft_probs
    bands[draft_probs == 0] = len(BY_RATIO) - 1
    return bands


def mass_bands(target: FloatArray) -> IntArray:
    """The class of each token (V,) in :data:`BY_MASS`."""
    bands = np.digitize(target, _MASSES)
    bands[target.argmax()] = len(BY_MASS) - 1
    return bands


def band_table(bands: tuple[Band, ...]) -> str:
    """Lines of class, observed, expected and deviations."""
    lines = [f"  {'':<44} {'observed':>9} {'expected':>11} {'deviations':>11}"]
    lines += [
        f"  {own.name:<44} {own.observed:>9} {own.expected:>11.1f} {own.deviations:>+11.1f}"
        for own in bands
    ]
    return "\n".join(lines)
