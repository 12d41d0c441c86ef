"""A claim about many positions: what speaks for or against it, and how it is judged."""

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from otmd.audit.counts import (
    IMPOSSIBLE,
    detectable_total_variation,
    exact_p_value,
    total_variation_bound,
)
from otmd.audit.sequential import CAUTIONS, NUMBERS_OF_CELLS, CellBets, mean_wealth
from otmd.probabilities import FloatArray, IntArray

MOST_CELLS = 16
"""In which the numbers of a claim are counted."""
# Over positions that differ a fault is smooth along the order, and fewer cells show it sooner.
_SAMPLES_A_CELL = 100
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


@dataclass(eq=False)
class Evidence:
    """What a claim is judged by, in the order in which it was recorded.

    Attributes
    ----------
    numbers : sequence of float, M of them
        In [0, 1), uniform given everything before if the claim holds.
    impossible : sequence of bool, M of them
        Where an outcome has probability zero under the claim.
    classes : list of (sequence of int, sequence of float)
        Classes of the same outcomes that are alike from position to position: the label of each outcome, and
        the M·K chances that the claim gives the K classes.
    """

    numbers: Any = field(default_factory=lambda: array("d"))
    impossible: Any = field(default_factory=lambda: array("b"))
    classes: list[tuple[Any, Any]] = field(default_factory=list)

    @classmethod
    def empty(cls, num_classes: int) -> "Evidence":
        """No outcomes yet, to be sorted into classes in so many ways."""
        return cls(classes=[(array("q"), array("d")) for _ in range(num_classes)])

    def add(self, number: float, impossible: bool, *classes: tuple[int, Any]) -> None:
        """Add an outcome, with its label and the chances (K,) of the labels for each way of sorting."""
        self.numbers.append(number)
        self.impossible.append(impossible)
        for (labels, probs), (label, law) in zip(self.classes, classes, strict=True):
            labels.append(label)
            probs.extend(law)


@dataclass(frozen=True)
class Claim:
    """What was found of a claim about many positions.

    Attributes
    ----------
    name : str
        The claim, in words.
    num_samples : int
    p_value : float
        Of the exact G-test of counts in equal cells; valid if the number of rows was decided in advance.
    betting_p_value : float
        Valid whenever one looks and stops recording.
    total_variation_bound : float
        Of the laws claimed and the laws in fact, at least, on average over the second half of the positions.
    detectable : float
        A total variation on the cells that the test would have found with probability 0.9.
    level : float
        The false-alarm rate of each of the three statements.
    """

    name: str
    num_samples: int
    p_value: float
    betting_p_value: float
    total_variation_bound: float
    detectable: float
    level: float

    @property
    def refuted(self) -> bool:
        """Whether any of the three statements contradicts the claim."""
        smallest = min(self.p_value, self.betting_p_value)
        return smallest <= self.level or self.total_variation_bound > 0


def judge_claim(name: str, evidence: Evidence, level: float, *, rng: np.random.Generator) -> Claim:
    """Test a claim by three statements, each at a false-alarm rate of ``level``.

    The numbers are counted in equal cells. Bets and the bound of the total variation use the cells and the
    classes; an impossible outcome counts in the bound alone.
    """
    numbers, impossible = np.array(evidence.numbers, float), np.array(evidence.impossible, bool)
    size, possible = numbers.size, ~impossible
    classes = [
        (np.array(labels, np.int64), np.array(probs, float).reshape(size, -1))
        for labels, probs in evidence.classes
    ]
    cells = max(2, min(MOST_CELLS, size // _SAMPLES_A_CELL))
    labels, uniform = _equal_cells(numbers, cells)
    counted = [(labels, uniform), *classes]
    bounds = [
        total_variation_bound(
            np.where(impossible, IMPOSSIBLE, own), probs, level / len(counted), independent=False
        )
        for own, probs in counted
    ]
    counts = np.bincount(labels[possible], minlength=cells)
    wealth = 0.0
    if possible.any():
        by_cells = [_bets(*_equal_cells(numbers[possible], own)) for own in NUMBERS_OF_CELLS]
        by_class = [_bets(own[possible], probs[possible]) for own, probs in classes]
        wealth = max(0.0, float(mean_wealth([mean_wealth(by_cells), *by_class]).max()))
    return Claim(
        name=name,
        num_samples=size,
        p_value=exact_p_value(counts, uniform, level, rng=rng),
        betting_p_value=float(np.exp(-wealth)),
        total_variation_bound=max(bounds),
        detectable=detectable_total_variation(max(1, counts.sum()), cells, level),
        level=level,
    )


def _equal_cells(numbers: FloatArray, cells: int) -> tuple[IntArray, FloatArray]:
    labels = np.minimum((numbers * cells).astype(np.int64), cells - 1)
    return labels, np.full(cells, 1.0 / cells)


def _bets(labels: IntArray, probs: FloatArray) -> FloatArray:
    paths = [CellBets(probs.shape[-1], own).update(labels, probs) for own in CAUTIONS]
    return mean_wealth(paths)


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


def bands_of(names: tuple[str, ...], output: Evidence) -> tuple[Band, ...]:
    """The classes of these names, :data:`BY_RATIO` or :data:`BY_MASS`, that any mass or token was in."""
    labels, chances = output.classes[0]
    probs = np.array(chances, np.float64).reshape(-1, len(names))
    observed = np.bincount(np.array(labels, np.int64), minlength=len(names))
    expected, spread = probs.sum(axis=0), np.sqrt((probs * (1.0 - probs)).sum(axis=0))
    off = observed - expected
    deviations = np.divide(off, spread, out=np.zeros(off.size), where=spread > 1e-6)
    return tuple(
        Band(names[k], int(observed[k]), float(expected[k]), float(deviations[k]))
        for k in np.flatnonzero((observed > 0) | (expected > 0))
    )
