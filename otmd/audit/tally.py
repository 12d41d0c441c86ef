"""The record of a run, row by row: a claim becomes numbers that are uniform if it holds."""

from array import array
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from otmd.audit import claims, counts, samples
from otmd.audit.bets import STAKES, EventBets, anytime_p_value, mean_wealth
from otmd.audit.boundary_cases import KINDS
from otmd.audit.claims import MOST_GROUPS, Evidence, Grouping
from otmd.audit.metrics import PooledAcceptance, RecordedPosition
from otmd.audit.records import NOT_DECIDED, Record, as_kept, mass_of_choice
from otmd.laws import DraftLaw
from otmd.probabilities import FloatArray, IntArray

BY_RATIO = (
    "drafted much too often (p/q < 1/2)",
    "drafted too often (1/2 ≤ p/q < 1)",
    "drafted too rarely (1 ≤ p/q < 2)",
    "drafted half as often (2 ≤ p/q < 4)",
    "drafted much too rarely (p/q ≥ 4)",
    "never drafted (q = 0)",
    "at positions without drafts",
)
BY_MASS = (
    "p below 1e-9",
    "p from 1e-9 to 1e-6",
    "p from 1e-6 to 0.001",
    "p from 0.001 to 0.01",
    "p from 0.01 to 0.1",
    "p of 0.1 or more, not the most likely",
    "the most likely token",
)
BY_OCCURRENCE = ("new in the request", "came out earlier in the request")
CLASSES = {
    claims.OUTPUT: BY_RATIO,
    claims.OUTPUT_BY_MASS: BY_MASS,
    claims.OUTPUT_BY_OCCURRENCE: BY_OCCURRENCE,
}
# The bounds of these classes; where q = 0 the ratio is infinite.
_RATIOS = (0.5, 1.0, 2.0, 4.0, np.inf)
_MASSES = (1e-9, 1e-6, 0.001, 0.01, 0.1)
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


class _Request(NamedTuple):
    """The number of a request, and the occurrences of each token so far."""

    number: int
    occurrences: Counter[int]


class _Tail(NamedTuple):
    """The probability of all tokens at most as likely as the one that came out in a row."""

    mass: float
    row: int


class _LastRow(NamedTuple):
    step: int | None = None
    depth: int = -1
    accepted: bool | None = True


class _DrawnToken(NamedTuple):
    """A draft token, its distribution (V,) given those before it, and a uniform number given the past."""

    probs: FloatArray
    token: int
    number: float


