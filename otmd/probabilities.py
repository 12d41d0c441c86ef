"""Next-token distributions: what is valid, and how logits become one.

Everything downstream works on float64 arrays of shape (…, V) that passed :func:`validate_probs`.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.checked_rows import CheckedRows, as_real_array, in_float64
from otmd.rows import Rows

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_LARGEST_INDEX = 2**63 - 1


def validate_probs(name: str, value: ArrayLike, copy: bool = True) -> FloatArray:
    """Check next-token distributions and return them in float64, summing to 1.

    Parameters
    ----------
    name : str
        What the argument is called, for the error message.
    value : array_like, shape (…, V)
        Probabilities over the last axis.
    copy : bool
        Whether the answer must be an array of its own, as it must where it is kept.

    Returns
    -------
    ndarray of float64, shape (…, V)
        A deviation of the sum beyond rounding and within :func:`otmd.checked_rows.sum_tolerance` of the
        input's dtype is divided out; anything beyond that is an error, never silently renormalised.

    Raises
    ------
    ValueError
        For NaN, infinity, negative mass, an empty vocabulary, a non-numeric dtype, or a sum
        further from 1 than the dtype's tolerance.
    """
    rows = CheckedRows(name, value)
    if not copy and rows.as_they_are():
        return rows.array
    probs = np.empty(rows.array.shape)
    rows.fill(probs)
    return probs


def target_rows(
    target_probs: ArrayLike, vocab_size: int, draft_batch: tuple[int, ...]
) -> tuple[tuple[int, ...], Rows | CheckedRows]:
    """The target of each position of a batch, to be read block by block.

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p.
    vocab_size : int
        V of the drafts.
    draft_batch : tuple of int
        The leading axes of the drafts, against which p's are broadcast.

    Returns
    -------
    batch : tuple of int
        The leading axes of the positions.
    rows : Rows or CheckedRows
        Checked where they are read if every position has its own, and have been checked if not.

    Raises
    ------
    ValueError
        For p of another vocabulary or leading axes that do not fit; for an invalid distribution, here
        or where it is read.
    """
    own = CheckedRows("target_probs", target_probs)
    validate_same_vocabulary(own.array, vocab_size, draft_batch)
    batch = np.broadcast_shapes(own.array.shape[:-1], draft_batch)
    if len(own.rows) == math.prod(batch):
        return batch, own
    return batch, Rows.of(validate_probs("target_probs", own.array, copy=False), batch)


def validate_same_vocabulary(
    target_probs: NDArray, vocab_size: int, batch_shape: tuple[int, ...] = ()
) -> None:
    """Raise ValueError unless ``target_probs`` has these tokens, and leading axes that fit these."""
    if target_probs.shape[-1] != vocab_size:
        raise ValueError(
            f"target_probs: got {target_probs.shape[-1]} tokens, wanted {vocab_size}, "
            "the vocabulary of the drafts"
        )
    try:
        np.broadcast_shapes(target_probs.shape[:-1], batch_shape)
    except ValueError as reason:
        raise ValueError(
            f"target_probs: got leading axes {target_probs.shape[:-1]}, wanted some that broadcast "
            f"against {batch_shape}, those of the drafts"
        ) from reason


def broadcast_index(index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where an array with these leading axes is read, at an index of axes it is broadcast to."""
    own = index[len(index) - len(shape) :]
    return tuple(0 if n == 1 else i for i, n in zip(own, shape, strict=True))


def validate_count(
    name: str, value: object, minimum: int = 1, maximum: int = _LARGEST_INDEX
) -> int:
    """Return ``value`` as an int, or raise ValueError unless it is a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"{name}: got {value!r}, wanted a whole number ≥ {minimum}")
    if int(value) > maximum:
        raise ValueError(f"{name}: got {value!r}, wanted a whole number ≤ {maximum}")
    return int(value)


def _as_float(value: object) -> float:
    """Return a real number in float64, and NaN for what is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return np.nan
    try:
        with np.errstate(over="ignore"):
            return float(value)
    except OverflowError:
        return np.inf


