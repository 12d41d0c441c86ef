"""Acceptance rates on a device: from the ratio curve, and of greedy coupling, SpecHub and target-only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from otmd.probabilities import validate_count
from otmd.tensors.probabilities import checked_pair

# This many bisections use all bits of a float64.
_BISECTIONS = 55
_BLOCK = 512


class TensorRatioCurve:
    """The ratio curve of (p, q): the p-mass and q-mass of the tokens with the largest ratios p/q.

    Every rate is computed in float64 on the tensors' device, without waiting for the device. It equals that
    of :class:`otmd.RatioCurve` to 1e-12.

    Parameters
    ----------
    target_probs, draft_probs : torch.Tensor, shape (…, V)
        p and q on one device; float16, bfloat16, float32 or float64. Leading axes are broadcast.
    validate : bool
        Whether values that are no distribution, such as logits, are a ValueError; the host then waits
        for the device. If not, the rates of such a position are NaN. In either case a sum within the
        tolerance of its dtype around 1 is divided out.

    Attributes
    ----------
    batch_shape : tuple of int
        The leading axes.

    Raises
    ------
    ValueError
        For wrong shapes or devices, and with ``validate`` for values that are no distribution; TypeError for
        other dtypes.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import TensorRatioCurve
    >>> curve = TensorRatioCurve(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5]))
    >>> curve.optimal_rates(2)
    tensor([0.7500, 0.9375], dtype=torch.float64)
    """

    def __init__(self, target_probs: Any, draft_probs: Any, validate: bool = True) -> None:
        p, q = checked_pair(target_probs, draft_probs, validate)
        self.batch_shape = tuple(p.shape[:-1])
        # Negative ratios, since searchsorted needs ascending numbers and the largest ratios come first.
        negative_ratio = torch.where(q > 0, -p / q, -torch.inf)
        self._negative_ratio, order = negative_ratio.contiguous().sort(dim=-1)
        self._target_above = _accumulated(p, order)
        self._draft_above = _accumulated(q, order)

    def __repr__(self) -> str:
        return f"TensorRatioCurve(shape={tuple(self._negative_ratio.shape)})"

    def optimal_rates(self, num_drafts: int) -> Tensor:
        """α* for 1 … n drafts with replacement, shape (…, n): 1 + min_H p(H) − q(H)^n.

        H runs over the prefixes of the tokens in ascending order of p/q.
        """
        count = validate_count("num_drafts", num_drafts)
        draft_mass = 1.0 - self._draft_above
        contained = torch.ones_like(draft_mass)
        rates = []
        for _ in range(count):
            contained *= draft_mass
            rates.append(2.0 - (self._target_above + contained).amax(dim=-1))
        # H = all tokens is not among the prefixes above; it gives the rate 1.
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
        # ρ* is the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) on [1, n].
        shape = (*self.batch_shape, count)
        low = counts.new_ones(shape)
        width = (counts - 1.0).expand(shape)
        for _ in range(_BISECTIONS):
            width = width / 2
            middle = low + width
            W = self._hockey_stick(middle)
            lossless = (1.0 - (1.0 - W) / middle) ** counts >= W
            low = torch.where(lossless, low, middle)
        # Every ρ ≥ ρ* is lossless, and no ρ below it. So the upper end of the interval is taken.
        scale = low + width
        accepted = (1.0 - self._hockey_stick(scale)) / scale
        return 1.0 - (1.0 - accepted) ** counts

    def _hockey_stick(self, C: Tensor) -> Tensor:
        """W(C) = Σ_y (p(y) − C q(y))₊, a sum over the tokens whose ratio exceeds C; (…, m) to (…, m)."""
        above = torch.searchsorted(self._negative_ratio, -C)
        last = (above - 1).clamp(min=0)
        # Where no ratio exceeds C, the masses are multiplied by 0, so that NaN stays NaN.
        some = above > 0
        target = self._target_above.gather(-1, last) * some
        draft = self._draft_above.gather(-1, last) * some
        return (target - C * draft).clamp(0.0, 1.0)


def _accumulated(mass: Tensor, order: Tensor) -> Tensor:
    """Masses of the first 1 … V tokens of an order. They are summed by blocks, which rounds less."""
    vocab_size = mass.shape[-1]
    block = min(_BLOCK, vocab_size)
    padded = pad(mass.gather(-1, order), (0, -vocab_size % block))
    sums = padded.unflatten(-1, (-1, block)).cumsum(dim=-1)
    sums[..., 1:, :] += sums[..., :-1, -1].cumsum(dim=-1)[..., None]
    return sums.flatten(-2)[..., :vocab_size]


def greedy_rates(target_probs: Any, draft_probs: Any, num_drafts: int, validate: bool = True) -> Tensor:
    """Acceptance rates of the greedy coupling for 1 … n greedy drafts, each of them α*; SpecHub's for 2.

    p(Top) + Σ_{y∉Top} min(p(y), q(y)/(1 − q(Top))), where Top is the n − 1 most likely tokens of q, ties to
    the lowest id (Hu et al. 2025, Section 5).

    Parameters
    ----------
    target_probs, draft_probs : torch.Tensor, shape (…, V)
        p and q on one device; leading axes are broadcast.
    num_drafts : int
        n ≥ 1.
    validate : bool
        As for :class:`TensorRatioCurve`, for errors as well.

    Returns
    -------
    torch.Tensor of float64, shape (…, n)
        NaN where fewer tokens have mass than are drafted.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import greedy_rates
    >>> greedy_rates(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5]), num_drafts=2)
    tensor([0.7500, 1.0000], dtype=torch.float64)
    """
    count = validate_count("num_drafts", num_drafts)
    p, q = checked_pair(target_probs, draft_probs, validate)
    # The numbers as given: dividing them by their sum could round two masses to the same number, and change
    # which token is most likely. NaN where q is NaN.
    rest = draft_probs.detach() + 0.0 * q
    deterministic = p.new_zeros(p.shape[:-1])
    rates = []
    for drafted in range(count):
        if drafted:
            # argmax returns the first of equals; topk promises no order among them.
            most_likely = rest.argmax(dim=-1, keepdim=True)
            rest.scatter_(-1, most_likely, 0.0)
            deterministic = deterministic + p.gather(-1, most_likely)[..., 0]
        coupled = torch.minimum(p, rest / rest.sum(dim=-1, keepdim=True)).sum(dim=-1)
        rates.append((deterministic + coupled).clamp(0.0, 1.0))
    return torch.stack(rates, dim=-1)


def target_only_rates(target_probs: Any, draft_probs: Any, num_drafts: int, validate: bool = True) -> Tensor:
    """Acceptance rates of TargetOnly for 1 … n drafts with replacement: Σ p(y)(1 − (1 − q(y))^n).

    Parameters
    ----------
    target_probs, draft_probs, num_drafts, validate
        As for :func:`greedy_rates`, for errors as well.

    Returns
    -------
    torch.Tensor of float64, shape (…, n)
        The rates.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import target_only_rates
    >>> target_only_rates(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5]), num_drafts=2)
    tensor([0.3125, 0.5156], dtype=torch.float64)
    """
    count = validate_count("num_drafts", num_drafts)
    p, q = checked_pair(target_probs, draft_probs, validate)
    # Logarithms, because 1 − q forgets a q that is small compared with 1.
    log_missed = torch.log1p(-q)
    rates = [(-torch.expm1(n * log_missed) * p).sum(dim=-1) for n in range(1, count + 1)]
    return torch.stack(rates, dim=-1).clamp(0.0, 1.0)
