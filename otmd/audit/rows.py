"""The rows of a recorded run, checked: one for each position of each step."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.audit.source import Fields
from otmd.probabilities import (
    FloatArray,
    IntArray,
    Processing,
    from_tensor,
    in_float64,
    sum_tolerance,
    ties_at_edge,
    wrong,
)
from otmd.storage.files import shortened

# Stands for the output token of a position that was not reached.
NOT_DECIDED = -1
MOST_ROWS = 2_000_000
# The largest vocabulary that is read.
MOST_NUMBERS = 1 << 22
DEEPEST = 10_000
LONGEST_LABEL = 1000
_WARPERS = ("temperature", "top_k", "top_p", "min_p", "order")
# Endings of the names of fields with a number for each token, or for each of the ids.
PER_TOKEN = ("logits", "probs", "ids")
FIELDS = (
    *(f"{side}_{name}" for side in ("target", "draft") for name in (*PER_TOKEN, *_WARPERS)),
    *("draft_tokens", "output_token", "request", "step", "depth", "ended", "context"),
)
# Names of settings that engines have, and that no field stands for.
_CHANGED = re.compile("penalt|bias")
_NO_TOKENS = np.empty(0, np.int64)


class Side(NamedTuple):
    """The target or the draft of a row: probabilities (V,), None if they are missing or at fault.

    ``fault`` is a kind of :data:`~otmd.audit.claims.FAULTS` without its side, "" for none. ``logits`` (V,)
    are −∞ for tokens that are not listed, None if probabilities were recorded. Where a cut splits tokens of
    equal logits, ``ties`` are all of these tokens: the engine chose which of them it kept. At temperature 0
    they are the tokens of the largest logit. ``listed`` is the mass of the ids if the numbers are
    (log-)probabilities and those of all tokens are needed, else at least 1. ``unit`` is 2 for logits that
    look like probabilities, 1 for those of which one is 1 and the others 0, else 0.
    """

    probs: FloatArray | None = None
    fault: str = ""
    logits: FloatArray | None = None
    ties: IntArray = _NO_TOKENS
    listed: float = 1.0
    unit: int = 0


class Row(NamedTuple):
    """One row, with its number from 1: in a ``.jsonl`` file, the number of the line.

    V is the vocabulary of a full row (``is_full``), else large enough for every token named. The output token
    may be :data:`NOT_DECIDED`. ``context`` is "" if it is not recorded.
    """

    number: int
    vocab_size: int
    is_full: bool
    target: Side
    draft: Side
    draft_tokens: IntArray
    output_token: int
    request: str
    step: int | None
    depth: int
    ended: bool = False
    context: str = ""


def read_row(number: int, fields: Fields, name: str, processings: Mapping[str, Processing | None]) -> Row:
    """Check a row. ``processings`` has that of the logits by side.

    A ValueError names the source (``name``), the row and the field.
    """
    try:
        return _read(number, _given(fields), processings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: row {number}: {error}") from error


def _read(number: int, given: Fields, processings: Mapping[str, Processing | None]) -> Row:
    sides = {side: _read_side(side, given, processings.get(side)) for side in ("target", "draft")}
    if not sides["target"][2]:
        raise wrong("target_probs", "nothing", "target_probs or target_logits")
    tokens = read_ids("draft_tokens", given.get("draft_tokens", ()))
    # Rows of an array have equal lengths: −1 stands for no token.
    tokens = tokens[tokens != NOT_DECIDED]
    output = _number("output_token", given, NOT_DECIDED, integer=True)
    depth = _number("depth", given, 0, integer=True)
    if not 0 <= depth <= DEEPEST:
        raise wrong("depth", depth, f"a whole number from 0 to {DEEPEST}")
    ended = _scalar(given.get("ended", False))
    if not isinstance(ended, bool):
        raise wrong("ended", shortened(repr(ended)), "true or false")
    size, is_full = _vocab_size(sides, max(output, int(tokens.max(initial=0))))
    target, draft = (_over_all_tokens(side, ids, size) for side, ids, _ in sides.values())
    return Row(
        number=number,
        vocab_size=size,
        is_full=is_full,
        target=target,
        draft=draft,
        draft_tokens=tokens,
        output_token=output,
        request=_label("request", given),
        step=_number("step", given, None, integer=True),
        depth=depth,
        ended=ended,
        context=_label("context", given),
    )


def _given(fields: Fields) -> Fields:
    """The fields of a row that are not null; ValueError for an unknown one."""
    given = {name: value for name, value in fields.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - set(FIELDS))):
        hint = "record logits after penalties and biases; " if _CHANGED.search(unknown[0]) else ""
        raise wrong(shortened(unknown[0]), "an unknown field", hint + ", ".join(FIELDS))
    return given


def _vocab_size(sides: dict[str, tuple[Side, IntArray | None, int]], largest_token: int) -> tuple[int, bool]:
    """V, and whether a side has all tokens."""
    full = {name: size for name, (_, ids, size) in sides.items() if size and ids is None}
    if len(set(full.values())) > 1:
        shorter = min(full, key=lambda name: full[name])
        sizes = f"{full['draft']} tokens and a target with {full['target']}"
        raise wrong("draft", sizes, f"equally many, or {shorter}_ids: the ids of its tokens")
    largest = max(size for _, _, size in sides.values())
    size = min(full.values()) if full else max(largest, 1 + largest_token)
    if size > MOST_NUMBERS:
        raise wrong("target", f"ids up to {size - 1}", f"ids below {MOST_NUMBERS}")
    return size, bool(full)


def _read_side(side: str, given: Fields, default: Processing | None) -> tuple[Side, IntArray | None, int]:
    """A side over its listed tokens, their ascending ids (None for all), and the least V, 0 without it."""
    kinds = [kind for kind in ("logits", "probs") if f"{side}_{kind}" in given]
    if len(kinds) > 1:
        raise wrong(f"{side}_logits", f"it and {side}_probs", "one of the two")
    if not kinds:
        return Side(), None, 0
    name = f"{side}_{kinds[0]}"
    values = _vector(name, given[name], "fiu")
    # bfloat16, which NumPy lacks, comes as float32 whose last 16 bits are 0. Decimal numbers have no
    # dtype; those of engines were float32 before they were printed.
    dtype = values.dtype if hasattr(given[name], "dtype") else np.dtype(np.float32)
    if values.dtype == np.float32 and not (values.view(np.uint32) & 0xFFFF).any():
        dtype = "torch.bfloat16"
    processing = _processing(side, kinds[0] == "logits", given, default)
    ids, size = None, values.size
    if f"{side}_ids" in given:
        ids, values = _ascending_ids(f"{side}_ids", given, values)
        size = 1 + int(ids[-1])
    numbers, tolerance = in_float64(values), sum_tolerance(dtype)
    if np.isnan(numbers).any():
        return Side(fault="nan"), ids, size
    if (numbers == np.inf).any():
        return Side(fault="infinite"), ids, size
    if processing is None:
        return _of_probs(numbers, ids is None, tolerance), ids, size
    return _of_logits(numbers, processing, tolerance), ids, size


def _of_probs(numbers: FloatArray, is_full: bool, tolerance: float) -> Side:
    total = float(numbers.sum())
    sums_to_one = abs(total - 1.0) <= tolerance
    listed = 1.0 if is_full or sums_to_one else total
    if (numbers < 0).any():
        return Side(fault="negative", listed=listed)
    return Side(numbers / total, listed=listed) if sums_to_one else Side(fault="sum", listed=listed)


def _of_logits(numbers: FloatArray, processing: Processing, tolerance: float) -> Side:
    if numbers.max() == -np.inf:
        return Side(fault="empty")
    probs = processing(numbers)
    unit = 0
    if numbers.min() >= 0 and numbers.max() <= 1 and abs(numbers.sum() - 1) <= tolerance:
        unit = 1 + int(numbers.max() < 1)
    # The mass of listed log-probabilities is above 1 for other logits, 1 if no other tokens are needed.
    listed = 1.0
    order = processing.steps
    by_mass_first = processing.top_p is not None and order.index("top_p") < order.index("top_k")
    by_rank = processing.top_k is not None and processing.top_k <= numbers.size
    if processing.temperature != 0 and (by_mass_first or not by_rank):
        mass = float(np.exp(np.minimum(numbers, 1.0)).sum())
        listed = 1.0 if abs(mass - 1.0) <= tolerance else mass
    return Side(probs, "", numbers, ties_at_edge(numbers, probs), listed, unit)


def _over_all_tokens(side: Side, ids: IntArray | None, size: int) -> Side:
    """The side over all tokens (V,)."""
    if ids is None or side.fault:
        return side
    assert side.probs is not None
    if ids[-1] >= size:
        return Side(fault="id", listed=side.listed)
    probs = np.zeros(size)
    probs[ids] = side.probs
    logits = None
    if side.logits is not None:
        logits = np.full(size, -np.inf)
        logits[ids] = side.logits
    return side._replace(probs=probs, logits=logits, ties=ids[side.ties])


def refuse_other_units(name: str, side: str, listed: NDArray, unit: NDArray) -> None:
    """Raise ValueError for numbers that are not what they are called, in all rows of a side.

    ``listed`` and ``unit``, both (M,), are those of :class:`Side`. A single row proves nothing: raw logits
    may be below 0, or sum to 1.
    """
    if listed.min() < 1 and listed.max() <= 1:
        raise wrong(
            f"{name}: the {side}",
            f"(log-)probabilities of some tokens (a mass of {listed.min():.3g} in one row, above 1 in none)",
            "those of all tokens with mass, or logits of all V (to raw logits that are ≤ 0 add 100)",
        )
    if looks_like_probabilities(unit):
        raise wrong(f"{name}: {side}_logits", "probabilities in every row", f"logits, or {side}_probs")


def looks_like_probabilities(unit: NDArray) -> bool:
    """Whether all logits are probabilities: ``unit`` (M,) is that of :class:`Side`."""
    return bool((unit > 0).all() and np.count_nonzero(unit == 2) > 2)


def as_kept(tokens: IntArray, side: Side, number: int) -> IntArray:
    """Tokens (n,) of an engine as if its cuts had kept, of the ties of a side, those that have mass here.

    Which tied tokens a cut keeps is the engine's choice, and all that it keeps are equally likely: a random
    one of those with mass, by the number of the row, stands for each. Distinct tokens stay distinct; if too
    many are tied, all remain.
    """
    assert side.probs is not None
    kept = side.ties[side.probs[side.ties] > 0]
    tied = np.intersect1d(tokens, side.ties)
    if not 0 < tied.size <= kept.size:
        return tokens
    rng = np.random.default_rng([*b"otmd.audit.as_kept", number])
    chosen = dict(zip(tied.tolist(), rng.permutation(kept).tolist(), strict=False))
    return np.array([chosen.get(token, token) for token in tokens.tolist()], np.int64)


def mass_of_choice(side: Side) -> float:
    """The largest mass that may lie on other tokens if an engine keeps others of the ties."""
    if side.probs is None:
        return 0.0
    kept = side.ties[side.probs[side.ties] > 0]
    return min(kept.size, side.ties.size - kept.size) * float(side.probs[kept].max(initial=0.0))


def _ascending_ids(name: str, given: Fields, values: NDArray) -> tuple[IntArray, NDArray]:
    """The ids of a side's numbers in ascending order, and the numbers in this order."""
    ids = read_ids(name, given[name])
    if ids.size != values.size:
        raise ValueError(f"{name}: got {ids.size} ids for {values.size} numbers")
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if ids[0] < 0 or (np.diff(ids) == 0).any():
        raise wrong(name, "a negative or a repeated id", "distinct ids ≥ 0")
    return ids, values[order]


