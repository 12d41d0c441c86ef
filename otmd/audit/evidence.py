"""Claims about many positions: bets against a claim, what is recorded of it, and how it is judged.

A bet starts with wealth 1 and multiplies it by factors, whose expectation given the past is at most 1 under
the claim. So the wealth ever reaches 1/a with probability at most a (Ville 1939): one may stop at any time.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from otmd.audit import counts, samples
from otmd.drafts import DraftLaw
from otmd.probabilities import BoolArray, FloatArray, IntArray, from_tensor, wrong

# Most cells of equal size for the numbers of a claim. Over many positions a fault changes slowly along the
# order, so few cells show it sooner.
MOST_CELLS = 16
_SAMPLES_A_CELL = 100
BY_RATIO = (
    "drafted much more than wanted (p/q < 1/2)",
    "drafted more than wanted (1/2 ≤ p/q < 1)",
    "drafted less than wanted (1 ≤ p/q < 2)",
    "drafted less than half of it (2 ≤ p/q < 4)",
    "drafted much less than wanted (p/q ≥ 4)",
    "never drafted (q = 0)",
    "at positions without drafts",
)
BY_MASS = (
    "p below 1e-9",
    "p from 1e-9 to 1e-6",
    "p from 1e-6 to 0.001",
    "p from 0.001 to 0.01",
    "p from 0.01 to 0.1",
    "p of 0.1 or more, not the likeliest",
    "the likeliest token",
)
BY_OCCURRENCE = ("new in the request", "came out earlier in the request")
CAUTIONS = (30.0, 1_000.0, 30_000.0)
NUMBERS_OF_CELLS = (2, 4, 16, 64)
# A group has fewer rows, and shows larger deviations only.
_CELLS_OF_GROUPS = (2, 4, 16)
# Later groups of a grouping share the labels of the first ones.
MOST_GROUPS = 64
STAKES = (1 / 256, 1 / 64, 1 / 16, 1 / 4)
_ROWS_AT_ONCE = 4096
_RARE_MASS = 1e-6


class CellBets:
    """A bet that cells occur as often as they did so far, not as often as the claim expects.

    The factor for a sample in cell k is r(k)/π(k). The claim expects π; the bet predicts
    r(k) ∝ π(k)·(O_k + cπ(k))/(E_k + cπ(k)), with O_k samples so far in k, and E_k expected. A large caution c
    suits small deviations.
    """

    def __init__(self, num_cells: int, caution: float) -> None:
        self.caution, self.log_wealth = caution, 0.0
        self._observed, self._expected = np.zeros(num_cells), np.zeros(num_cells)

    def update(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        """Bet on samples in cells (M,), with π (K,) or (M, K); the log-wealth after each of them (M,)."""
        expected = np.broadcast_to(probs, (labels.size, probs.shape[-1]))
        starts = range(0, labels.size, _ROWS_AT_ONCE)
        parts = (slice(start, start + _ROWS_AT_ONCE) for start in starts)
        return np.concatenate([np.empty(0), *(self._bet(labels[i], expected[i]) for i in parts)])

    def _bet(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        happened, rows = np.eye(probs.shape[1])[labels], np.arange(labels.size)
        observed = np.vstack([self._observed, happened]).cumsum(axis=0)
        expected = np.vstack([self._expected, probs]).cumsum(axis=0)
        trust = self.caution * probs
        factor = (observed[:-1] + trust) / np.where(probs > 0, expected[:-1] + trust, 1.0)
        with np.errstate(divide="ignore"):
            gains = np.log(factor[rows, labels]) - np.log((probs * factor).sum(axis=-1))
        self._observed, self._expected = observed[-1], expected[-1]
        path = self.log_wealth + np.cumsum(gains)
        self.log_wealth = float(path[-1])
        return path


class ChanceBets:
    """A bet that events are more likely than the claim allows, with a stake s in (0, 1), or one for each.

    The claim allows a probability of at most a. The factor is 1 + s(X/a − 1), where X is 1 if the event
    happens and 0 if not.
    """

    def __init__(self, stake: float | FloatArray) -> None:
        self.stake, self.log_wealth = stake, 0.0

    def update(self, happened: BoolArray, largest: FloatArray | float) -> FloatArray:
        """Bet on events (M,) in turn, with the ``largest`` probability a of each; the log-wealth (M,)."""
        with np.errstate(divide="ignore"):
            paid = np.where(happened, 1.0 / np.asarray(largest), 0.0)
        path = self.log_wealth + np.cumsum(np.log1p(self.stake * (paid - 1.0)))
        self.log_wealth = float(path[-1]) if path.size else self.log_wealth
        return path


def mean_wealth(paths: Sequence[FloatArray]) -> FloatArray:
    """Logarithm of the mean wealth of several bets. It is itself a bet, which splits its stake among them."""
    return logsumexp(np.stack(paths), axis=0) - np.log(len(paths))


def anytime_p_value(path: FloatArray) -> float:
    """1/(the largest wealth), from log-wealths (M,): under the claim, at most x with probability ≤ x."""
    return float(np.exp(-path.max(initial=0.0)))


class SequentialAudit:
    """An audit that may be looked at after every batch, and stopped at any time.

    Half of the stake bets that the tokens do not follow p: on coarse and fine cells, for large and small
    deviations. The other half bets that the acceptance rate is above that of any lossless rule. For a
    lossless rule the wealth ever reaches 1/``false_alarm`` with at most that probability (Ville 1939).

    Parameters and errors are those of :func:`losslessness`.

    Attributes
    ----------
    num_samples, impossible : int
        How many samples were seen, and how many of them have p = 0.
    log_wealth : float
        Natural logarithm of the wealth. It starts at 0, and is infinite once an impossible token was seen.
    detected_at : int or None
        The sample at which the fault was found.
    """

    def __init__(self, target_probs: ArrayLike, law: DraftLaw, false_alarm: float = 1e-3) -> None:
        self._target = samples.validate_position(target_probs, law)
        self.false_alarm = samples.validate_level(false_alarm)
        self._law = law
        self._ceiling = samples.acceptance_ceiling(self._target, law)
        order = counts.ratio_order(self._target, law.inclusion_probs())
        every = [counts.make_cells(self._target, order, number) for number in NUMBERS_OF_CELLS]
        # Two cells: the rare tokens, and all others.
        every.append(counts.make_cells(self._target, order, 1, rare_mass=_RARE_MASS))
        used = [cells for cells in every if cells.probs.size > 1] or every[:1]
        self._bets = [(own, CellBets(own.probs.size, c)) for own in used for c in CAUTIONS]
        self._chances = [ChanceBets(stake) for stake in STAKES]
        self._counts = np.zeros(self._target.size)
        self.num_samples = self.impossible = 0
        self.log_wealth = self.largest_log_wealth = 0.0
        self.detected_at: int | None = None

    def update(self, draft_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Look at more drafts (M, n) of the declared law, and at the tokens (M,) that the rule emitted.

        Raises ValueError for tokens that are not in the vocabulary, or shapes that do not match.
        """
        tuples = self._law.validate_tokens(from_tensor(draft_tokens))
        if tuples.ndim != 2:
            raise wrong("draft_tokens", f"shape {tuples.shape}", "(M, n)")
        size = self._target.size
        out = samples.validate_emitted(output_tokens, len(tuples), size, "output_tokens")
        path = np.append(self.log_wealth, self._bet(out, samples.is_accepted(tuples, out)))
        crossed = np.flatnonzero(path >= -np.log(self.false_alarm))
        if self.detected_at is None and crossed.size:
            self.detected_at = self.num_samples + int(crossed[0])
        self._counts += np.bincount(out, minlength=size)
        self.num_samples += out.size
        self.log_wealth = float(path[-1])
        self.largest_log_wealth = max(self.largest_log_wealth, float(path.max()))

    def _bet(self, tokens: IntArray, accepted: BoolArray) -> FloatArray:
        """Logarithm of the wealth after each of the samples (M,)."""
        impossible = self.impossible + np.cumsum(self._target[tokens] == 0)
        self.impossible = int(impossible.max(initial=self.impossible))
        before = impossible == 0
        on_cells = [bet.update(own.labels[tokens[before]], own.probs) for own, bet in self._bets]
        on_chance = [bet.update(accepted[before], self._ceiling) for bet in self._chances]
        path = np.full(tokens.size, np.inf)
        path[before] = mean_wealth([mean_wealth(on_cells), mean_wealth(on_chance)])
        return path

    @property
    def p_value(self) -> float:
        """1/(the largest wealth so far): a p-value that is valid at any time."""
        return float(np.exp(-self.largest_log_wealth))

    @property
    def faulty(self) -> bool:
        """Whether a fault was found, now or at an earlier sample."""
        return self.detected_at is not None

    @property
    def worst(self) -> tuple[samples.TokenDeviation, ...]:
        """The tokens with the largest deviations so far."""
        return samples.largest_deviations(self._counts, self._target * self.num_samples)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.impossible:
            return f"not lossless: {self.impossible} {samples.PROOF}"
        if self.faulty:
            told = f"found after {self.detected_at} samples, p-value {self.p_value:.1e}"
            return f"not lossless: {told} however often one looked"
        return f"no fault found so far, in {self.num_samples} samples"

    def __str__(self) -> str:
        head = f"{self.verdict}\nlargest deviations in {self.num_samples} samples:"
        return f"{head}\n{samples.deviation_table(self.worst)}"


