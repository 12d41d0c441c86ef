"""Rows of a recorded run, checked: one for each position that was drafted at or decided."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otmd.audit.samples import as_array
from otmd.probabilities import IntArray, Processing, sum_tolerance
from otmd.storage.errors import named

NOT_DECIDED = -1
"""The output token of a position that was drafted at and never reached."""
MOST_ROWS = 2_000_000
"""A few hundred bytes are kept for each."""
MOST_NUMBERS = 1 << 22
"""The largest vocabulary that is read."""
_DEEPEST = 10_000
_LONGEST_LABEL = 1000
# Decimal numbers have no dtype; those of engines were float32 before they were printed.
_DECIMAL_TOLERANCE = sum_tolerance(np.dtype(np.float32))
BFLOAT16_TOLERANCE = float(np.sqrt(2.0**-7))
_WARPERS = ("temperature", "top_k", "top_p", "min_p")
FIELDS = (
    *(f"{side}_{name}" for side in ("target", "draft") for name in ("logits", "probs", "ids", *_WARPERS)),
    *("draft_tokens", "output_token", "request", "step", "depth"),
)  # fmt: skip
"""The names that a row may have."""
VECTORS = ("logits", "probs", "ids", "tokens")
"""How the names of fields end that hold a list of numbers."""
Row = Mapping[str, Any]
Source = str | Path | Sequence[Row]


@dataclass(frozen=True, eq=False)
class RecordedNumbers:
    """Numbers (V,) with how far from 1 their sum may be, by the type in which they were recorded."""

    values: NDArray
    tolerance: float


@dataclass(frozen=True, eq=False)
class RecordedLaw:
    """What was recorded of one model's next-token distribution.

    Attributes
    ----------
    numbers : ndarray, shape (V,) or (K,)
        Logits or probabilities, as recorded.
    is_logits : bool
        Which of the two.
    tolerance : float
        How far from 1 probabilities may sum.
    processing : Processing
        What turns logits into the probabilities.
    ids : ndarray of int64, shape (K,), or None
        The tokens that the numbers belong to, ascending; all others have no mass.
    """

    numbers: NDArray
    is_logits: bool
    tolerance: float
    processing: Processing
    ids: IntArray | None


@dataclass(frozen=True, eq=False)
class Record:
    """One row.

    Attributes
    ----------
    row : int
        Its number, from 1; the number of the line in a ``.jsonl`` file.
    vocab_size : int
        V, of the side that has full rows; else just large enough for every token that the row names.
    is_full : bool
        Whether a side has full rows, so that V is the vocabulary.
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
    is_full: bool
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
        from otmd.audit.record_files import rows_of_file

        rows, name = rows_of_file(Path(source)), str(source)
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


def _record(number: int, row: Row, defaults: Mapping[str, Processing]) -> Record:
    given = {name: value for name, value in row.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - set(FIELDS))):
        raise ValueError(f"{named(unknown[0])}: got an unknown field, wanted {', '.join(FIELDS)}")
    target = _read_law("target", given, defaults.get("target"))
    if target is None:
        raise ValueError("target_probs: got nothing, wanted target_probs or target_logits")
    draft = _read_law("draft", given, defaults.get("draft"))
    tokens = _read_ids("draft_tokens", given.get("draft_tokens", ()))
    # Arrays have rows of one length: −1 stands for no token.
    tokens = tokens[tokens != NOT_DECIDED]
    decided = _optional_whole("output_token", given)
    output = NOT_DECIDED if decided is None else decided
    depth = _optional_whole("depth", given) or 0
    if not 0 <= depth <= _DEEPEST:
        raise ValueError(f"depth: got {depth}, wanted a whole number from 0 to {_DEEPEST}")
    size, is_full = _vocab_size(target, draft, max(output, int(tokens.max(initial=0))))
    return Record(
        row=number,
        vocab_size=size,
        is_full=is_full,
        target=target,
        draft=draft,
        draft_tokens=tokens,
        output_token=output,
        request=_read_label("request", given.get("request", "")),
        step=_optional_whole("step", given),
        depth=depth,
    )


def _vocab_size(
    target: RecordedLaw, draft: RecordedLaw | None, largest_token: int
) -> tuple[int, bool]:
    sides = [target] if draft is None else [target, draft]
    full = {side.numbers.size for side in sides if side.ids is None}
    if len(full) > 1:
        raise ValueError(
            f"draft: got {sides[1].numbers.size} tokens and a target with {target.numbers.size}, wanted "
            "equally many"
        )
    largest = [int(side.ids[-1]) for side in sides if side.ids is not None]
    size = min(full) if full else 1 + max(*largest, largest_token)
    if size > MOST_NUMBERS:
        raise ValueError(f"target: got ids up to {size - 1}, wanted ids below {MOST_NUMBERS}")
    return size, bool(full)


