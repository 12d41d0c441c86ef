"""One pass over the rows of a recorded run: a few numbers are kept of each, whatever the vocabulary."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from otmd.audit.evidence import BY_MASS, BY_RATIO, Evidence
from otmd.audit.records import NOT_DECIDED, Record
from otmd.audit.run_report import DRAFTS, OUTPUT, OUTPUT_BY_MASS, ROWS, SLOTS
from otmd.audit.samples import (
    SERVED,
    acceptance_ceiling,
    next_draft_laws,
    num_forced,
    with_ties_as_drawn,
)
from otmd.drafts import (
    ConditionalPoisson,
    DraftLaw,
    Greedy,
    Hub,
    Stratified,
    WithoutReplacement,
    WithReplacement,
)
from otmd.engines.lossy import CertainTop
from otmd.probabilities import FloatArray, IntArray, wrong

LawMaker = Callable[[FloatArray, int], DraftLaw]
"""From q (V,) and the number of drafts to their law."""
FIXED = "fixed"
"""Drafts that the text before them decides: n-grams, the argmax, the likeliest tokens of a tree."""
_MAKERS: dict[str, LawMaker] = {
    "with-replacement": WithReplacement,
    "without-replacement": WithoutReplacement,
    "conditional-poisson": ConditionalPoisson,
    "greedy": Greedy,
    "hub": Hub,
    "stratified": Stratified,
    "certain-top": CertainTop,
    # A row records one q, which all of its drafts share.
    "independent": WithReplacement,
}
RUN_LAWS = (*_MAKERS, FIXED)
_ROWS_SHOWN = 5
_SLACK = 1e-9
# The bounds of the classes BY_RATIO and BY_MASS; where q = 0 the ratio is infinite.
_RATIOS = (0.5, 1.0, 2.0, 4.0, np.inf)
_MASSES = (0.001, 0.01, 0.1)
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
_PARTS = 4
_SHOWN_SLOTS = 8
# Centres the numbers of equal drafts in the first of 16 cells.
_SHIFT = 1 / 32


def law_maker(law: str | LawMaker) -> LawMaker | None:
    """The maker of a law that is given by name, None for fixed drafts; ValueError for an unknown name."""
    if callable(law):
        return law
    if law not in RUN_LAWS:
        raise wrong("law", repr(law), f"one of {', '.join(RUN_LAWS)}, or a callable")
    return _MAKERS.get(law)


def declared_law(
    make: LawMaker, draft_probs: FloatArray, draft_tokens: IntArray
) -> tuple[DraftLaw, list[FloatArray]] | str:
    """The law of a row's drafts (n,) and of each given those before, or the boundary case that they are."""
    if (draft_probs[draft_tokens] == 0).any():
        return "draft_impossible"
    try:
        law = make(draft_probs, draft_tokens.size)
    except ValueError:
        # Fewer tokens with mass than drafts, or a number of drafts that the law is not defined for.
        return "draft_never"
    if not isinstance(law, SERVED):
        raise wrong("law", repr(law), f"one of {', '.join(own.__name__ for own in SERVED)}")
    law = with_ties_as_drawn(law, draft_tokens)
    laws = next_draft_laws(law, draft_tokens)
    drawn = all(own[token] > 0 for own, token in zip(laws, draft_tokens, strict=True))
    return (law, laws) if drawn else "draft_never"


class RowLists(dict[str, tuple[int, tuple[int, ...]]]):
    """How many rows there are of each kind, and the first of them."""

    def count(self, kind: str, row: int) -> None:
        """Count one row."""
        count, first = self.get(kind, (0, ()))
        self[kind] = count + 1, first if count >= _ROWS_SHOWN else (*first, row)


