"""The ratio curve of (p, q) on a device; :class:`otmd.RatioCurve` says what it is.

The tokens are sorted once by p/q, and masses are added from the token with the largest ratio on: W(C) is
read where the ratio passes C, and p(H), q(H) of a prefix H are what is left of 1.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from otmd.probabilities import validate_count
from otmd.tensors.probabilities import checked_pair

# Each round divides the interval around ρ* by 32: 11 rounds are the 55 bits that float64 can tell apart.
_SECTIONS = 32
_ROUNDS = 11
_BLOCK = 512


class TensorRatioCurve:
    """The two masses along the tokens sorted by p/q, built once from (p, q).

    Every rate comes in float64 on the tensors' device, without waiting for it, and is that of
    :class:`otmd.RatioCurve` to 1e-12 for float64 and to 1e-6 for float32.

    Parameters
    ----------
    target_probs : torch.Tensor, shape (…, V)
        p; float16, bfloat16 (computed in float32), float32 or float64.
    draft_probs : torch.Tensor, shape (…, V)
        q, on the same device; leading axes are broadcast against those of p.
    validate : bool
        Raise ValueError for values that are no distribution (logits, say), which waits for the
        device. With False the rates of such a position are NaN. Sums within rounding of 1 are
        divided out in either case.

    Attributes
    ----------
    batch_shape : tuple of int
        The leading axes.

    Raises
    ------
    ValueError
        For wrong shapes, dtypes or devices; with ``validate`` for values that are no distribution.
    """

    batch_shape: tuple[int, ...]

    def __init__(self, target_probs: Any, draft_probs: Any, validate: bool = True) -> None:
        pair = checked_pair(target_probs, draft_probs, validate)
        self.batch_shape = tuple(pair.target.shape[:-1])
        ratio = torch.where(pair.draft > 0, pair.target / pair.draft, torch.inf)
        ratio *= pair.draft_total / pair.target_total
        # searchsorted wants ascending numbers, and the largest ratios are to come first.
        self._negative_ratio, order = ratio.neg_().contiguous().sort(dim=-1)
        # The ratio may be float32, where masses may not: a token on the wrong side of C by rounding
        # has p − C q within rounding of 0.
        self._target_above = _accumulated(pair.target, order, pair.target_total)
        self._draft_above = _accumulated(pair.draft, order, pair.draft_total)

    def __repr__(self) -> str:
        return f"TensorRatioCurve(shape={tuple(self._negative_ratio.shape)})"

    def optimal_rates(self, num_drafts: int) -> Tensor:
        """α* for 1 … n drafts with replacement: 1 + min over prefixes of p(H) − q(H)^n, shape (…, n)."""
        count = validate_count("num_drafts", num_drafts)
        draft_mass = 1.0 - self._draft_above
        contained = torch.ones_like(draft_mass)
        rates = []
        for _ in range(count):
            contained *= draft_mass
            rates.append(2.0 - (self._target_above + contained).amax(dim=-1))
        # The prefix of all tokens, which is not among those above, has the rate 1.
        return torch.stack(rates, dim=-1).clamp(0.0, 1.0)

    def recursive_rejection_rates(self, num_drafts: int) -> Tensor:
        """Acceptance rates of recursive rejection for 1 … n drafts with replacement, shape (…, n).

        C_2 = 1, C_{k+1} = C_k + W(C_k), and the rate of n drafts is 1 − W(C_{n+1}).
        """
        count = validate_count("num_drafts", num_drafts)
        C = self._target_above.new_ones((*self.batch_shape, 1))
        rates = []
        for _ in range(count):
            W = self._hockey_stick(C)
            rates.append(1.0 - W)
            C = C + W
        return torch.cat(rates, dim=-1)

    def k_sequential_rates(self, num_drafts: int) -> Tensor:
        """Acceptance rates of K-SEQ for 1 … n drafts with replacement, shape (…, n)."""
        count = validate_count("num_drafts", num_drafts)
        counts = torch.arange(1, count + 1, dtype=torch.float64, device=self._target_above.device)
        scale = self._k_sequential_scales(counts)
        accepted = (1.0 - self._hockey_stick(scale)) / scale
        return 1.0 - (1.0 - accepted) ** counts

    def _k_sequential_scales(self, counts: Tensor) -> Tensor:
        """ρ* of K-SEQ: the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) on [1, n], from above; shape (…, n)."""
        shape = (*self.batch_shape, counts.numel())
        low = counts.new_ones(shape)
        width = (counts - 1.0).expand(shape)
        steps = torch.arange(1, _SECTIONS, dtype=counts.dtype, device=counts.device) / _SECTIONS
        for _ in range(_ROUNDS):
            # Many points at once cost a device hardly more than the middle alone.
            scale = low[..., None] + width[..., None] * steps
            W = self._hockey_stick(scale.flatten(-2)).view_as(scale)
            lossless = (1.0 - (1.0 - W) / scale) ** counts[:, None] >= W
            width = width / _SECTIONS
            low = low + width * (~lossless).sum(dim=-1)
        # Every ρ ≥ ρ* is lossless, none below it is.
        return low + width

    def _hockey_stick(self, C: Tensor) -> Tensor:
        """W(C) = Σ_y (p(y) − C q(y))₊ from the tokens whose ratio exceeds C; (…, m) to (…, m)."""
        wanted = -C.to(self._negative_ratio.dtype)
        above = torch.searchsorted(self._negative_ratio, wanted)
        last = (above - 1).clamp(min=0)
        # A product where no token exceeds C, and no choice, so that NaN stays NaN.
        some = above > 0
        target = self._target_above.gather(-1, last) * some
        draft = self._draft_above.gather(-1, last) * some
        return (target - C * draft).clamp(0.0, 1.0)


def _accumulated(mass: Tensor, order: Tensor, total: Tensor) -> Tensor:
    """Masses of the first 1 … V tokens of an order, divided by their sum; float64, as C multiplies errors.

    Sums within blocks, then over blocks, are off by 1e-15 only.
    """
    vocab_size = mass.shape[-1]
    block = min(_BLOCK, vocab_size)
    padded = pad(mass.gather(-1, order), (0, -vocab_size % block))
    sums = padded.unflatten(-1, (-1, block)).cumsum(dim=-1, dtype=torch.float64)
    sums[..., 1:, :] += sums[..., :-1, -1].cumsum(dim=-1)[..., None]
    return sums.flatten(-2)[..., :vocab_size].div_(total)