def _validate_fraction(name: str, value: object) -> None:
    if not 0 <= _as_float(value) <= 1:
        raise ValueError(f"{name}: got {value!r}, wanted a number in [0, 1] or None")


@dataclass(frozen=True)
class Processing:
    """How logits become the probabilities that a model samples from.

    Applied in the order of transformers' generation: temperature, top-k, top-p, min-p. Calling it
    with logits of shape (…, V) returns float64 probabilities of the same shape.

    Parameters
    ----------
    temperature : float
        Logits are divided by it. 0 means all mass on the largest logit, ties to the lowest id.
    top_k : int, optional
        Keep the k largest logits, and every logit that ties with the k-th.
    top_p : float, optional
        Keep the smallest set of likeliest tokens whose mass reaches ``top_p``; always one token.
    min_p : float, optional
        Keep the tokens with at least ``min_p`` times the likeliest token's probability.

    Raises
    ------
    ValueError
        For a parameter outside its range; when called, for logits that hold NaN or +inf, or no
        finite logit at all. −inf marks a token that cannot be sampled.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= _as_float(self.temperature) < np.inf:
            raise ValueError(f"temperature: got {self.temperature!r}, wanted a finite number ≥ 0")
        if self.top_k is not None:
            validate_count("top_k", self.top_k)
        if self.top_p is not None:
            _validate_fraction("top_p", self.top_p)
        if self.min_p is not None:
            _validate_fraction("min_p", self.min_p)

    def __call__(self, logits: ArrayLike) -> FloatArray:
        """Turn logits (…, V) into float64 probabilities (…, V)."""
        scores = _validate_logits(logits)
        if self.temperature == 0:
            probs = np.zeros_like(scores)
            best = scores.argmax(axis=-1, keepdims=True)
            np.put_along_axis(probs, best, 1.0, axis=-1)
            return probs
        with np.errstate(over="ignore"):
            scores -= scores.max(axis=-1, keepdims=True)
            scores /= float(self.temperature)
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            _keep_top_k(scores, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            _keep_top_p(scores, float(self.top_p))
        if self.min_p is not None:
            probs = _softmax(scores)
            scores[probs < float(self.min_p) * probs.max(axis=-1, keepdims=True)] = -np.inf
        return _softmax(scores)


def probs_from_logits(
    logits: ArrayLike,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> FloatArray:
    """Turn logits into float64 probabilities; ``Processing(…)(logits)`` in one call.

    Parameters
    ----------
    logits : array_like, shape (…, V)
        Raw scores; −inf marks a token that cannot be sampled.
    temperature, top_k, top_p, min_p
        See :class:`Processing`.

    Returns
    -------
    ndarray of float64, shape (…, V)

    Raises
    ------
    ValueError
        See :class:`Processing`.
    """
    return Processing(temperature, top_k, top_p, min_p)(logits)


def _validate_logits(logits: ArrayLike) -> FloatArray:
    scores = in_float64(as_real_array("logits", logits))
    bad = np.isnan(scores) | (scores == np.inf)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"logits: got {scores[where]} at index {where}, wanted numbers below +inf")
    if (scores.max(axis=-1) == -np.inf).any():
        raise ValueError("logits: got a row of −inf alone, wanted at least one finite logit")
    return scores


def _softmax(scores: FloatArray) -> FloatArray:
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    return probs


def _keep_top_k(scores: FloatArray, top_k: int) -> None:
    kth = scores.shape[-1] - top_k
    threshold = np.partition(scores, kth, axis=-1)[..., kth : kth + 1]
    scores[scores < threshold] = -np.inf


def _keep_top_p(scores: FloatArray, top_p: float) -> None:
    # Ascending, with the highest id first among equals: ties at the edge keep the lowest ids.
    ascending = np.argsort(-scores, axis=-1, kind="stable")[..., ::-1]
    mass = np.take_along_axis(_softmax(scores), ascending, axis=-1).cumsum(axis=-1)
    removed = mass <= 1.0 - top_p
    removed[..., -1] = False
    mask = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(mask, ascending, removed, axis=-1)
    scores[mask] = -np.inf
