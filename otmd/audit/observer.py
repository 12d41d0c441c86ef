"""Observations: the few numbers of a row that the tests of a recorded run need."""

from array import array
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.audit import claims, statistics, verifiers
from otmd.audit.declared import LawMaker, declared_law
from otmd.audit.records import NOT_DECIDED, Record, as_kept, mass_of_choice
from otmd.laws import DraftLaw
from otmd.probabilities import FloatArray

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
# The requests whose earlier tokens are remembered: an engine that records for days has no end of them.
_MOST_REQUESTS = 4096


class Repeat(NamedTuple):
    """Whether a draft repeats an earlier one, and the probability that it does."""

    happened: bool
    prob: float


class DraftNumbers(NamedTuple):
    """The numbers of a random draft, or of drafts that cannot have been drawn (``mass`` 0).

    ``starts`` has the mass of the tokens before it in the order of each claim on drafts, and ``tail`` is that
    of all tokens at most as likely. ``in_position`` and ``from_before`` say whether it repeats an earlier
    draft of its position, or that of its slot at the position before.
    """

    starts: tuple[float, ...]
    mass: float
    tail: float
    in_position: Repeat | None = None
    from_before: Repeat | None = None


class Classified(NamedTuple):
    """The class of a token, and the masses (K,) of the classes."""

    label: int
    masses: tuple[float, ...]


class OutputNumbers(NamedTuple):
    """The numbers of an output token, as in :class:`DraftNumbers`, and its class for each of ``CLASSES``.

    ``has_draft`` says whether q was known, and ``ceiling`` is the largest acceptance rate of a lossless
    verifier, None if it is unknown.
    """

    starts: tuple[float, ...]
    mass: float
    tail: float
    classes: tuple[Classified, ...]
    has_draft: bool
    ceiling: float | None


class Observation(NamedTuple):
    """One row: the numbers of its random drafts and of its output token, and the kinds of its cases.

    ``vocab_size`` is None unless the row has all tokens. ``listed`` is that of the target and of the draft,
    see :class:`~otmd.audit.records.RecordedSide`.
    """

    row: int
    request: str
    depth: int
    num_drafts: int
    decided: bool
    accepted: bool
    vocab_size: int | None
    listed: tuple[float, float]
    cases: tuple[str, ...]
    drafts: tuple[DraftNumbers, ...]
    output: OutputNumbers | None


_NEVER_DRAWN = DraftNumbers((0.0,) * len(claims.claims_in_order(claims.DRAFT_TOKENS)), 0.0, 1.0)


class _LastRow(NamedTuple):
    step: int | None = None
    depth: int = -1
    accepted: bool | None = True


class _Request:
    """A request: its output tokens so far, and its last row."""

    def __init__(self) -> None:
        self.tokens = array("q")
        self.last = _LastRow()

    def occurrences(self, size: int) -> FloatArray:
        """The number of times that each token (V,) came out."""
        tokens = np.array(self.tokens, np.int64)
        return np.bincount(tokens[tokens < size], minlength=size).astype(np.float64)