def _processing(side: str, is_logits: bool, given: Fields, default: Processing | None) -> Processing | None:
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
    order = given.get(f"{side}_order", "transformers")
    order = order.tolist() if isinstance(order, np.ndarray) else order
    return Processing(_number(f"{side}_temperature", given, 1.0), top_k, top_p, min_p, order)


def read_ids(name: str, value: Any) -> IntArray:
    """Token ids (n,) of a row; ValueError for other values."""
    return _vector(name, value, "iu", at_least=0).astype(np.int64)


def _label(name: str, given: Fields) -> str:
    value = _scalar(given.get(name, ""))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise wrong(name, type(value).__name__, "a text or a whole number")
    if len(text := str(value)) > LONGEST_LABEL:
        raise wrong(name, f"{len(text)} characters", f"at most {LONGEST_LABEL}")
    return text


def _number(name: str, given: Fields, missing: Any, integer: bool = False) -> Any:
    """A number of a row; ``missing`` if it is lacking, or NaN where fractions are allowed."""
    value = _scalar(given.get(name))
    if value is None or (isinstance(value, float) and np.isnan(value) and not integer):
        return missing
    kinds = int if integer else int | float
    most = 2**63 - 1 if integer else 1e300
    if isinstance(value, bool) or not isinstance(value, kinds) or abs(value) > most:
        expected = "a whole number" if integer else "a finite number"
        raise wrong(name, shortened(repr(value)), expected)
    return value if integer else float(value)


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _vector(name: str, value: Any, kinds: str, at_least: int = 1) -> NDArray:
    """Numbers (V,) of one of the kinds of dtypes; ValueError for others. NaN and infinity pass."""
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
