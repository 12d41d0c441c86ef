"""The checked rows of a recorded run: one for each position that has drafts or an output token."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.audit.shards import MOST_NUMBERS, rows_of_shards
from otmd.probabilities import (
    FloatArray,
    IntArray,
    Processing,
    from_tensor,
    in_float64,
    sum_tolerance,
    ties_at_edge,
    wrong,
    wrong_type,
)
from otmd.storage.arrays import read_safetensors
from otmd.storage.files import one_line, parse_json, shortened
from otmd.storage.parquet import read_batches

# Stands for the output token of a position that was not reached.
NOT_DECIDED = -1
# The audit keeps a few hundred bytes of each row.
MOST_ROWS = 2_000_000
# Bytes of a line of JSON: two full rows of 500,000 tokens, with 30 digits each.
LONGEST_LINE = 32 << 20
# Brackets, colons and quotes of a line: each may become a Python object. A sound row has a few dozen.
_MOST_MARKS = 10_000
# Endings of the names of fields that hold lists of numbers.
_VECTORS = ("logits", "probs", "ids", "tokens")
_DEEPEST = 10_000
LONGEST_LABEL = 1000
_WARPERS = ("temperature", "top_k", "top_p", "min_p", "order")
_INTEGERS = ("output_token", "step", "depth", "target_top_k", "draft_top_k")
# Endings of the names of fields with a number for each token, or for each of the ids.
TENSORS = ("logits", "probs", "ids")
FIELDS = (
    *(f"{side}_{name}" for side in ("target", "draft") for name in ("logits", "probs", "ids", *_WARPERS)),
    *("draft_tokens", "output_token", "request", "step", "depth"),
)  # fmt: skip
# Names of settings that engines have, and that no field stands for.
_CHANGED = re.compile("penalt|bias")
_NO_TOKENS = np.empty(0, np.int64)
Row = Mapping[str, Any]
Source = str | Path | Sequence[Row]


class _Side(NamedTuple):
    """The ``size`` probabilities of all tokens, or of ascending ``ids``; or the kind of their fault.

    ``ties`` are those of :func:`~otmd.probabilities.ties_at_edge`. ``listed`` is the mass of the ``ids``
    if the logits are log-probabilities and the processing needs those of all tokens, else at least 1.
    """

    probs: FloatArray | str
    size: int
    ids: IntArray | None
    ties: IntArray
    listed: float


class RecordedSide(NamedTuple):
    """The target or the draft of a row: probabilities (V,), None if they are missing or at fault.

    ``fault`` is a kind of :data:`~otmd.audit.boundary_cases.KINDS` without its side, "" for none. Where a cut
    splits tokens of equal logits, ``ties`` are all of these tokens: the engine chose which of them it kept.
    At temperature 0 they are the tokens of the largest logit. ``listed`` is the mass of the ids if the
    numbers are (log-)probabilities and those of all tokens are needed, else at least 1.
    """

    probs: FloatArray | None = None
    fault: str = ""
    ties: IntArray = _NO_TOKENS
    listed: float = 1.0


class Record(NamedTuple):
    """One row, with its number from 1: in a ``.jsonl`` file, the number of the line.

    V is the vocabulary of a full row (``is_full``), else large enough for every token named. The draft is
    missing if nothing was drafted. The output token may be :data:`NOT_DECIDED`.
    """

    row: int
    vocab_size: int
    is_full: bool
    target: RecordedSide
    draft: RecordedSide
    draft_tokens: IntArray
    output_token: int
    request: str
    step: int | None
    depth: int


def read_records(source: Source, processings: Mapping[str, Processing | None]) -> Iterator[Record]:
    """Read the rows of a file, or of a list of dicts, in order.

    ``processings`` has that of the logits by side. A ValueError names the file, the row and the field.
    """
    return records_of(*numbered_rows(source, "records"), processings)


def numbered_rows(source: Source, name: str) -> tuple[Iterator[tuple[int, Row]], str]:
    """The rows of a source with their numbers from 1, and its name in messages: the path, or ``name``."""
    if isinstance(source, str | Path):
        return _rows_of_file(Path(source)), str(source)
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        return enumerate(source, start=1), name
    raise wrong_type("source", source, "a path or a list of mappings")


def path_of(source: Source) -> Path | None:
    """The path of a file or folder; None for rows."""
    return Path(source) if isinstance(source, str | Path) else None


def records_of(
    rows: Iterable[tuple[int, Row]], name: str, processings: Mapping[str, Processing | None]
) -> Iterator[Record]:
    """Check numbered rows, see :func:`read_records`; ``name`` is that of their source."""
    for number, row in rows:
        if number > MOST_ROWS:
            raise ValueError(f"{name}: got more than {MOST_ROWS} rows: audit them in parts")
        yield record_of(number, row, name, processings)


def record_of(
    number: int, row: Row, name: str, processings: Mapping[str, Processing | None]
) -> Record:
    """Check a numbered row; ``name`` is that of its source."""
    try:
        given = given_fields(row)
        target, draft = (
            _read_side(side, given, processings.get(side)) for side in ("target", "draft")
        )
        return _record(number, given, target, draft)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: row {number}: {error}") from error


def refuse_partial_lists(name: str, least: Iterable[float], most: Iterable[float]) -> None:
    """Raise ValueError if the ids of a side list too little mass: the ``least`` and the ``most`` of all rows.

    Both have the numbers of the target and of the draft.
    """
    for side, smallest, largest in zip(("target", "draft"), least, most, strict=True):
        if smallest < 1 and largest == 1:
            raise wrong(
                f"{name}: the {side}",
                f"(log-)probabilities of some tokens (a mass of {smallest:.3g} in one row, above 1 in none)",
                "those of all tokens with mass, or logits of all V (to raw logits that are ≤ 0 add 100)",
            )


def given_fields(row: Row) -> Row:
    """The fields of a row that are not null; ValueError for an unknown one."""
    given = {name: value for name, value in row.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - set(FIELDS))):
        hint = "record logits after penalties and biases; " if _CHANGED.search(unknown[0]) else ""
        raise wrong(shortened(unknown[0]), "an unknown field", hint + ", ".join(FIELDS))
    return given


def as_recorded(fields: Row) -> dict[str, Any]:
    """The fields of a row as a :class:`~otmd.audit.Recorder` keeps them; ValueError names one at fault.

    Those of :data:`TENSORS` are copied to arrays, lists of fractions to float32. Others are values of JSON.
    """
    row: dict[str, Any] = {}
    for name, value in given_fields(fields).items():
        if name.endswith(TENSORS):
            array = _vector(name, value, "iu" if name.endswith("ids") else "fiu")
            is_list = isinstance(value, list | tuple) and array.dtype.kind == "f"
            row[name] = np.array(array, np.float32 if is_list else None)
        elif name.endswith("tokens"):
            row[name] = read_ids(name, value).tolist()
        elif name == "request":
            row[name] = _read_request(value)
        elif name.endswith("order"):
            row[name] = _read_order(value)
        else:
            row[name] = _number(name, {name: value}, None, integer=name in _INTEGERS)
    return {name: value for name, value in row.items() if value is not None}


def _record(number: int, given: Row, target: _Side | None, draft: _Side | None) -> Record:
    if target is None:
        raise wrong("target_probs", "nothing", "target_probs or target_logits")
    tokens = read_ids("draft_tokens", given.get("draft_tokens", ()))
    # Rows of an array have equal lengths: −1 stands for no token.
    tokens = tokens[tokens != NOT_DECIDED]
    output = _number("output_token", given, NOT_DECIDED, integer=True)
    depth = _number("depth", given, 0, integer=True)
    if not 0 <= depth <= _DEEPEST:
        raise wrong("depth", depth, f"a whole number from 0 to {_DEEPEST}")
    size, is_full = _vocab_size(target, draft, max(output, int(tokens.max(initial=0))))
    return Record(
        row=number,
        vocab_size=size,
        is_full=is_full,
        target=_spread(target, size),
        draft=_spread(draft if tokens.size else None, size),
        draft_tokens=tokens,
        output_token=output,
        request=_read_request(given.get("request", "")),
        step=_number("step", given, None, integer=True),
        depth=depth,
    )


def as_kept(tokens: IntArray, probs: FloatArray, ties: IntArray, row: int) -> IntArray:
    """Tokens (n,) of an engine as if its cuts had kept, of the ``ties``, those that have mass in ``probs``.

    Which tied tokens a cut keeps is the engine's choice, and all that it keeps are equally likely: a random
    one of those with mass, by the number of the row, stands for each. Distinct tokens stay distinct; if too
    many are tied, all remain.
    """
    kept = ties[probs[ties] > 0]
    tied = np.intersect1d(tokens, ties)
    if not 0 < tied.size <= kept.size:
        return tokens
    rng = np.random.default_rng([*b"otmd.audit.as_kept", row])
    chosen = dict(zip(tied.tolist(), rng.permutation(kept).tolist(), strict=False))
    return np.array([chosen.get(token, token) for token in tokens.tolist()], np.int64)


def mass_of_choice(probs: FloatArray, ties: IntArray) -> float:
    """The largest mass that may lie on other tokens if an engine keeps others of the ``ties``."""
    kept = ties[probs[ties] > 0]
    return min(kept.size, ties.size - kept.size) * float(probs[kept].max(initial=0.0))


def _vocab_size(target: _Side, draft: _Side | None, largest_token: int) -> tuple[int, bool]:
    sides = [target] if draft is None else [target, draft]
    full = {side.size for side in sides if side.ids is None}
    if len(full) > 1:
        shorter = "draft" if sides[1].size < target.size else "target"
        sizes = f"{sides[1].size} tokens and a target with {target.size}"
        raise wrong("draft", sizes, f"equally many, or {shorter}_ids: the ids of its tokens")
    largest = [int(side.ids[-1]) for side in sides if side.ids is not None]
    size = min(full) if full else 1 + max(*largest, largest_token)
    if size > MOST_NUMBERS:
        raise wrong("target", f"ids up to {size - 1}", f"ids below {MOST_NUMBERS}")
    return size, bool(full)


def _read_side(side: str, given: Row, default: Processing | None) -> _Side | None:
    """Read one side of a row, None if the row lacks it; ValueError for fields that do not fit together."""
    kinds = [kind for kind in ("logits", "probs") if f"{side}_{kind}" in given]
    if len(kinds) > 1:
        raise wrong(f"{side}_logits", f"it and {side}_probs", "one of the two")
    if not kinds:
        return None
    name = f"{side}_{kinds[0]}"
    values = _vector(name, given[name], "fiu")
    tolerance = _tolerance(given[name], values)
    ids = None
    if f"{side}_ids" in given:
        ids, values = _ascending_ids(f"{side}_ids", given, values)
    processing = _processing(side, kinds[0] == "logits", given, default)
    numbers = in_float64(values)
    probs = _probs(numbers, processing, tolerance)
    if processing is None:
        mass = 1.0 if ids is None else float(numbers.sum())
        listed = mass if abs(mass - 1.0) > tolerance and np.isfinite(mass) else 1.0
        return _Side(probs, values.size, ids, _NO_TOKENS, listed)
    ties = _NO_TOKENS
    listed = 1.0
    if not isinstance(probs, str):
        ties = ties_at_edge(numbers, probs)
        ties = ties if ids is None else ids[ties]
        listed = _listed_mass(numbers, processing, tolerance)
    return _Side(probs, values.size, ids, ties, listed)


def _tolerance(recorded: Any, values: NDArray) -> float:
    """The rounding error of a sum of probabilities of the type in which they were recorded."""
    # bfloat16, which NumPy lacks, comes as float32 whose last 16 bits are 0.
    if values.dtype == np.float32 and not (values.view(np.uint32) & 0xFFFF).any():
        return sum_tolerance("torch.bfloat16")
    # Decimal numbers have no dtype; those of engines were float32 before they were printed.
    return sum_tolerance(values.dtype if hasattr(recorded, "dtype") else np.dtype(np.float32))


def _ascending_ids(name: str, given: Row, values: NDArray) -> tuple[IntArray, NDArray]:
    """The ids of a side's numbers in ascending order, and the numbers in this order."""
    ids = read_ids(name, given[name])
    if ids.size != values.size:
        raise ValueError(f"{name}: got {ids.size} ids for {values.size} numbers")
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if ids[0] < 0 or (np.diff(ids) == 0).any():
        raise wrong(name, "a negative or a repeated id", "distinct ids ≥ 0")
    return ids, values[order]


