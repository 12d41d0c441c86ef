"""One pass over the rows of a recorded run: a few numbers are kept of each, whatever the vocabulary."""

from array import array
from dataclasses import dataclass

import numpy as np

from otmd.audit.dependence import RunDependence
from otmd.audit.records import NOT_DECIDED, Record, RecordedLaw
from otmd.audit.samples import acceptance_ceiling
from otmd.drafts import Greedy, ProposalLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import BoolArray, FloatArray, IntArray

FIXED = "fixed"
"""Drafts that the text before them decides: n-grams, the argmax, the likeliest tokens of a tree."""
_CLASSES: dict[str, type[ProposalLaw]] = {
    "with-replacement": WithReplacement,
    "without-replacement": WithoutReplacement,
    "greedy": Greedy,
}
RUN_LAWS = (*_CLASSES, FIXED)
_ROWS_SHOWN = 5
_SLACK = 1e-9
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
    """Which class each output token belongs to, and what the target gives the classes at its position."""

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


class RowLists:
    """How many rows there are of each kind, and the first of them."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, tuple[int, ...]]] = {}

    def add(self, kind: str, row: int) -> None:
        """Count one row."""
        count, first = self.found.get(kind, (0, ()))
        self.found[kind] = count + 1, first if count >= _ROWS_SHOWN else (*first, row)


class UniformNumbers:
    """Numbers of a claim, and which of them are of outcomes that it gives probability zero."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._numbers: list[float] = []
        self._impossible: list[bool] = []

    def add(self, place: float, mass: float) -> None:
        """Add a point of an interval of [0, 1), drawn from it: the randomised integral transform."""
        number = min(place + mass * self._rng.random(), float(np.nextafter(1.0, 0.0)))
        self._numbers.append(number)
        self._impossible.append(mass == 0)

    def arrays(self) -> tuple[FloatArray, BoolArray]:
        """The numbers, and which are impossible, both of shape (M,)."""
        return np.array(self._numbers, np.float64), np.array(self._impossible, bool)


class Tally:
    """What is kept of the rows.

    Parameters
    ----------
    law : str
        One of :data:`RUN_LAWS`.
    rng : numpy.random.Generator
        Draws the points of the intervals.
    """

    def __init__(self, law: str, rng: np.random.Generator) -> None:
        self._law = law
        self._last: dict[str, tuple[int | None, int, bool]] = {}
        self._positions: list[tuple[int, int, bool, bool]] = []
        self.cases, self.vocabularies = RowLists(), RowLists()
        self.num_rows = 0
        self.output_by_ratio, self.output_by_mass = UniformNumbers(rng), UniformNumbers(rng)
        self.drafts, self.dependence = UniformNumbers(rng), RunDependence(rng)
        self.bands_by_ratio, self.bands_by_mass = BandCounts(BY_RATIO), BandCounts(BY_MASS)
        self.ceilings: list[float] = []
        self.accepted: list[bool] = []

    def add(self, record: Record) -> None:
        """Look at one row."""
        self.num_rows += 1
        decided, tokens = record.output_token != NOT_DECIDED, record.draft_tokens
        accepted = decided and bool((tokens == record.output_token).any())
        self._positions.append((record.depth, tokens.size, decided, accepted))
        if record.is_full:
            self.vocabularies.add(str(record.vocab_size), record.row)
        misplaced = self._misplaced(record, accepted)
        if misplaced:
            self.cases.add(misplaced, record.row)
        target = self._checked("target", record, record.target)
        draft = self._checked("draft", record, record.draft) if tokens.size else None
        if not self._tokens_fit(record):
            return
        drafts_sound = tokens.size > 0 and self._look_at_drafts(record, draft)
        if decided and target is not None and misplaced != "after_rejection":
            self._look_at_output(record, target, draft, drafts_sound)

    def positions(self) -> IntArray:
        """Depth, number of drafts, whether it was reached, whether a draft was accepted: (N, 4)."""
        return np.array(self._positions, np.int64).reshape(-1, 4)

    def _misplaced(self, record: Record, accepted: bool) -> str | None:
        """What is wrong with the place of a row in its step, as a kind of boundary case."""
        last = self._last.get(record.request)
        self._last[record.request] = (record.step, record.depth, accepted)
        if last is None or last[0] != record.step or (record.step is None and record.depth == 0):
            return "depth_gap" if record.depth else None
        if record.depth != last[1] + 1:
            return "depth_gap"
        decided = record.output_token != NOT_DECIDED
        return "after_rejection" if decided and not last[2] else None

    def _checked(
        self, side: str, record: Record, recorded: RecordedLaw | None
    ) -> FloatArray | None:
        if recorded is None:
            return None
        found = law_of(recorded, record.vocab_size)
        if isinstance(found, str):
            self.cases.add(f"{side}_{found}", record.row)
            return None
        return found

    def _tokens_fit(self, record: Record) -> bool:
        tokens = record.draft_tokens
        drafts_fit = not ((tokens < 0) | (tokens >= record.vocab_size)).any()
        output_fits = NOT_DECIDED <= record.output_token < record.vocab_size
        if not drafts_fit:
            self.cases.add("draft_out_of_range", record.row)
        if not output_fits:
            self.cases.add("output_out_of_range", record.row)
        return drafts_fit and output_fits

    def _look_at_drafts(self, record: Record, draft: FloatArray | None) -> bool:
        """Whether what depends on the drafts' law can be said of the row."""
        if self._law == FIXED:
            return True
        if record.draft is None:
            self.cases.add("draft_missing", record.row)
        if draft is None:
            return False
        wrong = wrong_with_drafts(self._law, draft, record.draft_tokens)
        if wrong:
            self.cases.add(wrong, record.row)
            self.drafts.add(0.0, 0.0)
            return False
        drawn = next_draft_laws(self._law, draft, record.draft_tokens)
        for law, token in drawn:
            self.drafts.add(mass_before(law, -law, token), float(law[token]))
        self.dependence.add(drawn)
        return True

    def _look_at_output(
        self, record: Record, target: FloatArray, draft: FloatArray | None, drafts_sound: bool
    ) -> None:
        output, tokens = record.output_token, record.draft_tokens
        accepted = bool((tokens == output).any())
        mass = float(target[output])
        if mass == 0:
            kind = "impossible_accepted" if accepted else "output_impossible"
            self.cases.add(kind, record.row)
        self.output_by_mass.add(mass_before(target, -target, output), mass)
        self.bands_by_mass.add(target, mass_bands(target), output)
        if not tokens.size:
            return
        drafted = draft
        if self._law == FIXED:
            drafted = np.zeros(target.size)
            drafted[tokens] = 1.0
        if drafted is not None:
            place = mass_before(target, ratios(target, drafted), output)
            self.output_by_ratio.add(place, mass)
            self.bands_by_ratio.add(target, ratio_bands(target, drafted), output)
        if drafts_sound:
            self.accepted.append(accepted)
            self.ceilings.append(ceiling(self._law, target, draft, tokens))


