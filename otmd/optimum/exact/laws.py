"""Laws of drafts in exact numbers, and g(H) = P(every draft lies in H) for all 2^V subsets H at once.

The numbers may be Fractions or rational functions of a symbol: they are only added, multiplied, divided and
compared with zero. Subsets are bit masks, token y being bit y.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from otmd.probabilities import validate_count, wrong, wrong_type

Number = Any
# From the name of an argument and its value to a list of exact numbers that sum to 1.
Reader = Callable[[str, Any], list[Number]]


class ExactLaw(ABC):
    """A law of drafts for the functions of :mod:`otmd.optimum.exact`.

    Its entries are read by the function that it is given to: as fractions, or as functions of a symbol.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> isinstance(exact.WithReplacement(["1/2", "1/2"], 2), exact.ExactLaw)
    True
    """

    num_drafts: int

    @abstractmethod
    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """G of all 2^V subsets; ValueError for entries that ``read`` refuses, or another vocabulary."""

    def single(self, vocab_size: int, read: Reader) -> list[Number] | None:
        """The distribution that every draft is drawn from, independently; None where there is no such."""
        return None


class _OneDistribution(ExactLaw):
    """``num_drafts`` drafts from one distribution, ``draft_probs`` of length V."""

    def __init__(self, draft_probs: Iterable[Any], num_drafts: int) -> None:
        self.draft_probs = entries_of("draft_probs", draft_probs)
        self.num_drafts = validate_count("num_drafts", num_drafts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.draft_probs}, {self.num_drafts})"


class WithReplacement(_OneDistribution):
    """n independent drafts; see :class:`otmd.WithReplacement`.

    Parameters
    ----------
    draft_probs : iterable of numbers, length V
        q; the numbers as in :func:`optimal_acceptance`.
    num_drafts : int
        n ≥ 1, else ValueError.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> exact.optimal_acceptance(["1/2", "1/2"], exact.WithReplacement(["1/4", "3/4"], 2)).rate
    Fraction(15, 16)
    """

    def single(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        return _read_row("draft_probs", self.draft_probs, vocab_size, read)

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        return [mass**self.num_drafts for mass in mass_of_all(self.single(vocab_size, read))]


class WithoutReplacement(_OneDistribution):
    """n distinct drafts, one after another; see :class:`otmd.WithoutReplacement`.

    Parameters
    ----------
    draft_probs, num_drafts
        As for :class:`WithReplacement`; at least n tokens must have mass.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> law = exact.WithoutReplacement(["1/2", "3/10", "1/5"], 2)
    >>> exact.optimal_acceptance(["1/5", "1/5", "3/5"], law).rate
    Fraction(31, 35)
    """

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        probs = _read_row("draft_probs", self.draft_probs, vocab_size, read)
        support = sum(prob != 0 for prob in probs)
        if support < self.num_drafts:
            expected = f"at most {support}, the number of tokens with mass in draft_probs"
            raise wrong("num_drafts", f"{self.num_drafts} distinct drafts", expected)
        # P(the first drafts are this set) grows one token at a time.
        masses = mass_of_all(probs)
        drawn = [0 * mass for mass in masses]
        drawn[0] += 1
        for mask in range(len(masses)):
            if mask.bit_count() == self.num_drafts or drawn[mask] == 0:
                continue
            left = masses[len(masses) - 1 ^ mask]
            for token, prob in enumerate(probs):
                if not mask >> token & 1 and prob != 0:
                    drawn[mask | 1 << token] += drawn[mask] * prob / left
            drawn[mask] *= 0
        return _sum_over_subsets(drawn)


class Independent(ExactLaw):
    """Drafts with a distribution each; see :class:`otmd.Independent`.

    Parameters
    ----------
    draft_probs : iterable of iterables of numbers, shape (n, V)
        The distribution of each draft.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> law = exact.Independent([["1/4", "3/4"], ["1/2", "1/2"]])
    >>> exact.optimal_acceptance(["9/10", "1/10"], law).rate
    Fraction(29, 40)
    """

    def __init__(self, draft_probs: Iterable[Iterable[Any]]) -> None:
        rows = entries_of("draft_probs", draft_probs)
        self.draft_probs = [entries_of(f"draft_probs[{i}]", row) for i, row in enumerate(rows)]
        self.num_drafts = len(rows)

    def __repr__(self) -> str:
        return f"Independent({self.draft_probs})"

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        rows = enumerate(self.draft_probs)
        masses = [
            mass_of_all(_read_row(f"draft_probs[{i}]", row, vocab_size, read)) for i, row in rows
        ]
        return [prod(inside) for inside in zip(*masses, strict=True)]


class Joint(ExactLaw):
    """Any law, as a table; see :class:`otmd.Joint`.

    Parameters
    ----------
    table : mapping of tuple of int to number
        The probabilities of the tuples of n tokens. Tuples of different lengths are a ValueError.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> law = exact.Joint({(0, 1): "1/3", (1, 2): "2/3"})
    >>> exact.optimal_acceptance(["1/2", "1/4", "1/4"], law).rate
    Fraction(5, 6)
    """

    def __init__(self, table: Mapping[tuple[int, ...], Any]) -> None:
        expected = "a mapping from tuples of as many tokens each to their probabilities"
        if not isinstance(table, Mapping):
            raise wrong_type("table", table, expected)
        sizes = {len(key) if isinstance(key, tuple) else 0 for key in table}
        if len(sizes) != 1 or sizes == {0}:
            raise wrong("table", table, expected)
        self.table = dict(table)
        (self.num_drafts,) = sizes

    def __repr__(self) -> str:
        return f"Joint({self.table})"

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        probs = read("table", self.table.values())
        drawn = [0 * probs[0]] * (1 << vocab_size)
        for tokens, prob in zip(self.table, probs, strict=True):
            if not set(tokens) <= set(range(vocab_size)):
                raise wrong("table", f"the key {tokens!r}", f"tokens in [0, {vocab_size})")
            drawn[sum(1 << int(token) for token in set(tokens))] += prob
        return _sum_over_subsets(drawn)


def validate_law(law: object) -> None:
    """Raise TypeError unless ``law`` is an exact law."""
    if not isinstance(law, ExactLaw):
        raise wrong_type("law", law, "an exact.ExactLaw, such as exact.WithReplacement")


def _read_row(name: str, row: list[Any], vocab_size: int, read: Reader) -> list[Number]:
    if len(row) != vocab_size:
        expected = f"{len(row)}, the vocabulary of the drafts"
        raise wrong("target_probs", f"{vocab_size} tokens", expected)
    return read(name, row)


def entries_of(name: str, value: Iterable[Any]) -> list[Any]:
    """The entries of a distribution, or a TypeError or ValueError that names it."""
    try:
        entries = [] if isinstance(value, str | Mapping) else list(value)
    except TypeError as reason:
        raise wrong_type(name, value, "a list, a tuple or an array") from reason
    if not entries:
        raise wrong(name, repr(value), "a list, a tuple or an array with at least one entry")
    return entries


def rational(name: str, value: Any) -> Fraction:
    """A number as a Fraction; a float is the binary fraction that it is, digit for digit."""
    number = value.item() if isinstance(value, np.generic) else value
    try:
        return Fraction(number)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as reason:
        expected = "an int, a Fraction, a string such as '1/3', or a finite float"
        raise wrong(name, repr(number), expected) from reason


def rational_probs(name: str, value: Iterable[Any]) -> list[Fraction]:
    """A distribution as Fractions that sum to exactly 1, or ValueError."""
    probs = [rational(f"{name}[{i}]", entry) for i, entry in enumerate(entries_of(name, value))]
    for i, prob in enumerate(probs):
        if prob < 0:
            raise wrong(f"{name}[{i}]", prob, "a number ≥ 0")
    total = sum(probs, Fraction(0))
    if total != 1:
        short = total if total.denominator < 10**9 else f"1 {float(total - 1):+.3g}"
        hint = "a float such as 0.1 is a binary fraction near 1/10, write '1/10' or '0.1' in quotes"
        raise wrong(name, f"numbers that sum to {short}", f"exactly 1; {hint}")
    return probs


def validate_small(probs: Sequence[Number], most: int, reason: str) -> None:
    """Raise ValueError for more than ``most`` tokens."""
    if len(probs) > most:
        raise wrong("target_probs", f"{len(probs)} tokens", f"at most {most}: {reason}")


def mass_of_all(probs: Sequence[Number]) -> list[Number]:
    """The mass of every subset, in the order of bit masks."""
    masses = [0 * probs[0]]
    for prob in probs:
        masses += [mass + prob for mass in masses]
    return masses


def _sum_over_subsets(values: Sequence[Number]) -> list[Number]:
    """For every H the sum of ``values`` over the subsets of H."""
    sums = list(values)
    for token in range(len(sums).bit_length() - 1):
        for mask in range(len(sums)):
            if mask >> token & 1:
                sums[mask] += sums[mask ^ 1 << token]
    return sums


def import_sympy() -> Any:
    """The module sympy; ImportError says how to install it."""
    try:
        return import_module("sympy")
    except ImportError as reason:
        raise ImportError(
            'algebraic numbers and symbols need sympy: pip install -e ".[exact]" in a clone of otmd'
        ) from reason
