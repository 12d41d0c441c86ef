"""One pass over the rows of a recorded run: a few numbers are kept of each, whatever the vocabulary."""

import numpy as np

from otmd.audit.dependence import RunDependence
from otmd.audit.evidence import Evidence
from otmd.audit.records import NOT_DECIDED, Record, RecordedLaw
from otmd.audit.samples import acceptance_ceiling
from otmd.drafts import Greedy, ProposalLaw, WithoutReplacement, WithReplacement
from otmd.probabilities import FloatArray, IntArray

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
_BELOW_ONE = float(np.nextafter(1.0, 0.0))


class RowLists:
    """How many rows there are of each kind, and the first of them."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, tuple[int, ...]]] = {}

    def add(self, kind: str, row: int) -> None:
        """Count one row."""
        count, first = self.found.get(kind, (0, ()))
        self.found[kind] = count + 1, first if count >= _ROWS_SHOWN else (*first, row)


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
        self._law, self._rng = law, rng
        self._last: dict[str, tuple[int | None, int, bool]] = {}
        self._positions: list[tuple[int, int, bool, bool]] = []
        self.cases, self.vocabularies = RowLists(), RowLists()
        self.output_by_ratio, self.output_by_mass = Evidence.empty(1), Evidence.empty(1)
        self.drafts, self.dependence = Evidence.empty(0), RunDependence(rng)
        self.ceilings: list[float] = []
        self.accepted: list[bool] = []

    @property
    def num_rows(self) -> int:
        """How many rows were looked at."""
        return len(self._positions)

    def add(self, record: Record) -> None:
        """Look at one row."""
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
        drafts_fit = not ((tokens < 0) | (tokens >= record.vocab_size)).any()
        output_fits = NOT_DECIDED <= record.output_token < record.vocab_size
        if not drafts_fit:
            self.cases.add("draft_out_of_range", record.row)
        if not output_fits:
            self.cases.add("output_out_of_range", record.row)
        if not (drafts_fit and output_fits):
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
        found = None if recorded is None else law_of(recorded, record.vocab_size)
        if isinstance(found, str):
            self.cases.add(f"{side}_{found}", record.row)
            return None
        return found

    def _point(self, place: float, mass: float) -> float:
        """Draw a point of an interval of [0, 1): the randomised integral transform."""
        return min(place + mass * self._rng.random(), _BELOW_ONE)

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
            self.drafts.add(self._point(0.0, 0.0), True)
            return False
        drawn = next_draft_laws(self._law, draft, record.draft_tokens)
        for law, token in drawn:
            place, mass = mass_before(law, -law, token), float(law[token])
            self.drafts.add(self._point(place, mass), mass == 0)
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

        def add(own: Evidence, key: FloatArray, bands: tuple[IntArray, int]) -> None:
            point = self._point(mass_before(target, key, output), mass)
            own.add(point, mass == 0, band_and_chances(target, *bands, output))

        add(self.output_by_mass, -target, mass_bands(target))
        if not tokens.size:
            return
        drafted = draft
        if self._law == FIXED:
            drafted = np.zeros(target.size)
            drafted[tokens] = 1.0
        if drafted is not None:
            add(self.output_by_ratio, ratios(target, drafted), ratio_bands(target, drafted))
        if drafts_sound:
            self.accepted.append(accepted)
            self.ceilings.append(ceiling(self._law, target, draft, tokens))


def band_and_chances(
    target: FloatArray, bands: IntArray, num_bands: int, token: int
) -> tuple[int, FloatArray]:
    """The class of a token, and what p (V,) gives the classes, whose labels of the tokens are (V,)."""
    masses = np.bincount(bands, target, minlength=num_bands)
    return int(bands[token]), masses / masses.sum()


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


def ratio_bands(target: FloatArray, draft_probs: FloatArray) -> tuple[IntArray, int]:
    """The class by p/q of each token (V,), and how many classes there are; the last one has q = 0."""
    bands = np.zeros(target.size, np.int64)
    for bound in _RATIOS:
        bands += target >= bound * draft_probs
    bands[draft_probs == 0] = len(_RATIOS) + 1
    return bands, len(_RATIOS) + 2


def mass_bands(target: FloatArray) -> tuple[IntArray, int]:
    """The class by p of each token (V,), and how many there are; the last one is the likeliest token."""
    bands = np.digitize(target, _MASSES)
    bands[target.argmax()] = len(_MASSES) + 1
    return bands, len(_MASSES) + 2


def ratios(target: FloatArray, drafted: FloatArray) -> FloatArray:
    """p/q of each token (V,), infinite where q is 0 or next to it."""
    with np.errstate(over="ignore"):
        return np.divide(target, drafted, out=np.full(target.size, np.inf), where=drafted > 0)


def mass_before(probs: FloatArray, key: FloatArray, token: int) -> float:
    """Mass of the tokens before this one by key ascending, ties by id: its place, without a sort."""
    before = key < key[token]
    before[:token] |= key[:token] == key[token]
    return float(probs[before].sum())
