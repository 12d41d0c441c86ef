"""Counters of speculative decoding, and every acceptance rate that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from otmd.probabilities import FloatArray, validate_real, wrong, wrong_type


class DraftLength(NamedTuple):
    """An estimate for chains of ``num_drafts`` drafts: tokens per step and, of one request, per second."""

    num_drafts: int
    tokens_per_step: float
    tokens_per_second: float


@dataclass(frozen=True)
class AcceptanceCounts:
    """Steps of a run, and the drafts that were accepted in them, with every rate that is called acceptance.

    A step calls the target once, accepts the first few of its drafts along one path, and adds one more token,
    the bonus token, which no count includes. Counters only grow, so those of an interval are differences of
    two readings. Counts that contradict each other are a ValueError.

    Parameters
    ----------
    steps : int
        The steps that had drafts, at least one.
    accepted : int
        The accepted drafts of all steps.
    drafted : int, optional
        The drafts of all steps, those after a rejection too.
    accepted_by_position : sequence of int, optional
        The numbers of steps that accepted at least 1, 2, … drafts: how often the draft at each position was.

    Examples
    --------
    >>> import otmd
    >>> counts = otmd.AcceptanceCounts(100, 120, drafted=200, accepted_by_position=(70, 50))
    >>> counts.tokens_per_step, counts.draft_acceptance_rate
    (2.2, 0.6)
    >>> counts.acceptance_by_position.tolist(), counts.conditional_acceptance.round(3).tolist()
    ([0.7, 0.5], [0.7, 0.714])
    >>> otmd.AcceptanceCounts.from_histogram([30, 20, 50], drafted=200) == counts
    True
    """

    steps: int
    accepted: int
    drafted: int | None = None
    accepted_by_position: Sequence[int] | None = None

    def __post_init__(self) -> None:
        steps = _count("steps", self.steps, minimum=1)
        accepted = _count("accepted", self.accepted)
        drafted = None if self.drafted is None else _count("drafted", self.drafted)
        by_position = self.accepted_by_position
        if by_position is not None:
            by_position = _counts("accepted_by_position", by_position)
            if sum(by_position) != accepted:
                raise wrong("accepted", accepted, f"{sum(by_position)}, the sum by position")
            if any(b > a for a, b in zip((steps, *by_position), by_position, strict=False)):
                raise wrong("accepted_by_position", by_position, f"at most {steps} (steps), descending")
        if drafted is not None and accepted > drafted:
            raise wrong("accepted", accepted, f"at most {drafted} (drafted)")
        values = (steps, accepted, drafted, by_position)
        for name, value in zip(self.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def from_histogram(cls, histogram: Sequence[int], drafted: int | None = None) -> AcceptanceCounts:
        """Counts from the numbers of steps that accepted exactly 0, 1, 2, … drafts."""
        exactly = _counts("histogram", histogram)
        at_least = [*accumulate(reversed(exactly))][::-1]
        if not sum(exactly):
            raise wrong("histogram", exactly, "at least one step")
        return cls(at_least[0], sum(at_least[1:]), drafted, at_least[1:])

    @property
    def accepted_per_step(self) -> float:
        """Accepted drafts per step, without the bonus token: the mean accepted length of some papers."""
        return self.accepted / self.steps

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step, with the bonus token: block efficiency, mean acceptance length."""
        return 1.0 + self.accepted_per_step

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted drafts / all drafts; None if these were not counted, NaN if there were none."""
        if self.drafted is None:
            return None
        return self.accepted / self.drafted if self.drafted else np.nan

    @property
    def accepted_share(self) -> float:
        """Accepted drafts / all tokens emitted in the steps."""
        return self.accepted / (self.accepted + self.steps)

    @property
    def acceptance_by_position(self) -> FloatArray | None:
        """P(a step accepts at least k drafts), k = 1, 2, …; None if not counted."""
        by_position = self.accepted_by_position
        return None if by_position is None else np.array(by_position, float) / self.steps

    @property
    def conditional_acceptance(self) -> FloatArray | None:
        """P(at least k accepted | at least k − 1), NaN where no step reached k − 1: α at depth k."""
        if self.accepted_by_position is None:
            return None
        reached = np.array([self.steps, *self.accepted_by_position], float)
        with np.errstate(invalid="ignore"):
            return reached[1:] / reached[:-1]

    @property
    def histogram(self) -> FloatArray | None:
        """Share of the steps that accept exactly 0, 1, 2, … drafts; None if not counted."""
        if self.accepted_by_position is None:
            return None
        return -np.diff([self.steps, *self.accepted_by_position, 0]) / self.steps

    def draft_lengths(self, times: Sequence[float]) -> list[DraftLength]:
        """Estimate the chains of 0, 1, … drafts, the most tokens per second first.

        ``times`` are the seconds of a step with 0, 1, 2, … drafts at the load in question, at most as many
        as were counted. Tokens per step are 1 + Σ P(at least k accepted) over the drafts. For a shorter chain
        that is an estimate, since its steps begin elsewhere: it is low where acceptance comes in runs. An
        engine that adapts the length, or mixes lengths, needs the counts of its longest steps.

        Examples
        --------
        >>> import otmd
        >>> counts = otmd.AcceptanceCounts(100, 150, accepted_by_position=(70, 50, 30))
        >>> for row in counts.draft_lengths([0.020, 0.022, 0.025, 0.032]):
        ...     print(row.num_drafts, round(row.tokens_per_step, 2), round(row.tokens_per_second, 1))
        2 2.2 88.0
        3 2.5 78.1
        1 1.7 77.3
        0 1.0 50.0
        """
        if self.accepted_by_position is None:
            raise wrong("accepted_by_position", "None", "counts by position, or a histogram")
        seconds = [validate_real(f"times[{k}]", value) for k, value in enumerate(times)]
        most = len(self.accepted_by_position)
        if not 1 <= len(seconds) <= most + 1 or not all(0 < x < np.inf for x in seconds):
            raise wrong("times", times, f"seconds above 0, of steps with 0 to at most {most} drafts")
        tokens = 1.0 + np.cumsum([0, *self.accepted_by_position]) / self.steps
        rows = [DraftLength(k, float(tokens[k]), float(tokens[k] / s)) for k, s in enumerate(seconds)]
        return sorted(rows, key=lambda row: -row.tokens_per_second)


def _count(name: str, value: Any, minimum: int = 0) -> int:
    """A counter as an int. Engines print whole numbers as 10.0, and start again at 0 with their process."""
    number = validate_real(name, value, "a whole number")
    if not number.is_integer():
        raise wrong(name, value, f"a whole number ≥ {minimum}")
    if number < minimum:
        reset = " (was the counter reset between two readings?)" if number < 0 else ""
        raise wrong(name, value, f"a whole number ≥ {minimum}{reset}")
    return int(value)


def _counts(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        raise wrong_type(name, values, "a sequence of whole numbers")
    return tuple(_count(f"{name}[{i}]", value) for i, value in enumerate(values))
