"""One draft from each of n strata: distinct, independent drafts that cover the head and the tail of q."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.laws.base import DraftLaw
from otmd.laws.slots import Slots
from otmd.probabilities import FloatArray, IntArray, as_real_array, in_float64, validate_real, wrong

# Weights are divided by a larger one before they get smaller than this multiple of it.
_SMALL = 2.0**-500


class Stratified(DraftLaw):
    """One draft from each of n strata of the vocabulary: g(H) = Π_j q_j(H ∩ G_j).

    The tokens in descending order of q, ties by id, are cut into n strata of equal weight. The weight of a
    token is q^β. While the next token has at least an equal share of the weight that is not yet in a
    stratum, it is a stratum of its own. Draft j is drawn from stratum G_j, the most likely tokens first, with
    probability q_j(y) = q(y)^β/Σ_{x∈G_j} q(x)^β. So drafts are distinct and independent.

    Let β = 1. With n = 1 this is a single draft from q. With n = 2, equal shares, and a token that has more
    than half of the mass, the set of the two drafts has the law of :class:`Hub`.

    Parameters
    ----------
    draft_probs, num_drafts
        See :class:`WithReplacement`. More drafts than tokens with mass are a ValueError.
    sharpness : float
        β > 0: the weight of a token is q^β.
    shares : array_like, shape (n,), optional
        The weights of the strata, the most likely tokens first: positive, of any sum; equal by default.

    Examples
    --------
    >>> import otmd
    >>> otmd.Stratified([0.4, 0.2, 0.2, 0.1, 0.1], num_drafts=3).strata
    array([0, 1, 1, 2, 2], dtype=int16)
    """

    distinct = True
    sharpness: float = 1.0
    shares: FloatArray | None = None

    def __init__(
        self,
        draft_probs: ArrayLike,
        num_drafts: int,
        sharpness: float = 1.0,
        shares: ArrayLike | None = None,
    ) -> None:
        self.sharpness = validate_real("sharpness", sharpness)
        if not 0.0 < self.sharpness < np.inf:
            raise wrong("sharpness", repr(sharpness), "a positive number")
        self.shares = None if shares is None else in_float64(as_real_array("shares", shares))
        super().__init__(draft_probs, num_drafts)

    def __repr__(self) -> str:
        more = f", sharpness={self.sharpness:g}" if self.sharpness != 1.0 else ""
        more += f", shares={self.shares.tolist()}" if self.shares is not None else ""
        return f"{super().__repr__()[:-1]}{more})"

    @property
    def strata(self) -> NDArray[np.int16]:
        """The stratum of each token, 0 to n − 1, shape (…, V).

        Tokens without mass are in the last stratum, and are never drawn.
        """
        strata = np.empty((*self.batch_shape, self.vocab_size), np.int16)
        for index, structure in self._structures(self.batch_shape):
            assert structure.slots is not None
            strata[(*index, slice(None))] = structure.slots.number
        return strata

    def structure(self, q: FloatArray) -> Slots:
        num_strata = self.num_drafts
        if num_strata == 1:
            weights = (q / q.max()) ** self.sharpness
            return Slots.single(weights / weights.sum(), 1)
        # All that is sorted is the tokens with mass: they may be few.
        drawn = np.flatnonzero(q)
        order = drawn[_most_likely_first(q[drawn])]
        shares = np.ones(num_strata)
        if self.shares is not None:
            # Huge ones are scaled down, so that their sum is finite, and all stay positive.
            shares = self.shares / max(1.0, float(self.shares.max()) / 1e300)
            shares = np.maximum(shares, np.finfo(np.float64).smallest_subnormal)
        starts = _starts(q[order], self.sharpness, shares)
        number = np.full(q.size, num_strata - 1, np.int16)
        number[order] = np.repeat(np.arange(num_strata), np.diff(starts))
        # Divided by the largest of the stratum: what underflows then has no probability in float64.
        weights = (q[drawn] / q[order[starts[:-1]]][number[drawn]]) ** self.sharpness
        inclusion = np.zeros(q.size)
        inclusion[drawn] = weights / np.bincount(number[drawn], weights, num_strata)[number[drawn]]
        return Slots.strata(number, inclusion, drawn, num_strata)

    def _set_num_drafts(self, num_drafts: int) -> None:
        super()._set_num_drafts(num_drafts)
        shares = self.shares
        if shares is None:
            return
        if shares.shape != (self.num_drafts,) or not (np.isfinite(shares) & (shares > 0)).all():
            raise wrong("shares", shares.tolist(), f"{self.num_drafts} positive numbers, one a draft")


def _most_likely_first(probs: FloatArray) -> IntArray:
    """The tokens by probability (V,) descending, ties to the lowest id."""
    order = np.argsort(-probs)
    ordered = probs[order]
    differs = ordered[1:] != ordered[:-1]
    if differs.all():
        return order
    # The default sort is much quicker than a stable one, but leaves ties in any order: these are sorted now.
    rank = np.concatenate([[0], differs.cumsum()])
    return np.sort(rank * probs.size + order) % probs.size


def _starts(q: FloatArray, sharpness: float, shares: FloatArray) -> IntArray:
    """The starts of strata of these shares among positive q, descending, and the number of these q."""
    num_strata = shares.size
    shares_after = shares[::-1].cumsum()[::-1]
    # The rests are compared, not the sums with the token itself: rounding would hide a small rest.
    with np.errstate(over="ignore"):
        multiple = shares_after[1:] / shares[:-1]
    first = alone = 0
    weights, after = _weights(q, sharpness)
    while alone < num_strata - 1 and (after[alone - first + 1] <= weights[alone - first] * multiple[alone]):
        alone += 1
        if weights[alone - first] < _SMALL:
            first = alone
            weights, after = _weights(q[first:], sharpness)
    _, after = _weights(q[alone:], sharpness)
    starts = np.arange(num_strata + 1)
    starts[-1] = q.size
    ends = after[0] * (shares_after[alone + 1 :] / shares_after[alone])
    for j, end in enumerate(ends.tolist(), start=alone + 1):
        # A stratum begins with the first token from which on at most ``end`` of the weight is left.
        place = alone + int(np.searchsorted(-after, -end, side="left"))
        # Each stratum keeps at least one token with mass.
        starts[j] = min(max(place, starts[j - 1] + 1), q.size - (num_strata - j))
    return starts


def _weights(q: FloatArray, sharpness: float) -> tuple[FloatArray, FloatArray]:
    """The weights of tokens in descending order (V,), divided by the first, and their sums from each on."""
    weights = (q / q[0]) ** sharpness
    return weights, weights[::-1].cumsum()[::-1]
