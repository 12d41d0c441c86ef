"""Laws of drafts in exact numbers, and g(H) = P(every draft lies in H) for all 2^V subsets H at once.

The numbers may be Fractions or rational functions of a symbol: they are only added, multiplied,
divided and compared with zero. Subsets are bit masks, token y being bit y.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fractions import Fraction
from importlib import import_module
from itertools import combinations, islice
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from otmd.probabilities import validate_count, wrong, wrong_type

_WANTED = "an int, a Fraction, a string such as '1/3', or a finite float"
# Enough tokens for every function here to refuse the vocabulary by its own limit.
_MOST_TOKENS = 10_000

Number = Any
# From the name of an argument and its value to a list of exact numbers, one for each token.
Reader = Callable[[str, object], list[Number]]


def rational(name: str, value: object) -> Fraction:
    """Return ``value`` as a Fraction; a float is the binary fraction that it is, digit for digit."""
    number: Any = value.item() if isinstance(value, np.generic) else value
    try:
        return Fraction(number)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise wrong(name, repr(number), _WANTED) from error


def sequence(name: str, value: object) -> list[Any]:
    """Return the entries of an ordered iterable, or raise ValueError."""
    refusal = wrong(name, repr(value), "a list, a tuple or an array")
    if isinstance(value, str | Mapping | Set) or not isinstance(value, Iterable):
        raise refusal
    try:
        entries = list(islice(value, _MOST_TOKENS + 1))
    except TypeError as error:  # an array without axes calls itself iterable
        raise refusal from error
    if not 1 <= len(entries) <= _MOST_TOKENS:
        size = "none" if not entries else f"more than {_MOST_TOKENS}"
        raise wrong(name, size, f"1 to {_MOST_TOKENS} entries")
    return entries


def rational_probs(name: str, value: object) -> list[Fraction]:
    """Return a distribution as Fractions that sum to exactly 1, or raise ValueError."""
    probs = [rational(f"{name}[{i}]", entry) for i, entry in enumerate(sequence(name, value))]
    for i, prob in enumerate(probs):
        if prob < 0:
            raise wrong(f"{name}[{i}]", prob, "a number ≥ 0")
    total = sum(probs, Fraction(0))
    if total != 1:
        short = total if total.denominator < 10**9 else f"1 {float(total - 1):+.3g}"
        hint = "a float such as 0.1 is a binary fraction near 1/10, write '1/10' or '0.1' in quotes"
        raise wrong(name, f"numbers that sum to {short}", f"exactly 1; {hint}")
    return probs


def require_small(target_probs: list[Any], most: int, why: str) -> None:
    """Raise ValueError for more than ``most`` tokens."""
    if len(target_probs) > most:
        raise wrong("target_probs", f"{len(target_probs)} tokens", f"at most {most}: {why}")


def require_sympy() -> Any:
    """Import sympy; ImportError says how to install it."""
    try:
        return import_module("sympy")
    except ImportError as error:
        raise ImportError(
            'algebraic numbers and symbols need sympy: pip install -e ".[exact]" in a clone of otmd'
        ) from error


class ExactLaw(ABC):
    """A law of drafts for the functions of :mod:`otmd.optimum.exact`.

    Its entries are read by the function that it is given to: as fractions, or as functions of a symbol.
    """

    @abstractmethod
    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """G of all 2^V subsets; ValueError for entries that ``read`` refuses."""


class _Proposal(ExactLaw):
    """``num_drafts`` drafts from one distribution, ``draft_probs`` of length V."""

    distinct = True

    def __init__(self, draft_probs: Iterable[Any], num_drafts: int) -> None:
        self.draft_probs = sequence("draft_probs", draft_probs)
        self.num_drafts = validate_count("num_drafts", num_drafts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.draft_probs}, {self.num_drafts})"

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        return self._contained(self.read_probs(vocab_size, read))

    def read_probs(self, vocab_size: int, read: Reader) -> list[Number]:
        """The entries of q, checked as in :meth:`containment`."""
        probs = _read_row("draft_probs", self.draft_probs, vocab_size, read)
        support = sum(prob != 0 for prob in probs)
        if self.distinct and support < self.num_drafts:
            wanted = f"at most {support}, the number of tokens with mass in draft_probs"
            raise wrong("num_drafts", f"{self.num_drafts} distinct drafts", wanted)
        return probs

    @abstractmethod
    def _contained(self, probs: Sequence[Number]) -> list[Number]: ...


class WithReplacement(_Proposal):
    """n independent drafts; see :class:`otmd.WithReplacement`."""

    distinct = False

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        return [mass**self.num_drafts for mass in mass_of_all(probs)]


class WithoutReplacement(_Proposal):
    """n distinct drafts, one after another; see :class:`otmd.WithoutReplacement`."""

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        """Sum over the sets that can be drawn. Their probabilities grow one token at a time."""
        masses = mass_of_all(probs)
        chance = [0 * mass for mass in masses]
        chance[0] += 1
        for mask in range(len(masses)):
            if mask.bit_count() < self.num_drafts and chance[mask] != 0:
                left = masses[len(masses) - 1 ^ mask]
                for token, prob in enumerate(probs):
                    if not mask >> token & 1 and prob != 0:
                        chance[mask | 1 << token] += chance[mask] * prob / left
        drawn = [
            c if mask.bit_count() == self.num_drafts else 0 * c for mask, c in enumerate(chance)
        ]
        return sum_over_subsets(drawn)


class ConditionalPoisson(_Proposal):
    """n distinct drafts with probability ∝ the product of their q; see :class:`otmd.ConditionalPoisson`."""

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        weights = [0 * mass for mass in mass_of_all(probs)]
        for tokens in combinations(range(len(probs)), self.num_drafts):
            weights[mask_of(tokens)] += prod(probs[token] for token in tokens)
        sums = sum_over_subsets(weights)
        return [value / sums[-1] for value in sums]


class Greedy(_Proposal):
    """The n − 1 likeliest tokens and one drawn from the others; see :class:`otmd.Greedy`."""

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        likeliest = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
        top = mask_of(likeliest[: self.num_drafts - 1])
        masses = mass_of_all(probs)
        rest = masses[-1] - masses[top]
        return [
            (mass - masses[top]) / rest if mask & top == top else 0 * mass
            for mask, mass in enumerate(masses)
        ]


class Hub(Greedy):
    """The likeliest token and one other; as a set, the two are greedy drafts. See :class:`otmd.Hub`."""

    def __init__(self, draft_probs: Iterable[Any], num_drafts: int = 2) -> None:
        super().__init__(draft_probs, num_drafts)
        if self.num_drafts != 2:
            raise wrong("num_drafts", num_drafts, "2: Hub draws pairs")


class Independent(ExactLaw):
    """Drafts with a distribution each, the rows of ``draft_probs`` (n, V); see :class:`otmd.Independent`."""

    def __init__(self, draft_probs: Iterable[Iterable[Any]]) -> None:
        rows = sequence("draft_probs", draft_probs)
        self.draft_probs = [sequence(f"draft_probs[{i}]", row) for i, row in enumerate(rows)]
        self.num_drafts = len(rows)

    def __repr__(self) -> str:
        return f"Independent({self.draft_probs})"

    def read_rows(self, vocab_size: int, read: Reader) -> list[list[Number]]:
        """The entries of each draft's distribution, checked as in :meth:`containment`."""
        return [
            _read_row(f"draft_probs[{i}]", row, vocab_size, read)
            for i, row in enumerate(self.draft_probs)
        ]

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        masses = map(mass_of_all, self.read_rows(vocab_size, read))
        return [prod(each) for each in zip(*masses, strict=True)]


