"""Next-token distributions: their validation, and probabilities from logits.

All other modules work on float64 arrays of shape (…, V) that :func:`validate_probs` has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.kernel import REASSOCIATE, in_threads, kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_LARGEST_INDEX = 2**63 - 1
# A sum over the vocabulary this close to 1 differs by rounding alone, and is not divided out.
_ROUNDING = 64 * float(np.finfo(float).eps)
_LOGITS = "otmd.probs_from_logits turns logits into probabilities"
# A long chain of additions loses digits, so numbers are summed in parts of this many.
_SUMMED_AT_ONCE = 1024


def wrong(name: object, got: object, expected: object) -> ValueError:
    """The ValueError of an argument, a file or a field: its name, what was given, and what is valid."""
    return ValueError(f"{name}: got {got}, expected {expected}")


def wrong_type(name: object, value: object, expected: object) -> TypeError:
    """The TypeError of an argument: its name, the type of what was given, and what is valid."""
    what = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return TypeError(f"{name}: got {what}, expected {expected}")


def validate_probs(name: str, value: ArrayLike, copy: bool = True) -> FloatArray:
    """Check next-token distributions and return them in float64, summing to 1.

    Parameters
    ----------
    name : str
        The name of the argument, for the error message.
    value : array_like, shape (…, V)
        A torch tensor may be on any device and of any float dtype.
    copy : bool
        Whether the result must not share memory with ``value``.

    Returns
    -------
    ndarray of float64, shape (…, V)
        A sum that differs from 1 by more than rounding, and by at most :func:`sum_tolerance` of the
        input's dtype, is divided out. A larger difference is an error. No probability is above 1.

    Raises
    ------
    ValueError
        For NaN, infinity, negative mass, an empty vocabulary, or a sum further from 1 than the dtype's
        tolerance.
    TypeError
        For anything but real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import otmd
    >>> otmd.validate_probs("draft_probs", [1, 0, 0])
    array([1., 0., 0.])
    >>> rounded = np.array([0.1, 0.2, 0.7], dtype=np.float16)
    >>> float(rounded.astype(float).sum()) == 1.0
    False
    >>> round(float(otmd.validate_probs("draft_probs", rounded).sum()), 12)
    1.0
    """
    array = as_real_array(name, value)
    # NumPy has no bfloat16, so a tensor of that type comes as float32.
    dtype = "torch.bfloat16" if _is_bfloat16(value) else array.dtype
    is_float = array.dtype in (np.float32, np.float64)
    rows = np.ascontiguousarray(array if is_float else in_float64(array))
    rows = rows.reshape(-1, array.shape[-1])
    shared = np.may_share_memory(rows, array)
    in_double = rows.dtype == np.float64
    # A read-only array is copied, since Numba would compile the kernels once more for it.
    kept = in_double and not (shared and (copy or not array.flags.writeable))
    probs = rows if kept else np.empty(rows.shape)
    totals = np.empty(len(rows))
    differences = [(0.0, False)]
    no_copies = np.empty((0, 0))

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        differences.append(_sum_rows(rows[part], totals[part], no_copies if kept else probs[part]))

    in_threads(work, *rows.shape)
    worst = max(difference for difference, _ in differences)
    if worst > sum_tolerance(dtype):
        _refuse(name, rows.reshape(array.shape), totals, dtype)
    if worst > _ROUNDING:
        totals[np.abs(totals - 1.0) <= _ROUNDING] = 1.0
        divided = np.empty(rows.shape) if kept and shared else probs
        in_threads(lambda a, b: np.divide(probs[a:b], totals[a:b, None], divided[a:b]), *rows.shape)
        probs = divided
    if any(above for _, above in differences):
        # An entry is above its row's sum in no case, so only one that is 1 but for rounding is changed.
        probs = np.minimum(probs, 1.0)
    return probs.reshape(array.shape)


@kernel(fastmath=REASSOCIATE)
def _sum_part(values, copy):
    """Sum of some numbers, NaN where one is negative, and how many are above 1; copies them as well."""
    total = 0.0
    negative = 0
    above = 0
    for y in range(values.size):
        value = np.float64(values[y])
        copy[y] = value
        total += value
        negative += 1 if value < 0.0 else 0
        above += 1 if value > 1.0 else 0
    return np.nan if negative > 0 else total, above


@kernel()
def _sum_rows(values, totals, copies):
    """Fill the sums (B,) of the rows of values (B, V), NaN for a row with a negative number; copy the rows.

    ``copies`` is of shape (B, V), or (0, 0) if no copies are made. Returns the largest difference between a
    sum and 1, inf if a sum is NaN; and whether a number is above 1.
    """
    worst = 0.0
    any_above = False
    scratch = np.empty(_SUMMED_AT_ONCE)
    for b in range(values.shape[0]):
        row = values[b]
        total = 0.0
        for start in range(0, row.size, _SUMMED_AT_ONCE):
            copy = copies[b, start : start + _SUMMED_AT_ONCE] if copies.size else scratch
            part, above = _sum_part(row[start : start + _SUMMED_AT_ONCE], copy)
            total += part
            any_above = any_above or above > 0
        totals[b] = total
        # A comparison with NaN is false.
        worst = max(worst, abs(total - 1.0)) if abs(total) < np.inf else np.inf
    return worst, any_above


def _refuse(name: str, array: NDArray, totals: FloatArray, dtype: Any) -> NoReturn:
    """Raise ValueError with the first NaN, infinite or negative number, else with the worst sum."""
    with np.errstate(invalid="ignore"):
        _refuse_any(name, array, ~np.isfinite(array), f"finite numbers ≥ 0 ({_LOGITS})")
        _refuse_any(name, array, array < 0, f"numbers ≥ 0 ({_LOGITS})")
    worst = float(totals[np.abs(totals - 1.0).argmax()])
    expected = f"1 within {sum_tolerance(dtype):.1e}, the tolerance of its dtype {dtype}"
    advice = f"divide by the sum; {_LOGITS}"
    raise wrong(name, f"a distribution that sums to {worst!r}", f"{expected} ({advice})")


def _refuse_any(name: str, array: NDArray, bad: BoolArray, expected: str) -> None:
    """Raise ValueError with the first of the bad numbers, if there are any."""
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise wrong(name, f"{array[where]} at index {where}", expected)


@cache
def sum_tolerance(dtype: Any) -> float:
    """The largest difference of a vocabulary's sum from 1: √eps of the dtype, as in NumPy's ``choice``.

    It is 1.5e-8 for float64 and integers, 3.5e-4 for float32, 3.1e-2 for float16, 8.8e-2 for bfloat16.
    """
    if str(dtype) == "torch.bfloat16":
        return 2.0**-3.5
    floating = dtype if dtype.kind == "f" else np.dtype(np.float64)
    return float(np.sqrt(np.finfo(floating).eps))


def as_real_array(name: str, value: ArrayLike) -> NDArray:
    """Return ``value`` as an array of real numbers over a vocabulary; errors are under that name."""
    if isinstance(value, np.ma.MaskedArray):
        # NumPy would read the numbers under the mask.
        raise wrong_type(name, value, "an array without a mask, such as its .filled(0)")
    try:
        array = np.asarray(from_tensor(value))
    except ValueError as reason:
        raise wrong(name, "rows of different lengths", "(…, V)") from reason
    except (TypeError, NotImplementedError) as reason:
        # A sparse tensor, one without data, or one of a dtype that NumPy does not have.
        raise wrong_type(name, value, f"real numbers in a dense array ({reason})") from reason
    if array.dtype.kind not in "fiub":
        expected = "real numbers (float16, float32 or float64)"
        if array.dtype == object:
            fractions = any(isinstance(number, Fraction) for number in array.flat)
            expected += "; otmd.exact takes fractions" if fractions else ""
        if array.dtype == object and not isinstance(value, np.ndarray):
            raise wrong_type(name, value, expected)
        raise TypeError(f"{name}: got dtype {array.dtype}, expected {expected}")
    if array.ndim == 0 or array.shape[-1] == 0:
        raise wrong(name, f"shape {array.shape}", "(…, V) with at least one token in V")
    return array


def from_tensor(value: Any) -> Any:
    """Return a torch tensor as an array on the CPU, bfloat16 as float32; return anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if _is_bfloat16(tensor) else tensor).numpy()