def _listed_mass(logits: FloatArray, processing: Processing, tolerance: float) -> float:
    """The mass of listed log-probabilities, above 1 for other logits, 1 if no other tokens are needed."""
    order = processing.steps
    by_mass_first = processing.top_p is not None and order.index("top_p") < order.index("top_k")
    by_rank = processing.top_k is not None and processing.top_k <= logits.size
    if processing.temperature == 0 or (by_rank and not by_mass_first):
        return 1.0
    mass = float(np.exp(np.minimum(logits, 1.0)).sum())
    return 1.0 if abs(mass - 1.0) <= tolerance else mass


def _probs(numbers: FloatArray, of_logits: Processing | None, tolerance: float) -> FloatArray | str:
    """The distribution of the recorded numbers, or the kind of their fault."""
    if np.isnan(numbers).any():
        return "nan"
    if (numbers == np.inf).any():
        return "infinite"
    if of_logits is not None:
        return "empty" if numbers.max() == -np.inf else of_logits(numbers)
    if (numbers < 0).any():
        return "negative"
    total = numbers.sum()
    return "sum" if abs(total - 1.0) > tolerance else numbers / total


def _spread(side: _Side | None, vocab_size: int) -> RecordedSide:
    """The numbers of a side over all tokens (V,)."""
    if side is None:
        return RecordedSide()
    if isinstance(side.probs, str) or (side.ids is not None and side.ids[-1] >= vocab_size):
        fault = side.probs if isinstance(side.probs, str) else "id"
        return RecordedSide(fault=fault, listed=side.listed)
    if side.ids is None:
        return RecordedSide(side.probs, "", side.ties, side.listed)
    probs = np.zeros(vocab_size)
    probs[side.ids] = side.probs
    return RecordedSide(probs, "", side.ties, side.listed)