class Tally:
    """What is kept of the rows: evidence, boundary cases, metrics. ``make`` is None for fixed drafts."""

    def __init__(self, make: LawMaker | None, rng: np.random.Generator) -> None:
        self._make, self._rng = make, rng
        self._last: dict[str, tuple[int | None, int, bool]] = {}
        self._positions: list[tuple[int, int, bool, bool]] = []
        self.cases, self.vocabularies = RowLists(), RowLists()
        self.dependence = Dependence(rng)
        self.evidence = {
            OUTPUT: Evidence.empty(1),
            OUTPUT_BY_MASS: Evidence.empty(1),
            DRAFTS: Evidence.empty(0),
            SLOTS: self.dependence.slots,
            ROWS: self.dependence.rows,
        }
        self.ceilings: list[float] = []
        self.accepted: list[bool] = []

    @property
    def num_rows(self) -> int:
        """How many rows were looked at."""
        return len(self._positions)

    def add(self, record: Record) -> None:
        """Look at one row."""
        output, tokens = record.output_token, record.draft_tokens
        decided = output != NOT_DECIDED
        accepted = decided and bool((tokens == output).any())
        self._positions.append((record.depth, tokens.size, decided, accepted))
        if record.is_full:
            self.vocabularies.count(str(record.vocab_size), record.row)
        misplaced = self._misplaced(record, accepted)
        if misplaced:
            self.cases.count(misplaced, record.row)
        target = self._sound("target", record.target, record.row)
        draft = self._sound("draft", record.draft, record.row)
        beyond = {
            "draft_out_of_range": ((tokens < 0) | (tokens >= record.vocab_size)).any(),
            "output_out_of_range": not NOT_DECIDED <= output < record.vocab_size,
        }
        for kind in (kind for kind, is_so in beyond.items() if is_so):
            self.cases.count(kind, record.row)
        if any(beyond.values()):
            return
        law = self._look_at_drafts(record, draft) if tokens.size and self._make else None
        if decided and target is not None and misplaced != "after_rejection":
            self._look_at_output(record, target, draft, law)

    def positions(self) -> IntArray:
        """Depth, number of drafts, whether it was reached, whether a draft was accepted; (N, 4)."""
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

    def _sound(self, side: str, recorded: FloatArray | str | None, row: int) -> FloatArray | None:
        """The distribution of a side, None where there is none or something is wrong with it."""
        if isinstance(recorded, str):
            self.cases.count(f"{side}_{recorded}", row)
            return None
        return recorded

    def _point(self, place: float, mass: float) -> float:
        """Draw a point of an interval of [0, 1): the randomised integral transform."""
        return min(place + mass * self._rng.random(), _BELOW_ONE)

    def _look_at_drafts(self, record: Record, draft: FloatArray | None) -> DraftLaw | None:
        """Test the drafts, and return their law; None where it is unknown, or did not draw them."""
        if record.draft is None:
            self.cases.count("draft_missing", record.row)
        if draft is None or self._make is None:
            return None
        declared = declared_law(self._make, draft, record.draft_tokens)
        if isinstance(declared, str):
            self.cases.count(declared, record.row)
            self.evidence[DRAFTS].add(self._point(0.0, 0.0), True)
            return None
        law, laws = declared
        drawn = list(zip(laws, record.draft_tokens.tolist(), strict=True))[num_forced(law) :]
        for own, token in drawn:
            self.evidence[DRAFTS].add(
                self._point(mass_before(own, -own, token), float(own[token])), False
            )
        self.dependence.add(drawn)
        return law

    def _look_at_output(
        self, record: Record, target: FloatArray, draft: FloatArray | None, law: DraftLaw | None
    ) -> None:
        output, tokens = record.output_token, record.draft_tokens
        accepted, mass = bool((tokens == output).any()), float(target[output])
        if mass == 0:
            kind = "impossible_accepted" if accepted else "output_impossible"
            self.cases.count(kind, record.row)

        def add(claim: str, key: FloatArray, bands: IntArray, num_bands: int) -> None:
            point = self._point(mass_before(target, key, output), mass)
            masses = np.bincount(bands, target, minlength=num_bands)
            own = int(bands[output]), masses / masses.sum()
            self.evidence[claim].add(point, mass == 0, own)

        by_mass = np.digitize(target, _MASSES)
        # The likeliest token is a class of its own.
        by_mass[target.argmax()] = len(_MASSES) + 1
        add(OUTPUT_BY_MASS, -target, by_mass, len(BY_MASS))
        if not tokens.size:
            return
        highest = None if law is None else acceptance_ceiling(target, law)
        if self._make is None:
            draft, highest = np.zeros(target.size), float(target[np.unique(tokens)].sum()) + _SLACK
            draft[tokens] = 1.0
        if draft is not None:
            ratio = ratios(target, draft)
            add(OUTPUT, ratio, np.digitize(ratio, _RATIOS), len(BY_RATIO))
        if highest is not None:
            self.accepted.append(accepted)
            self.ceilings.append(min(1.0, highest))