def _is_bfloat16(value: Any) -> bool:
    # NumPy takes microseconds to name a dtype.
    return hasattr(value, "detach") and str(value.dtype) == "torch.bfloat16"


def in_float64(array: NDArray) -> FloatArray:
    """The same numbers in float64. Those beyond it become infinite; callers refuse both infinity and NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float64)


def accumulated(mass: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, … V numbers, added in extended precision where the machine has it."""
    sums = np.zeros((*mass.shape[:-1], mass.shape[-1] + 1))
    sums[..., 1:] = np.cumsum(mass, axis=-1, dtype=np.longdouble)
    return sums


def validate_same_vocabulary(
    target_probs: NDArray, vocab_size: int, batch_shape: tuple[int, ...] = ()
) -> None:
    """Raise ValueError unless ``target_probs`` fits drafts over V tokens with these leading axes."""
    if target_probs.shape[-1] != vocab_size:
        tokens = f"{target_probs.shape[-1]} tokens"
        raise wrong("target_probs", tokens, f"{vocab_size}, the vocabulary of the drafts")
    if not batch_shape:
        return
    try:
        np.broadcast_shapes(target_probs.shape[:-1], batch_shape)
    except ValueError as reason:
        expected = f"some that broadcast against {batch_shape}, those of the drafts"
        raise wrong("target_probs", f"leading axes {target_probs.shape[:-1]}", expected) from reason


