"""Numbers that are called acceptance, each with its name and definition, as there are many."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otmd.probabilities import BoolArray, IntArray


@dataclass(frozen=True)
class Metric:
    """A number with what it is.

    Attributes
    ----------
    name, definition : str
    value : float
    """

    name: str
    value: float
    definition: str


@dataclass(frozen=True, eq=False)
class Positions:
    """What the metrics are counted from, a row each.

    Attributes
    ----------
    depth, num_drafts : ndarray of int64, shape (N,)
    decided, accepted : ndarray of bool, shape (N,)
        Whether the position was reached; whether its output token is one of its drafts.
    """

    depth: IntArray
    num_drafts: IntArray
    decided: BoolArray
    accepted: BoolArray


def count_metrics(positions: Positions) -> tuple[Metric, ...]:
    """The metrics in use, by counting; those that nothing was recorded for are left out.

    A step is a row of depth 0 with what follows it.
    """
    drafted = positions.num_drafts > 0
    verified = positions.decided & drafted
    steps = int(np.count_nonzero(verified & (positions.depth == 0)))
    accepted, proposed = int(positions.accepted.sum()), int(positions.num_drafts.sum())
    if steps == 0:
        return ()
    return (
        Metric(
            "acceptance rate",
            accepted / int(verified.sum()),
            "accepted tokens / positions that were reached with drafts",
        ),
        Metric(
            "draft acceptance rate",
            accepted / proposed,
            "accepted tokens / draft tokens proposed, those that were not reached too (vLLM's draft "
            "acceptance rate, SGLang's spec_accept_rate)",
        ),
        Metric(
            "accepted drafts per step",
            accepted / steps,
            "accepted tokens / steps, the extra token not counted",
        ),
        Metric(
            "tokens per step",
            1.0 + accepted / steps,
            "1 + accepted tokens / steps: block efficiency, the extra token counted (vLLM's mean acceptance "
            "length, SGLang's spec_accept_length)",
        ),
        *_by_depth(positions, verified, steps),
    )


def _by_depth(positions: Positions, verified: BoolArray, steps: int) -> list[Metric]:
    deepest = int(positions.depth[verified].max())
    if deepest == 0:
        return []
    found = []
    reached = _count(positions.depth[verified], deepest)
    accepted = _count(positions.depth[positions.accepted], deepest)
    for depth in np.flatnonzero(reached):
        found += [
            Metric(
                f"conditional acceptance at depth {depth}",
                accepted[depth] / reached[depth],
                "accepted / reached at this depth",
            ),
            Metric(
                f"acceptance per step at depth {depth}",
                accepted[depth] / steps,
                "accepted at this depth / steps (vLLM's per-position acceptance rate)",
            ),
        ]
    return found


def _count(depths: NDArray, deepest: int) -> NDArray:
    return np.bincount(depths, minlength=deepest + 1)