def _processing(
    side: str, is_logits: bool, given: Row, default: Processing | None
) -> Processing | None:
    in_row = [f"{side}_{name}" for name in _WARPERS if f"{side}_{name}" in given]
    if not is_logits and (in_row or default):
        expected = f"{side}_logits with it: probabilities are used as they are"
        name = in_row[0] if in_row else f"{side}_processing"
        raise wrong(name, f"a processing of {side}_probs", expected)
    if in_row and default:
        raise wrong(in_row[0], "it in the row and for the whole file", "one of them")
    if not in_row:
        return (default or Processing()) if is_logits else None
    # Engines write 0 or −1 for no truncation.
    top_k = max(_number(f"{side}_top_k", given, 0, integer=True), 0) or None
    top_p, min_p = (_number(f"{side}_{name}", given, None) for name in ("top_p", "min_p"))
    order = _read_order(given.get(f"{side}_order", "transformers"))
    return Processing(_number(f"{side}_temperature", given, 1.0), top_k, top_p, min_p, order)


def _read_order(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def read_ids(name: str, value: Any) -> IntArray:
    """Token ids (n,) of a row; ValueError for other values."""
    return _vector(name, value, "iu", at_least=0).astype(np.int64)


def _read_request(value: Any) -> str:
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise wrong("request", type(value).__name__, "a text or a whole number")
    if len(text := str(value)) > LONGEST_LABEL:
        raise wrong("request", f"{len(text)} characters", f"at most {LONGEST_LABEL}")
    return text


def _number(name: str, given: Row, missing: Any, integer: bool = False) -> Any:
    """Return a number of a row; ``missing`` if it is lacking, or NaN where fractions are allowed."""
    value = _scalar(given.get(name))
    if value is None or (isinstance(value, float) and np.isnan(value) and not integer):
        return missing
    kinds = int if integer else int | float
    most = 2**63 - 1 if integer else 1e300
    if isinstance(value, bool) or not isinstance(value, kinds) or abs(value) > most:
        raise wrong(
            name, shortened(repr(value)), "a whole number" if integer else "a finite number"
        )
    return value if integer else float(value)


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _vector(name: str, value: Any, kinds: str, at_least: int = 1) -> NDArray:
    """Return numbers (V,) of one of the kinds, or raise ValueError; NaN and infinity pass."""
    expected = f"a list of {'whole ' if kinds == 'iu' else ''}numbers"
    value = from_tensor(value)
    if not isinstance(value, list | tuple | np.ndarray):
        raise wrong(name, shortened(repr(value)), expected)
    try:
        array = np.asarray(value)
        if array.dtype == object and name.endswith("logits"):
            # JSON has no infinity: null is −∞.
            array = np.asarray([-np.inf if number is None else number for number in array])
    except (ValueError, OverflowError) as error:
        raise wrong(name, "rows of different lengths", expected) from error
    if array.ndim != 1 or array.size < at_least or (array.size and array.dtype.kind not in kinds):
        raise wrong(name, f"{array.dtype} of shape {array.shape}", expected)
    if array.size > MOST_NUMBERS:
        raise wrong(name, f"{array.size} numbers", f"at most {MOST_NUMBERS}")
    return array


def _rows_of_file(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file or folder with their numbers from 1, a few at a time; ValueError if bad."""
    readers = {
        ".jsonl": rows_of_json_lines,
        ".parquet": _rows_of_parquet,
        ".safetensors": _rows_of_safetensors,
    }
    if path.is_dir():
        return rows_of_shards(path)
    if path.suffix not in readers:
        raise wrong(path, f"a {path.suffix!r} file", f"one of {', '.join(readers)}, or a folder")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise wrong(path, "no regular file (a pipe or a device)", "one")
    return readers[path.suffix](path)


def rows_of_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines that are not blank. One longer than :data:`LONGEST_LINE` is refused before it is read in full."""
    with path.open("rb") as stream:
        lines = iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            name = f"{path}: row {number}"
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{name}: got a line of more than {LONGEST_LINE} bytes")
            if not line.strip():
                continue
            try:
                if sum(line.count(mark) for mark in b'[{:"') > _MOST_MARKS:
                    raise ValueError(f"more than {_MOST_MARKS} brackets, colons and quotes")
                row = parse_json(line)
            except ValueError as error:
                fault = "malformed" if line.endswith(b"\n") else "cut short"
                raise ValueError(f"{name}: no JSON, {fault} ({error})") from error
            if not isinstance(row, dict):
                raise wrong(name, type(row).__name__, "a JSON object with the fields")
            yield number, row


def _rows_of_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each column is a field. Fields with a number for each token are columns of lists."""
    number = 0
    for batch in read_batches(path):
        for row in zip(*batch.values(), strict=True):
            number += 1
            try:
                fields = {name: _value(name, x) for name, x in zip(batch, row, strict=True)}
            except (ValueError, OverflowError) as error:
                # A text that is no UTF-8, a date that Python lacks.
                raise ValueError(f"{path}: row {number}: {one_line(error)}") from error
            yield number, fields


def _value(name: str, scalar: Any) -> Any:
    """Convert an Arrow scalar: a list to an array, which may hold objects, others to a Python value."""
    if not (scalar.is_valid and "list" in str(scalar.type).partition("<")[0]):
        return scalar.as_py()
    array = scalar.values.to_numpy(zero_copy_only=False)
    if scalar.values.null_count and name.endswith("logits") and array.dtype.kind == "f":
        array = np.where(scalar.values.is_null().to_numpy(zero_copy_only=False), -np.inf, array)
    return array


def _rows_of_safetensors(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each array is a field, with the rows as its first axis. Arrays are memory-mapped, not loaded."""
    arrays, _ = read_safetensors(path)
    for name, array in arrays.items():
        axes = 2 if name.endswith(_VECTORS) else 1
        shape = array.raw.shape
        if len(shape) != axes or (axes == 2 and not 1 <= shape[1] <= MOST_NUMBERS):
            expected = f"(N, V) with V at most {MOST_NUMBERS}" if axes == 2 else "(N,)"
            raise wrong(f"{path}: {shortened(name)}", f"shape {shape}", expected)
    lengths = {name: len(array.raw) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise wrong(path, f"arrays with {lengths} rows", "equally many")
    for row in range(next(iter(lengths.values()), 0)):
        yield row + 1, {name: array.rows(row) for name, array in arrays.items()}