class Joint(ExactLaw):
    """A table from tuples of n tokens to their probabilities; see :class:`otmd.Joint`."""

    def __init__(self, table: Mapping[tuple[int, ...], Any]) -> None:
        if not isinstance(table, Mapping) or not table:
            wanted = "a mapping from tuples of tokens to their probabilities"
            raise wrong("table", repr(table), wanted)
        self.table = dict(table)
        first = next(iter(table))
        self.num_drafts = max(len(first), 1) if isinstance(first, tuple) else 1
        for tokens in table:
            if not isinstance(tokens, tuple) or len(tokens) != self.num_drafts:
                wanted = f"a tuple of {self.num_drafts} tokens"
                raise wrong("table", f"the key {tokens!r}", wanted)

    def __repr__(self) -> str:
        return f"Joint({self.table})"

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        probs = read("table", list(self.table.values()))
        drawn = [0 * probs[0]] * (1 << vocab_size)
        for tokens, prob in zip(self.table, probs, strict=True):
            if not all(_is_token(token, vocab_size) for token in tokens):
                raise wrong("table", f"the key {tokens!r}", f"tokens in [0, {vocab_size})")
            drawn[mask_of(map(int, tokens))] += prob
        return sum_over_subsets(drawn)


def _read_row(name: str, value: object, vocab_size: int, read: Reader) -> list[Number]:
    row = read(name, value)
    if len(row) != vocab_size:
        wanted = f"{len(row)}, the vocabulary of the drafts"
        raise wrong("target_probs", f"{vocab_size} tokens", wanted)
    return row


def require_law(law: object, served: tuple[type[ExactLaw], ...]) -> None:
    """Raise TypeError unless ``law`` is one of the exact laws that are served."""
    if not isinstance(law, served):
        names = ", ".join(f"exact.{known.__name__}" for known in served)
        raise wrong_type("law", law, f"one of {names}")


def mass_of_all(probs: Sequence[Number]) -> list[Number]:
    """The mass of every subset, in the order of bit masks."""
    masses = [0 * probs[0]]
    for prob in probs:
        masses += [mass + prob for mass in masses]
    return masses


def sum_over_subsets(values: Sequence[Number]) -> list[Number]:
    """For every H the sum of ``values`` over the subsets of H."""
    sums = list(values)
    for token in range(len(sums).bit_length() - 1):
        for mask in range(len(sums)):
            if mask >> token & 1:
                sums[mask] += sums[mask ^ 1 << token]
    return sums


def mask_of(tokens: Iterable[int]) -> int:
    """The bit mask of some tokens; a token that occurs twice counts once."""
    return sum(1 << token for token in set(tokens))


def tokens_of(mask: int) -> tuple[int, ...]:
    """The tokens of a bit mask, ascending."""
    return tuple(token for token in range(mask.bit_length()) if mask >> token & 1)


def _is_token(token: object, vocab_size: int) -> bool:
    return (
        isinstance(token, Integral) and not isinstance(token, bool) and 0 <= int(token) < vocab_size
    )
