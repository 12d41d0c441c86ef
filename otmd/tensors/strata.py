"""Stratified drafts on a device: the strata of many positions by one sort, and drafts from them.

:class:`otmd.Stratified` says what the law is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from otmd.probabilities import validate_count, validate_positive, validate_shares, wrong
from otmd.tensors.probabilities import checked_probs

_SMALLEST = torch.finfo(torch.float64).tiny


class TensorStrata(NamedTuple):
    """The strata of stratified drafts at every position of a batch.

    Attributes
    ----------
    number : torch.Tensor of int64, shape (…, V)
        The stratum of each token, 0 to n − 1 from the likeliest tokens to the unlikeliest.
    inclusion : torch.Tensor of float64, shape (…, V)
        The probability of each token to be the draft of its stratum. NaN where the given values are no
        distribution, or have mass on fewer than n tokens.
    order : torch.Tensor of int64, shape (…, V)
        The tokens, one stratum after another.
    starts : torch.Tensor of int64, shape (…, n + 1)
        Where each stratum begins in ``order``, and the number of tokens with mass.
    """

    number: Tensor
    inclusion: Tensor
    order: Tensor
    starts: Tensor

    @property
    def num_drafts(self) -> int:
        """How many tokens are drafted at each position."""
        return self.starts.shape[-1] - 1

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw the drafts of every position, draft j from stratum j, shape (…, n).

        The generator must be of the strata's device. Without it the device's default generator is used.
        """
        first, last = self.starts[..., :-1], self.starts[..., 1:] - 1
        # The probabilities of each stratum sum to 1, so stratum j covers j to j + 1.
        reached = self.inclusion.gather(-1, self.order).cumsum(dim=-1)
        options = {"dtype": reached.dtype, "device": reached.device}
        chance = torch.rand(first.shape, generator=generator, **options)
        chance += torch.arange(self.num_drafts, device=reached.device)
        place = torch.searchsorted(reached, chance, right=True)
        # Rounding may move a place into the next stratum.
        return self.order.gather(-1, place.clamp(first, last).clamp(min=0))


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
        The weights of the n strata, the likeliest tokens first, in any unit; equal by default.
    validate : bool
        Whether values that are no distribution, or have mass on fewer than n tokens, are a ValueError; the
        host then waits for the device. If not, such positions hold NaN.

    Raises
    ------
    ValueError
        For a wrong shape or dtype, ``num_drafts`` < 1, a ``sharpness`` that is not a positive number,
        ``shares`` that are not n positive numbers, or, with ``validate``, values as above.
    """
    count = validate_count("num_drafts", num_drafts)
    power = validate_positive("sharpness", sharpness)
    parts = torch.ones(count, dtype=torch.float64)
    if shares is not None:
        parts = torch.from_numpy(validate_shares(shares, count))
    q = checked_probs("draft_probs", draft_probs, validate)
    support = (q > 0).sum(dim=-1, keepdim=True)
    if validate and bool((support < count).any()):
        wanted = f"at most {support.min().item()}, the number of tokens with mass in draft_probs"
        raise wrong("num_drafts", f"{count} distinct drafts", wanted)
    ordered, order = q.sort(dim=-1, descending=True, stable=True)
    # Masses are divided by the largest, and weights are kept above zero, so that no power underflows.
    weight = (ordered / ordered[..., :1]) ** power
    weight = torch.where(ordered > 0, weight.clamp(min=_SMALLEST), weight * 0.0)
    starts = _starts(weight, support, parts.to(q.device))
    place = torch.arange(q.shape[-1], device=q.device)
    number_in_order = torch.zeros_like(order)
    for j in range(1, count):
        number_in_order += place >= starts[..., j : j + 1]
    total = weight.new_zeros((*weight.shape[:-1], count))
    total = total.scatter_add(-1, number_in_order, weight)
    included = weight / total.gather(-1, number_in_order)
    included = torch.where(support >= count, included, torch.nan)
    number = torch.empty_like(order).scatter_(-1, order, number_in_order)
    inclusion = torch.empty_like(included).scatter_(-1, order, included)
    return TensorStrata(number, inclusion, order, starts)


def _starts(weight: Tensor, support: Tensor, shares: Tensor) -> Tensor:
    """Where strata begin among descending weights (…, V), of which ``support`` (…, 1) have mass."""
    count = shares.numel()
    # Fewer than n tokens are padded to n. The result is set to NaN later.
    weight = pad(weight, (0, max(0, count - weight.shape[-1])))
    after = pad(weight.flip(-1).cumsum(dim=-1).flip(-1), (0, 1))
    before = pad(shares.cumsum(0), (1, 0))
    shares_after = shares.flip(0).cumsum(0).flip(0)
    alone = torch.zeros_like(support)
    for j in range(count - 1):
        # A token with at least its share of the remaining weight is a stratum of its own.
        heavy = weight[..., j : j + 1] * shares_after[j] >= after[..., j : j + 1] * shares[j]
        alone += heavy & (alone == j)
    left = after.gather(-1, alone)
    starts = [torch.zeros_like(support)]
    for j in range(1, count):
        used = left / shares_after[alone] * (before[j] - before[alone])
        place = torch.searchsorted(-after[..., :-1].contiguous(), used - left)
        # Each stratum keeps at least one token with mass.
        place = torch.minimum(torch.maximum(place, starts[-1] + 1), support - (count - j))
        starts.append(torch.where(alone >= j, j, place))
    return torch.cat([*starts, support], dim=-1)