def _read_law(side: str, given: Row, default: Processing | None) -> RecordedLaw | None:
    """Read one side of a row, None where it has none; ValueError for fields that do not fit together."""
    kinds = [kind for kind in ("logits", "probs") if f"{side}_{kind}" in given]
    if len(kinds) > 1:
        raise ValueError(f"{side}_logits: got it beside {side}_probs, wanted one of the two")
    if not kinds:
        return None
    name, is_logits = f"{side}_{kinds[0]}", kinds[0] == "logits"
    recorded = _read_numbers(name, given[name])
    values, ids = recorded.values, None
    if f"{side}_ids" in given:
        ids = _read_ids(f"{side}_ids", given[f"{side}_ids"])
        order = _order_of_ids(f"{side}_ids", ids, values.size)
        values, ids = values[order], ids[order]
    processing = _processing(side, is_logits, given, default)
    return RecordedLaw(values, is_logits, recorded.tolerance, processing, ids)


def _order_of_ids(name: str, ids: IntArray, size: int) -> IntArray:
    if ids.size != size:
        raise ValueError(f"{name}: got {ids.size} ids for {size} numbers")
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    if ascending[0] < 0 or (np.diff(ascending) == 0).any():
        raise ValueError(f"{name}: got a negative or a repeated id, wanted distinct ids ≥ 0")
    return order


def _processing(side: str, is_logits: bool, given: Row, default: Processing | None) -> Processing:
    own = [f"{side}_{name}" for name in _WARPERS if f"{side}_{name}" in given]
    if not is_logits and (own or default is not None):
        raise ValueError(
            f"{own[0] if own else side + '_processing'}: got a processing of {side}_probs, wanted "
            f"{side}_logits with it: probabilities are taken as they are"
        )
    if own and default is not None:
        raise ValueError(f"{own[0]}: got it in the row and for the whole file, wanted one of them")
    if not own:
        return default or Processing()
    temperature = _optional_number(f"{side}_temperature", given)
    top_k = _optional_whole(f"{side}_top_k", given)
    return Processing(
        temperature=1.0 if temperature is None else temperature,
        # Engines write 0 or −1 for no truncation.
        top_k=None if top_k is None or top_k <= 0 else top_k,
        top_p=_optional_number(f"{side}_top_p", given),
        min_p=_optional_number(f"{side}_min_p", given),
    )


def _read_numbers(name: str, value: Any) -> RecordedNumbers:
    """Return real numbers (V,) with their tolerance, or raise ValueError; NaN and infinity pass."""
    if isinstance(value, RecordedNumbers):
        return RecordedNumbers(_vector(name, value.values, "fiu"), value.tolerance)
    array = _vector(name, value, "fiu")
    if "bfloat16" in str(getattr(value, "dtype", "")):
        return RecordedNumbers(array, BFLOAT16_TOLERANCE)
    has_type = hasattr(value, "dtype")
    return RecordedNumbers(array, sum_tolerance(array.dtype) if has_type else _DECIMAL_TOLERANCE)


def _read_ids(name: str, value: Any) -> IntArray:
    """Return token ids (n,) as int64, or raise ValueError."""
    if isinstance(value, list | tuple) and not value:
        return np.empty(0, np.int64)
    return _vector(name, value, "iu", at_least=0).astype(np.int64)


def _read_label(name: str, value: Any) -> str:
    """Return a text or a whole number as a text, or raise ValueError."""
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name}: got {type(value).__name__}, wanted a text or a whole number")
    text = str(value)
    if len(text) > _LONGEST_LABEL:
        raise ValueError(f"{name}: got {len(text)} characters, wanted at most {_LONGEST_LABEL}")
    return text


def _optional_whole(name: str, given: Row) -> int | None:
    """Return a whole number of a row, None where it is lacking."""
    value = _scalar(given.get(name))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError(f"{name}: got {_shown(value)}, wanted a whole number")
    return value


def _optional_number(name: str, given: Row) -> float | None:
    """Return a number of a row, None where it is lacking or NaN."""
    value = _scalar(given.get(name))
    if value is None or value != value:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise ValueError(f"{name}: got {_shown(value)}, wanted a finite number")
    return float(value)


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _vector(name: str, value: Any, kinds: str, at_least: int = 1) -> NDArray:
    wanted = "whole numbers" if kinds == "iu" else "numbers"
    value = as_array(name, value)
    if not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{name}: got {_shown(value)}, wanted a list of {wanted}")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        told = f"{name}: got rows of different lengths, wanted a list of {wanted}"
        raise ValueError(told) from error
    if array.ndim != 1 or array.size < at_least or (array.size and array.dtype.kind not in kinds):
        raise ValueError(
            f"{name}: got {array.dtype} of shape {array.shape}, wanted a list of {wanted}"
        )
    if array.size > MOST_NUMBERS:
        raise ValueError(f"{name}: got {array.size} numbers, wanted at most {MOST_NUMBERS}")
    return array


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
