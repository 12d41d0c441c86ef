"""Rows of a recorded run: one for each position that was drafted at or decided."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otmd.audit.records_laws import LAW_FIELDS, RecordedLaw, Row, read_law
from otmd.audit.records_values import MOST_NUMBERS, optional_whole, read_ids, read_label
from otmd.probabilities import IntArray, Processing
from otmd.storage.errors import named

NOT_DECIDED = -1
"""The output token of a position that was drafted at and never reached."""
MOST_ROWS = 2_000_000
"""A few hundred bytes are kept for each."""
_DEEPEST = 10_000
FIELDS = (*LAW_FIELDS, "draft_tokens", "output_token", "request", "step", "depth")
"""The names that a row may have."""
Source = str | Path | Sequence[Row]


@dataclass(frozen=True, eq=False)
class Record:
    """One row.

    Attributes
    ----------
    row : int
        Its number, from 1.
    vocab_size : int
        V, of the side that has full rows; else just large enough for every token that the row names.
    target : RecordedLaw
    draft : RecordedLaw or None
    draft_tokens : ndarray of int64, shape (n,)
        Empty where nothing was drafted.
    output_token : int
        :data:`NOT_DECIDED` where the position was not reached.
    request : str
    step : int or None
    depth : int
    """

    row: int
    vocab_size: int
    target: RecordedLaw
    draft: RecordedLaw | None
    draft_tokens: IntArray
    output_token: int
    request: str
    step: int | None
    depth: int


def read_records(source: Source, defaults: Mapping[str, Processing]) -> Iterator[Record]:
    """Read the rows of a ``.jsonl``, ``.parquet`` or ``.safetensors`` file, or of a list of dicts, in order.

    Parameters
    ----------
    source : str, Path or sequence of mapping
    defaults : mapping
        "target" or "draft" to the processing of logits that all rows share.

    Yields
    ------
    Record

    Raises
    ------
    ValueError
        For a malformed file or row; it names the file, the row and the field.
    """
    if isinstance(source, str | Path):
        rows, name = _rows_of_file(Path(source)), str(source)
    elif isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        rows, name = enumerate(source, start=1), "records"
    else:
        raise ValueError(
            f"source: got {type(source).__name__}, wanted a path or a list of mappings"
        )
    for number, row in rows:
        if number > MOST_ROWS:
            raise ValueError(f"{name}: got more than {MOST_ROWS} rows: audit them in parts")
        try:
            yield _record(number, row, defaults)
        except ValueError as error:
            raise ValueError(f"{name}: row {number}: {error}") from error


def _rows_of_file(path: Path) -> Iterator[tuple[int, Row]]:
    from otmd.audit import records_jsonl, records_parquet, records_safetensors

    readers = {
        ".jsonl": records_jsonl.rows,
        ".parquet": records_parquet.rows,
        ".safetensors": records_safetensors.rows,
    }
    if path.suffix not in readers:
        raise ValueError(f"{path}: got a {path.suffix!r} file, wanted one of {', '.join(readers)}")
    return readers[path.suffix](path)


def _record(number: int, row: Row, defaults: Mapping[str, Processing]) -> Record:
    given = {name: value for name, value in row.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - set(FIELDS))):
        raise ValueError(f"{named(unknown[0])}: got an unknown field, wanted {', '.join(FIELDS)}")
    target = read_law("target", given, defaults.get("target"))
    if target is None:
        raise ValueError("target_probs: got nothing, wanted target_probs or target_logits")
    draft = read_law("draft", given, defaults.get("draft"))
    tokens = read_ids("draft_tokens", given.get("draft_tokens", ()))
    # Rows of an array are all as long; what is lacking is −1.
    tokens = tokens[tokens != NOT_DECIDED]
    decided = optional_whole("output_token", given)
    output = NOT_DECIDED if decided is None else decided
    return Record(
        row=number,
        vocab_size=_vocab_size(target, draft, max(output, int(tokens.max(initial=0)))),
        target=target,
        draft=draft,
        draft_tokens=tokens,
        output_token=output,
        request=read_label("request", given.get("request", "")),
        step=optional_whole("step", given),
        depth=_depth(given),
    )


def _vocab_size(target: RecordedLaw, draft: RecordedLaw | None, largest_token: int) -> int:
    sides = [target] if draft is None else [target, draft]
    full = {side.numbers.size for side in sides if side.ids is None}
    if len(full) > 1:
        raise ValueError(
            f"draft: got {sides[1].numbers.size} tokens and a target with {target.numbers.size}, wanted "
            "equally many"
        )
    named = [int(side.ids[-1]) for side in sides if side.ids is not None]
    size = full.pop() if full else 1 + max(*named, largest_token)
    if size > MOST_NUMBERS:
        raise ValueError(f"target: got ids up to {size - 1}, wanted ids below {MOST_NUMBERS}")
    return size


def _depth(given: Row) -> int:
    depth = optional_whole("depth", given) or 0
    if not 0 <= depth <= _DEEPEST:
        raise ValueError(f"depth: got {depth}, wanted a whole number from 0 to {_DEEPEST}")
    return depth
