"""The ratio curve of (p, q), from which rates and optima are read.

Sort the tokens by p/q and accumulate both masses: the ROC curve of telling p from q. Its conjugate is
the hockey-stick divergence W(C) = Σ_y (p(y) − C q(y))₊. Every rate for drafts with replacement is a small
function of the curve, for every number of drafts at once.

W needs one pass over the tokens, and no sort. The optimal cut needs the order: all tokens are sorted where
the vocabulary is small, and blocks of them are refined where it is large (:mod:`otmd.curve.blocks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.curve import _kernels
from otmd.curve.blocks import BlockedCurve
from otmd.kernel import in_threads
from otmd.probabilities import (
    BoolArray,
    FloatArray,
    IntArray,
    accumulated,
    validate_count,
    validate_counts,
    validate_probs,
    validate_same_vocabulary,
)


class _Rows:
    """Distributions ``values`` (R, V), and which of them each of B positions has, ``row`` (B,)."""

    def __init__(self, values: FloatArray, batch: tuple[int, ...]) -> None:
        leading = values.shape[:-1]
        self.values = values.reshape(-1, values.shape[-1])
        self.row = np.arange(math.prod(leading))
        if self.row.size != math.prod(batch):
            self.row = np.broadcast_to(self.row.reshape(leading), batch).ravel()


class RatioCurve:
    """The two masses along the tokens sorted by p/q, built once from (p, q).

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p.
    draft_probs : array_like, shape (…, V)
        q; leading axes are broadcast against those of p.

    Attributes
    ----------
    batch_shape : tuple of int
        The leading axes.
    ratio : ndarray, shape (…, V)
        p/q in ascending order, inf where q = 0. Ratios r beyond 2^1020, which may overflow, are replaced by
        2^1020 (r/2^1020)^(1/32).
    order : ndarray of int64, shape (…, V)
        The tokens in that order.
    target_mass, draft_mass : ndarray, shape (…, V + 1)
        p and q of the first k tokens.
    target_tail, draft_tail : ndarray, shape (…, V + 1)
        p and q of all tokens but the first k, summed from the far end.

    Raises
    ------
    ValueError
        For invalid distributions, different vocabularies, or leading axes that do not broadcast.

    Notes
    -----
    The sorted attributes are computed when they are first read.

    Examples
    --------
    >>> import otmd
    >>> curve = otmd.RatioCurve([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])
    >>> curve.ratio, round(curve.hockey_stick(1.0), 6)
    (array([0.4, 1. , 2.5]), 0.3)
    >>> curve.recursive_rejection_rates(2).round(6)
    array([0.7 , 0.76])
    """

    def __init__(self, target_probs: ArrayLike, draft_probs: ArrayLike) -> None:
        q = validate_probs("draft_probs", draft_probs, copy=False)
        p = validate_probs("target_probs", target_probs, copy=False)
        validate_same_vocabulary(p, q.shape[-1], q.shape[:-1])
        self._set(p, q)

    @classmethod
    def unchecked(cls, target: FloatArray, draft: FloatArray) -> Self:
        """The curve of distributions that are known to be valid; they need not sum to 1."""
        curve = cls.__new__(cls)
        curve._set(target, draft)
        return curve

    def _set(self, target: FloatArray, draft: FloatArray, *shape: tuple[int, ...]) -> None:
        self._given = target, draft
        shapes = target.shape[:-1], draft.shape[:-1], *shape
        # NumPy takes a microsecond to compare shapes.
        same = shapes.count(shapes[0]) == len(shapes)
        self.batch_shape = shapes[0] if same else np.broadcast_shapes(*shapes)
        self._target = _Rows(target, self.batch_shape)
        self._draft = _Rows(draft, self.batch_shape)

    def __repr__(self) -> str:
        return f"RatioCurve(shape={(*self.batch_shape, self._draft.values.shape[1])})"

    def hockey_stick(self, C: ArrayLike) -> FloatArray | float:
        """W(C) = Σ_y (p(y) − C q(y))₊, the hockey-stick divergence.

        Parameters
        ----------
        C : array_like
            Finite numbers ≥ 0, broadcast against the leading axes.

        Returns
        -------
        float or ndarray
            In the broadcast shape.

        Raises
        ------
        ValueError
            For C negative, infinite or NaN.
        """
        scale = np.asarray(C, dtype=np.float64)
        if not (np.isfinite(scale) & (scale >= 0)).all():
            raise ValueError(f"C: got {C!r}, expected finite numbers ≥ 0")
        shape = np.broadcast_shapes(scale.shape, self.batch_shape)
        scales = np.array(np.broadcast_to(scale, shape)).reshape(-1, 1)
        wider = RatioCurve.__new__(RatioCurve)
        wider._set(*self._given, shape)
        values = wider._filled(_kernels.fill_hockey_sticks, (scales,), 1)[0].reshape(shape)
        return values if shape else float(values)

    def recursive_rejection_chain(self, num_drafts: int) -> tuple[FloatArray, FloatArray]:
        """The chain of recursive rejection with replacement: C_1 = 0, C_{k+1} = C_k + W(C_k).

        After k rejections the target has become (p − C_{k+1} q)₊ / W(C_{k+1}).

        Returns
        -------
        C, W : ndarray, shape (…, n + 1)
            C_1 … C_{n+1} and W at each of them.
        """
        steps = validate_count("num_drafts", num_drafts) + 1
        C, W = self._filled(_kernels.fill_chains, (), steps, steps)
        return self._shaped(C), self._shaped(W)

    def recursive_rejection_rates(self, num_drafts: int | Sequence[int]) -> FloatArray:
        """Acceptance rates of recursive rejection for 1 … n drafts with replacement, or for several n.

        Parameters
        ----------
        num_drafts : int or sequence of int
            n, or the numbers of drafts to compute the rate for.

        Returns
        -------
        ndarray of float64, shape (…, N)
            The rates.
        """
        counts = _counts(num_drafts)
        steps = max(counts.tolist()) + 1
        _, W = self._filled(_kernels.fill_chains, (), steps, steps)
        return 1.0 - self._shaped(W.take(counts, axis=-1))

    def k_sequential_scale(self, num_drafts: int) -> FloatArray | float:
        """ρ* of K-SEQ (SpecTr, Algorithm 3) for n drafts, see :meth:`k_sequential_scales`."""
        scale = self.k_sequential_scales([num_drafts])[0][..., 0]
        return scale if self.batch_shape else float(scale)

    def k_sequential_scales(self, num_drafts: int | Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """ρ* of K-SEQ (SpecTr, Algorithm 3) for 1 … n drafts, or for several n, and W there.

        ρ* is the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) on [1, n].

        Returns
        -------
        scale, W : ndarray of float64, shape (…, N)
            ρ*, and W(ρ*).
        """
        counts = _counts(num_drafts)
        size = counts.size
        scale, W = self._filled(_kernels.fill_k_sequential_scales, (counts,), size, size)
        return self._shaped(scale), self._shaped(W)

    def k_sequential_rates(self, num_drafts: int | Sequence[int]) -> FloatArray:
        """Acceptance rates of K-SEQ for 1 … n drafts with replacement, or for several n, shape (…, N)."""
        scale, W = self.k_sequential_scales(num_drafts)
        accepted_once = (1.0 - W) / scale
        return 1.0 - (1.0 - accepted_once) ** _counts(num_drafts)

    def target_only_rates(self, num_drafts: int | Sequence[int]) -> FloatArray:
        """Σ p (1 − (1 − q)^n) for 1 … n drafts with replacement, or for several n, shape (…, N)."""
        counts = _counts(num_drafts)
        return self._shaped(self._filled(_kernels.fill_hit_rates, (counts,), counts.size)[0])

    def optimal_rates(self, num_drafts: int | Sequence[int]) -> FloatArray:
        """α* for 1 … n drafts with replacement, or for several n: 1 + min over prefixes of p(H) − q(H)^n."""
        return (1.0 + self.cuts(num_drafts)[0]).clip(0.0, 1.0)

    def cuts(self, num_drafts: int | Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """The smallest minimisers H of p(H) − q(H)^n, for 1 … n drafts with replacement, or for several n.

        Returns
        -------
        value, ends : ndarray of float64, shape (…, N)
            p(H) − q(H)^n, and the ratio below which H has all tokens: 0 for no token, inf for all. See
            :meth:`subsets_below`.
        """
        counts = _counts(num_drafts)
        small = self._draft.values.shape[1] < BlockedCurve.smallest_grouped
        fill = _fill_sorted_cuts if small else _fill_blocked_cuts
        value, ends = self._filled(fill, (counts,), counts.size, counts.size)
        return self._shaped(value), self._shaped(ends)

    def subsets_below(self, ends: FloatArray) -> BoolArray:
        """The tokens with p/q below the ends (…, N), shape (…, N, V)."""
        size = self._draft.values.shape[1]
        subset = np.empty((*ends.shape, size), dtype=bool)
        flat = subset.reshape(-1, ends.shape[-1], size)
        ends_by_position = ends.reshape(-1, ends.shape[-1])

        def work(start: int, stop: int) -> None:
            for b in range(start, stop):
                _kernels.fill_below(*self._position(b), ends_by_position[b], flat[b])

        in_threads(work, len(ends_by_position), size)
        return subset

    def _position(self, b: int) -> tuple[FloatArray, FloatArray]:
        """The p and q of one position of the flattened leading axes."""
        return self._target.values[self._target.row[b]], self._draft.values[self._draft.row[b]]

    def _filled(
        self, kernel: Callable[..., None], arguments: tuple[FloatArray | IntArray, ...], *sizes: int
    ) -> list[FloatArray]:
        """Arrays (B, size) that a kernel fills, a row for each position; it takes rows of p and q first."""
        p, q = self._target, self._draft
        filled = [np.empty((q.row.size, size)) for size in sizes]

        def work(start: int, stop: int) -> None:
            positions = slice(start, stop)
            # Arguments of two axes are a row for each position.
            rows = [array[positions] if array.ndim == 2 else array for array in arguments]
            outputs = [array[positions] for array in filled]
            kernel(p.values, p.row[positions], q.values, q.row[positions], *rows, *outputs)

        in_threads(work, q.row.size, q.values.shape[1])
        return filled

    @cached_property
    def _by_ratio(self) -> tuple[IntArray, FloatArray]:
        """The tokens by p/q ascending, ties by id, and their p/q, shape (B, V) each."""
        ratio = _ratios(*(rows.values[rows.row] for rows in (self._target, self._draft)))
        order = np.argsort(ratio, axis=-1, kind="stable")
        return order, ratio[np.arange(len(ratio))[:, None], order]

    @property
    def order(self) -> IntArray:
        """The tokens by p/q ascending, shape (…, V)."""
        return self._shaped(self._by_ratio[0])

    @property
    def ratio(self) -> FloatArray:
        """p/q in ascending order, inf where q = 0, shape (…, V)."""
        return self._shaped(self._by_ratio[1])

    @cached_property
    def target_mass(self) -> FloatArray:
        """Mass p of the first k tokens, shape (…, V + 1)."""
        return accumulated(self._sorted(self._target))

    @cached_property
    def draft_mass(self) -> FloatArray:
        """Mass q of the first k tokens, shape (…, V + 1)."""
        return accumulated(self._sorted(self._draft))

    @cached_property
    def target_tail(self) -> FloatArray:
        """Mass p of all tokens but the first k, shape (…, V + 1)."""
        return accumulated(self._sorted(self._target)[..., ::-1])[..., ::-1]

    @cached_property
    def draft_tail(self) -> FloatArray:
        """Mass q of all tokens but the first k, shape (…, V + 1)."""
        return accumulated(self._sorted(self._draft)[..., ::-1])[..., ::-1]

    def _sorted(self, rows: _Rows) -> FloatArray:
        return self._shaped(rows.values[rows.row[:, None], self._by_ratio[0]])

    def _shaped(self, flat: NDArray[Any]) -> NDArray[Any]:
        """An array (B, K) as (…, K)."""
        return flat.reshape(*self.batch_shape, flat.shape[-1])


def _ratios(target: FloatArray, draft: FloatArray) -> FloatArray:
    """p/q, in the shape of both."""
    ratio = np.empty(target.shape)
    _kernels.fill_ratios(target.ravel(), draft.ravel(), ratio.ravel())
    return ratio


def _fill_sorted_cuts(
    p: FloatArray, p_row: IntArray, q: FloatArray, q_row: IntArray, *counts_and_out: Any
) -> None:
    """Fill p(H) − q(H)^n and the ratio that H ends below, (B, N), by sorting all tokens."""
    target, draft = p[p_row], q[q_row]
    ratio = _ratios(target, draft)
    _kernels.fill_sorted_cuts(target, draft, ratio, ratio.argsort(), *counts_and_out)


def _fill_blocked_cuts(
    p: FloatArray, p_row: IntArray, q: FloatArray, q_row: IntArray, *counts_and_out: Any
) -> None:
    """Fill the arrays of :func:`_fill_sorted_cuts`, from blocks of tokens."""
    counts, value, ends = counts_and_out
    for b in range(p_row.size):
        cuts = BlockedCurve(p[p_row[b]], q[q_row[b]], counts.tolist()).smallest_cuts()
        value[b] = [cut.value for cut in cuts]
        ends[b] = [cut.end for cut in cuts]


def _counts(num_drafts: int | Sequence[int]) -> IntArray:
    """The numbers 1 … n, or those given."""
    numbers = num_drafts.tolist() if isinstance(num_drafts, np.ndarray) else num_drafts
    if isinstance(numbers, Sequence):
        return np.array(validate_counts("num_drafts", numbers), dtype=np.int64)
    return np.arange(1, validate_count("num_drafts", numbers) + 1)
