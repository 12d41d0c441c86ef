"""Stratified drafts on a device: the strata of many positions by one sort, and drafts from them.

:class:`otmd.Stratified` says what the law is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from otmd.probabilities import validate_count, validate_positive, validate_shares, wrong
from otmd.tensors.probabilities import checked_probs


class TensorStrata(NamedTuple):
    """The strata of stratified drafts at every position of a batch.

    Attributes
    ----------
    number : torch.Tensor of int64, shape (…, V)
        The stratum of each token, 0 to n − 1 from the most likely tokens to the least likely.
    inclusion : torch.Tensor of float64, shape (…, V)
        The probability of each token to be the draft of its stratum. NaN where the given values are no
        distribution, or have mass on fewer than n tokens.
    order : torch.Tensor of int64, shape (…, V)
        The tokens, one stratum after another.
    starts : torch.Tensor of int64, shape (…, n + 1)
        The index in ``order`` at which each stratum begins, and the number of tokens with mass.
    """

    number: Tensor
    inclusion: Tensor
    order: Tensor
    starts: Tensor

    @property
    def num_drafts(self) -> int:
        """The number of drafts at each position."""
        return self.starts.shape[-1] - 1

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw the drafts of every position, draft j from stratum j, shape (…, n).

        They are −1 where ``inclusion`` is NaN. The generator must be of the strata's device. Without it the
        device's default generator is used.
        """
        first = self.starts[..., :-1]
        last = self.starts[..., 1:] - 1
        # The probabilities of each stratum sum to 1, so stratum j covers j to j + 1.
        reached = self.inclusion.gather(-1, self.order).cumsum(dim=-1)
        options = {"dtype": reached.dtype, "device": reached.device}
        uniform = torch.rand(first.shape, generator=generator, **options)
        uniform += torch.arange(self.num_drafts, device=reached.device)
        index = torch.searchsorted(reached, uniform, right=True)
        # Rounding may move an index into the next stratum.
        index = index.clamp(first, last).clamp(0, self.order.shape[-1] - 1)
        return torch.where(reached[..., -1:].isnan(), -1, self.order.gather(-1, index))


def stratify(
    draft_probs: Any,
    num_drafts: int,
    sharpness: float = 1.0,
    shares: Sequence[float] | None = None,
    validate: bool = True,
) -> TensorStrata:
    """Cut the tokens of every position into the strata of :class:`otmd.Stratified`, by one sort.

    Masses are added in float64. A device's sums may round differently from NumPy's. Then a token at the
    border of two strata may lie in another stratum than in :class:`otmd.Stratified`.

    Parameters
    ----------
    draft_probs : torch.Tensor, shape (…, V)
        q; float16, bfloat16, float32 or float64.
    num_drafts : int
        n.
    sharpness : float
        β > 0: the weight of a token is q^β.
    shares : sequence of float, optional
        The weights of the n strata, the most likely tokens first, in any unit; equal by default.
    validate : bool
        Whether values that are no distribution, or have mass on fewer than n tokens, are a ValueError; the
        host then waits for the device. If not, such positions hold NaN.

    Returns
    -------
    TensorStrata
        The strata.

    Raises
    ------
    ValueError
        For a wrong shape, ``num_drafts`` < 1, a ``sharpness`` that is not a positive number,
        ``shares`` that are not n positive numbers, or, with ``validate``, values as above; TypeError for
        another dtype.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import stratify
    >>> strata = stratify(torch.tensor([0.5, 0.25, 0.25]), num_drafts=2)
    >>> strata.number, strata.inclusion
    (tensor([0, 1, 1]), tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64))
    """
    count = validate_count("num_drafts", num_drafts)
    power = validate_positive("sharpness", sharpness)
    parts = [1.0] * count if shares is None else validate_shares(shares, count).tolist()
    q = checked_probs("draft_probs", draft_probs, validate)
    support = (q > 0).sum(dim=-1, keepdim=True)
    if validate and bool((support < count).any()):
        expected = f"at most {support.min().item()}, the number of tokens with mass in draft_probs"
        raise wrong("num_drafts", f"{count} distinct drafts", expected)
    ordered, order = q.sort(dim=-1, descending=True, stable=True)
    starts = _starts(ordered, support, power, parts)
    index = torch.arange(q.shape[-1], device=q.device)
    number_in_order = torch.zeros_like(order)
    for j in range(1, count):
        number_in_order += index >= starts[..., j : j + 1]
    # Divided by the largest of the stratum: what underflows then has no probability in float64.
    largest = ordered.gather(-1, starts[..., :-1].clamp(0, q.shape[-1] - 1))
    weight = (ordered / largest.gather(-1, number_in_order)) ** power
    total = weight.new_zeros((*weight.shape[:-1], count))
    total = total.scatter_add(-1, number_in_order, weight)
    included = weight / total.gather(-1, number_in_order)
    included = torch.where(support >= count, included, torch.nan)
    number = torch.empty_like(order).scatter_(-1, order, number_in_order)
    inclusion = torch.empty_like(included).scatter_(-1, order, included)
    return TensorStrata(number, inclusion, order, starts)


def _starts(ordered: Tensor, support: Tensor, power: float, shares: list[float]) -> Tensor:
    """Indices (…, n + 1) at which strata begin among descending q (…, V), and the size of the support."""
    count = len(shares)
    # Fewer than n tokens are padded to n. The result is set to NaN later.
    ordered = pad(ordered, (0, max(0, count - ordered.shape[-1])))
    rests = list(accumulate(reversed(shares)))[::-1]
    alone = torch.zeros_like(support)
    rest = torch.full_like(ordered[..., :1], rests[0])
    for j in range(count - 1):
        # A token is a stratum of its own if the weight after it is at most the shares after its own.
        weight = (ordered[..., j:] / ordered[..., j : j + 1]) ** power
        heavy = _sums_after(weight)[..., 1:2] <= rests[j + 1] / shares[j]
        alone += heavy & (alone == j)
        rest = torch.where(alone == j + 1, rests[j + 1], rest)
    index = torch.arange(ordered.shape[-1], device=ordered.device)
    weight = torch.where(index >= alone, ordered / ordered.gather(-1, alone), 0.0) ** power
    after = _sums_after(weight)
    left = after.gather(-1, alone)
    starts = [torch.zeros_like(support)]
    for j in range(1, count):
        # A tensor over a tensor: a number would be multiplied by 1/rest, which may overflow.
        end = left * (torch.full_like(rest, rests[j]) / rest)
        index = torch.searchsorted(-after, -end)
        # Each stratum keeps at least one token with mass.
        index = torch.minimum(torch.maximum(index, starts[-1] + 1), support - (count - j))
        starts.append(torch.where(alone >= j, j, index))
    return torch.cat([*starts, support], dim=-1)


def _sums_after(weight: Tensor) -> Tensor:
    """The weights (…, V) summed from each token on."""
    return weight.flip(-1).cumsum(dim=-1).flip(-1)
