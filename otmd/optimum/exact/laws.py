"""Laws of drafts in exact numbers, and g(H) = P(every draft lies in H) for all 2^V subsets H at once.

The numbers may be Fractions or rational functions of a symbol: they are only added, multiplied,
divided and compared with zero. Subsets are bit masks, token y being bit y.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from numbers import Integral
from typing import Any

from otmd.optimum.exact.reading import require_same_vocabulary, sequence
from otmd.probabilities import validate_count

Number = Any
# From the name of an argument and its value to a list of exact numbers, one for each token.
Reader = Callable[[str, object], list[Number]]


class ExactLaw(ABC):
    """A law of drafts for the functions of :mod:`otmd.optimum.exact`.

    Its entries are read by the function that it is given to: as fractions, or as functions of a symbol.
    """

    @abstractmethod
    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """G of all 2^V subsets; ValueError for entries that ``read`` refuses."""


class _Proposal(ExactLaw):
    """``num_drafts`` drafts from one distribution, ``draft_probs`` of length V."""

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
        probs = read("draft_probs", self.draft_probs)
        require_same_vocabulary(vocab_size, len(probs))
        self._require_support(probs)
        return probs

    def _require_support(self, probs: Sequence[Number]) -> None:
        support = sum(prob != 0 for prob in probs)
        if support < self.num_drafts:
            raise ValueError(
                f"num_drafts: got {self.num_drafts} distinct drafts, wanted at most {support}, the number "
                "of tokens with mass in draft_probs"
            )

    @abstractmethod
    def _contained(self, probs: Sequence[Number]) -> list[Number]: ...


class WithReplacement(_Proposal):
    """n independent drafts; see :class:`otmd.WithReplacement`."""

    def _require_support(self, probs: Sequence[Number]) -> None:
        """Drafts may be equal: any support will do."""

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        return [mass**self.num_drafts for mass in mass_of_all(probs)]


class WithoutReplacement(_Proposal):
    """n distinct drafts, one after another; see :class:`otmd.WithoutReplacement`."""

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        """Sum over the sets drawn, each grown one token at a time."""
        masses = mass_of_all(probs)
        everything = len(masses) - 1
        chance = [0 * masses[0]] * len(masses)
        chance[0] = chance[0] + 1
        drawn = {0}
        for _ in range(self.num_drafts):
            larger = set()
            for mask in drawn:
                for token, prob in enumerate(probs):
                    if not mask >> token & 1 and prob != 0:
                        grown = mask | 1 << token
                        chance[grown] += chance[mask] * prob / masses[everything ^ mask]
                        larger.add(grown)
            drawn = larger
        final = [value if mask in drawn else 0 * value for mask, value in enumerate(chance)]
        return sum_over_subsets(final, len(probs))


class ConditionalPoisson(_Proposal):
    """n distinct drafts, their probability the product of q; see :class:`otmd.ConditionalPoisson`."""

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        """Ratio of elementary symmetric polynomials: e_n(q_H)/e_n(q)."""
        size = 1 << len(probs)
        zero = 0 * probs[0]
        symmetric = [zero + 1] * size
        for _ in range(self.num_drafts):
            smaller, symmetric = symmetric, [zero] * size
            for mask in range(1, size):
                token = mask.bit_length() - 1
                rest = mask ^ 1 << token
                symmetric[mask] = symmetric[rest] + probs[token] * smaller[rest]
        return [value / symmetric[-1] for value in symmetric]


class Greedy(_Proposal):
    """The n − 1 likeliest tokens and one drawn from the others; see :class:`otmd.Greedy`."""

    def _contained(self, probs: Sequence[Number]) -> list[Number]:
        likeliest = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
        top = sum(1 << token for token in likeliest[: self.num_drafts - 1])
        masses = mass_of_all(probs)
        rest = masses[-1] - masses[top]
        return [
            (mass - masses[top]) / rest if mask & top == top else 0 * mass
            for mask, mass in enumerate(masses)
        ]


class Hub(Greedy):
    """Pairs of the likeliest token and another, as sets like two greedy drafts; see :class:`otmd.Hub`."""

    def __init__(self, draft_probs: Iterable[Any], num_drafts: int = 2) -> None:
        super().__init__(draft_probs, num_drafts)
        if self.num_drafts != 2:
            raise ValueError(f"num_drafts: got {num_drafts}, wanted 2: Hub draws pairs")


class Independent(ExactLaw):
    """Drafts with a distribution each, ``draft_probs`` of shape (n, V); see :class:`otmd.Independent`."""

    def __init__(self, draft_probs: Iterable[Iterable[Any]]) -> None:
        rows = sequence("draft_probs", draft_probs)
        self.draft_probs = [sequence(f"draft_probs[{i}]", row) for i, row in enumerate(rows)]
        self.num_drafts = len(rows)

    def __repr__(self) -> str:
        return f"Independent({self.draft_probs})"

    def read_rows(self, vocab_size: int, read: Reader) -> list[list[Number]]:
        """The entries of each draft's distribution, checked as in :meth:`containment`."""
        rows = [read(f"draft_probs[{i}]", row) for i, row in enumerate(self.draft_probs)]
        for row in rows:
            require_same_vocabulary(vocab_size, len(row))
        return rows

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        masses = map(mass_of_all, self.read_rows(vocab_size, read))
        return [prod(each) for each in zip(*masses, strict=True)]


