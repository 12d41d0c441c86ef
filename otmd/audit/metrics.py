"""Acceptance of a recorded run, by its many names, and compared with the ceiling of lossless verifiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from otmd.probabilities import BoolArray, IntArray

_METRICS = {
    "acceptance rate": "accepted tokens / positions that were reached with drafts",
    "optimal acceptance rate": "mean of α*(p, q) over positions that were reached with drafts: Σ min(p, q) "
    "for one draft",
    "draft acceptance rate": "accepted tokens / draft tokens proposed, those that were not reached too "
    "(vLLM's draft acceptance rate, SGLang's spec_accept_rate)",
    "accepted drafts per step": "accepted tokens / steps, the extra token not counted",
    "tokens per step": "1 + accepted tokens / steps: block efficiency, the extra token counted (vLLM's mean "
    "acceptance length, SGLang's spec_accept_length)",
}
_CONDITIONAL = "accepted / reached at this depth"
_PER_STEP = "accepted at this depth / steps (vLLM's per-position acceptance rate)"


class RecordedPosition(NamedTuple):
    """The depth and number of drafts of a row, whether it was reached, and whether a draft was accepted."""

    depth: int
    num_drafts: int
    reached: bool
    accepted: bool


@dataclass(frozen=True)
class PooledAcceptance:
    """Acceptance over all positions with sound drafts, compared with the ceiling of lossless verifiers.

    Rows with an output token of target probability zero are left out: they are proof.

    Attributes
    ----------
    num_positions : int
        The number of positions.
    rate : float
        The share of them whose output token was among the drafts.
    ceiling : float
        The mean of α*.
    p_value : float
        That of a bet that the rate is above the ceiling, valid at any time; 1 for a rate below.
    level : float
        A p-value of at most this is an alarm.
    """

    num_positions: int
    rate: float
    ceiling: float
    p_value: float
    level: float

    @property
    def too_high(self) -> bool:
        """Whether the rate is significantly above the ceiling, which proves a fault."""
        return self.p_value <= self.level

    def __str__(self) -> str:
        rate = f"{self.rate:.4f} of {self.num_positions:,} positions with drafts accept one"
        limit = f"a lossless verifier accepts at most {self.ceiling:.4f} of them on average"
        if self.rate <= self.ceiling:
            return f"{rate}; {limit}"
        size = "significantly more" if self.too_high else "more, but by no more than sampling noise"
        return f"{rate}; {limit}; this is {size} (p-value {self.p_value:.1e})"


@dataclass(frozen=True)
class Metric:
    """One of the many numbers that are called acceptance.

    Attributes
    ----------
    name : str
        Its name.
    value : float
        Its value, a fraction or a number of tokens.
    definition : str
        The formula in words.
    """

    name: str
    value: float
    definition: str


def metrics_of(positions: list[RecordedPosition], ceilings: list[float]) -> tuple[Metric, ...]:
    """The metrics of all positions."""
    depth, num_drafts, reached, accepted = np.array(positions, np.int64).T
    verified = (reached == 1) & (num_drafts > 0)
    num_steps = int(np.count_nonzero(verified & (depth == 0)))
    num_accepted = int(accepted.sum())
    values = {"optimal acceptance rate": float(np.mean(ceilings))} if ceilings else {}
    if num_steps:
        values |= {
            "acceptance rate": num_accepted / int(verified.sum()),
            "draft acceptance rate": num_accepted / int(num_drafts.sum()),
            "accepted drafts per step": num_accepted / num_steps,
            "tokens per step": 1.0 + num_accepted / num_steps,
        }
    metrics = [Metric(name, values[name], _METRICS[name]) for name in _METRICS if name in values]
    if num_steps and depth[verified].any():
        metrics += _by_depth(depth, verified, accepted, num_steps)
    return tuple(metrics)


def _by_depth(
    depth: IntArray, verified: BoolArray, accepted: IntArray, num_steps: int
) -> Iterator[Metric]:
    num_verified = np.bincount(depth[verified])
    num_accepted = np.bincount(depth[accepted == 1], minlength=num_verified.size)
    for d in np.flatnonzero(num_verified):
        conditional = float(num_accepted[d] / num_verified[d])
        yield Metric(f"conditional acceptance at depth {d}", conditional, _CONDITIONAL)
        per_step = float(num_accepted[d] / num_steps)
        yield Metric(f"acceptance per step at depth {d}", per_step, _PER_STEP)