class Tally:
    """The record of the rows: evidence, boundary cases, metrics. ``make_law`` is None for fixed drafts.

    With ``of_texts``, a request is a text, and the depth of a row the index of its token.
    """

    def __init__(
        self, make_law: samples.LawMaker | None, rng: np.random.Generator, of_texts: bool = False
    ) -> None:
        self._make_law = make_law
        self._rng = rng
        self._of_texts = of_texts
        self._last_rows: dict[str, _LastRow] = {}
        self.positions: list[RecordedPosition] = []
        # The rows of each kind of boundary case, and of each size of a vocabulary.
        self.cases: dict[str, list[int]] = {kind: [] for kind in KINDS}
        self.vocabularies: dict[int, array[int]] = defaultdict(lambda: array("q"))
        self._last_drafts: list[_DrawnToken] = []
        self._groupings = {
            side: _groupings(of_texts) for side in (claims.OUTPUTS, claims.DRAFT_TOKENS)
        }
        self.evidence = {
            name: Evidence.empty(name in CLASSES, self._groupings[side])
            for side in self._groupings
            for name in claims.claims_in_order(side)
        } | {claims.SLOTS: Evidence.empty(2), claims.ROWS: Evidence.empty(2)}
        self._requests: dict[str, _Request] = {}
        self._tails: dict[str, list[_Tail]] = defaultdict(list)
        self.ceilings: list[float] = []
        self._accepted: list[bool] = []
        # Whether a draft distribution was known where a token came out.
        self.has_drafts = False

    def add(self, record: Record) -> None:
        """Look at one row."""
        output = record.output_token
        tokens = record.draft_tokens
        decided = output != NOT_DECIDED
        accepted = decided and bool((tokens == output).any())
        self.positions.append(RecordedPosition(record.depth, tokens.size, decided, accepted))
        if record.is_full:
            self.vocabularies[record.vocab_size].append(record.row)
        misplaced = None if self._of_texts else self._misplaced(record, accepted)
        out_of_range = _out_of_range(record)
        for kind in filter(None, [misplaced, *_unsound(record), *out_of_range]):
            self.cases[kind].append(record.row)
        if out_of_range:
            return
        law = self._look_at_drafts(record) if tokens.size and self._make_law else None
        if decided and record.target.probs is not None and misplaced != "after_rejection":
            self._look_at_output(record, record.target.probs, law)
        if decided:
            self._request(record).occurrences[output] += 1

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

    def _misplaced(self, record: Record, accepted: bool) -> str | None:
        """The kind of boundary case if the row does not fit into its step, else None."""
        last = self._last_rows.get(record.request, _LastRow())
        begins = record.step != last.step or (record.step is None and record.depth == 0)
        decided = record.output_token != NOT_DECIDED
        # After a position whose output token is missing, it is unknown which positions were reached.
        reached = True if begins else last.accepted
        accepts = accepted if decided or reached is False else None
        self._last_rows[record.request] = _LastRow(record.step, record.depth, accepts)
        if record.depth != (0 if begins else last.depth + 1):
            return "depth_gap"
        if reached is None or decided == reached:
            return None
        return "after_rejection" if decided else "output_missing"

    def _request(self, record: Record) -> _Request:
        return self._requests.setdefault(record.request, _Request(len(self._requests), Counter()))

    def _occurrences(self, record: Record, size: int) -> FloatArray:
        """The number of times that each token (V,) came out earlier in the request."""
        counter = self._request(record).occurrences
        tokens = np.fromiter(counter.keys(), int)
        within = tokens < size
        occurrences = np.zeros(size)
        occurrences[tokens[within]] = np.fromiter(counter.values(), float)[within]
        return occurrences

    def _add_to_groups(self, record: Record, side: str) -> None:
        by_depth, by_request, by_row = self._groupings[side]
        deepest = MOST_GROUPS - 2
        depth = min(record.depth, deepest)
        beyond = " or more" if depth == deepest else ""
        if self._of_texts:
            by_depth.add(1 + depth, f"token index {depth}{beyond}")
        elif side == claims.OUTPUTS and not record.draft_tokens.size:
            by_depth.add(0, "extra tokens (no drafts)")
        else:
            by_depth.add(1 + depth, f"depth {depth}{beyond}")
        by_request.add(self._request(record).number, f"request {record.request}")
        row = len(self.positions) % _EVERY
        by_row.add(row, f"every {_EVERY}th row from row {record.row}")

    def _keep_tail(self, kind: str, record: Record, probs: FloatArray, token: int) -> None:
        mass = float(probs[probs <= probs[token]].sum())
        if mass <= _SMALL_TAIL:
            self._tails[kind].append(_Tail(mass, record.row))

    def _point(self, start: float, mass: float) -> float:
        """Draw a uniform point of [start, start + mass): the randomised probability integral transform."""
        return min(start + mass * self._rng.random(), _BELOW_ONE)

    def _look_at_drafts(self, record: Record) -> DraftLaw | None:
        """Record evidence of the drafts and return their law; None if it is unknown or did not draw them."""
        draft = record.draft
        if draft.probs is None and not draft.fault:
            self.cases["draft_missing"].append(record.row)
        if draft.probs is None or self._make_law is None:
            return None
        tokens = record.draft_tokens
        # A law may depend on how ties are broken, so drafts with mass remain.
        if (draft.probs[tokens] == 0).any():
            tokens = as_kept(tokens, draft.probs, draft.ties, self._rng)
        declared = samples.declared_law(self._make_law, draft.probs, tokens)
        if isinstance(declared, str):
            self.cases[declared].append(record.row)
            self._add_to_groups(record, claims.DRAFT_TOKENS)
            for claim in claims.claims_in_order(claims.DRAFT_TOKENS):
                self.evidence[claim].add(self._point(0.0, 0.0), True)
            return None
        drafts: list[_DrawnToken] = []
        for probs, token in zip(declared.next_draft_probs, tokens.tolist(), strict=True):
            # Deterministic drafts have nothing to test.
            if probs[token] < 1.0:
                number = self._look_at_draft(record, probs, token)
                drafts.append(_DrawnToken(probs, token, number))
        self._link_drafts(drafts)
        return declared.law

    def _look_at_draft(self, record: Record, probs: FloatArray, token: int) -> float:
        """Record evidence of a draft, and return its number in the order of token ids."""
        self._add_to_groups(record, claims.DRAFT_TOKENS)
        self._keep_tail("draft_improbable", record, probs, token)
        before = claims.Before(probs, probs, np.zeros(0))
        mass = float(probs[token])
        for claim, key in claims.claims_in_order(claims.DRAFT_TOKENS).items():
            start = counts.mass_before(probs, key(before), token)
            self.evidence[claim].add(self._point(start, mass), False)
        return self._point(float(probs[:token].sum()), mass)

    def _link_drafts(self, drafts: list[_DrawnToken]) -> None:
        """Compare drafts with the earlier ones of their position, and with those of the position before."""
        for slot, draft in enumerate(drafts):
            if slot > 0:
                earlier = np.unique([x.token for x in drafts[:slot]])
                repeat_prob = draft.probs[earlier].sum()
                repeats = draft.token in earlier
                _link(self.evidence[claims.SLOTS], draft, drafts[slot - 1], repeats, repeat_prob)
            if slot < len(self._last_drafts):
                before = self._last_drafts[slot]
                if before.token < draft.probs.size:
                    repeats = draft.token == before.token
                    repeat_prob = draft.probs[before.token]
                    _link(self.evidence[claims.ROWS], draft, before, repeats, repeat_prob)
        self._last_drafts = drafts

    def _look_at_output(self, record: Record, target: FloatArray, law: DraftLaw | None) -> None:
        accepted = bool((record.draft_tokens == record.output_token).any())
        recorded = np.array([record.output_token])
        output = int(as_kept(recorded, target, record.target.ties, self._rng)[0])
        draft = self._draft_probs(record, target.size)
        self.has_drafts |= draft is not None
        self._add_to_groups(record, claims.OUTPUTS)
        self._add_output_evidence(record, target, draft, output)
        if target[output] == 0:
            kind = "impossible_accepted" if accepted else "output_impossible"
            self.cases[kind].append(record.row)
            return
        self._keep_tail("output_improbable", record, target, output)
        ceiling = self._ceiling(record, target, draft, law)
        if ceiling is not None:
            self._accepted.append(accepted)
            self.ceilings.append(ceiling)

    def _add_output_evidence(
        self, record: Record, target: FloatArray, draft: FloatArray | None, output: int
    ) -> None:
        drafted = np.zeros(target.size) if draft is None else draft
        before = claims.Before(target, drafted, self._occurrences(record, target.size))
        classes = _classes(before, draft is not None)
        mass = float(target[output])
        for claim, key in claims.claims_in_order(claims.OUTPUTS).items():
            point = self._point(counts.mass_before(target, key(before), output), mass)
            of_class = []
            if claim in classes:
                labels = classes[claim]
                masses = np.bincount(labels, target, minlength=len(CLASSES[claim]))
                of_class = [(int(labels[output]), masses / masses.sum())]
            self.evidence[claim].add(point, mass == 0, *of_class)

    def _ceiling(
        self, record: Record, target: FloatArray, draft: FloatArray | None, law: DraftLaw | None
    ) -> float | None:
        """The largest acceptance rate of a lossless verifier at a position; None if its law is unknown."""
        if law is not None:
            ceiling = samples.acceptance_ceiling(target, law)
        elif self._make_law is None and draft is not None:
            ceiling = min(1.0, float(target @ draft) + samples.SLACK)
        else:
            return None
        chosen = mass_of_choice(target, record.target.ties)
        if law is not None and draft is not None:
            chosen += record.draft_tokens.size * mass_of_choice(draft, record.draft.ties)
        return min(1.0, ceiling + chosen)

    def _draft_probs(self, record: Record, size: int) -> FloatArray | None:
        """The draft distribution of a row with drafts, indicators if they are fixed; None if it has none."""
        if self._make_law is None and record.draft_tokens.size:
            draft = np.zeros(size)
            draft[record.draft_tokens] = 1.0
            return draft
        return record.draft.probs


