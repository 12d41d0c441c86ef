"""The tally of a run, row by row: observations become numbers that are uniform if the claims hold."""

from array import array
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from otmd.audit import claims
from otmd.audit.boundary_cases import KINDS
from otmd.audit.claims import MOST_GROUPS, Evidence, Grouping
from otmd.audit.metrics import PooledAcceptance, RecordedPosition
from otmd.audit.observer import CLASSES, DraftNumbers, Observation, OutputNumbers, Repeat
from otmd.audit.statistics import STAKES, EventBets, anytime_p_value, mean_wealth
from otmd.storage.files import one_line

# Rows with a smaller tail mass are remembered; the threshold for an alarm is smaller still.
_SMALL_TAIL = 0.01
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
_PARTS = 4
# Equal drafts have close numbers: this moves a difference of 0 to the middle of the first of 16 cells.
_SHIFT = 1 / 32
# Batches are powers of 2, as a rule, so slots of a batch recur in groups of every eighth row.
_EVERY = 8
# The kinds of rows with improbable tokens, and a claim that has a number for each of these tokens.
_IMPROBABLE = {"output_improbable": claims.OUTPUT, "draft_improbable": claims.DRAFTS}


class _Tail(NamedTuple):
    """The probability of all tokens at most as likely as the one that came out in a row."""

    mass: float
    row: int


