"""The positions of a recorded run with the rows near them, for the search of a cause."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from otmd.audit import samples
from otmd.audit.mistakes import Side, Variants
from otmd.audit.records import NOT_DECIDED, Record, RecordedSide
from otmd.engines.lossy import CertainTop
from otmd.laws import DraftLaw
from otmd.probabilities import FloatArray

_MOST_POSITIONS = {"drafts": 400, "output": 2_000}
_MOST_HELD_OUT = 4_000
_FEWEST_POSITIONS = 50
_MOST_NUMBERS = 2_000_000
_MOST_NUMBERS_HELD_OUT = 50_000_000
# Neighbours are looked for among so many rows on each side.
_NEAR = 8
Records = Callable[[], Iterator[Record]]


class Position(NamedTuple):
    """A recorded position, and the distributions of the rows near it, by side (target or draft) and in words.

    ``law`` is None if it is unknown, or if it cannot have drawn the drafts.
    """

    record: Record
    law: DraftLaw | None
    neighbours: dict[str, Variants]

    @property
    def target(self) -> FloatArray:
        """The recorded target (V,)."""
        assert self.record.target.probs is not None
        return self.record.target.probs

    def side(self, name: str) -> Side:
        """The ``"target"`` or the ``"draft"`` of the row, and what may be used in its place."""
        side: RecordedSide = getattr(self.record, name)
        assert side.probs is not None
        return Side(side.probs, side.logits, self.neighbours[name])


class PositionReader(NamedTuple):
    """Reads positions of one half of the rows, which ``seed`` draws at random: the same at each call.

    The positions of the ``"drafts"`` have drafts of a known law, those of the ``"output"`` an output token.
    ``make_law`` is None for fixed drafts.
    """

    read: Records
    make_law: samples.LawMaker | None
    subject: str
    seed: int
    held_out: bool

    def __call__(self) -> Iterator[Position]:
        """Yield the first positions, so that they need not all be held in memory."""
        coins = np.random.default_rng(self.seed)
        most = _MOST_HELD_OUT if self.held_out else _MOST_POSITIONS[self.subject]
        most_numbers = _MOST_NUMBERS_HELD_OUT if self.held_out else _MOST_NUMBERS
        count = 0
        numbers = 0
        for near in _with_near_rows(self.read()):
            if (coins.random() < 0.5) != self.held_out:
                continue
            position = self._position(near)
            if position is not None:
                yield position
                count += 1
                numbers += near.row.vocab_size
            if count >= most or (count >= _FEWEST_POSITIONS and numbers >= most_numbers):
                return

    def _position(self, near: "_NearRows") -> Position | None:
        """The position of a row; None if the row does not belong to the subject."""
        row = near.row
        output = row.output_token
        tokens = row.draft_tokens
        if max(output, tokens.max(initial=0)) >= row.vocab_size or tokens.min(initial=0) < 0:
            return None
        if row.target.probs is None or (self.subject == "output" and output == NOT_DECIDED):
            return None
        # Rows of the most likely tokens alone have vocabularies of several sizes.
        size = max(x.vocab_size for x in (row, *near.before, *near.after))
        row = row._replace(
            vocab_size=size, target=row.target.padded(size), draft=row.draft.padded(size)
        )
        law = self._law(row)
        if self.subject == "drafts" and law is None:
            return None
        neighbours = {side: _neighbours(near, side, size) for side in ("target", "draft")}
        return Position(row, law, neighbours)

    def _law(self, record: Record) -> DraftLaw | None:
        make = self.make_law
        q = record.draft.probs
        tokens = record.draft_tokens
        if make is None and tokens.size:
            # Fixed drafts are deterministic.
            make = CertainTop
            q = np.bincount(tokens, minlength=record.vocab_size) / tokens.size
        if make is None or q is None:
            return None
        declared = samples.declared_law(make, q, tokens)
        return None if isinstance(declared, str) else declared.law


class _NearRows(NamedTuple):
    """A row, and the rows before and after it, nearest first."""

    row: Record
    before: list[Record]
    after: list[Record]


def _with_near_rows(records: Iterable[Record]) -> Iterator[_NearRows]:
    window: deque[Record | None] = deque(repeat(None, 2 * _NEAR + 1), 2 * _NEAR + 1)
    for latest in chain(records, repeat(None, _NEAR)):
        window.append(latest)
        rows = [*window]
        if (centre := rows[_NEAR]) is not None:
            before = [row for row in reversed(rows[:_NEAR]) if row is not None]
            after = [row for row in rows[_NEAR + 1 :] if row is not None]
            yield _NearRows(centre, before, after)


def _neighbours(near: _NearRows, side: str, size: int) -> Variants:
    """The distributions (V,) of rows near this one, by words; None if there are none."""
    row = near.row
    # What comes after a row depends on its output, unless it is of another request.
    same = [x for x in near.before if x.request == row.request and _is_sound(x, side)]
    rows = {
        "the row before": same,
        "the depth before": [x for x in same[:1] if x.depth == row.depth - 1],
        "the next request of the batch": _of_request(row, near.after, near.before, side),
        "the previous request of the batch": _of_request(row, near.before, near.after, side),
    }
    return {
        words: getattr(nearest[0], side).padded(size).probs if nearest else None
        for words, nearest in rows.items()
    }


def _of_request(record: Record, first: list[Record], last: list[Record], side: str) -> list[Record]:
    """The next request's rows at this depth: among ``first`` or, as a batch wraps around, ``last``."""
    step = [row for row in (*first, *reversed(last)) if row.step == record.step]
    requests = [row for row in step if row.request != record.request]
    return [
        row
        for row in requests
        if (row.request, row.depth) == (requests[0].request, record.depth) and _is_sound(row, side)
    ]


def _is_sound(row: Record, side: str) -> bool:
    return getattr(row, side).probs is not None