def broadcast_index(index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Turn an index into broadcast leading axes into one for the array's own leading axes ``shape``."""
    trailing = index[len(index) - len(shape) :]
    return tuple(0 if n == 1 else i for i, n in zip(trailing, shape, strict=True))


def validate_tol(tol: object) -> float:
    """Return the tolerance of a rate, at most 1; TypeError or ValueError unless it is a positive number."""
    number = validate_real("tol", tol)
    if not number > 0.0:
        raise wrong("tol", repr(tol), "a positive number")
    return min(number, 1.0)


def validate_count(name: str, value: object, minimum: int = 1, maximum: int = _LARGEST_INDEX) -> int:
    """Return a whole number as an int; TypeError for anything else, ValueError outside the range."""
    # int comes first: Python takes longer for an abstract class.
    if isinstance(value, bool) or not isinstance(value, (int, Integral)):
        raise wrong_type(name, value, f"a whole number ≥ {minimum}")
    if value < minimum:
        raise wrong(name, repr(value), f"a whole number ≥ {minimum}")
    if int(value) > maximum:
        raise wrong(name, repr(value), f"a whole number ≤ {maximum}")
    return int(value)


def validate_counts(name: str, value: object) -> list[int]:
    """Return one whole number ≥ 1, or several, as a list of ints; errors as in :func:`validate_count`."""
    numbers = value.tolist() if isinstance(value, np.ndarray) else value
    numbers = numbers if isinstance(numbers, Iterable) else [numbers]
    return [validate_count(name, number) for number in numbers]


def validate_real(name: str, value: object, expected: str = "a number") -> float:
    """Return a real number as a float; TypeError for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(name, value, expected)
    try:
        with np.errstate(over="ignore"):
            return float(value)
    except OverflowError:
        return np.inf


# The steps from logits to probabilities, in the order in which engines apply them.
ORDERS = {
    "transformers": ("temperature", "top_k", "top_p", "min_p"),
    "vllm": ("temperature", "min_p", "top_k", "top_p"),
    "llama.cpp": ("top_k", "top_p", "min_p", "temperature"),
    "sglang": ("temperature", "top_k", "top_p", "min_p"),
}


@dataclass(frozen=True)
class Processing:
    """The steps from logits to the probabilities that a model samples from.

    Each cut sees the distribution that the steps before it left, renormalised. Calling the object with logits
    of shape (…, V) returns float64 probabilities of the same shape.

    Parameters
    ----------
    temperature : float
        Logits are divided by it. 0 means all mass on the largest logit, ties to the lowest id.
    top_k : int, optional
        Keep the k largest logits, and every logit that ties with the k-th.
    top_p : float, optional
        Keep the smallest set of most likely tokens whose mass reaches ``top_p``; always one token. Of logits
        that tie at the edge, those with the highest ids are kept, as transformers does where torch's sort is
        stable.
    min_p : float, optional
        Keep the tokens with at least ``min_p`` times the most likely token's probability.
    order : str or sequence of str
        The order of the steps: that of an engine, ``"transformers"``, ``"vllm"``, ``"llama.cpp"`` or
        ``"sglang"``, or ``temperature``, ``top_k``, ``top_p`` and ``min_p`` as a list or separated by commas.
        It is kept as a text, and as ``"transformers"`` where nothing is cut.

    Raises
    ------
    ValueError
        For a parameter outside its range; when called, for logits that hold NaN or +inf, or no
        finite logit at all. −inf marks a token that cannot be sampled.
    TypeError
        For a parameter that is no number, and for logits that are not real numbers.

    Notes
    -----
    From the sources of transformers 5 (``GenerationMixin._get_logits_processor``), vLLM's V1 sampler (min-p
    before top-k and top-p), llama.cpp's default chain of samplers (temperature last) and SGLang's
    verification of drafts. Without speculative decoding and min-p, SGLang applies top-k and top-p to the same
    probabilities: ``("temperature", "top_p", "top_k", "min_p")``.

    Examples
    --------
    >>> import otmd
    >>> otmd.Processing(temperature=0.5, top_k=2)([2.0, 1.0, 0.0]).round(4)
    array([0.8808, 0.1192, 0.    ])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    order: str | Sequence[str] = "transformers"

    def __post_init__(self) -> None:
        if not 0 <= validate_real("temperature", self.temperature) < np.inf:
            raise wrong("temperature", repr(self.temperature), "a finite number ≥ 0")
        if self.top_k is not None:
            validate_count("top_k", self.top_k)
        for name, share in {"top_p": self.top_p, "min_p": self.min_p}.items():
            if share is not None and not 0 <= validate_real(name, share) <= 1:
                raise wrong(name, repr(share), "a number in [0, 1] or None")
        order = _validate_order(self.order)
        cuts = (self.top_k, self.top_p, self.min_p)
        vars(self)["order"] = "transformers" if cuts == (None, None, None) else order

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the four steps in order."""
        order = str(self.order)
        return ORDERS.get(order) or tuple(order.split(","))

    def cut_to(self, top_k: int | None) -> Processing:
        """The processing that keeps no more than the k most likely tokens; None is no limit.

        Examples
        --------
        >>> import otmd
        >>> otmd.Processing(top_k=40).cut_to(10).top_k
        10
        """
        counts = [count for count in (self.top_k, top_k) if count]
        return replace(self, top_k=min(counts, default=None))

    def __call__(self, logits: ArrayLike) -> FloatArray:
        """Turn logits (…, V) into float64 probabilities (…, V)."""
        scores = in_float64(as_real_array("logits", logits))
        _refuse_any("logits", scores, np.isnan(scores) | (scores == np.inf), "numbers below +inf")
        if (scores.max(axis=-1) == -np.inf).any():
            raise wrong("logits", "a row of −inf alone", "at least one finite logit")
        if self.temperature == 0:
            best = scores.argmax(axis=-1, keepdims=True)
            return (np.arange(scores.shape[-1]) == best).astype(np.float64)
        with np.errstate(over="ignore"):
            scores -= scores.max(axis=-1, keepdims=True)
            for name in self.steps:
                if (value := getattr(self, name)) is not None:
                    _STEPS[name](scores, value)
        return _softmax(scores)


def probs_from_logits(
    logits: ArrayLike,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    order: str | Sequence[str] = "transformers",
) -> FloatArray:
    """Turn logits into float64 probabilities (…, V); ``Processing(…)(logits)`` in one call.

    Parameters
    ----------
    logits : array_like, shape (…, V)
        Raw scores; −inf marks a token that cannot be sampled.
    temperature, top_k, top_p, min_p, order
        See :class:`Processing`, for errors as well.

    Returns
    -------
    ndarray of float64, shape (…, V)
        The probabilities.

    Examples
    --------
    >>> import otmd
    >>> otmd.probs_from_logits([2.0, 1.0, 0.0], top_p=0.9).round(4)
    array([0.7311, 0.2689, 0.    ])
    """
    return Processing(temperature, top_k, top_p, min_p, order)(logits)


def ties_at_edge(logits: FloatArray, probs: FloatArray) -> IntArray:
    """Tokens that tie at the edge of a cut, those that it keeps included, if it cuts some of them off.

    ``probs`` (V,) is the :class:`Processing` of ``logits`` (V,). At temperature 0 the edge is the largest
    logit. Engines differ in which of these tokens they keep.
    """
    kept: BoolArray = probs > 0
    cut = ~kept & (logits >= logits[kept].min())
    return np.flatnonzero(cut | (probs == probs[kept].min())) if cut.any() else np.empty(0, np.int64)


def _validate_order(order: object) -> str:
    """Return an order of the steps as a text: the name of an engine, or the steps separated by commas."""
    if isinstance(order, str) and order in ORDERS:
        return order
    expected = f"one of {', '.join(ORDERS)}, or {', '.join(ORDERS['transformers'])} in any order"
    if not isinstance(order, (str, list, tuple)):
        raise wrong_type("order", order, expected)
    names = [str(name).strip() for name in (order.split(",") if isinstance(order, str) else order)]
    if sorted(names) != sorted(ORDERS["transformers"]):
        raise wrong("order", f"{order!r:.100}", expected)
    return ",".join(names)


def _softmax(scores: FloatArray) -> FloatArray:
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    return probs


def _divide(scores: FloatArray, temperature: float) -> None:
    scores /= float(temperature)


def _keep_top_k(scores: FloatArray, top_k: int) -> None:
    if top_k < scores.shape[-1]:
        kth = scores.shape[-1] - top_k
        scores[scores < np.partition(scores, kth, axis=-1)[..., kth, None]] = -np.inf


def _keep_top_p(scores: FloatArray, top_p: float) -> None:
    if top_p >= 1:
        return
    # A stable sort: of tokens that tie, those of the lowest ids are removed first.
    ascending = np.argsort(scores, axis=-1, kind="stable")
    mass = np.take_along_axis(_softmax(scores), ascending, axis=-1).cumsum(axis=-1)
    removed = mass <= 1.0 - float(top_p)
    removed[..., -1] = False
    mask = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(mask, ascending, removed, axis=-1)
    scores[mask] = -np.inf


def _keep_min_p(scores: FloatArray, min_p: float) -> None:
    probs = _softmax(scores)
    scores[probs < float(min_p) * probs.max(axis=-1, keepdims=True)] = -np.inf


_STEPS: dict[str, Callable[[FloatArray, Any], None]] = {
    "temperature": _divide,
    "top_k": _keep_top_k,
    "top_p": _keep_top_p,
    "min_p": _keep_min_p,
}
