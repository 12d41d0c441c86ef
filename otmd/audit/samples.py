"""Arguments, reports, declared laws, ceilings of the acceptance and deviations of tokens, for all audits."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from otmd.laws import DraftLaw, Table, WithReplacement
from otmd.laws.base import RngLike, validate_one_position, validate_rng
from otmd.laws.structure import draw_tokens
from otmd.optimum import optimal_acceptance
from otmd.optimum.bounds import draft_probability_bound
from otmd.probabilities import (
    BoolArray,
    FloatArray,
    IntArray,
    from_tensor,
    validate_probs,
    validate_real,
    validate_same_vocabulary,
    wrong,
    wrong_type,
)
from otmd.registry import LAWS
from otmd.verifiers import Verifier

Sampler = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to a token, or from drafts (N, n) to tokens (N,)."""
ConditionalLaw = Callable[[IntArray], ArrayLike]
"""From drafts (n,) to the distribution of the output token (V,)."""
LawMaker = Callable[[FloatArray, int], DraftLaw]
"""From q (V,) and the number of drafts to their law."""
# A maximum flow over more tuples would take longer than the audit.
_MOST_TUPLES = 5_000
PROOF = "of the tokens have target probability zero: proof"
# Added to ceilings, which rounding may make too low.
SLACK = 1e-9


class Report(ABC):
    """The result of an audit: ``faulty``, the ``verdict`` in a sentence, and the ``details`` below it."""

    @property
    @abstractmethod
    def faulty(self) -> bool:
        """Whether a fault was found."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """One sentence."""

    @property
    @abstractmethod
    def details(self) -> list[str]:
        """The numbers behind the verdict, in lines."""

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.details])


@dataclass(frozen=True)
class Acceptance:
    """The acceptance rate in a sample, and the most that a lossless verifier could accept.

    Attributes
    ----------
    rate : float
        The share of draws whose output token is one of the drafts.
    low, high : float
        Exact bounds of the acceptance rate (Clopper–Pearson).
    ceiling : float
        α*, or :func:`~otmd.optimum.bounds.draft_probability_bound` for a law without a closed form and with
        too many tuples for a maximum flow.
    """

    rate: float
    low: float
    high: float
    ceiling: float

    @property
    def too_high(self) -> bool:
        """Whether the rate is significantly above the ceiling, which proves a fault."""
        return self.low > self.ceiling


@dataclass(frozen=True)
class TokenDeviation:
    """A token that is emitted too often or too seldom.

    Attributes
    ----------
    token : int
        Its id.
    observed, expected : float
        Its counts, or its probabilities if the distribution of the output is exact.
    """

    token: int
    observed: float
    expected: float


def validate_position(target_probs: ArrayLike, law: object) -> FloatArray:
    """Return the target of a single position, or raise for it or for the law."""
    checked = validate_one_position(law, target_probs)
    p = validate_probs("target_probs", target_probs)
    validate_same_vocabulary(p, checked.vocab_size)
    if p.ndim != 1:
        raise wrong("target_probs", f"leading axes {p.shape[:-1]}", "one position")
    return p


def validate_verifier(verifier: object) -> None:
    """Raise TypeError for a class, and for what is neither a Verifier nor a callable."""
    if isinstance(verifier, type):
        raise wrong_type("verifier", verifier, f"an instance: {verifier.__name__}()")
    if not isinstance(verifier, Verifier) and not callable(verifier):
        raise wrong_type("verifier", verifier, "a Verifier or a callable")


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


def derived_rng(rng: RngLike, audit: str) -> np.random.Generator:
    """Return a generator for an audit, independent of all other random numbers from the seed of ``rng``.

    The engine under audit may use an equal seed. Its random numbers would then be those of the audit, and a
    sound engine would be called faulty. A generator is advanced.
    """
    words = validate_rng(rng).integers(2**32, size=4)
    return np.random.default_rng([*f"otmd.audit.{audit}".encode(), *words.tolist()])


def one_by_one(sampler: Sampler, draft_tokens: IntArray) -> NDArray:
    """The tokens (N,) that a sampler of single draws emits for drafts (N, n); ValueError for arrays."""
    tokens = [np.asarray(from_tensor(sampler(row))) for row in draft_tokens]
    for token in tokens:
        if token.ndim:
            received = f"an array of shape {token.shape} for one draw of drafts"
            raise wrong("verifier", received, "a token; batched=True takes all draws in one call")
    return np.stack(tokens)


def validate_emitted(tokens: ArrayLike, count: int, vocab_size: int, name: str) -> IntArray:
    """Return tokens as int64 of shape (count,), or raise ValueError under that name."""
    array = np.asarray(from_tensor(tokens))
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise wrong(name, f"{array.dtype} of shape {array.shape}", f"integers of shape ({count},)")
    if count and (array.min() < 0 or array.max() >= vocab_size):
        raise wrong(name, f"ids from {array.min()} to {array.max()}", f"ids in [0, {vocab_size})")
    return array.astype(np.int64)


def sampler_of(verifier: ConditionalLaw, *, rng: RngLike) -> Callable[[IntArray], IntArray]:
    """A batched sampler, from drafts (N, n) to tokens (N,), of a verifier given by its conditional law.

    Parameters
    ----------
    verifier : callable
        Takes drafts (n,) and returns the distribution of the output token (V,). It is called once for each
        tuple of drafts.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator, which draws the tokens.

    Returns
    -------
    callable
        It raises ValueError if the verifier does not return a distribution.

    Examples
    --------
    >>> import numpy as np, otmd
    >>> verifier = otmd.TargetOnly().prepare([0.0, 1.0], otmd.WithReplacement([0.5, 0.5], 2))
    >>> sampler = otmd.audit.sampler_of(verifier.conditional_law, rng=0)
    >>> sampler(np.array([[0, 0], [0, 1], [1, 1]])).tolist()
    [1, 1, 1]
    """
    generator = validate_rng(rng)

    @cache
    def output_probs(draft_tokens: tuple[int, ...]) -> FloatArray:
        return validate_probs("verifier", verifier(np.array(draft_tokens)))

    def sample(draft_tokens: IntArray) -> IntArray:
        tuples, indices = np.unique(draft_tokens, axis=0, return_inverse=True)
        order = np.argsort(indices.ravel(), kind="stable")
        outputs = map(output_probs, map(tuple, tuples.tolist()))
        counts = np.bincount(indices.ravel())
        drawn = (
            draw_tokens(probs, generator, size) for probs, size in zip(outputs, counts, strict=True)
        )
        tokens = np.empty(len(draft_tokens), np.int64)
        tokens[order] = np.concatenate([tokens[:0], *drawn])
        return tokens

    return sample


def law_name(law: object) -> str:
    """The name of a law on the command line, with the law's parameters."""
    if isinstance(law, partial):
        parameters = ", ".join(f"{name}={value!r}" for name, value in law.keywords.items())
        return f"{law_name(law.func)} ({parameters})"
    name = law if isinstance(law, str) else getattr(law, "__name__", repr(law))
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower()


