"""A claim about many positions: what speaks for or against it, bets against it, and how it is judged.

A bet pays a factor whose expectation is at most 1 under the claim, given what came before. By Ville's
inequality (1939) the product of the factors ever reaches 1/a with probability at most a. So one may look
after every sample and stop at will (Shafer & Vovk 2019; Waudby-Smith & Ramdas 2024).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import logsumexp

from otmd.audit.counts import (
    IMPOSSIBLE,
    detectable_total_variation,
    exact_p_value,
    total_variation_bound,
)
from otmd.probabilities import BoolArray, FloatArray, IntArray

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
CAUTIONS = (30.0, 1_000.0, 30_000.0)
"""How many samples' worth of trust in the claim the bets have, see :class:`CellBets`."""
NUMBERS_OF_CELLS = (2, 4, 16, 64)
STAKES = (1 / 256, 1 / 64, 1 / 16, 1 / 4)
"""Of the bets on an acceptance above the ceiling, see :class:`ChanceBets`."""
_ROWS_AT_ONCE = 4096


class CellBets:
    """Bets that the cells occur as often as they did before, not as the claim expects.

    The factor for a sample in cell k is r(k)/π(k) with the predicted r(k) ∝ π(k)·(O_k + cπ(k))/(E_k + cπ(k)),
    O_k how often k occurred before and E_k how often it was expected. With one π for all samples this is the
    likelihood ratio of a Dirichlet mixture with parameters cπ against π. The caution c > 0 says how many
    samples' worth of trust in the claim there is: the larger, the smaller the deviations sought.
    """

    def __init__(self, num_cells: int, caution: float) -> None:
        self.caution = caution
        self.log_wealth = 0.0
        self._observed = np.zeros(num_cells)
        self._expected = np.zeros(num_cells)

    def update(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        """Bet on samples in turn, and return the logarithm of the wealth (M,) after each.

        ``labels`` (M,) are their cells, ``probs`` (K,) or (M, K) is π, which may depend on those before.
        """
        expected = np.broadcast_to(probs, (labels.size, probs.shape[-1]))
        path = np.empty(labels.size)
        for start in range(0, labels.size, _ROWS_AT_ONCE):
            own = slice(start, start + _ROWS_AT_ONCE)
            path[own] = self._bet(labels[own], expected[own])
        return path

    def _bet(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        happened = np.zeros(probs.shape)
        happened[np.arange(labels.size), labels] = 1.0
        observed, expected = _before(self._observed, happened), _before(self._expected, probs)
        trust = self.caution * probs
        factor = (observed[:-1] + trust) / np.where(probs > 0, expected[:-1] + trust, 1.0)
        own = factor[np.arange(labels.size), labels]
        with np.errstate(divide="ignore"):
            gains = np.log(own) - np.log((probs * factor).sum(axis=-1))
        self._observed, self._expected = observed[-1], expected[-1]
        path = self.log_wealth + np.cumsum(gains)
        self.log_wealth = float(path[-1])
        return path


class ChanceBets:
    """Bets that something happens more often than a largest chance allows.

    The factor is 1 + s(X/a − 1) for a chance of at most a, with the stake s in (0, 1).
    """

    def __init__(self, stake: float) -> None:
        self.stake = stake
        self.log_wealth = 0.0

    def update(self, happened: BoolArray, largest: FloatArray | float) -> FloatArray:
        """Bet on events (M,) in turn, each with its largest chance; logarithms of wealth (M,)."""
        with np.errstate(divide="ignore"):
            paid = np.where(happened, 1.0 / np.asarray(largest), 0.0)
        path = self.log_wealth + np.cumsum(np.log1p(self.stake * (paid - 1.0)))
        self.log_wealth = float(path[-1]) if path.size else self.log_wealth
        return path


def mean_wealth(paths: Sequence[FloatArray]) -> FloatArray:
    """Logarithm of the mean of wealths: the stake is shared, so it is a bet as well."""
    return logsumexp(np.stack(paths), axis=0) - np.log(len(paths))


def _before(start: FloatArray, steps: FloatArray) -> FloatArray:
    """Running sums (M + 1, K) that begin with ``start``."""
    return start + np.concatenate([np.zeros((1, start.size)), np.cumsum(steps, axis=0)])


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
