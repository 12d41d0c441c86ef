"""Next-token distributions that are checked where they are read."""

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.parallel import in_threads
from otmd.rows import Rows
from otmd.validation import READY, WRONG, check_rows, scale_rows

# A sum of many rounded numbers is 1 for all that anyone can tell.
_ROUNDING = 64 * float(np.finfo(float).eps)
# So many numbers are still in a processor's cache when they have been checked.
_AT_A_TIME = 1 << 18


class CheckedRows:
    """Distributions of positions, each with its own, that are checked where they are read.

    What is done with a block of rows that has just been checked finds it in the processor's cache; a
    check of all of them beforehand would read them twice from memory, and copy those that are not float64.

    Parameters
    ----------
    name : str
        What the argument is called, for the error message.
    value : array_like, shape (…, V)
        Probabilities over the last axis.

    Attributes
    ----------
    array : ndarray, shape (…, V)
        ``value`` in its own dtype.
    rows : ndarray, shape (B, V)
        The same, its leading axes flattened.

    Raises
    ------
    ValueError
        For an empty vocabulary or a non-numeric dtype; when read, for NaN, infinity, negative mass, or
        a sum further from 1 than :func:`sum_tolerance` of the dtype.
    """

    def __init__(self, name: str, value: ArrayLike) -> None:
        self.name = name
        self.array = as_real_array(name, value)
        self.rows = self.array.reshape(-1, self.array.shape[-1])
        self._tolerance = sum_tolerance(self.array.dtype)

    def blocks(self, start: int, stop: int) -> Iterator[tuple[slice, Rows]]:
        """The rows from start to stop, some at a time, in float64 and summing to 1, until the next are."""
        most = min(self._at_a_time(), stop - start)
        number, scaled = np.arange(most), None
        for own in self._slices(start, stop):
            values, totals, state = self._check(own)
            if not (state == READY and _can_be_used(values)):
                # One buffer for all blocks: the first touch of new memory costs more than the rest.
                scaled = np.empty((most, values.shape[1])) if scaled is None else scaled
                scale_rows(values, totals, scaled)
                values = scaled[: len(values)]
            yield own, Rows(values, number[: len(values)])

    def fill(self, probs: NDArray[np.float64]) -> None:
        """Write all rows, in float64 and summing to 1, to an array of the same shape (…, V)."""
        scaled = probs.reshape(self.rows.shape)

        def work(start: int, stop: int) -> None:
            for own in self._slices(start, stop):
                values, totals, _ = self._check(own)
                scale_rows(values, totals, scaled[own])

        in_threads(work, *self.rows.shape)

    def as_they_are(self) -> bool:
        """Whether the array itself holds its distributions in float64 and summing to 1."""
        if not _can_be_used(self.array):
            return False
        off = []

        def work(start: int, stop: int) -> None:
            off.append(self._check(slice(start, stop))[2] != READY)

        in_threads(work, *self.rows.shape)
        return not any(off)

    def _at_a_time(self) -> int:
        return max(1, _AT_A_TIME // self.rows.shape[1])

    def _slices(self, start: int, stop: int) -> Iterator[slice]:
        most = self._at_a_time()
        for first in range(start, stop, most):
            yield slice(first, min(first + most, stop))

    def _check(self, own: slice) -> tuple[NDArray, NDArray[np.float64], int]:
        """Some rows in an array that kernels read, their sums, and what the rows need."""
        values = _readable(self.rows[own])
        totals = np.empty(len(values))
        state = check_rows(values, _ROUNDING, self._tolerance, totals)
        if state == WRONG:
            self._refuse()
        return values, totals, state

    def _refuse(self) -> NoReturn:
        """Raise ValueError with the first number that is not finite or negative, else the worst sum."""
        array = _readable(self.array)
        with np.errstate(invalid="ignore"):
            for wrong, wanted in ((~np.isfinite(array), "finite numbers"), (array < 0, "numbers")):
                if wrong.any():
                    where = tuple(int(i) for i in np.argwhere(wrong)[0])
                    raise ValueError(
                        f"{self.name}: got {array[where]} at index {where}, wanted {wanted} ≥ 0"
                    )
        totals = np.empty(len(self.rows))
        check_rows(array.reshape(self.rows.shape), _ROUNDING, self._tolerance, totals)
        raise ValueError(
            f"{self.name}: got a distribution that sums to {float(totals[np.abs(totals - 1.0).argmax()])!r}, "
            f"wanted 1 within {self._tolerance:.1e}, the tolerance of its dtype {self.array.dtype}"
        )


def sum_tolerance(dtype: np.dtype) -> float:
    """How far from 1 a sum over the vocabulary may lie: √eps of the input's dtype.

    Parameters
    ----------
    dtype : numpy.dtype
        The dtype in which the probabilities came.

    Returns
    -------
    float
        1.5e-8 for float64 and integers, 3.5e-4 for float32, 3.1e-2 for float16 (NumPy's own rule
        in ``Generator.choice``).
    """
    floating = dtype if dtype.kind == "f" else np.dtype(np.float64)
    return float(np.sqrt(np.finfo(floating).eps))


def as_real_array(name: str, value: ArrayLike) -> NDArray:
    """Return ``value`` as an array of real numbers over a vocabulary, or raise ValueError under that name."""
    try:
        array = np.asarray(value)
    except ValueError as reason:
        raise ValueError(f"{name}: got rows of different lengths, wanted (…, V)") from reason
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name}: got dtype {array.dtype}, wanted real numbers (float16, float32 or float64)"
        )
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(
            f"{name}: got shape {array.shape}, wanted (…, V) with at least one token in V"
        )
    return array


def in_float64(array: NDArray) -> NDArray[np.float64]:
    """Return a copy in float64."""
    # A longdouble beyond float64 becomes infinite, which is refused by name.
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float64)


def _readable(array: NDArray) -> NDArray:
    """The same numbers in a contiguous array of float32 or float64."""
    known = array.dtype in (np.float32, np.float64)
    return np.ascontiguousarray(array if known else in_float64(array))


def _can_be_used(array: NDArray) -> bool:
    # Numba would compile every kernel anew for arrays that cannot be written to.
    flags = array.flags
    return array.dtype == np.float64 and flags.writeable and flags.c_contiguous