# A row records one q, which independent drafts share. Fixed drafts are decided by the text before them:
# n-grams, the argmax, the most likely tokens of a tree.
MAKERS: dict[str, LawMaker | None] = {
    **{entry.name: entry.load() for entry in LAWS.values() if entry.audited},
    "independent": WithReplacement,
    "fixed": None,
}


def law_maker(law: str | LawMaker) -> LawMaker | None:
    """The maker of a law, given as such or by name; None for fixed drafts, ValueError for an unknown name."""
    if callable(law):
        return law
    if law not in MAKERS:
        raise wrong("law", repr(law), f"one of {', '.join(MAKERS)}, or a callable")
    return MAKERS[law]


class DeclaredLaw(NamedTuple):
    """The law of a row's drafts, and the distribution (V,) of each given those before it."""

    law: DraftLaw
    next_draft_probs: list[FloatArray]


def declared_law(
    make: LawMaker, draft_probs: FloatArray, draft_tokens: IntArray
) -> DeclaredLaw | str:
    """The law of a row's drafts (n,); or their kind of boundary case if it cannot have drawn them."""
    if (draft_probs[draft_tokens] == 0).any():
        return "draft_impossible"
    try:
        law = make(draft_probs, draft_tokens.size)
    except ValueError:
        # Fewer tokens with mass than drafts, or a number of drafts that the law is not defined for.
        return "draft_never"
    structure = validate_one_position(law).position_structure
    top = draft_tokens[: structure.deterministic.size]
    if structure.deterministic_first and (top != structure.deterministic).any():
        # The engine may break ties of q in another way. By one unit in the last place, its tokens win them.
        steps = np.zeros(draft_probs.size)
        steps[top] = np.arange(top.size, 0, -1)
        law = make(draft_probs + steps * np.spacing(draft_probs), draft_tokens.size)
        structure = law.position_structure
    probs = [structure.next_draft_probs(draft_tokens[:j]) for j in range(draft_tokens.size)]
    possible = all(row[token] > 0 for row, token in zip(probs, draft_tokens, strict=True))
    return DeclaredLaw(law, probs) if possible else "draft_never"


def is_accepted(draft_tokens: IntArray, output_tokens: IntArray) -> BoolArray:
    """Whether each output token (N,) is among its drafts (N, n)."""
    return (draft_tokens == output_tokens[:, None]).any(axis=-1)


def acceptance_ceiling(target: FloatArray, law: DraftLaw) -> float:
    """The ceiling of an :class:`Acceptance`, rounded up."""
    random = law.position_structure.random
    # A table without q has no order of tokens that the cut is a prefix of.
    needs_flow = isinstance(random, Table) and random.probs is None
    if not needs_flow or law.position_structure.num_tuples <= _MOST_TUPLES:
        rate = float(optimal_acceptance(target, law).rate)
    else:
        rate = float(draft_probability_bound(target, law))
    return min(1.0, rate + SLACK)


def largest_deviations(observed: FloatArray, expected: FloatArray) -> tuple[TokenDeviation, ...]:
    """The five tokens with the largest |O − E|/√E, impossible ones first; those with O = E are left out."""
    off = observed - expected
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(off == 0, 0.0, np.abs(off) / np.sqrt(expected))
    by_size = np.lexsort((-np.abs(off), -size))[:5]
    return tuple(
        TokenDeviation(int(y), float(observed[y]), float(expected[y])) for y in by_size if off[y]
    )


def deviation_table(worst: tuple[TokenDeviation, ...], number: str = ".1f") -> str:
    """Lines of token, observed, expected, difference and ratio."""
    lines = [f"  {'token':>8} {'observed':>12} {'expected':>12} {'difference':>12} {'ratio':>8}"]
    for token in worst:
        ratio = f"{token.observed / token.expected:8.3f}" if token.expected > 0 else f"{'∞':>8}"
        cells = (token.observed, token.expected, token.observed - token.expected)
        numbers = " ".join(f"{value:>12{number}}" for value in cells)
        lines.append(f"  {token.token:>8} {numbers} {ratio}")
    return "\n".join(lines)