class Dependence:
    """Whether drafts depend on one another, within a position and from one position to the next.

    A draft's number is the mass of smaller ids plus a random part of its own: uniform given the past.
    ``slots`` compares each draft with those before it at its position, ``rows`` with the draft in its place
    at the position before. ``pairs`` counts equal drafts of two places, and how many should be.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._last: list[tuple[int, float]] = []
        self.slots, self.rows = Evidence.empty(2), Evidence.empty(2)
        self.pairs: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, drawn: list[tuple[FloatArray, int]]) -> None:
        """Look at a position's drafts, each with its law (V,) given those before it."""
        own: list[tuple[int, float]] = []
        for slot, (probs, token) in enumerate(drawn):
            number = float(probs[:token].sum() + probs[token] * self._rng.random())
            if own:
                earlier = np.unique([before for before, _ in own])
                _link(self.slots, number, own[-1][1], token in earlier, probs[earlier].sum())
                for i, (before, _) in enumerate(own[:_SHOWN_SLOTS]):
                    seen = self.pairs[i + 1, slot + 1]
                    seen[0] += before == token
                    seen[1] += float(probs[before])
            if slot < len(self._last) and self._last[slot][0] < probs.size:
                before, its_number = self._last[slot]
                _link(self.rows, number, its_number, token == before, probs[before])
            own.append((token, number))
        self._last = own

    def most_repeated(self) -> str:
        """The two drafts of a position that are equal too often, in words; empty where none are."""
        every = [(seen - wanted, own) for own, (seen, wanted) in self.pairs.items()]
        excess, (first, second) = max(every, key=lambda own: own[0], default=(0.0, (0, 0)))
        if excess <= 0:
            return ""
        seen, wanted = self.pairs[first, second]
        return f"drafts {first} and {second} are equal {seen:,.0f} times, expected {wanted:,.1f}"


def _link(links: Evidence, number: float, before: float, repeated: bool, chance: float) -> None:
    """Add a draft by its number, an earlier draft's, and how likely it repeats one.

    Of independent drafts, the difference modulo 1 is uniform, and so is that of their quarters of [0, 1).
    """
    chance = min(1.0, float(chance))
    quarter = (int(_PARTS * number) - int(_PARTS * before)) % _PARTS
    repeats, quarters = (int(repeated), (1.0 - chance, chance)), (quarter, (1 / _PARTS,) * _PARTS)
    links.add((number - before + _SHIFT) % 1.0, False, repeats, quarters)


def ratios(target: FloatArray, drafted: FloatArray) -> FloatArray:
    """p/q of each token (V,), infinite where q is 0 or next to it."""
    with np.errstate(over="ignore"):
        return np.divide(target, drafted, out=np.full(target.size, np.inf), where=drafted > 0)


def mass_before(probs: FloatArray, key: FloatArray, token: int) -> float:
    """Mass of the tokens before this one by key ascending, ties by id: its place, without a sort."""
    before = key < key[token]
    before[:token] |= key[:token] == key[token]
    return float(probs[before].sum())