class Tally:
    """The record of the observations: evidence, boundary cases, metrics; ``rng`` draws the numbers.

    With ``of_texts``, a request is a text, and the depth of a row the index of its token.
    """

    def __init__(self, rng: np.random.Generator, of_texts: bool = False) -> None:
        self.rng = rng
        self._of_texts = of_texts
        self.positions: list[RecordedPosition] = []
        # The rows of each kind of boundary case, and of each size of a vocabulary.
        self.cases: dict[str, list[int]] = {kind: [] for kind in KINDS}
        self.vocabularies: dict[int, array[int]] = defaultdict(lambda: array("q"))
        # Of the target and of the draft, the least and the most of what their ids list.
        self.least_listed = np.ones(2)
        self.most_listed = np.ones(2)
        # The numbers of the latest random drafts of a position.
        self._last_drafts: list[float] = []
        self._groupings = {
            side: _groupings(of_texts) for side in (claims.OUTPUTS, claims.DRAFT_TOKENS)
        }
        self.evidence = {
            name: Evidence.empty(name in CLASSES, self._groupings[side])
            for side in self._groupings
            for name in claims.claims_in_order(side)
        } | {claims.SLOTS: Evidence.empty(2), claims.ROWS: Evidence.empty(2)}
        self._numbers_of_requests: dict[str, int] = {}
        self._tails: dict[str, list[_Tail]] = defaultdict(list)
        self.ceilings: list[float] = []
        self._accepted: list[bool] = []
        # Whether a draft distribution was known where a token came out.
        self.has_drafts = False

    def add(self, at: Observation) -> None:
        """Count one row."""
        position = RecordedPosition(at.depth, at.num_drafts, at.decided, at.accepted)
        self.positions.append(position)
        if at.vocab_size is not None:
            self.vocabularies[at.vocab_size].append(at.row)
        self.least_listed = np.minimum(self.least_listed, at.listed)
        self.most_listed = np.maximum(self.most_listed, at.listed)
        for kind in at.cases:
            self.cases[kind].append(at.row)
        self._add_drafts(at)
        if at.output is not None:
            self._add_output(at, at.output)

    def acceptance(self, level: float) -> PooledAcceptance | None:
        """Acceptance over all positions with sound drafts; None if there are none."""
        accepted = np.array(self._accepted, bool)
        ceilings = np.array(self.ceilings)
        if not accepted.size:
            return None
        # With a stake of s·a the factor is 1 + s(X − a) ≤ exp(s(X − a)). So the last wealth is above 1 only
        # if the rate is above the mean ceiling.
        bets = [EventBets(stake * ceilings) for stake in STAKES]
        wealth = mean_wealth([bet.update(accepted, ceilings) for bet in bets])
        p_value = anytime_p_value(wealth[-1:])
        rate = float(accepted.mean())
        return PooledAcceptance(accepted.size, rate, float(ceilings.mean()), p_value, level)

    def count_improbable(self, level: float) -> None:
        """Count the rows with tokens so improbable that a sound run has any with probability ``level``."""
        # A tail mass is at most x with probability x at most; there is one for each number of the claim.
        for kind, claim in _IMPROBABLE.items():
            number = len(self.evidence[claim].numbers)
            rows = [tail.row for tail in self._tails[kind] if tail.mass * number <= level]
            self.cases[kind].extend(dict.fromkeys(rows))

    def _add_drafts(self, at: Observation) -> None:
        drawn = [(draft, self._add_draft(at, draft)) for draft in at.drafts]
        numbers = [number for draft, number in drawn if draft.mass > 0]
        for slot, (draft, number) in enumerate(drawn):
            if draft.in_position is not None and slot > 0:
                _link(self.evidence[claims.SLOTS], draft.in_position, number, numbers[slot - 1])
            if draft.from_before is not None and slot < len(self._last_drafts):
                before = self._last_drafts[slot]
                _link(self.evidence[claims.ROWS], draft.from_before, number, before)
        if numbers:
            self._last_drafts = numbers

    def _add_draft(self, at: Observation, draft: DraftNumbers) -> float:
        """Add the evidence of a draft; its number in the order of token ids, by which drafts are linked."""
        self._add_to_groups(at, claims.DRAFT_TOKENS)
        self._keep_tail("draft_improbable", at.row, draft.tail)
        names = claims.claims_in_order(claims.DRAFT_TOKENS)
        for claim, start in zip(names, draft.starts, strict=True):
            self.evidence[claim].add(self._point(start, draft.mass), draft.mass == 0)
        # The last of these orders is that of token ids.
        return self._point(draft.starts[-1], draft.mass)

    def _add_output(self, at: Observation, output: OutputNumbers) -> None:
        self.has_drafts |= output.has_draft
        self._add_to_groups(at, claims.OUTPUTS)
        self._keep_tail("output_improbable", at.row, output.tail)
        classes = dict(zip(CLASSES, output.classes, strict=True))
        for claim, start in zip(claims.claims_in_order(claims.OUTPUTS), output.starts, strict=True):
            point = self._point(start, output.mass)
            of_class = [classes[claim]] if claim in classes else []
            self.evidence[claim].add(point, output.mass == 0, *of_class)
        if output.ceiling is not None:
            self._accepted.append(at.accepted)
            self.ceilings.append(output.ceiling)

    def _add_to_groups(self, at: Observation, side: str) -> None:
        by_depth, by_request, by_row = self._groupings[side]
        deepest = MOST_GROUPS - 2
        depth = min(at.depth, deepest)
        beyond = " or more" if depth == deepest else ""
        if self._of_texts:
            by_depth.add(1 + depth, f"token index {depth}{beyond}")
        elif side == claims.OUTPUTS and not at.num_drafts:
            by_depth.add(0, "extra tokens (no drafts)")
        else:
            by_depth.add(1 + depth, f"depth {depth}{beyond}")
        number = self._numbers_of_requests.setdefault(at.request, len(self._numbers_of_requests))
        by_request.add(number, f"request {one_line(at.request)}")
        row = len(self.positions) % _EVERY
        by_row.add(row, f"every {_EVERY}th row from row {at.row}")

    def _keep_tail(self, kind: str, row: int, mass: float) -> None:
        if mass <= _SMALL_TAIL:
            self._tails[kind].append(_Tail(mass, row))

    def _point(self, start: float, mass: float) -> float:
        """Draw a uniform point of [start, start + mass): the randomised probability integral transform."""
        return min(start + mass * self.rng.random(), _BELOW_ONE)


def _groupings(of_texts: bool) -> list[Grouping]:
    return [
        Grouping("token index" if of_texts else "depth", listed=True),
        Grouping("request"),
        Grouping("position in the batch"),
    ]


def _link(links: Evidence, repeat: Repeat, number: float, earlier: float) -> None:
    """Add the number of a draft, that of an earlier one, and whether the draft repeats one of its kind.

    Of independent drafts, the difference of numbers modulo 1 is uniform, and so is that of their quarters.
    """
    by_repeat = (int(repeat.happened), (1.0 - repeat.prob, repeat.prob))
    quarter = (int(_PARTS * number) - int(_PARTS * earlier)) % _PARTS
    by_quarter = (quarter, (1 / _PARTS,) * _PARTS)
    links.add((number - earlier + _SHIFT) % 1.0, False, by_repeat, by_quarter)
