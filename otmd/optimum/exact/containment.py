"""g(H) = P(every draft lies in H) for all 2^V subsets H at once, in any exact arithmetic.

The numbers may be Fractions or rational functions of a symbol: they are only added, multiplied,
divided and compared with zero. Subsets are bit masks, token y being bit y.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from otmd.drafts import (
    ConditionalPoisson,
    DraftLaw,
    Greedy,
    Hub,
    Independent,
    WithoutReplacement,
    WithReplacement,
)
from otmd.optimum.exact.reading import sequence
from otmd.probabilities import validate_count

Number = Any
Containment = Callable[[Sequence[Number], int], list[Number]]


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


def read_law(
    draft_probs: object,
    num_drafts: int | None,
    law: type[DraftLaw],
    read: Callable[[str, object], list[Number]],
) -> list[Number]:
    """Containment of every subset under a law that is built from distributions.

    Parameters
    ----------
    draft_probs : iterable
        One distribution, or n of them for Independent.
    num_drafts : int or None
        May be left out where the law fixes it: Hub, Independent.
    law : type
        A class of :mod:`otmd.drafts`.
    read : callable
        From the name of an argument and its value to a list of exact numbers.

    Returns
    -------
    list of 2^V numbers
    """
    if law is Independent:
        return _independent(draft_probs, num_drafts, read)
    if law not in _CONTAINMENT:
        names = sorted(known.__name__ for known in (*_CONTAINMENT, Independent))
        raise ValueError(f"law: got {law!r}, wanted one of {', '.join(names)}")
    probs = read("draft_probs", draft_probs)
    if law is Hub and num_drafts is None:
        num_drafts = 2
    count = validate_count("num_drafts", num_drafts)
    if law is Hub and count != 2:
        raise ValueError(f"num_drafts: got {count}, wanted 2: Hub draws pairs")
    support = sum(prob != 0 for prob in probs)
    if law is not WithReplacement and support < count:
        raise ValueError(
            f"num_drafts: got {count} distinct drafts, wanted at most {support}, the number of tokens "
            "with mass in draft_probs"
        )
    return _CONTAINMENT[law](probs, count)


def _independent(
    rows: object, num_drafts: int | None, read: Callable[[str, object], list[Number]]
) -> list[Number]:
    tables = [read(f"draft_probs[{i}]", row) for i, row in enumerate(sequence("draft_probs", rows))]
    if num_drafts is not None and validate_count("num_drafts", num_drafts) != len(tables):
        raise ValueError(
            f"num_drafts: got {num_drafts}, wanted {len(tables)}, the distributions given"
        )
    return [prod(masses) for masses in zip(*map(mass_of_all, tables), strict=True)]


def _with_replacement(probs: Sequence[Number], num_drafts: int) -> list[Number]:
    return [mass**num_drafts for mass in mass_of_all(probs)]


def _without_replacement(probs: Sequence[Number], num_drafts: int) -> list[Number]:
    """Sum over the sets drawn, each grown one token at a time."""
    masses = mass_of_all(probs)
    everything = len(masses) - 1
    chance = [0 * masses[0]] * len(masses)
    chance[0] = chance[0] + 1
    drawn = {0}
    for _ in range(num_drafts):
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


def _conditional_poisson(probs: Sequence[Number], num_drafts: int) -> list[Number]:
    """Ratio of elementary symmetric polynomials: e_n(q_H)/e_n(q)."""
    size = 1 << len(probs)
    zero = 0 * probs[0]
    symmetric = [zero + 1] * size
    for _ in range(num_drafts):
        smaller, symmetric = symmetric, [zero] * size
        for mask in range(1, size):
            token = mask.bit_length() - 1
            rest = mask ^ 1 << token
            symmetric[mask] = symmetric[rest] + probs[token] * smaller[rest]
    return [value / symmetric[-1] for value in symmetric]


def _greedy(probs: Sequence[Number], num_drafts: int) -> list[Number]:
    likeliest = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    top = sum(1 << token for token in likeliest[: num_drafts - 1])
    masses = mass_of_all(probs)
    rest = masses[-1] - masses[top]
    return [
        (mass - masses[top]) / rest if mask & top == top else 0 * mass
        for mask, mass in enumerate(masses)
    ]


def _hub(probs: Sequence[Number], num_drafts: int) -> list[Number]:
    return _greedy(probs, num_drafts)


_CONTAINMENT: dict[type[DraftLaw], Containment] = {
    WithReplacement: _with_replacement,
    WithoutReplacement: _without_replacement,
    ConditionalPoisson: _conditional_poisson,
    Greedy: _greedy,
    Hub: _hub,
}
