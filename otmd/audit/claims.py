"""The claims about a recorded run, their evidence over many positions, and how it is judged.

A claim orders the tokens of a position by a key, and the order must be known before the token is drawn: it
may depend on p, q and the text so far, never on the drafts or on what came of them. :data:`CLAIMS` is the
table that the audit, its false-alarm rate and its report read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from otmd.audit import statistics
from otmd.audit.statistics import CAUTIONS, NUMBERS_OF_CELLS, CellBets, anytime_p_value, mean_wealth
from otmd.probabilities import BoolArray, FloatArray

OUTPUTS = "outputs"
DRAFT_TOKENS = "drafts"
# 2^64 divided by the golden ratio: multiples of it, modulo 2^64, are spread evenly and without an order.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
# Most cells of equal size for the numbers of a claim. Over many positions a fault changes slowly along the
# order, so few cells show it sooner.
MOST_CELLS = 16
_SAMPLES_A_CELL = 100
# A group has fewer rows, and shows larger deviations only.
_CELLS_OF_GROUPS = (2, 4, 16)
# Later groups of a grouping share the labels of the first ones.
MOST_GROUPS = 64


class Before(NamedTuple):
    """The state of a position before a token is drawn, each of shape (V,).

    ``probs`` is the claimed distribution of the token, ``draft_probs`` is q (zeros where it is not recorded),
    and ``occurrences`` counts each token earlier in the request.
    """

    probs: FloatArray
    draft_probs: FloatArray
    occurrences: FloatArray


class Hypothesis(NamedTuple):
    """A claim on the ``side`` of outputs or drafts, by the tokens in ascending order of ``key``.

    ``key`` is None for links between drafts, which are not tested in an order of tokens. ``refuted`` says in
    words that it is false.
    """

    name: str
    side: str
    order: str
    key: Callable[[Before], FloatArray] | None
    refuted: str


@lru_cache(maxsize=4)
def _scattered(vocab_size: int) -> FloatArray:
    """A fixed number for each token, without relation to its id."""
    return (np.arange(vocab_size, dtype=np.uint64) * _SPREAD).astype(np.float64)


def _by_id(at: Before) -> FloatArray:
    # Ties fall to the lower id.
    return np.zeros(at.probs.size)


def _of_outputs(order: str, key: Callable[[Before], FloatArray]) -> Hypothesis:
    name = f"output tokens follow the target (in order of {order})"
    refuted = "the output tokens do not follow the target distribution"
    return Hypothesis(name, OUTPUTS, order, key, refuted)


def _of_drafts(
    name: str, order: str, key: Callable[[Before], FloatArray] | None, refuted: str = ""
) -> Hypothesis:
    false_drafts = "the drafts were not drawn from the recorded draft distribution"
    return Hypothesis(name, DRAFT_TOKENS, order, key, refuted or false_drafts)


DRAFTS = "drafts follow their distribution"
SLOTS = "no link between the drafts of a position"
ROWS = "no link to the drafts of the position before"
_USED_TWICE = "drafts depend on those of the position before: are random numbers used twice?"
CLAIMS = {claim.name: claim for claim in (
    _of_outputs("p/q", lambda at: statistics.ratios(at.probs, at.draft_probs)),
    _of_outputs("p", lambda at: -at.probs),
    _of_outputs("q", lambda at: -at.draft_probs),
    _of_outputs("token id", _by_id),
    _of_outputs("a hash", lambda at: _scattered(at.probs.size)),
    _of_outputs("earlier occurrences", lambda at: -at.occurrences),
    # For a draft, Before.probs is its own distribution.
    _of_drafts(DRAFTS, "q", lambda at: -at.probs),
    _of_drafts(f"{DRAFTS} (in order of token id)", "token id", _by_id),
    _of_drafts(SLOTS, "", None, "the drafts of a position depend on one another"),
    _of_drafts(ROWS, "", None, _USED_TWICE),
)}  # fmt: skip
OUTPUT, OUTPUT_BY_MASS, OUTPUT_BY_Q, _, _, OUTPUT_BY_OCCURRENCE, *_ = CLAIMS
ORDERS_BY_DRAFT = (OUTPUT, OUTPUT_BY_Q)
# The statements that share the false-alarm rate equally: three about each claim, the acceptance, and the
# least likely output and draft.
NUM_STATEMENTS = 3 * len(CLAIMS) + 3


def claims_in_order(side: str) -> dict[str, Callable[[Before], FloatArray]]:
    """The key of each claim on this side that orders tokens."""
    return {x.name: x.key for x in CLAIMS.values() if x.side == side and x.key}


class Classification(NamedTuple):
    """Labels (M,) of outcomes, and the probabilities of the K classes: (K,), (M, K) or, in a list, (M·K,)."""

    labels: Any
    probs: Any

    def as_arrays(self) -> Classification:
        """The labels as an array (M,), and the probabilities as an array (M, K)."""
        labels = np.array(self.labels, np.int64)
        return Classification(labels, np.array(self.probs, float).reshape(labels.size, -1))


@dataclass(eq=False)
class Grouping:
    """A partition of the rows: the label of each outcome (M,), known before the outcome, and label names.

    ``listed`` groupings have all their groups in the report, others only those that show a fault.
    """

    title: str
    listed: bool = False
    labels: Any = field(default_factory=lambda: array("b"))
    names: dict[int, str] = field(default_factory=dict)

    def add(self, label: int, name: str) -> None:
        """Add an outcome of a group, whose first ``name`` stays."""
        self.labels.append(label % MOST_GROUPS)
        self.names.setdefault(label % MOST_GROUPS, name)


@dataclass(eq=False)
class Evidence:
    """The record of a claim: for each of M outcomes a number, and its class in some classifications.

    The ``numbers`` in [0, 1) are uniform given the past if the claim holds; ``impossible`` outcomes have
    probability zero under it. ``classes`` has, for each classification, labels (M,) and the probabilities
    (M·K,) of the K classes under the claim. The ``groupings`` may be shared by several claims.
    """

    numbers: Any
    impossible: Any
    classes: Sequence[Classification] = ()
    groupings: Sequence[Grouping] = ()

    @classmethod
    def empty(cls, num_classifications: int, groupings: Sequence[Grouping] = ()) -> Evidence:
        """No outcomes yet, with this many classifications."""
        classes = [Classification(array("q"), array("d")) for _ in range(num_classifications)]
        return cls(array("d"), array("b"), classes, groupings)

    def add(self, number: float, impossible: bool, *classes: tuple[int, Any]) -> None:
        """Add an outcome; for each classification its label, and the probabilities (K,) of the classes."""
        self.numbers.append(number)
        self.impossible.append(impossible)
        for classification, (label, probs) in zip(self.classes, classes, strict=True):
            classification.labels.append(label)
            classification.probs.extend(probs)


@dataclass(frozen=True)
class Group:
    """Bets on some of the rows.

    Attributes
    ----------
    title, name : str
        By what rows are grouped, such as "depth", and which group this is.
    num_samples : int
        The number of its samples.
    p_value : float
        Valid at any time, and corrected for the number of bets of the claim.
    """

    title: str
    name: str
    num_samples: int
    p_value: float


@dataclass(frozen=True)
class Claim:
    """Three statements about a claim on many positions, each with the same false-alarm rate.

    Attributes
    ----------
    name : str
        The name of the claim.
    num_samples : int
        The number of samples.
    p_value : float
        That of the exact G-test of counts in equal cells, valid if the number of rows was fixed in advance.
    betting_p_value : float
        Valid at any time: half of its share is for all rows, the rest for the groups of them.
    total_variation_bound : float
        A lower bound of the mean total variation from the claimed distributions, over the held-out half of
        the samples.
    detectable : float
        The total variation on the cells that the G-test finds with probability 0.9.
    level : float
        The false-alarm rate of each statement.
    groups : tuple of Group
        The bets on groups of rows.
    """

    name: str
    num_samples: int
    p_value: float
    betting_p_value: float
    total_variation_bound: float
    detectable: float
    level: float
    groups: tuple[Group, ...] = ()

    @property
    def refuted(self) -> bool:
        """Whether any of the three statements contradicts the claim."""
        smallest = min(self.p_value, self.betting_p_value)
        return smallest <= self.level or self.total_variation_bound > 0

    @property
    def refuted_groups(self) -> list[Group]:
        """The groups in which the bets refute the claim."""
        return [group for group in self.groups if group.p_value <= self.level]


def judge_claim(name: str, evidence: Evidence, level: float, *, rng: np.random.Generator) -> Claim:
    """Make the three statements of a :class:`Claim`. Only the bound counts impossible outcomes."""
    numbers = np.array(evidence.numbers, float)
    impossible = np.array(evidence.impossible, bool)
    num_cells = max(2, min(MOST_CELLS, numbers.size // _SAMPLES_A_CELL))
    in_cells = _equal_cells(numbers, num_cells)
    classes = [classification.as_arrays() for classification in evidence.classes]
    counted = [in_cells, *classes]
    bounds = [
        statistics.total_variation_bound(
            np.where(impossible, statistics.IMPOSSIBLE, classified.labels),
            classified.probs,
            level / len(counted),
            independent=False,
        )
        for classified in counted
    ]
    observed = np.bincount(in_cells.labels[~impossible], minlength=num_cells)
    groups = _groups_of(evidence, numbers, ~impossible)
    betting = _pooled_p_value(numbers, ~impossible, classes)
    if evidence.groupings:
        betting = min(1.0, 2.0 * betting, *(group.p_value for group in groups))
    listed = {grouping.title for grouping in evidence.groupings if grouping.listed}
    return Claim(
        name=name,
        num_samples=numbers.size,
        p_value=statistics.exact_p_value(observed, in_cells.probs, level, rng=rng),
        betting_p_value=betting,
        total_variation_bound=max(bounds),
        detectable=statistics.detectable_total_variation(max(1, observed.sum()), num_cells, level),
        level=level,
        groups=tuple(group for group in groups if group.title in listed or group.p_value <= level),
    )


def _pooled_p_value(
    numbers: FloatArray, possible: BoolArray, classes: list[Classification]
) -> float:
    """The p-value of the mean of all bets on all rows."""
    on_classes = [
        _bets(Classification(classification.labels[possible], classification.probs[possible]))
        for classification in classes
    ]
    on_numbers = _bets_on_numbers(numbers[possible], NUMBERS_OF_CELLS)
    return anytime_p_value(mean_wealth([on_numbers, *on_classes]))


def _groups_of(evidence: Evidence, numbers: FloatArray, possible: BoolArray) -> list[Group]:
    # The one group of a grouping has all rows.
    several = [grouping for grouping in evidence.groupings if len(grouping.names) > 1]
    return [
        group
        for grouping in several
        for group in _bets_by_group(numbers, possible, grouping, 0.5 / len(evidence.groupings))
    ]


def _bets_by_group(
    numbers: FloatArray, possible: BoolArray, grouping: Grouping, share: float
) -> list[Group]:
    """Bets in each group by itself, and their product, with p-values divided by their part of the ``share``.

    Half of it is for the product, which finds deviations that differ from group to group, the rest is split
    equally. The number of rows of a group may depend on what came out, so no test of a fixed number
    fits.
    """
    labels = np.array(grouping.labels)
    gains = np.zeros(numbers.size)

    def judged(name: str, path: FloatArray, part: float) -> Group:
        return Group(grouping.title, name, path.size, min(1.0, anytime_p_value(path) / part))

    groups = []
    for label, name in grouping.names.items():
        rows = possible & (labels == label)
        path = _bets_on_numbers(numbers[rows], _CELLS_OF_GROUPS)
        gains[rows] = np.diff(path, prepend=0.0)
        groups.append(judged(name, path, 0.5 * share / MOST_GROUPS))
    product = judged(f"each {grouping.title} by itself", np.cumsum(gains), 0.5 * share)
    return [*groups, product]


def _bets_on_numbers(numbers: FloatArray, numbers_of_cells: Sequence[int]) -> FloatArray:
    return mean_wealth([_bets(_equal_cells(numbers, count)) for count in numbers_of_cells])


def _equal_cells(numbers: FloatArray, num_cells: int) -> Classification:
    labels = np.minimum((numbers * num_cells).astype(np.int64), num_cells - 1)
    return Classification(labels, np.full(num_cells, 1.0 / num_cells))


def _bets(cells: Classification) -> FloatArray:
    return mean_wealth(CellBets(cells.probs.shape[-1], CAUTIONS).update(cells.labels, cells.probs))


@dataclass(frozen=True)
class Band:
    """A class of tokens, and the number of output tokens in it.

    Attributes
    ----------
    name : str
        The class in words.
    observed : int
        The number of output tokens in it.
    expected : float
        The number that the targets expect.
    deviations : float
        The difference in standard deviations; 0 if the number cannot vary.
    """

    name: str
    observed: int
    expected: float
    deviations: float


def bands_of(names: tuple[str, ...], output: Evidence) -> tuple[Band, ...]:
    """The classes of output tokens with these names, without those that cannot vary."""
    labels = np.array(output.classes[0].labels, np.int64)
    probs = np.array(output.classes[0].probs, np.float64).reshape(-1, len(names))
    observed = np.bincount(labels, minlength=len(names))
    expected = probs.sum(axis=0)
    spread = np.sqrt((probs * (1.0 - probs)).sum(axis=0))
    difference = observed - expected
    deviations = np.divide(difference, spread, out=np.zeros(difference.size), where=spread > 1e-6)
    bands = map(Band, names, observed.tolist(), expected.tolist(), deviations.tolist())
    varies = (spread > 0) | (observed != expected)
    return tuple(band for band, shown in zip(bands, varies, strict=True) if shown)
