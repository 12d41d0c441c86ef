"""Values of a recorded row, checked: what JSON, Parquet and arrays call by many types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otmd.checked_rows import sum_tolerance
from otmd.probabilities import IntArray

MOST_NUMBERS = 1 << 22
"""The largest vocabulary that is read."""
_LONGEST_LABEL = 1000
# Decimal numbers have no dtype; those of engines were float32 before they were printed.
_DECIMAL_TOLERANCE = sum_tolerance(np.dtype(np.float32))


@dataclass(frozen=True, eq=False)
class RecordedNumbers:
    """Numbers (V,) with how far from 1 their sum may be, by the type in which they were recorded."""

    values: NDArray
    tolerance: float


def read_numbers(name: str, value: Any) -> RecordedNumbers:
    """Return real numbers (V,) with their tolerance, or raise ValueError; NaN and infinity pass."""
    if isinstance(value, RecordedNumbers):
        return RecordedNumbers(_vector(name, value.values, "fiu"), value.tolerance)
    array = _vector(name, value, "fiu")
    own = isinstance(value, np.ndarray)
    return RecordedNumbers(array, sum_tolerance(array.dtype) if own else _DECIMAL_TOLERANCE)


def read_ids(name: str, value: Any) -> IntArray:
    """Return token ids (n,) as int64, or raise ValueError."""
    if isinstance(value, list | tuple) and not value:
        return np.empty(0, np.int64)
    return _vector(name, value, "iu", at_least=0).astype(np.int64)


def read_label(name: str, value: Any) -> str:
    """Return a text or a whole number as a text, or raise ValueError."""
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name}: got {type(value).__name__}, wanted a text or a whole number")
    text = str(value)
    if len(text) > _LONGEST_LABEL:
        raise ValueError(f"{name}: got {len(text)} characters, wanted at most {_LONGEST_LABEL}")
    return text


def optional_whole(name: str, given: Mapping[str, Any]) -> int | None:
    """Return a whole number of a row, None where it is lacking."""
    value = _scalar(given.get(name))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError(f"{name}: got {_shown(value)}, wanted a whole number")
    return value


def optional_number(name: str, given: Mapping[str, Any]) -> float | None:
    """Return a number of a row, None where it is lacking or NaN."""
    value = _scalar(given.get(name))
    if value is None or value != value:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise ValueError(f"{name}: got {_shown(value)}, wanted a finite number")
    return float(value)


def _scalar(value: Any) -> Any:
    is_numpy = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if is_numpy else value


def _vector(name: str, value: Any, kinds: str, at_least: int = 1) -> NDArray:
    wanted = "whole numbers" if kinds == "iu" else "numbers"
    if not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{name}: got {_shown(value)}, wanted a list of {wanted}")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name}: got rows of different lengths, wanted a list of {wanted}") from (
            error
        )
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
