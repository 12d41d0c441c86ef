"""Next-token distributions on a device: what is checked, and how logits become one."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from otmd.probabilities import Processing

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Pair(NamedTuple):
    """Two tensors (…, V) in the dtype computed in, and their sums (…, 1) in float64.

    Both sums are NaN where one of the two is no distribution, so that the device need not be waited for.
    """

    target: Tensor
    draft: Tensor
    target_total: Tensor
    draft_total: Tensor

    @property
    def target_probs(self) -> Tensor:
        """A copy that sums to 1, or is NaN."""
        return self.target / self.target_total.to(self.target.dtype)

    @property
    def draft_probs(self) -> Tensor:
        """A copy that sums to 1, or is NaN."""
        return self.draft / self.draft_total.to(self.draft.dtype)


def checked_pair(target_probs: Any, draft_probs: Any, validate: bool) -> Pair:
    """Check two distributions (…, V) against each other; half precision is computed in float32.

    With ``validate``, which waits for the device, values that are no distribution are a ValueError too.
    """
    target, draft = check_tensors(target_probs, draft_probs)
    target_total, target_whole = _total(target)
    draft_total, draft_whole = _total(draft)
    if validate:
        _refuse_broken("target_probs", target, target_whole)
        _refuse_broken("draft_probs", draft, draft_whole)
    whole = target_whole & draft_whole
    dtype = working_dtype(target, draft)
    target, draft = torch.broadcast_tensors(target.to(dtype), draft.to(dtype))
    totals = [torch.where(whole, total, torch.nan) for total in (target_total, draft_total)]
    return Pair(target, draft, *totals)


def checked_probs(name: str, probs: Any, validate: bool) -> Tensor:
    """One distribution (…, V) in float64 that sums to 1, or is NaN; errors as for :func:`checked_pair`."""
    check_tensor(name, probs)
    total, whole = _total(probs.detach())
    if validate:
        _refuse_broken(name, probs, whole)
    return probs.detach().double() / torch.where(whole, total, torch.nan)


def probs_from_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Turn logits into probabilities on their device.

    Parameters
    ----------
    logits : torch.Tensor, shape (…, V)
        Raw scores; −inf marks a token that cannot be sampled.
    temperature : float
        Logits are divided by it. 0 means all mass on the largest logit, ties to the lowest id.

    Returns
    -------
    torch.Tensor, shape (…, V)
        float32 for half precision, else the dtype of the logits. A row with NaN or +inf, or without
        a finite logit, holds NaN.

    Raises
    ------
    ValueError
        For a wrong shape or dtype, or a temperature that is no finite number ≥ 0.
    """
    check_tensor("logits", logits)
    Processing(temperature)  # refuses a bad temperature
    scores = logits.detach().to(working_dtype(logits))
    peak = scores.amax(dim=-1, keepdim=True)
    if temperature == 0:
        one = peak * 0 + 1  # NaN where the largest logit is not finite
        best = scores.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(scores).scatter_(-1, best, one)
    # Subtracting first keeps the division from overflowing, and from rounding the largest ones.
    return torch.softmax((scores - peak) / temperature, dim=-1)


def check_tensors(target: Any, draft: Any) -> tuple[Tensor, Tensor]:
    """Return both without their gradients, or raise ValueError unless they fit each other."""
    check_tensor("target_probs", target)
    check_tensor("draft_probs", draft)
    if draft.device != target.device:
        raise ValueError(
            f"draft_probs: got device {draft.device}, wanted {target.device}, that of target_probs"
        )
    if draft.shape[-1] != target.shape[-1]:
        raise ValueError(
            f"draft_probs: got {draft.shape[-1]} tokens, wanted {target.shape[-1]}, the vocabulary "
            "of target_probs"
        )
    try:
        torch.broadcast_shapes(target.shape, draft.shape)
    except RuntimeError as reason:
        raise ValueError(
            f"draft_probs: got leading axes {tuple(draft.shape[:-1])}, wanted some that broadcast "
            f"against {tuple(target.shape[:-1])}, those of target_probs"
        ) from reason
    return target.detach(), draft.detach()


def check_tensor(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a floating tensor (…, V)."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name}: got {type(value).__name__}, wanted a torch.Tensor (…, V)")
    if value.dtype not in DTYPES:
        raise ValueError(
            f"{name}: got dtype {value.dtype}, wanted float16, bfloat16, float32 or float64"
        )
    if value.ndim == 0 or value.shape[-1] == 0:
        raise ValueError(
            f"{name}: got shape {tuple(value.shape)}, wanted (…, V) with at least one token in V"
        )


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest of their dtypes, float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _total(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (…, 1) in float64, and whether each belongs to a distribution."""
    total = probs.sum(dim=-1, keepdim=True, dtype=torch.float64)
    # A comparison with NaN is false.
    near_one = (total - 1.0).abs() <= torch.finfo(probs.dtype).eps ** 0.5
    return total, near_one & (probs.amin(dim=-1, keepdim=True) >= 0)


def _refuse_broken(name: str, probs: Tensor, whole: Tensor) -> None:
    broken = (~whole[..., 0]).nonzero()
    if len(broken) == 0:
        return
    index = tuple(broken[0].tolist())
    row = probs[index].double()
    where = f" at index {index}" if index else ""
    raise ValueError(
        f"{name}: got a row{where} that sums to {row.sum().item()!r} and whose least number is "
        f"{row.min().item()!r}, wanted finite numbers ≥ 0 that sum to 1 within "
        f"{torch.finfo(probs.dtype).eps ** 0.5:.1e}, the tolerance of its dtype {probs.dtype}"
    )
