"""The positions of a recorded run with the rows near them, for the search of a cause."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from otmd.audit import samples
from otmd.audit.mistakes import Side, Variants
from otmd.audit.records import NOT_DECIDED, Record
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
Neighbours = dict[str, Variants]
"""By side (target or draft) and in words: the distributions (V,) of rows near a row."""


class Position(NamedTuple):
    """A recorded position, and the distributions of the rows near it.

    ``law`` is None if it is unknown, or if it cannot have drawn the drafts.
    """

    record: Record
    law: DraftLaw | None
    neighbours: Neighbours

    @property
    def target(self) -> FloatArray:
        """The recorded target (V,)."""
        assert not isinstance(self.record.target, str)
        return self.record.target

    def side(self, name: str) -> Side:
        """The ``"target"`` or the ``"draft"`` of the row, and what may be used in its place."""
        logits = getattr(self.record, f"{name}_logits")
        return Side(getattr(self.record, name), logits, self.neighbours[name])


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
        for record, near in _with_near_rows(self.read()):
            if (coins.random() < 0.5) != self.held_out:
                continue
            position = self._position(record, near)
            if position is not None:
                yield position
                count += 1
                numbers += record.vocab_size
            if count >= most or (count >= _FEWEST_POSITIONS and numbers >= most_numbers):
                return

    def _position(self, record: Record, near: "_NearRows") -> Position | None:
        """The position of a row; None if the row does not belong to the subject."""
        tokens = record.draft_tokens
        output = record.output_token
        if max(output, tokens.max(initial=0)) >= record.vocab_size or tokens.min(initial=0) < 0:
            return None
        if isinstance(record.target, str) or (self.subject == "output" and output == NOT_DECIDED):
            return None
        neighbours = {side: _neighbours(record, near, side) for side in ("target", "draft")}
        recorded = [probs for variants in neighbours.values() for probs in variants.values()]
        size = max(probs.size for probs in (record.target, *recorded) if probs is not None)
        record = _padded(record, size)
        law = self._law(record)
        if self.subject == "drafts" and law is None:
            return None
        neighbours = {
            side: {
                words: None if probs is None else _pad(probs, size)
                for words, probs in variants.items()
            }
            for side, variants in neighbours.items()
        }
        return Position(record, law, neighbours)

    def _law(self, record: Record) -> DraftLaw | None:
        make = self.make_law
        q = record.draft
        tokens = record.draft_tokens
        if make is None and tokens.size:
            # Fixed drafts are deterministic.
            make = CertainTop
            q = np.bincount(tokens, minlength=record.vocab_size) / tokens.size
        if make is None or not isinstance(q, np.ndarray):
            return None
        declared = samples.declared_law(make, q, tokens)
        return None if isinstance(declared, str) else declared.law


class _NearRows(NamedTuple):
    """The rows before and after a row, nearest first."""

    before: list[Record]
    after: list[Record]


def _with_near_rows(records: Iterable[Record]) -> Iterator[tuple[Record, _NearRows]]:
    window: deque[Record | None] = deque(repeat(None, 2 * _NEAR + 1), 2 * _NEAR + 1)
    for latest in chain(records, repeat(None, _NEAR)):
        window.append(latest)
        rows = [*window]
        if (centre := rows[_NEAR]) is not None:
            before = [row for row in reversed(rows[:_NEAR]) if row is not None]
            after = [row for row in rows[_NEAR + 1 :] if row is not None]
            yield centre, _NearRows(before, after)


def _neighbours(record: Record, near: _NearRows, side: str) -> Variants:
    """The distributions of rows near this one, by words; None if there are none."""
    # What comes after a row depends on its output, unless it is of another request.
    same = [row for row in near.before if row.request == record.request and _is_sound(row, side)]
    rows = {
        "the row before": same,
        "the depth before": [row for row in same[:1] if row.depth == record.depth - 1],
        "the next request of the batch": _of_request(record, near.after, near.before, side),
        "the previous request of the batch": _of_request(record, near.before, near.after, side),
    }
    return {words: getattr(near[0], side) if near else None for words, near in rows.items()}


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
    return isinstance(getattr(row, side), np.ndarray)


def _pad(probs: FloatArray, size: int) -> FloatArray:
    return probs if probs.size == size else np.pad(probs, (0, size - probs.size))


def _padded(record: Record, size: int) -> Record:
    if record.vocab_size == size:
        return record
    sides = {
        side: _pad(probs, size)
        for side in ("target", "draft")
        if isinstance(probs := getattr(record, side), np.ndarray)
    }
    logits = {
        name: recorded._replace(
            numbers=np.pad(
                recorded.numbers, (0, size - recorded.numbers.size), constant_values=-np.inf
            )
        )
        for name in ("target_logits", "draft_logits")
        if (recorded := getattr(record, name)) is not None
    }
    return record._replace(vocab_size=size, **sides, **logits)
