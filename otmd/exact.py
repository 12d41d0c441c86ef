"""Exact arithmetic for small vocabularies: fractions in, fractions or algebraic numbers out.

A law is a table: a mapping from tuples of n draft tokens to their probabilities. Numbers are ints, Fractions,
strings such as ``"1/3"`` or floats; a float counts as the binary fraction that it is: 0.25 is 1/4, but 0.1 is
not 1/10. Distributions sum to exactly 1. K-SEQ needs sympy (``pip install "otmd[exact]"``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations, product
from math import prod
from typing import Any

import numpy as np

from otmd.probabilities import wrong, wrong_type

Table = Mapping[tuple[int, ...], Fraction]
_MOST_TOKENS = 12


@dataclass(frozen=True)
class ExactOptimum:
    """The optimal acceptance rate, and the solution of the dual program that proves it.

    Attributes
    ----------
    rate : Fraction
        α* = Σ Q(x) u(x) + Σ p(y) v(y), with u(x) + v(y) ≥ 1 wherever y ∈ x (Hu et al. 2025).
    subset : tuple of int
        H*, the smallest minimiser of p(H) − g(H); empty where α* = 1. It is where v = 1, and 0 elsewhere.
    draft_duals : dict of tuple of int to int
        u of each tuple: 0 if all its tokens lie in H*, else 1.
    """

    rate: Fraction
    subset: tuple[int, ...]
    draft_duals: dict[tuple[int, ...], int]


def optimal_acceptance(target_probs: Iterable[Any], table: Mapping) -> ExactOptimum:
    """Optimal acceptance rate as a fraction: 1 + min of p(H) − g(H) over all subsets H (Hu et al. 2025, (8)).

    At most 12 tokens; more, or numbers that are no distribution, are a ValueError.

    Examples
    --------
    >>> from otmd import exact
    >>> table = exact.with_replacement(["1/4", "1/4", "1/2"], 2)
    >>> best = exact.optimal_acceptance(["1/2", "1/4", "1/4"], table)
    >>> best.rate, best.subset, best.draft_duals[1, 2], best.draft_duals[0, 2]
    (Fraction(15, 16), (1, 2), 0, 1)
    """
    p, law = _probs("target_probs", target_probs), _checked(table)
    contained = _contained(law, len(p))
    values = [inside - held for inside, held in zip(_masses(p), contained, strict=True)]
    # p − g is submodular, so its smallest minimiser is the one with the fewest tokens.
    best = min(range(len(values)), key=lambda mask: (values[mask], mask.bit_count()))
    subset = tuple(token for token in range(len(p)) if best >> token & 1)
    duals = {drafts: int(not set(drafts) <= set(subset)) for drafts in law}
    return ExactOptimum(1 + values[best], subset, duals)


def is_q_convex(draft_probs: Iterable[Any], table: Mapping) -> bool:
    """Whether g is q-convex: [g(H∪i) − g(H)]/q_i ≤ [g(H∪ij) − g(H∪i)]/q_j for all H and i ≠ j outside it.

    Then for every target some optimal cut is a prefix of the tokens in the order of p/q (Hu et al. 2025,
    Theorem 6).

    Examples
    --------
    >>> from otmd import exact
    >>> q = ["1/2", "3/10", "1/5"]
    >>> tables = exact.without_replacement(q, 2), {(0, 1): "1/2", (2, 2): "1/2"}
    >>> [exact.is_q_convex(q, table) for table in tables]
    [True, False]
    """
    q = _probs("draft_probs", draft_probs)
    g = _contained(_checked(table), len(q))
    pairs = [(1 << i, 1 << j, q[i], q[j]) for i, j in permutations(range(len(q)), 2)]
    return all(
        (g[H | i] - g[H]) * q_j <= (g[H | i | j] - g[H | i]) * q_i
        for H, (i, j, q_i, q_j) in product(range(len(g)), pairs)
        if not H & (i | j)
    )


def with_replacement(draft_probs: Iterable[Any], num_drafts: int) -> Table:
    """The table of :class:`otmd.WithReplacement`.

    Examples
    --------
    >>> from otmd import exact
    >>> exact.with_replacement(["1/3", "2/3"], 2)[0, 1]
    Fraction(2, 9)
    """
    return independent([_probs("draft_probs", draft_probs)] * num_drafts)


def without_replacement(draft_probs: Iterable[Any], num_drafts: int) -> Table:
    """The table of :class:`otmd.WithoutReplacement`; ValueError for fewer tokens with mass than drafts.

    Examples
    --------
    >>> from otmd import exact
    >>> exact.without_replacement(["1/2", "3/10", "1/5"], 2)[0, 1]
    Fraction(3, 10)
    """
    q = _probs("draft_probs", draft_probs)
    drawn = [token for token, prob in enumerate(q) if prob]
    if len(drawn) < num_drafts:
        raise wrong("num_drafts", f"{num_drafts} distinct drafts", f"at most {len(drawn)}")
    table = {(): Fraction(1)}
    for _ in range(num_drafts):
        table = {
            (*drafts, token): prob * q[token] / (1 - sum(q[first] for first in drafts))
            for drafts, prob in table.items()
            for token in drawn
            if token not in drafts
        }
    return table


def greedy(draft_probs: Iterable[Any], num_drafts: int) -> Table:
    """The table of :class:`otmd.Greedy`: the n − 1 most likely tokens, then one draft of the others.

    Examples
    --------
    >>> from otmd import exact
    >>> exact.optimal_acceptance(["1/3", 0, "2/3"], exact.greedy(["1/3"] * 3, 2)).rate
    Fraction(5, 6)
    """
    q = _probs("draft_probs", draft_probs)
    top = tuple(sorted(range(len(q)), key=lambda token: -q[token])[: num_drafts - 1])
    others = {token: prob for token, prob in enumerate(q) if prob and token not in top}
    if not others:
        raise wrong("num_drafts", f"{num_drafts} distinct drafts", f"at most {sum(map(bool, q))}")
    return {(*top, token): prob / sum(others.values()) for token, prob in others.items()}


def independent(draft_probs: Iterable[Iterable[Any]]) -> Table:
    """The table of :class:`otmd.Independent`: draft j is drawn from row j.

    Examples
    --------
    >>> from otmd import exact
    >>> exact.independent([["1/4", "3/4"], ["1/2", "1/2"]])[0, 1]
    Fraction(1, 8)
    """
    rows = [_probs(f"draft_probs[{j}]", row) for j, row in enumerate(draft_probs)]
    drawn = product(*([token for token, prob in enumerate(row) if prob] for row in rows))
    return {
        drafts: Fraction(prod(row[token] for row, token in zip(rows, drafts, strict=True)))
        for drafts in drawn
    }


def k_sequential(target_probs: Iterable[Any], draft_probs: Iterable[Any], num_drafts: int) -> tuple[Any, Any]:
    """Scale ρ* and acceptance rate 1 − W(ρ*) of K-SEQ, as sympy numbers (SpecTr, Algorithm 3).

    ρ* is the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) in [1, n]. For disjoint supports every ρ is one: ρ* = 1.
    W is linear between two neighbouring ratios p/q. So on the piece that holds the root, ρ* is a root of a
    polynomial of degree at most n with rational coefficients.

    Examples
    --------
    >>> from otmd import exact
    >>> exact.k_sequential(["1/3", 0, "2/3"], ["1/3"] * 3, 2)
    (sqrt(13)/6 + 5/6, sqrt(13)/18 + 11/18)
    """
    import sympy

    p, q = _probs("target_probs", target_probs), _probs("draft_probs", draft_probs)
    pairs = list(zip(p, q, strict=True))

    def surplus(scale: Fraction) -> Fraction:
        """Falls with ρ, strictly where p and q overlap, and is 0 at ρ*."""
        left = sum((max(a - scale * b, Fraction(0)) for a, b in pairs), Fraction(0))
        return left - (1 - (1 - left) / scale) ** num_drafts

    ratios = {a / b for a, b in pairs if b and 1 < a / b < num_drafts}
    ends = sorted({Fraction(1), Fraction(num_drafts), *ratios})
    scale = sympy.Integer(1)
    if surplus(ends[0]) != 0:
        low, high = next(piece for piece in pairwise(ends) if surplus(piece[1]) <= 0)
        # 1 − (1 − β)^n = ρβ without the factor β, which has no root where p and q overlap, is
        # Σ_{i<n} (1 − β)^i = ρ; both sides times ρ^{n−1}, with ρβ linear on this piece.
        rho = sympy.Symbol("rho")
        fixed = sum((a for a, b in pairs if a <= low * b), Fraction(0))
        slope = sum((b for a, b in pairs if a > low * b), Fraction(0))
        missed = rho - sympy.Rational(fixed) - sympy.Rational(slope) * rho
        tries = sum(missed**i * rho ** (num_drafts - 1 - i) for i in range(num_drafts))
        roots: Any = sympy.Poly(tries - rho**num_drafts, rho).real_roots()
        scale = next(root for root in roots if low < root <= high)
    return scale, sum(min(sympy.Rational(a), scale * sympy.Rational(b)) for a, b in pairs)


def _probs(name: str, value: Iterable[Any]) -> list[Fraction]:
    """A distribution as Fractions that sum to exactly 1, or ValueError."""
    expected = "numbers ≥ 0 such as '1/3' that sum to exactly 1; the float 0.1 is not '1/10'"
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise wrong_type(name, value, expected)
    entries = [x.item() if isinstance(x, np.generic) else x for x in value]
    try:
        probs = [Fraction(entry) for entry in entries]
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as reason:
        raise wrong(name, f"{entries!r:.100}", expected) from reason
    if not probs or min(probs) < 0 or sum(probs) != 1:
        raise wrong(name, f"{entries!r:.100}", expected)
    return probs


def _checked(table: Mapping) -> Table:
    """A table of Fractions, the probabilities of tuples of equally many tokens."""
    expected = "a mapping from tuples of as many tokens each to their probabilities"
    if not isinstance(table, Mapping):
        raise wrong_type("table", table, expected)
    if len({len(key) if isinstance(key, tuple) else 0 for key in table} | {0}) != 2:
        raise wrong("table", f"{table!r:.100}", expected)
    return dict(zip(table, _probs("table", table.values()), strict=True))


def _masses(probs: Sequence[Fraction]) -> list[Fraction]:
    """The mass of every subset, in the order of bit masks."""
    if len(probs) > _MOST_TOKENS:
        raise wrong("target_probs", f"{len(probs)} tokens", f"at most {_MOST_TOKENS}")
    masses = [Fraction(0)]
    for prob in probs:
        masses += [mass + prob for mass in masses]
    return masses


def _contained(table: Table, vocab_size: int) -> list[Fraction]:
    """The containment g(H) of every subset H, in the order of bit masks."""
    sums = [Fraction(0)] * (1 << vocab_size)
    for drafts, prob in table.items():
        if not set(drafts) <= set(range(vocab_size)):
            raise wrong("table", f"the key {drafts}", f"tokens in [0, {vocab_size})")
        sums[sum(1 << token for token in set(drafts))] += prob
    for token, mask in product(range(vocab_size), range(1 << vocab_size)):
        if mask >> token & 1:
            sums[mask] += sums[mask ^ 1 << token]
    return sums
