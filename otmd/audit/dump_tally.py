"""What one pass over the rows of a recorded run leaves: a few numbers a row, whatever the vocabulary."""

import numpy as np

from otmd.audit.boundary import BoundaryCases, law_of
from otmd.audit.dump_bands import BY_MASS, BY_RATIO, BandCounts, mass_bands, ratio_bands
from otmd.audit.dump_laws import FIXED, ceiling, next_draft_laws, wrong_with_drafts
from otmd.audit.metrics import Positions
from otmd.audit.records import NOT_DECIDED, Record
from otmd.probabilities import BoolArray, FloatArray, IntArray


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


class StepOrder:
    """Whether the rows of a step follow one another as a token-level rule decides them."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int | None, int, bool]] = {}

    def wrong(self, record: Record, accepted: bool) -> str | None:
        """What is wrong with the place of a row, as a kind of boundary case."""
        last = self._last.get(record.request)
        self._last[record.request] = (record.step, record.depth, accepted)
        begins = (
            last is None or last[0] != record.step or (record.step is None and not record.depth)
        )
        if last is None or begins:
            return "depth_gap" if record.depth else None
        if record.depth != last[1] + 1:
            return "depth_gap"
        decided = record.output_token != NOT_DECIDED
        return "after_rejection" if decided and not last[2] else None


class Tally:
    """See the module.

    Parameters
    ----------
    law : str
        One of :data:`~otmd.audit.dump_laws.DUMP_LAWS`.
    rng : numpy.random.Generator
        Draws the points of the intervals.
    """

    def __init__(self, law: str, rng: np.random.Generator) -> None:
        self._law = law
        self._order = StepOrder()
        self._positions: list[tuple[int, int, bool, bool]] = []
        self.cases = BoundaryCases()
        self.num_rows = 0
        self.output_by_ratio, self.output_by_mass = UniformNumbers(rng), UniformNumbers(rng)
        self.drafts = UniformNumbers(rng)
        self.bands_by_ratio, self.bands_by_mass = BandCounts(BY_RATIO), BandCounts(BY_MASS)
        self.ceilings: list[float] = []
        self.accepted: list[bool] = []

    def add(self, record: Record) -> None:
        """Look at one row."""
        self.num_rows += 1
        decided = record.output_token != NOT_DECIDED
        tokens = record.draft_tokens
        accepted = decided and bool((tokens == record.output_token).any())
        self._positions.append((record.depth, tokens.size, decided, accepted))
        misplaced = self._order.wrong(record, accepted)
        if misplaced:
            self.cases.add(misplaced, record.row)
        vocab_size = record.vocab_size
        target = self._checked("target", record, vocab_size)
        draft = self._checked("draft", record, vocab_size) if tokens.size else None
        if not self._tokens_fit(record, vocab_size):
            return
        drafts_sound = tokens.size > 0 and self._look_at_drafts(record, draft)
        if decided and target is not None and misplaced != "after_rejection":
            self._look_at_output(record, target, draft, drafts_sound)

    @property
    def positions(self) -> Positions:
        """What the metrics are counted from."""
        rows = np.array(self._positions, np.int64).reshape(-1, 4)
        return Positions(rows[:, 0], rows[:, 1], rows[:, 2] == 1, rows[:, 3] == 1)

    def _checked(self, side: str, record: Record, vocab_size: int) -> FloatArray | None:
        recorded = record.target if side == "target" else record.draft
        if recorded is None:
            return None
        found = law_of(recorded, vocab_size)
        if isinstance(found, str):
            self.cases.add(f"{side}_{found}", record.row)
            return None
        return found

    def _tokens_fit(self, record: Record, vocab_size: int) -> bool:
        tokens, output = record.draft_tokens, record.output_token
        drafts_fit = not ((tokens < 0) | (tokens >= vocab_size)).any()
        output_fits = NOT_DECIDED <= output < vocab_size
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
        for law, token in next_draft_laws(self._law, draft, record.draft_tokens):
            self.drafts.add(mass_before(law, -law, token), float(law[token]))
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
        drafted = _indicator(tokens, target.size) if self._law == FIXED else draft
        if drafted is not None:
            place = mass_before(target, ratios(target, drafted), output)
            self.output_by_ratio.add(place, mass)
            self.bands_by_ratio.add(target, ratio_bands(target, drafted), output)
        if drafts_sound:
            self.accepted.append(accepted)
            self.ceilings.append(ceiling(self._law, target, draft, tokens))


def ratios(target: FloatArray, drafted: FloatArray) -> FloatArray:
    """p/q of each token (V,), infinite where q is 0 or next to it."""
    with np.errstate(over="ignore"):
        return np.divide(target, drafted, out=np.full(target.size, np.inf), where=drafted > 0)


def mass_before(probs: FloatArray, key: FloatArray, token: int) -> float:
    """Mass of the tokens before this one by key ascending, ties by id: its place, without a sort."""
    before = key < key[token]
    before[:token] |= key[:token] == key[token]
    return float(probs[before].sum())


def _indicator(tokens: IntArray, vocab_size: int) -> FloatArray:
    drafted = np.zeros(vocab_size)
    drafted[tokens] = 1.0
    return drafted