class Observer:
    """Looks at the rows of a run in their order. ``make_law`` is None for fixed drafts.

    With ``of_texts``, a request is a text, and the depth of a row the index of its token.
    """

    def __init__(self, make_law: LawMaker | None, of_texts: bool = False) -> None:
        self._make_law = make_law
        self._of_texts = of_texts
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        # The tokens of the latest random drafts of a position.
        self._last_drafts: list[int] = []

    def observe(self, record: Record) -> Observation:
        """The numbers of the next row."""
        output = record.output_token
        tokens = record.draft_tokens
        decided = output != NOT_DECIDED
        accepted = decided and bool((tokens == output).any())
        request = self._request(record)
        misplaced = None if self._of_texts else _misplaced(request, record, accepted)
        out_of_range = _out_of_range(record)
        cases = [*filter(None, [misplaced]), *_unsound(record), *out_of_range]
        drafts: tuple[DraftNumbers, ...] = ()
        numbers = None
        if not out_of_range:
            law = None
            if tokens.size and self._make_law:
                law, drafts = self._look_at_drafts(record, self._make_law, cases)
            if decided and record.target.probs is not None and misplaced != "after_rejection":
                numbers = self._look_at_output(record, record.target.probs, law)
                if numbers.mass == 0:
                    cases.append("impossible_accepted" if accepted else "output_impossible")
            if decided:
                request.tokens.append(output)
        return Observation(
            row=record.row,
            request=record.request,
            depth=record.depth,
            num_drafts=tokens.size,
            decided=decided,
            accepted=accepted,
            vocab_size=record.vocab_size if record.is_full else None,
            listed=(record.target.listed, record.draft.listed),
            cases=tuple(cases),
            drafts=drafts,
            output=numbers,
        )

    def _request(self, record: Record) -> _Request:
        request = self._requests.pop(record.request, None) or _Request()
        self._requests[record.request] = request
        if len(self._requests) > _MOST_REQUESTS:
            self._requests.popitem(last=False)
        return request

    def _look_at_drafts(
        self, record: Record, make_law: LawMaker, cases: list[str]
    ) -> tuple[DraftLaw | None, tuple[DraftNumbers, ...]]:
        """The law of the drafts and their numbers; None for a law that is unknown or did not draw them."""
        draft = record.draft
        if draft.probs is None:
            cases.extend([] if draft.fault else ["draft_missing"])
            return None, ()
        tokens = record.draft_tokens
        # A law may depend on how ties are broken, so drafts with mass remain.
        if (draft.probs[tokens] == 0).any():
            tokens = as_kept(tokens, draft.probs, draft.ties, record.row)
        declared = declared_law(make_law, draft.probs, tokens)
        if isinstance(declared, str):
            cases.append(declared)
            return None, (_NEVER_DRAWN,)
        drawn = zip(declared.next_draft_probs, tokens.tolist(), strict=True)
        # Deterministic drafts have nothing to test.
        random = [(probs, token) for probs, token in drawn if probs[token] < 1.0]
        drafts = tuple(self._numbers_of_draft(slot, random) for slot in range(len(random)))
        if random:
            self._last_drafts = [token for _, token in random]
        return declared.law, drafts

    def _numbers_of_draft(self, slot: int, random: list[tuple[FloatArray, int]]) -> DraftNumbers:
        """The numbers of the draft in a slot of the random ones, each with its distribution (V,)."""
        probs, token = random[slot]
        before = claims.Before(probs, probs, np.zeros(0))
        keys = claims.claims_in_order(claims.DRAFT_TOKENS).values()
        in_position = None
        from_before = None
        if slot > 0:
            earlier = np.unique([x for _, x in random[:slot]])
            in_position = _repeat(token in earlier, probs[earlier].sum())
        if slot < len(self._last_drafts) and self._last_drafts[slot] < probs.size:
            last = self._last_drafts[slot]
            from_before = _repeat(token == last, probs[last])
        return DraftNumbers(
            starts=tuple(statistics.mass_before(probs, key(before), token) for key in keys),
            mass=float(probs[token]),
            tail=_tail(probs, token),
            in_position=in_position,
            from_before=from_before,
        )

    def _look_at_output(
        self, record: Record, target: FloatArray, law: DraftLaw | None
    ) -> OutputNumbers:
        recorded = np.array([record.output_token])
        output = int(as_kept(recorded, target, record.target.ties, record.row)[0])
        draft = self._draft_probs(record, target.size)
        drafted = np.zeros(target.size) if draft is None else draft
        occurrences = self._requests[record.request].occurrences(target.size)
        before = claims.Before(target, drafted, occurrences)
        keys = claims.claims_in_order(claims.OUTPUTS).values()
        mass = float(target[output])
        return OutputNumbers(
            starts=tuple(statistics.mass_before(target, key(before), output) for key in keys),
            mass=mass,
            tail=_tail(target, output) if mass else 1.0,
            classes=_classified(before, draft is not None, output),
            has_draft=draft is not None,
            ceiling=self._ceiling(record, target, draft, law) if mass else None,
        )

    def _ceiling(
        self, record: Record, target: FloatArray, draft: FloatArray | None, law: DraftLaw | None
    ) -> float | None:
        """The largest acceptance rate of a lossless verifier at a position; None if its law is unknown."""
        if law is not None:
            ceiling = verifiers.acceptance_ceiling(target, law)
        elif self._make_law is None and draft is not None:
            ceiling = min(1.0, float(target @ draft) + verifiers.SLACK)
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


def _misplaced(request: _Request, record: Record, accepted: bool) -> str | None:
    """The kind of boundary case if the row does not fit into its step, else None."""
    last = request.last
    begins = record.step != last.step or (record.step is None and record.depth == 0)
    decided = record.output_token != NOT_DECIDED
    # After a position whose output token is missing, it is unknown which positions were reached.
    reached = True if begins else last.accepted
    accepts = accepted if decided or reached is False else None
    request.last = _LastRow(record.step, record.depth, accepts)
    if record.depth != (0 if begins else last.depth + 1):
        return "depth_gap"
    if reached is None or decided == reached:
        return None
    return "after_rejection" if decided else "output_missing"


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


def _repeat(happened: bool, prob: float) -> Repeat:
    return Repeat(bool(happened), min(1.0, float(prob)))


def _tail(probs: FloatArray, token: int) -> float:
    """The mass of all tokens at most as likely as this one."""
    return float(probs[probs <= probs[token]].sum())


def _classified(before: claims.Before, is_drafted: bool, token: int) -> tuple[Classified, ...]:
    """The class of a token, for the claims that have classes."""
    target = before.probs
    by_mass = _cells(target, _MASSES)
    # The most likely token is a class of its own.
    by_mass[target.argmax()] = len(_MASSES) + 1
    by_ratio = np.full(target.size, len(_RATIOS) + 1, np.int8)
    if is_drafted:
        by_ratio = _cells(statistics.ratios(target, before.draft_probs), _RATIOS)
    by_occurrence = before.occurrences > 0
    # One number for all three, so that their masses are added in one pass.
    sizes = tuple(len(names) for names in CLASSES.values())
    joint = (by_ratio * sizes[1] + by_mass) * sizes[2] + by_occurrence
    masses = np.bincount(joint, target, minlength=int(np.prod(sizes))).reshape(sizes)
    labels = np.unravel_index(int(joint[token]), sizes)
    marginals = [masses.sum(axis=axes) for axes in ((1, 2), (0, 2), (0, 1))]
    return tuple(
        Classified(int(label), tuple((marginal / marginal.sum()).tolist()))
        for label, marginal in zip(labels, marginals, strict=True)
    )


def _cells(values: FloatArray, bounds: tuple[float, ...]) -> NDArray:
    """The number of bounds that are not above each value; few comparisons are faster than np.digitize."""
    labels = np.zeros(values.size, np.int8)
    for bound in bounds:
        labels += values >= bound
    return labels
