"""The ratio curve of (p, q): the heart from which rates and optima are read.

Sort the tokens by p/q and accumulate both masses: the ROC curve of telling p from q. Its conjugate is
the hockey-stick divergence W(C) = Σ_y (p(y) − C q(y))₊. Every rate for drafts with replacement is a small
function of the curve, for every number of drafts at once.
"""

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve import sorted_curve as kernels
from otmd.curve.ratio_groups import FARTHEST_OCTAVE, MANTISSA_BITS
from otmd.probabilities import (
    FloatArray,
    IntArray,
    broadcast_index,
    validate_count,
    validate_probs,
    validate_same_vocabulary,
)


class RatioCurve:
    """The two masses along the tokens sorted by p/q, built once from (p, q).

    Parameters
    ----------
    target_probs : array_like, shape (…, V)
        p.
    draft_probs : array_like, shape (…, V)
        q; leading axes are broadcast against those of p.
    grouped : bool
        Merge the tokens whose p/q agree to one part in 16, in one pass without a sort. The curve is then
        that of the merged distributions: exact where C lies between groups, and inside a group G
        below the sorted curve's W(C) by at most C·q(G)/16, for C between 1e-12 and 1e12 (what lies
        beyond is one group a side).

    Attributes
    ----------
    ratio : ndarray, shape (…, K)
        p/q in ascending order, inf where q = 0; K is V, or the number of groups.
    order : ndarray of int64, shape (…, K)
        The tokens (or groups) in that order.
    target_mass, draft_mass : ndarray, shape (…, K + 1)
        p and q of the first k tokens.
    target_tail, draft_tail : ndarray, shape (…, K + 1)
        p and q of all tokens but the first k, summed from the far end.

    Raises
    ------
    ValueError
        For invalid distributions, different vocabularies, or leading axes that do not broadcast.
    """

    ratio: FloatArray
    order: IntArray

    def __init__(
        self, target_probs: ArrayLike, draft_probs: ArrayLike, grouped: bool = False
    ) -> None:
        p = validate_probs("target_probs", target_probs)
        q = validate_probs("draft_probs", draft_probs)
        validate_same_vocabulary(p, q.shape[-1], q.shape[:-1])
        shape = np.broadcast_shapes(p.shape, q.shape)
        # Copied, since kernels take no arrays that cannot be written to.
        p, q = (m if m.shape == shape else np.broadcast_to(m, shape).copy() for m in (p, q))
        ratio = _ratio(p, q)
        if grouped:
            p, q = _merge_by_ratio(p, q, ratio)
            ratio = _ratio(p, q)
        self.batch_shape = p.shape[:-1]
        self.order = np.argsort(ratio, axis=-1)
        self.ratio = np.take_along_axis(ratio, self.order, axis=-1)
        self.target_mass, self.target_tail = self._accumulate(p)
        self.draft_mass, self.draft_tail = self._accumulate(q)

    def __repr__(self) -> str:
        return f"RatioCurve(shape={self.ratio.shape})"

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
            raise ValueError(f"C: got {C!r}, wanted finite numbers ≥ 0")
        shape = np.broadcast_shapes(scale.shape, self.batch_shape)
        scale = np.broadcast_to(scale, shape)
        values = np.empty(shape)
        for index in np.ndindex(shape):
            values[index] = kernels.hockey_stick(*self.arrays(index), scale[index])
        return values if shape else float(values)

    def maximal_coupling_rate(self) -> FloatArray | float:
        """Σ min(p, q) = 1 − W(1), the best rate of a single draft (Leviathan et al. 2023)."""
        return 1.0 - self.hockey_stick(1.0)

    def recursive_rejection_chain(self, num_drafts: int) -> tuple[FloatArray, FloatArray]:
        """The chain of recursive rejection with replacement: C_1 = 0, C_{k+1} = C_k + W(C_k).

        After k rejections the target has become (p − C_{k+1} q)₊ / W(C_{k+1}).

        Returns
        -------
        C, W : ndarray, shape (…, n + 1)
            C_1 … C_{n+1} and W at each of them.
        """
        steps = validate_count("num_drafts", num_drafts) + 1
        C, W = np.empty((*self.batch_shape, steps)), np.empty((*self.batch_shape, steps))
        for index in np.ndindex(self.batch_shape):
            kernels.recursive_rejection_chain(*self.arrays(index), C[index], W[index])
        return C, W

    def recursive_rejection_rates(self, num_drafts: int) -> FloatArray:
        """Acceptance rates of recursive rejection for 1 … n drafts with replacement, shape (…, n)."""
        return 1.0 - self.recursive_rejection_chain(num_drafts)[1][..., 1:]

    def k_sequential_scale(self, num_drafts: int) -> FloatArray | float:
        """ρ* of K-SEQ (SpecTr, Algorithm 3): the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) on [1, n]."""
        count = validate_count("num_drafts", num_drafts)
        scale = np.empty(self.batch_shape)
        for index in np.ndindex(self.batch_shape):
            scale[index] = kernels.k_sequential_scale(*self.arrays(index), count)
        return scale if self.batch_shape else float(scale)

    def k_sequential_rates(self, num_drafts: int) -> FloatArray:
        """Acceptance rates of K-SEQ for 1 … n drafts with replacement, shape (…, n)."""
        count = validate_count("num_drafts", num_drafts)
        rates = np.empty((*self.batch_shape, count))
        for n in range(1, count + 1):
            scale = self.k_sequential_scale(n)
            accepted = (1.0 - self.hockey_stick(scale)) / scale
            rates[..., n - 1] = 1.0 - (1.0 - accepted) ** n
        return rates

    def optimal_rates(self, num_drafts: int) -> FloatArray:
        """α* for 1 … n drafts with replacement: 1 + min over prefixes of p(H) − q(H)^n, shape (…, n)."""
        count = validate_count("num_drafts", num_drafts)
        rates = np.empty((*self.batch_shape, count))
        contained = np.ones_like(self.draft_mass)
        for n in range(1, count + 1):
            contained *= self.draft_mass
            rates[..., n - 1] = 1.0 + (self.target_mass - contained).min(axis=-1)
        return np.clip(rates, 0.0, 1.0)

    def arrays(self, index: tuple[int, ...]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Ratio, target tail and draft tail of one position: what W is computed from."""
        own = broadcast_index(index, self.batch_shape)
        return self.ratio[own], self.target_tail[own], self.draft_tail[own]

    def _accumulate(self, mass: FloatArray) -> tuple[FloatArray, FloatArray]:
        shape = (*self.batch_shape, self.order.shape[-1] + 1)
        before, after = np.empty(shape), np.empty(shape)
        for index in np.ndindex(self.batch_shape):
            kernels.mass_before(mass[index], self.order[index], before[index])
            kernels.mass_after(mass[index], self.order[index], after[index])
        return before, after


def _ratio(p: FloatArray, q: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.where(q > 0, p / q, np.inf)


def _merge_by_ratio(
    p: FloatArray, q: FloatArray, ratio: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Masses of the groups of tokens whose ratios share their leading bits, shape (…, K)."""
    # The bits of a positive float64 are ordered as the numbers are.
    finest = ratio.astype(np.float64).view(np.int64) >> (52 - MANTISSA_BITS)
    one = 1023 << MANTISSA_BITS
    reach = FARTHEST_OCTAVE << MANTISSA_BITS
    group = np.clip(finest - one, -reach, reach) + reach
    group[ratio == 0] = 0
    group[ratio == np.inf] = 2 * reach + 1
    batch, size = p.shape[:-1], 2 * reach + 2
    row = np.arange(int(np.prod(batch, dtype=np.int64)))[:, None] * size
    flat = (group.reshape(len(row), ratio.shape[-1]) + row).ravel()
    merged = [
        np.bincount(flat, np.ravel(mass), minlength=len(row) * size)
        .reshape(*batch, size)
        .astype(np.float64)
        for mass in (p, q)
    ]
    return merged[0], merged[1]