def law_of(recorded: RecordedLaw, vocab_size: int) -> FloatArray | str:
    """The distribution (V,) that was recorded, or what is wrong with it: a boundary case without its side.

    ``vocab_size`` is V, at least the number of recorded numbers.
    """
    numbers = recorded.numbers.astype(np.float64)
    if np.isnan(numbers).any():
        return "nan"
    if (numbers == np.inf).any():
        return "infinite"
    if recorded.is_logits:
        if numbers.max() == -np.inf:
            return "empty"
        numbers = recorded.processing(numbers)
    elif (numbers < 0).any():
        return "negative"
    else:
        total = numbers.sum()
        if abs(total - 1.0) > recorded.tolerance:
            return "sum"
        numbers = numbers / total
    if recorded.ids is None:
        return numbers
    if recorded.ids[-1] >= vocab_size:
        return "id"
    spread = np.zeros(vocab_size)
    spread[recorded.ids] = numbers
    return spread


def declared_law(law: str, draft_probs: FloatArray, num_drafts: int) -> ProposalLaw:
    """The law of so many drafts as an object; for drafts that it can draw."""
    # A single draft has the same law by any name, and this one is quick.
    return (WithReplacement if num_drafts == 1 else _CLASSES[law])(draft_probs, num_drafts)


def wrong_with_drafts(law: str, draft_probs: FloatArray, draft_tokens: IntArray) -> str | None:
    """What proves that drafts (n,) are not from q (V,), as a kind of boundary case; None if nothing."""
    if (draft_probs[draft_tokens] == 0).any():
        return "draft_impossible"
    if law == "with-replacement":
        return None
    forced = draft_tokens[:-1] if law == "greedy" else draft_tokens[:0]
    # By their masses, as engines break ties in their own ways.
    likeliest = np.sort(draft_probs)[::-1][: forced.size]
    distinct = np.unique(draft_tokens).size == draft_tokens.size
    return None if distinct and (draft_probs[forced] == likeliest).all() else "draft_never"


def next_draft_laws(
    law: str, draft_probs: FloatArray, draft_tokens: IntArray
) -> list[tuple[FloatArray, int]]:
    """Each drawn draft with the distribution (V,) that it has, given the drafts before it.

    ``law`` is one of :data:`RUN_LAWS` other than :data:`FIXED`; nothing is wrong with the drafts (n,).
    """
    if law == "with-replacement":
        return [(draft_probs, int(token)) for token in draft_tokens]
    first = draft_tokens.size - 1 if law == "greedy" else 0
    return [
        (_without(draft_probs, draft_tokens[:i]), int(draft_tokens[i]))
        for i in range(first, draft_tokens.size)
    ]


def ceiling(
    law: str, target: FloatArray, draft_probs: FloatArray | None, draft_tokens: IntArray
) -> float:
    """What no lossless rule's acceptance exceeds at a position, rounded up.

    It is given the drafts that were forced, as ties leave open which ones the law itself would take. For
    greedy drafts: Σ p over the likeliest and Σ min(p, q/(1 − q(likeliest))) over the rest. For fixed ones: Σ
    p.
    """
    if draft_probs is None or law == FIXED:
        return min(1.0, float(target[np.unique(draft_tokens)].sum()) + _SLACK)
    if law == "greedy":
        forced = draft_tokens[:-1]
        beside = np.delete(np.minimum(target, _without(draft_probs, forced)), forced)
        return min(1.0, float(target[forced].sum() + beside.sum()) + _SLACK)
    return acceptance_ceiling(target, declared_law(law, draft_probs, draft_tokens.size))


def _without(probs: FloatArray, tokens: IntArray) -> FloatArray:
    if tokens.size == 0:
        return probs
    left = probs.copy()
    left[tokens] = 0.0
    return left / left.sum()


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


def ratios(target: FloatArray, drafted: FloatArray) -> FloatArray:
    """p/q of each token (V,), infinite where q is 0 or next to it."""
    with np.errstate(over="ignore"):
        return np.divide(target, drafted, out=np.full(target.size, np.inf), where=drafted > 0)


def mass_before(probs: FloatArray, key: FloatArray, token: int) -> float:
    """Mass of the tokens before this one by key ascending, ties by id: its place, without a sort."""
    before = key < key[token]
    before[:token] |= key[:token] == key[token]
    return float(probs[before].sum())