@dataclass(eq=False)
class Grouping:
    """Which rows belong together: the label of each outcome (M,), known before the outcome, and label names.

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
    """What is recorded of a claim: for each of M outcomes a number, and its class in some classifications.

    The ``numbers`` in [0, 1) are uniform given the past if the claim holds; ``impossible`` outcomes have
    probability zero under it. ``classes`` has, for each classification, labels (M,) and the probabilities
    (M·K,) of the K classes under the claim. The ``groupings`` may be shared by several claims.
    """

    numbers: Any
    impossible: Any
    classes: Sequence[tuple[Any, Any]] = ()
    groupings: Sequence[Grouping] = ()

    @classmethod
    def empty(cls, num_classifications: int, groupings: Sequence[Grouping] = ()) -> "Evidence":
        """No outcomes yet, with this many classifications."""
        classes = [(array("q"), array("d")) for _ in range(num_classifications)]
        return cls(array("d"), array("b"), classes, groupings)

    def add(self, number: float, impossible: bool, *classes: tuple[int, Any]) -> None:
        """Add an outcome; for each classification its label, and the probabilities (K,) of the classes."""
        self.numbers.append(number)
        self.impossible.append(impossible)
        for (labels, probs), (label, law) in zip(self.classes, classes, strict=True):
            labels.append(label)
            probs.extend(law)


@dataclass(frozen=True)
class Group:
    """Bets on some of the rows. The ``p_value`` is corrected for the number of bets of the claim."""

    title: str
    name: str
    num_samples: int
    p_value: float


@dataclass(frozen=True)
class Claim:
    """Three statements about a claim on many positions, each with the false-alarm rate ``level``.

    The ``p_value`` is of the exact G-test of counts in equal cells, valid if the number of rows was fixed in
    advance. The ``betting_p_value`` is valid at any time: half of its share is for all rows, the other half
    for ``groups`` of them. ``total_variation_bound`` is a lower bound of the mean total variation from the
    claimed laws, over the second half of the samples. The G-test finds a total variation of ``detectable`` on
    the cells with probability 0.9.
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
        least = min(self.p_value, self.betting_p_value)
        return least <= self.level or self.total_variation_bound > 0

    @property
    def refuted_groups(self) -> list[Group]:
        """The groups in which the bets refute the claim."""
        return [own for own in self.groups if own.p_value <= self.level]


