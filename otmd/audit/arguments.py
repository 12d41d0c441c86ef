"""What the audits take, checked."""

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw
from otmd.probabilities import FloatArray, validate_probs, validate_same_vocabulary


def validate_position(target_probs: ArrayLike, drafts: object) -> FloatArray:
    """Return the target of a single position, or raise ValueError for it or for the drafts' law."""
    if not isinstance(drafts, DraftLaw):
        raise ValueError(f"drafts: got {type(drafts).__name__}, wanted a DraftLaw")
    p = validate_probs("target_probs", target_probs)
    validate_same_vocabulary(p, drafts.vocab_size, drafts.batch_shape)
    if p.ndim != 1 or drafts.batch_shape:
        raise ValueError(
            f"target_probs: got leading axes {p.shape[:-1]} and drafts with {drafts.batch_shape}, wanted "
            "one position"
        )
    return p


def validate_level(false_alarm: object) -> float:
    """Return the rate of false alarms, or raise ValueError unless it is in (0, 1/4]."""
    validate_fraction("false_alarm", false_alarm)
    rate = float(false_alarm)  # type: ignore[arg-type]
    if rate > 0.25:
        raise ValueError(f"false_alarm: got {false_alarm!r}, wanted at most 0.25")
    return rate


def validate_fraction(name: str, value: object) -> None:
    """Raise ValueError unless the value is a number between 0 and 1, neither of them."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.floating)
        or not 0 < value < 1
    ):
        raise ValueError(f"{name}: got {value!r}, wanted a number between 0 and 1")