def _out_of_range(record: Record) -> list[str]:
    """The kinds of boundary cases of tokens beyond the vocabulary."""
    kinds = []
    if ((record.draft_tokens < 0) | (record.draft_tokens >= record.vocab_size)).any():
        kinds.append("draft_out_of_range")
    if not NOT_DECIDED <= record.output_token < record.vocab_size:
        kinds.append("output_out_of_range")
    return kinds


def _unsound(record: Record) -> list[str]:
    """The kinds of boundary cases of distributions."""
    sides = {"target": record.target, "draft": record.draft}
    return [f"{name}_{side.fault}" for name, side in sides.items() if side.fault]


def _classes(before: claims.Before, is_drafted: bool) -> dict[str, IntArray]:
    """The class of each token (V,), for the claims that have classes."""
    by_mass = np.digitize(before.probs, _MASSES)
    # The most likely token is a class of its own.
    by_mass[before.probs.argmax()] = len(_MASSES) + 1
    by_ratio = np.full(before.probs.size, len(_RATIOS) + 1)
    if is_drafted:
        by_ratio = np.digitize(counts.ratios(before.probs, before.draft_probs), _RATIOS)
    by_occurrence = (before.occurrences > 0).astype(np.int64)
    return dict(zip(CLASSES, (by_ratio, by_mass, by_occurrence), strict=True))


def _groupings(of_texts: bool) -> list[Grouping]:
    return [
        Grouping("token index" if of_texts else "depth", listed=True),
        Grouping("request"),
        Grouping("position in the batch"),
    ]


def _link(
    links: Evidence, draft: _DrawnToken, earlier: _DrawnToken, repeats: bool, repeat_prob: float
) -> None:
    """Add a draft, an earlier one, and whether the draft repeats one of its kind, with its probability.

    Of independent drafts, the difference of numbers modulo 1 is uniform, and so is that of their quarters.
    """
    prob = min(1.0, float(repeat_prob))
    quarter = (int(_PARTS * draft.number) - int(_PARTS * earlier.number)) % _PARTS
    by_repeat = (int(repeats), (1.0 - prob, prob))
    by_quarter = (quarter, (1 / _PARTS,) * _PARTS)
    number = (draft.number - earlier.number + _SHIFT) % 1.0
    links.add(number, False, by_repeat, by_quarter)