def judge_claim(name: str, evidence: Evidence, level: float, *, rng: np.random.Generator) -> Claim:
    """Make the three statements of a :class:`Claim`. Only the bound counts impossible outcomes."""
    numbers, impossible = np.array(evidence.numbers, float), np.array(evidence.impossible, bool)
    size, possible = numbers.size, ~impossible
    classes = [
        (np.array(labels, np.int64), np.array(probs, float).reshape(size, -1))
        for labels, probs in evidence.classes
    ]
    cells = max(2, min(MOST_CELLS, size // _SAMPLES_A_CELL))
    labels, uniform = _equal_cells(numbers, cells)
    counted = [(labels, uniform), *classes]
    share = level / len(counted)
    bounds = [
        counts.total_variation_bound(
            np.where(impossible, counts.IMPOSSIBLE, own), probs, share, independent=False
        )
        for own, probs in counted
    ]
    seen = np.bincount(labels[possible], minlength=cells)
    by_class = [_bets(own[possible], probs[possible]) for own, probs in classes]
    pooled = mean_wealth([_bets_on_numbers(numbers[possible], NUMBERS_OF_CELLS), *by_class])
    betting, groups = anytime_p_value(pooled), []
    if evidence.groupings:
        # The one group of a grouping has all rows.
        several = (own for own in evidence.groupings if len(own.names) > 1)
        part = 0.5 / len(evidence.groupings)
        groups = [x for own in several for x in _bets_by_group(numbers, possible, own, part)]
        betting = min(1.0, 2.0 * betting, *(own.p_value for own in groups))
    listed = {own.title for own in evidence.groupings if own.listed}
    return Claim(
        name=name,
        num_samples=size,
        p_value=counts.exact_p_value(seen, uniform, level, rng=rng),
        betting_p_value=betting,
        total_variation_bound=max(bounds),
        detectable=counts.detectable_total_variation(max(1, seen.sum()), cells, level),
        level=level,
        groups=tuple(own for own in groups if own.title in listed or own.p_value <= level),
    )


def _bets_by_group(
    numbers: FloatArray, possible: BoolArray, grouping: Grouping, share: float
) -> list[Group]:
    """Bets in each group by itself, and their product, with p-values divided by their part of the ``share``.

    Half of it is for the product, which finds deviations that differ from group to group, the other half is
    split equally. How many rows a group has may depend on what came out, so no test of a fixed number fits.
    """
    labels, gains, found = np.array(grouping.labels), np.zeros(numbers.size), []

    def group(name: str, count: int, path: FloatArray, part: float) -> Group:
        return Group(grouping.title, name, count, min(1.0, anytime_p_value(path) / part))

    for label, name in grouping.names.items():
        rows = possible & (labels == label)
        path = _bets_on_numbers(numbers[rows], _CELLS_OF_GROUPS)
        gains[rows] = np.diff(path, prepend=0.0)
        found.append(group(name, path.size, path, 0.5 * share / MOST_GROUPS))
    return [
        *found,
        group(f"each {grouping.title} by itself", numbers.size, np.cumsum(gains), 0.5 * share),
    ]


def _bets_on_numbers(numbers: FloatArray, cells: Sequence[int]) -> FloatArray:
    return mean_wealth([_bets(*_equal_cells(numbers, own)) for own in cells])


def _equal_cells(numbers: FloatArray, cells: int) -> tuple[IntArray, FloatArray]:
    labels = np.minimum((numbers * cells).astype(np.int64), cells - 1)
    return labels, np.full(cells, 1.0 / cells)


def _bets(labels: IntArray, probs: FloatArray) -> FloatArray:
    return mean_wealth([CellBets(probs.shape[-1], c).update(labels, probs) for c in CAUTIONS])


@dataclass(frozen=True)
class Band:
    """A class of tokens: how many output tokens are in it, ``observed`` and ``expected`` by the targets.

    ``deviations`` is the difference in standard deviations; 0 if the number cannot vary.
    """

    name: str
    observed: int
    expected: float
    deviations: float


def bands_of(names: tuple[str, ...], output: Evidence) -> tuple[Band, ...]:
    """The classes of output tokens with these names, without those that cannot vary."""
    labels, chances = output.classes[0]
    probs = np.array(chances, np.float64).reshape(-1, len(names))
    observed = np.bincount(np.array(labels, np.int64), minlength=len(names))
    expected, spread = probs.sum(axis=0), np.sqrt((probs * (1.0 - probs)).sum(axis=0))
    off = observed - expected
    deviations = np.divide(off, spread, out=np.zeros(off.size), where=spread > 1e-6)
    every = map(Band, names, observed.tolist(), expected.tolist(), deviations.tolist())
    varies = (spread > 0) | (observed != expected)
    return tuple(own for own, shown in zip(every, varies, strict=True) if shown)
