"""Next-token distributions on a device: checks, and probabilities from logits."""

from typing import Any

import torch
from torch import Tensor

from otmd.probabilities import Processing, wrong, wrong_type

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def checked_pair(target_probs: Any, draft_probs: Any, validate: bool) -> tuple[Tensor, Tensor]:
    """Both distributions by :func:`checked_probs`, broadcast; ValueError unless they fit each other."""
    check_tensors(target_probs, draft_probs)
    p = checked_probs("target_probs", target_probs, validate)
    p, q = torch.broadcast_tensors(p, checked_probs("draft_probs", draft_probs, validate))
    return p, q


def checked_probs(name: str, probs: Any, validate: bool) -> Tensor:
    """Distributions (…, V) in float64, divided by their sums; NaN for a row that is no distribution.

    With ``validate`` such a row is a ValueError. The host then waits for the device.
    """
    check_tensor(name, probs)
    probs = probs.detach()
    total = probs.sum(dim=-1, keepdim=True, dtype=torch.float64)
    close = (total - 1.0).abs() <= torch.finfo(probs.dtype).eps ** 0.5
    valid = close & (probs.amin(dim=-1, keepdim=True) >= 0)
    if validate and len(indices := (~valid[..., 0]).nonzero()):
        index = tuple(indices[0].tolist())
        where = f" at index {index}" if index else ""
        row = probs[index].double()
        raise wrong(
            name,
            f"a row{where} that sums to {row.sum().item()!r} and whose least number is {row.min().item()!r}",
            f"finite numbers ≥ 0 that sum to 1 within {torch.finfo(probs.dtype).eps ** 0.5:.1e}, the "
            f"tolerance of its dtype {probs.dtype}",
        )
    return probs.double() / torch.where(valid, total, torch.nan)


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
        For a wrong shape, or a temperature below 0 or not finite; TypeError for another dtype.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors import probs_from_logits
    >>> probs_from_logits(torch.tensor([2.0, 2.0, 1.0]), temperature=0.0)
    tensor([1., 0., 0.])
    """
    check_tensor("logits", logits)
    Processing(temperature)  # refuses a bad temperature
    scores = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    peak = scores.amax(dim=-1, keepdim=True)
    if temperature == 0:
        mass = peak * 0 + 1  # NaN where the largest logit is not finite
        best = scores.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(scores).scatter_(-1, best, mass)
    # The largest logit is subtracted first: then the division cannot overflow or round that logit.
    below = scores - peak
    # A temperature may be 0 in this dtype, or 1/temperature infinite: 0 stays 0.
    return torch.softmax(torch.where(below == 0, below, below / temperature), dim=-1)


def check_tensors(target: Any, draft: Any, draft_name: str = "draft_probs") -> None:
    """Raise ValueError unless the two are tensors (…, V) that fit each other."""
    check_tensor("target_probs", target)
    check_tensor(draft_name, draft)
    if draft.device != target.device:
        expected = f"{target.device}, that of target_probs"
        raise wrong(draft_name, f"device {draft.device}", expected)
    if draft.shape[-1] != target.shape[-1]:
        expected = f"{target.shape[-1]}, the vocabulary of target_probs"
        raise wrong(draft_name, f"{draft.shape[-1]} tokens", expected)
    try:
        torch.broadcast_shapes(target.shape, draft.shape)
    except RuntimeError as reason:
        expected = f"some that broadcast against {tuple(target.shape[:-1])}, those of target_probs"
        raise wrong(draft_name, f"leading axes {tuple(draft.shape[:-1])}", expected) from reason


def check_tensor(name: str, value: Any) -> None:
    """Raise TypeError unless ``value`` is a floating tensor, ValueError unless its shape is (…, V)."""
    if not isinstance(value, Tensor):
        raise wrong_type(name, value, "a torch.Tensor (…, V)")
    if value.dtype not in DTYPES:
        expected = "float16, bfloat16, float32 or float64"
        raise TypeError(f"{name}: got dtype {value.dtype}, expected {expected}")
    if value.ndim == 0 or value.shape[-1] == 0:
        raise wrong(name, f"shape {tuple(value.shape)}", "(…, V) with at least one token in V")
