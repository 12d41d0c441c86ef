"""The common part of audits: reports, checked arguments, random numbers, and the ceiling of acceptance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw, Table
from otmd.laws.base import RngLike, validate_one_position, validate_rng, validate_target
from otmd.optimum import optimal_acceptance
from otmd.optimum.bounds import draft_probability_bound
from otmd.probabilities import FloatArray, IntArray, from_tensor, validate_real, wrong
from otmd.verifiers.base import as_verifier

Sampler = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to a token, or from drafts (N, n) to tokens (N,)."""
ConditionalLaw = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to the distribution of the output token (V,)."""
# A maximum flow over more tuples would take longer than the audit.
_MOST_TUPLES = 5_000
# Added to ceilings, which rounding may make too low.
SLACK = 1e-9
PROOF = "of the tokens have target probability zero: proof"


class Report(ABC):
    """The result of an audit: the ``verdict`` in a sentence, and the ``details`` below it, in lines."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """One sentence."""

    @property
    @abstractmethod
    def details(self) -> list[str]:
        """The numbers behind the verdict."""

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.details])


@dataclass(frozen=True)
class TokenDeviation:
    """A token that is emitted too often or too seldom: its counts, or its exact probabilities."""

    token: int
    observed: float
    expected: float


def validate_position(target_probs: ArrayLike, law: object) -> FloatArray:
    """Return the target of a single position, or raise for it or for the law."""
    p = validate_target(target_probs, validate_one_position(law, target_probs))
    if p.ndim != 1:
        raise wrong("target_probs", f"leading axes {p.shape[:-1]}", "one position")
    return p


def as_rule(verifier: Any) -> Any:
    """Return a callable, or a verifier as :func:`as_verifier` does; TypeError for anything else."""
    is_call = callable(verifier) and not isinstance(verifier, type)
    return verifier if is_call else as_verifier(verifier)


def validate_level(false_alarm: object) -> float:
    """Return the rate of false alarms, or raise ValueError unless it is in (0, 1/4]."""
    level = validate_fraction("false_alarm", false_alarm)
    if level > 0.25:
        raise wrong("false_alarm", repr(false_alarm), "at most 0.25")
    return level


def validate_fraction(name: str, value: object) -> float:
    """Return a number strictly between 0 and 1; TypeError for what is no number, else ValueError."""
    number = validate_real(name, value)
    if not 0 < number < 1:
        raise wrong(name, repr(value), "a number between 0 and 1")
    return number


def validate_emitted(tokens: ArrayLike, count: int, vocab_size: int, name: str) -> IntArray:
    """Return tokens as int64 of shape (count,), or raise ValueError under that name."""
    array = np.asarray(from_tensor(tokens))
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise wrong(name, f"{array.dtype} of shape {array.shape}", f"integers of shape ({count},)")
    if count and (array.min() < 0 or array.max() >= vocab_size):
        raise wrong(name, f"ids from {array.min()} to {array.max()}", f"ids in [0, {vocab_size})")
    return array.astype(np.int64)


def derived_rng(rng: RngLike, audit: str) -> np.random.Generator:
    """Return a generator for an audit, independent of all other random numbers from the seed of ``rng``.

    The engine under audit may use an equal seed. Its random numbers would then be those of the audit, and a
    sound engine would be called faulty. A generator is advanced.
    """
    words = validate_rng(rng).integers(2**32, size=4)
    return np.random.default_rng([*f"otmd.audit.{audit}".encode(), *words.tolist()])


def acceptance_ceiling(target: FloatArray, law: DraftLaw) -> float:
    """The ceiling of an :class:`Acceptance`, rounded up."""
    structure = law.position_structure
    is_large = isinstance(structure.random, Table) and structure.num_tuples > _MOST_TUPLES
    rate = draft_probability_bound(target, law) if is_large else optimal_acceptance(target, law).rate
    return min(1.0, float(rate) + SLACK)


def largest_deviations(observed: FloatArray, expected: FloatArray) -> tuple[TokenDeviation, ...]:
    """The five tokens with the largest |O − E|/√E, impossible ones first; those with O = E are left out."""
    off = observed - expected
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(off == 0, 0.0, np.abs(off) / np.sqrt(expected))
    by_size = np.lexsort((-np.abs(off), -size))[:5]
    return tuple(TokenDeviation(int(y), float(observed[y]), float(expected[y])) for y in by_size if off[y])


def deviations_table(heading: str, worst: tuple[TokenDeviation, ...], number: str = ".1f") -> list[str]:
    """The lines of a table of tokens under a heading; ``number`` formats counts or probabilities."""
    columns = f"  {'token':>8} {'observed':>12} {'expected':>12} {'difference':>12} {'ratio':>8}"
    lines = [heading, columns]
    for x in worst:
        cells = (x.observed, x.expected, x.observed - x.expected)
        numbers = " ".join(f"{value:>12{number}}" for value in cells)
        ratio = f"{x.observed / x.expected:.3f}" if x.expected > 0 else "∞"
        lines.append(f"  {x.token:>8} {numbers} {ratio:>8}")
    return lines
