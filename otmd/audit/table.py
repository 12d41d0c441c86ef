"""The table of a recorded run: a line for each position and for each random draft, a column for each claim.

The entry of an ordered claim is the mass before the token in the claim's order. With U·mass added, U uniform,
it is uniform on [0, 1) if the claim holds: the randomised probability integral transform. Every statistic of
the audit is a function of columns.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otmd.audit import claims, statistics
from otmd.audit.base import SLACK, acceptance_ceiling
from otmd.audit.claims import CLASS_COLUMNS, DRAFTS, EVENTS, ORDERED, OUTPUTS
from otmd.audit.declared import NO_DRAFTS, WITHOUT_ORDER, LawMaker, declared_law, law_maker
from otmd.audit.rows import MOST_ROWS, NOT_DECIDED, Row, Side, as_kept, mass_of_choice
from otmd.laws import DraftLaw
from otmd.probabilities import FloatArray, wrong

Table = dict[str, NDArray]
Line = dict[str, Any]
RULES = ("token", "block", "tree")
# So many lines are made a table at once.
LINES_OF_PART = 4096
# The slot of the line of a position.
POSITION = -1
# What is remembered of the past: an engine that records for days has no end of requests.
_MOST_REQUESTS = 4096
_MOST_CONTEXTS = 1 << 17
COLUMNS: dict[str, tuple[type, Any]] = {
    # Of every line: the number of its row, and the slot of a draft.
    "row": (np.int64, 0),
    "request": (object, ""),
    "depth": (np.int64, 0),
    "slot": (np.int64, POSITION),
    # The token that is tested, −1 for none, its mass under the claim and under q, and that of all tokens that
    # are at most as likely.
    "token": (np.int64, -1),
    "mass": (np.float64, np.nan),
    "draft_mass": (np.float64, np.nan),
    "tail": (np.float64, np.nan),
    # How far the logit of an excluded token lies below that of the last one that is allowed.
    "gap": (np.float64, np.nan),
    # Of a position.
    "num_drafts": (np.int64, 0),
    "decided": (bool, False),
    "accepted": (bool, False),
    "in_drafted_step": (bool, False),
    "q_is_known": (bool, False),
    "ceiling": (np.float64, np.nan),
    # Whether the context of the row is that of an earlier one.
    "repeats_context": (bool, False),
    # −1 unless the row has all tokens.
    "vocab_size": (np.int64, -1),
    # The probability that the token after a context that came before is the one that came out then; NaN if
    # the context is new, or not recorded.
    "agreement": (np.float64, np.nan),
    "agrees": (bool, False),
    # See rows.Side.
    **{f"{side}_listed": (np.float64, 1.0) for side in ("target", "draft")},
    **{f"{side}_unit": (np.int64, 0) for side in ("target", "draft")},
    # Of a draft: whether it repeats an earlier one of its position or that of its slot at the position
    # before, and the probabilities of these events.
    "repeats_slot": (bool, False),
    "repeat_in_slots": (np.float64, np.nan),
    "repeats_row": (bool, False),
    "repeat_of_row": (np.float64, np.nan),
    **{claim.name: (np.float64, np.nan) for side in ORDERED for claim in ORDERED[side]},
    **{label: (np.int64, -1) for label, _ in CLASS_COLUMNS.values()},
    **{mass: (np.float64, 0.0) for _, masses in CLASS_COLUMNS.values() for mass in masses},
    **dict.fromkeys(EVENTS, (bool, False)),
}


def table_of(lines: Sequence[Line]) -> Table:
    """The columns of lines, which leave out what does not apply to them."""
    return {
        name: np.array([line.get(name, missing) for line in lines], kind)
        for name, (kind, missing) in COLUMNS.items()
    }


def table_of_all(lines_of_rows: Iterable[list[Line]], name: str) -> Table:
    """The columns of the lines of many rows; as dicts, all lines would take several times the memory."""
    parts, lines = [], []
    for number, of_row in enumerate(lines_of_rows, start=1):
        if number > MOST_ROWS:
            raise ValueError(f"{name}: got more than {MOST_ROWS} positions: audit them in parts")
        lines += of_row
        if len(lines) >= LINES_OF_PART:
            parts.append(table_of(lines))
            lines = []
    return joined([*parts, table_of(lines)])


class _Request:
    """A request: its output tokens so far, and its last row.

    ``goes_on`` says whether the position after the last row is reached, None if that is unknown.
    """

    def __init__(self) -> None:
        self.tokens = array("q")
        self.step: int | None = None
        self.depth = -1
        self.goes_on: bool | None = True
        self.has_ended = False
        self.has_drafts = False

    def occurrences(self, size: int) -> FloatArray:
        """The number of times that each token (V,) came out."""
        tokens = np.array(self.tokens, np.int64)
        return np.bincount(tokens[tokens < size], minlength=size).astype(np.float64)


class Tabulator:
    """Turns the rows of a run, in their order, into lines of its table.

    Parameters
    ----------
    law : str or callable
        The law of the drafts, as for :func:`otmd.audit.recorded_run`.
    rule : {"token", "block", "tree"}
        Whether the engine decides position by position, or on a block or a tree as a whole.
    end_tokens : sequence of int
        The tokens that end a text.
    """

    def __init__(
        self,
        law: str | LawMaker,
        rule: str = "token",
        end_tokens: Sequence[int] = (),
    ) -> None:
        if rule not in RULES:
            raise wrong("rule", repr(rule), ", ".join(RULES))
        self._make_law = law_maker(law)
        self._is_plain = law == NO_DRAFTS
        self._is_fixed = self._make_law is None and not self._is_plain
        self._rule = rule
        self._ends = frozenset(map(int, end_tokens))
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._contexts: OrderedDict[str, int] = OrderedDict()
        # The tokens of the latest random drafts of a position.
        self._last_drafts: list[int] = []
        # The q of the latest row, which the bonus token of its step is tested with.
        self._last_q: tuple[_Request | None, FloatArray | None] = (None, None)

    def lines(self, row: Row, all_drafts: bool = False) -> list[Line]:
        """The lines of the next row: none if it lies behind the end of the text.

        ``all_drafts``: all drafts of its step are recorded, also those after a rejection.
        """
        tokens, output = row.draft_tokens, row.output_token
        decided = output != NOT_DECIDED
        accepted = decided and bool((tokens == output).any())
        request = self._request(row.request)
        begins = row.step != request.step or row.depth == 0
        misplaced = self._place(request, row, begins, accepted)
        if misplaced == "dropped":
            return []
        repeats = row.context in self._contexts
        outside = _out_of_range(row)
        events = [*filter(None, [misplaced]), *_unsound(row), *outside]
        if self._is_plain and tokens.size:
            events.append("draft_undeclared")
        position: Line = {
            "num_drafts": tokens.size,
            "decided": decided,
            "accepted": accepted,
            "in_drafted_step": request.has_drafts,
            "vocab_size": row.vocab_size if row.is_full else -1,
            "target_listed": row.target.listed,
            "draft_listed": row.draft.listed,
            "target_unit": row.target.unit,
            "draft_unit": row.draft.unit,
        }
        drafts: list[Line] = []
        if not outside:
            law = None
            if tokens.size and self._make_law:
                law, drafts = self._of_drafts(row, events, all_drafts)
            if decided and row.target.probs is not None and misplaced != "after_rejection":
                position |= self._of_output(row, request, begins, law)
                if position["mass"] == 0:
                    events.append("impossible_accepted" if accepted else "output_impossible")
            if decided:
                request.tokens.append(output)
        position |= dict.fromkeys(events, True)
        common = {
            "row": row.number,
            "request": row.request,
            "depth": row.depth,
            "repeats_context": repeats,
        }
        return [common | line for line in (position, *drafts)]

    def _request(self, name: str) -> _Request:
        request = self._requests.pop(name, None) or _Request()
        self._requests[name] = request
        if len(self._requests) > _MOST_REQUESTS:
            self._requests.popitem(last=False)
        return request

    def _place(self, request: _Request, row: Row, begins: bool, accepted: bool) -> str:
        """The event if the row does not continue its step, "" if it does; "dropped" behind an end."""
        decided = row.output_token != NOT_DECIDED
        reached = True if begins else request.goes_on
        depth = 0 if begins else request.depth + 1
        ended = request.has_ended and not begins
        request.step, request.depth = row.step, row.depth
        request.has_ended = ended or row.ended or row.output_token in self._ends
        request.has_drafts = row.draft_tokens.size > 0 or (request.has_drafts and not begins)
        # A row without drafts rejects nothing. A rule for blocks or trees may emit a token that is a draft,
        # and reject that draft.
        if decided and self._rule == "token" and row.draft_tokens.size:
            request.goes_on = accepted
        elif decided or reached is not False:
            request.goes_on = None
        if ended:
            # Under the other rules, whether a text ends depends on the drafts behind the end.
            return "after_end" if decided else "dropped" if self._rule == "token" else ""
        if row.depth != depth:
            return "depth_gap"
        if reached is None or decided == reached:
            return ""
        return "after_rejection" if decided else "output_missing"

    def _of_drafts(self, row: Row, events: list[str], all_drafts: bool) -> tuple[DraftLaw | None, list[Line]]:
        """The law of the drafts, and their lines; None for a law that is unknown or did not draw them."""
        assert self._make_law is not None
        probs = row.draft.probs
        if probs is None:
            events.extend([] if row.draft.fault else ["draft_missing"])
            return None, []
        tokens = row.draft_tokens
        # To replace only the drafts without mass would favour those with mass.
        has_order = self._make_law not in WITHOUT_ORDER
        if not has_order or (probs[tokens] == 0).any():
            tokens = as_kept(tokens, row.draft, row.number)
        excluded = tokens[probs[tokens] == 0]
        declared = None if excluded.size else declared_law(self._make_law, probs, tokens)
        if declared is None:
            events.append("draft_impossible" if excluded.size else "draft_never")
            never = {"slot": 0, "token": int(tokens[0]), "mass": 0.0, "tail": 1.0}
            never |= {claim.name: 0.0 for claim in ORDERED[DRAFTS]}
            return None, [never | {"gap": _gap(row.draft, int(excluded[0])) if excluded.size else np.nan}]
        law, next_draft_probs = declared
        by_position = self._rule == "token" or row.depth == 0
        if not by_position and not all_drafts:
            # Given that the row exists, its drafts do not follow q.
            return None, []
        lines: list[Line] = []
        # If ties were cut, the engine may have kept other tokens than q has here.
        if not (has_order and row.draft.ties.size):
            drawn = zip(next_draft_probs, tokens.tolist(), strict=True)
            # Deterministic drafts have nothing to test.
            lines = self._of_random_drafts([(q, token) for q, token in drawn if q[token] < 1.0])
        return law if by_position else None, lines

    def _of_random_drafts(self, drafts: list[tuple[FloatArray, int]]) -> list[Line]:
        """The lines of drafts with their distributions (V,)."""
        lines = []
        for slot, (q, token) in enumerate(drafts):
            line = _tested(DRAFTS, q, q, np.zeros(0), token) | {"slot": slot}
            if slot > 0:
                earlier = np.unique([before for _, before in drafts[:slot]])
                line["repeats_slot"] = bool(token in earlier)
                line["repeat_in_slots"] = min(1.0, float(q[earlier].sum()))
            if slot < len(self._last_drafts) and self._last_drafts[slot] < q.size:
                last = self._last_drafts[slot]
                line |= {"repeats_row": token == last, "repeat_of_row": min(1.0, float(q[last]))}
            lines.append(line)
        if drafts:
            self._last_drafts = [token for _, token in drafts]
        return lines

    def _of_output(self, row: Row, request: _Request, begins: bool, law: DraftLaw | None) -> Line:
        """The entries of an output token."""
        p = row.target.probs
        assert p is not None
        output = int(as_kept(np.array([row.output_token]), row.target, row.number)[0])
        q = self._q_before(row, request, begins, p.size)
        has_drafts = q is not None and row.draft_tokens.size > 0
        seen = request.occurrences(p.size)
        by_q = np.zeros(p.size) if q is None else q
        line = _tested(OUTPUTS, p, by_q, seen, output) | {"q_is_known": q is not None}
        if q is not None:
            line["draft_mass"] = float(q[output])
        labels, masses = claims.classify(p, by_q, seen, has_drafts, output)
        for (label_name, mass_names), label, of_classes in zip(
            CLASS_COLUMNS.values(), labels, masses, strict=True
        ):
            line[label_name] = label
            line |= zip(mass_names, of_classes.tolist(), strict=True)
        if line["mass"] == 0:
            return line | {"gap": _gap(row.target, row.output_token)}
        line["ceiling"] = self._ceiling(row, p, q if has_drafts else None, law)
        return line | self._agreement(row.context, p, output)

    def _q_before(self, row: Row, request: _Request, begins: bool, size: int) -> FloatArray | None:
        """q, by which output tokens are ordered; None where it is unknown, or depends on the drafts.

        Drafts that are fixed have indicators. A row without drafts has the q that it records, else the last
        one of its step: a bonus token that is drawn from q in place of p shows in its order.
        """
        q = row.draft.probs
        if self._is_fixed and row.draft_tokens.size:
            q = np.zeros(size)
            q[row.draft_tokens] = 1.0
        of_request, last = self._last_q
        if q is None and not row.draft_tokens.size and not begins and of_request is request:
            q = last if last is not None and last.size == size else None
        self._last_q = (request, q)
        # In a tree it may depend on the drafts whether a node has children.
        return None if self._rule == "tree" and row.depth else q

    def _ceiling(self, row: Row, target: FloatArray, q: FloatArray | None, law: DraftLaw | None) -> float:
        """The largest acceptance rate of a lossless verifier at a position; NaN if its law is unknown."""
        chosen = mass_of_choice(row.target)
        if law is not None:
            ceiling = acceptance_ceiling(target, law)
            chosen += row.draft_tokens.size * mass_of_choice(row.draft)
        elif self._is_fixed and q is not None and (self._rule == "token" or not row.depth):
            ceiling = float(target @ q) + SLACK
        else:
            return np.nan
        return min(1.0, ceiling + chosen)

    def _agreement(self, context: str, target: FloatArray, output: int) -> Line:
        if context not in self._contexts:
            self._contexts |= {context: output} if context else {}
            if len(self._contexts) > _MOST_CONTEXTS:
                self._contexts.popitem(last=False)
            return {}
        first = self._contexts[context]
        self._contexts.move_to_end(context)
        # Greedy decoding agrees with itself.
        if first >= target.size or not 0 < target[first] < 1:
            return {}
        return {"agreement": float(target[first]), "agrees": output == first}


def _tested(side: str, p: FloatArray, q: FloatArray, seen: FloatArray, token: int) -> Line:
    """The entries of a token that its claims need; p (V,) is its claimed distribution."""
    mass = float(p[token])
    line: Line = {
        claim.name: statistics.mass_before(p, claim.key(p, q, seen), token)
        for claim in ORDERED[side]
        if claim.key
    }
    return line | {"token": token, "mass": mass, "tail": float(p[p <= mass].sum()) if mass else 1.0}


def _gap(side: Side, token: int) -> float:
    """The distance of the logit of a token below the last one that is allowed; NaN if logits are unknown."""
    if side.logits is None or side.probs is None:
        return np.nan
    return float(side.logits[side.probs > 0].min() - side.logits[token])


def _out_of_range(row: Row) -> list[str]:
    kinds = []
    if ((row.draft_tokens < 0) | (row.draft_tokens >= row.vocab_size)).any():
        kinds.append("draft_out_of_range")
    if not NOT_DECIDED <= row.output_token < row.vocab_size:
        kinds.append("output_out_of_range")
    return kinds


def _unsound(row: Row) -> list[str]:
    sides = {"target": row.target, "draft": row.draft if row.draft_tokens.size else Side()}
    return [f"{name}_{side.fault}" for name, side in sides.items() if side.fault]


def joined(parts: Iterable[Table]) -> Table:
    """The table of several parts, in their order."""
    listed = [*parts] or [table_of([])]
    return {name: np.concatenate([part[name] for part in listed]) for name in COLUMNS}