class Joint(ExactLaw):
    """A table from tuples of n tokens to their probabilities; see :class:`otmd.Joint`."""

    def __init__(self, table: Mapping[tuple[int, ...], Any]) -> None:
        if not isinstance(table, Mapping) or not table:
            raise ValueError(
                f"table: got {table!r}, wanted a mapping from tuples of tokens to their probabilities"
            )
        self.table = dict(table)
        first = next(iter(table))
        self.num_drafts = max(len(first), 1) if isinstance(first, tuple) else 1
        for tokens in table:
            if not isinstance(tokens, tuple) or len(tokens) != self.num_drafts:
                raise ValueError(
                    f"table: got the key {tokens!r}, wanted a tuple of {self.num_drafts} tokens"
                )

    def __repr__(self) -> str:
        return f"Joint({self.table})"

    def containment(self, vocab_size: int, read: Reader) -> list[Number]:
        """See :class:`ExactLaw`."""
        probs = read("table", list(self.table.values()))
        drawn = [0 * probs[0]] * (1 << vocab_size)
        for tokens, prob in zip(self.table, probs, strict=True):
            if not all(_is_token(token, vocab_size) for token in tokens):
                raise ValueError(
                    f"table: got the key {tokens!r}, wanted tokens in [0, {vocab_size})"
                )
            drawn[sum(1 << int(token) for token in set(tokens))] += prob
        return sum_over_subsets(drawn, vocab_size)


def require_law(law: object, served: tuple[type[ExactLaw], ...]) -> None:
    """Raise ValueError unless ``law`` is one of the exact laws that are served."""
    if not isinstance(law, served):
        names = ", ".join(f"exact.{known.__name__}" for known in served)
        raise ValueError(f"law: got {law!r}, wanted one of {names}")


def mass_of_all(probs: Sequence[Number]) -> list[Number]:
    """Mass of every subset."""
    masses = [0 * probs[0]]
    for prob in probs:
        masses += [mass + prob for mass in masses]
    return masses


def sum_over_subsets(values: list[Number], vocab_size: int) -> list[Number]:
    """For every H the sum of ``values`` over the subsets of H."""
    sums = list(values)
    for token in range(vocab_size):
        bit = 1 << token
        for mask in range(len(sums)):
            if mask & bit and sums[mask ^ bit] != 0:
                sums[mask] += sums[mask ^ bit]
    return sums


def _is_token(token: object, vocab_size: int) -> bool:
    return (
        isinstance(token, Integral) and not isinstance(token, bool) and 0 <= int(token) < vocab_size
    )
