"""Rates without rounding: the optimum by trying every subset, recursive rejection, and K-SEQ."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import perm
from typing import Any

from otmd.optimum.exact import laws
from otmd.probabilities import wrong

Probs = list[Fraction]
_MOST_TOKENS = 12
_MOST_PATHS = 100_000


@dataclass(frozen=True)
class ExactOptimum:
    """The optimal acceptance rate and the cut that attains it, without rounding.

    Attributes
    ----------
    rate : Fraction
        α*.
    subset : tuple of int
        The tokens of H*, the smallest minimiser, ascending; empty where α* = 1.
    """

    rate: Fraction
    subset: tuple[int, ...]


def optimal_acceptance(target_probs: Iterable[object], law: laws.ExactLaw) -> ExactOptimum:
    """α* = 1 + min over all subsets H of p(H) − g(H) (Hu et al. 2025, eq. 8), as a fraction.

    Every number is an int, a Fraction, a string (``"1/3"``, ``"0.1"``) or a float, which counts as the
    binary fraction that it is: 0.5 is 1/2, but 0.1 is not 1/10.

    Parameters
    ----------
    target_probs : iterable of numbers, length V ≤ 12
        p; the sum must be exactly 1.
    law : ExactLaw
        A law of this package, such as ``exact.WithReplacement(draft_probs, num_drafts)``.

    Raises
    ------
    ValueError
        For an invalid distribution, one that does not sum to exactly 1, more than 12 tokens (all 2^V
        subsets are tried), another law, or more distinct drafts than tokens with mass.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> law = exact.WithReplacement(["1/4", "1/4", "1/2"], 2)
    >>> exact.optimal_acceptance(["1/2", "1/4", "1/4"], law)
    ExactOptimum(rate=Fraction(15, 16), subset=(1, 2))
    """
    p = laws.rational_probs("target_probs", target_probs)
    laws.require_small(p, _MOST_TOKENS, "all 2^V subsets are tried")
    laws.require_law(law, (laws.ExactLaw,))
    contained = law.containment(len(p), laws.rational_probs)
    values = [mass - inside for mass, inside in zip(laws.mass_of_all(p), contained, strict=True)]
    least = min(values)
    return ExactOptimum(1 + least, laws.tokens_of(smallest_cuts(values)[least]))


def smallest_cuts(values: Iterable[Any]) -> dict[Any, int]:
    """Each distinct value and the smallest subset (a bit mask) that has it; ``values`` go by bit mask.

    p − g is submodular, so its minimisers are closed under intersection: the smallest lies in all others.
    """
    cuts: dict[Any, int] = {}
    for mask, value in sorted(enumerate(values), key=lambda each: each[0].bit_count()):
        cuts.setdefault(value, mask)
    return cuts


def recursive_rejection_rate(target_probs: Iterable[object], law: laws.ExactLaw) -> Fraction:
    """The acceptance rate of recursive rejection (RRS, RRSw), without rounding.

    With replacement it is 1 − W(C_{n+1}), with C_1 = 0, C_{k+1} = C_k + W(C_k) and the hockey-stick
    divergence W (SpecInfer, Miao et al. 2024). Without (Sequoia, Chen et al. 2024) it is a sum over the paths
    of rejected tokens. With ``Independent``, each draft is compared with what the drafts before it left of p.

    Parameters
    ----------
    target_probs : iterable of numbers, length V
        p, the numbers as in :func:`optimal_acceptance`, for errors as well.
    law : exact.WithReplacement, exact.WithoutReplacement or exact.Independent
        The law of the drafts; ValueError for more than 100,000 paths of rejected tokens.
    """
    p = laws.rational_probs("target_probs", target_probs)
    laws.require_law(law, (laws.WithReplacement, laws.WithoutReplacement, laws.Independent))
    if isinstance(law, laws.WithoutReplacement):
        return 1 - _all_rejected(p, law.read_probs(len(p), laws.rational_probs), law.num_drafts)
    if isinstance(law, laws.Independent):
        rows = law.read_rows(len(p), laws.rational_probs)
    else:
        assert isinstance(law, laws.WithReplacement)
        rows = [law.read_probs(len(p), laws.rational_probs)] * law.num_drafts
    # What a rejection leaves of p is not divided by its mass, P(all drafts so far are rejected).
    for q in rows:
        p = excess(p, q, sum(p, Fraction(0)))
    return 1 - sum(p, Fraction(0))


def excess(target: Probs, draft: Probs, scale: Fraction | int = 1) -> Probs:
    """(p − C q)₊, token by token."""
    return [max(a - scale * b, Fraction(0)) for a, b in zip(target, draft, strict=True)]


def _all_rejected(p: Probs, q: Probs, num_drafts: int) -> Fraction:
    """P(every draft is rejected): a sum over the paths of tokens that can be rejected one after another.

    After the rejections p has become (p − C q)₊/W(C), so C and the tokens removed from q describe a path.
    """
    support = sum(mass > 0 for mass in q)
    if perm(support, num_drafts - 1) > _MOST_PATHS:
        there_are = f"and there are {perm(support, num_drafts - 1)}"
        wanted = f"at most {_MOST_PATHS} paths of rejected tokens, {there_are}"
        raise wrong("num_drafts", f"{num_drafts} of {support} tokens with mass", wanted)

    @cache
    def onwards(scale: Fraction, removed: frozenset[int], drafts: int) -> Fraction:
        left = [Fraction(0) if y in removed else mass for y, mass in enumerate(q)]
        present = sum(left, Fraction(0))
        target = excess(p, q, scale)
        wanted = sum(target, Fraction(0))
        rejected = excess([mass / present for mass in left], [mass / wanted for mass in target])
        if drafts == 1:
            return sum(rejected, Fraction(0))
        return sum(
            (
                mass * onwards(scale + wanted / present, removed | {token}, drafts - 1)
                for token, mass in enumerate(rejected)
                if mass
            ),
            Fraction(0),
        )

    return onwards(Fraction(0), frozenset(), num_drafts)


def k_sequential_scale(target_probs: Iterable[object], law: laws.WithReplacement) -> Any:
    """ρ* of K-SEQ: the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) in [1, n] (SpecTr, Algorithm 3).

    W is linear between two neighbouring ratios p/q. On the piece that holds the root, ρ* is a root of a
    polynomial of degree at most n with rational coefficients.

    Parameters
    ----------
    target_probs : iterable of numbers, length V
        p, the numbers as in :func:`optimal_acceptance`, for errors as well.
    law : exact.WithReplacement
        The law of the drafts.

    Returns
    -------
    sympy.Expr
        Exact: ``.evalf(50)`` gives 50 digits, ``sympy.minimal_polynomial`` the polynomial. 1 for disjoint
        supports, where every ρ is a root. ImportError where sympy is missing.
    """
    p = laws.rational_probs("target_probs", target_probs)
    laws.require_law(law, (laws.WithReplacement,))
    q, num_drafts = law.read_probs(len(p), laws.rational_probs), law.num_drafts
    sympy = laws.require_sympy()

    def surplus(scale: Fraction) -> Fraction:
        """Falls with ρ, strictly where p and q overlap, and is zero at ρ*."""
        left = sum(excess(p, q, scale), Fraction(0))
        return left - (1 - (1 - left) / scale) ** num_drafts

    ratios = {a / b for a, b in zip(p, q, strict=True) if b > 0}
    ends = sorted({Fraction(1), Fraction(num_drafts), *(r for r in ratios if 1 < r < num_drafts)})
    if surplus(ends[0]) == 0:
        return sympy.Integer(1)
    low, high = next(piece for piece in pairwise(ends) if surplus(piece[1]) <= 0)
    # 1 − (1 − β)^n = ρβ without the factor β, which has no root where p and q overlap, is
    # Σ_{i<n} (1 − β)^i = ρ; both sides times ρ^{n−1}, with ρβ linear on this piece.
    rho = sympy.Symbol("rho")
    fixed = sum((a for a, b in zip(p, q, strict=True) if a <= low * b), Fraction(0))
    slope = sum((b for a, b in zip(p, q, strict=True) if a > low * b), Fraction(0))
    missed = rho - sympy.Rational(fixed) - sympy.Rational(slope) * rho
    tries = sum(missed**i * rho ** (num_drafts - 1 - i) for i in range(num_drafts))
    for root in sympy.Poly(tries - rho**num_drafts, rho).real_roots():
        if low < root <= high:
            return root
    raise ArithmeticError(
        f"k_sequential_scale: no root in ({low}, {high}]; please report the input"
    )


def k_sequential_rate(target_probs: Iterable[object], law: laws.WithReplacement) -> Any:
    """The acceptance rate of K-SEQ, 1 − W(ρ*) = ρ*β(ρ*) (SpecTr, Algorithm 3), linear in ρ*.

    Parameters, the form of the answer and errors are those of :func:`k_sequential_scale`.
    """
    p = laws.rational_probs("target_probs", target_probs)
    scale = k_sequential_scale(p, law)
    q = law.read_probs(len(p), laws.rational_probs)
    rational = laws.require_sympy().Rational
    return sum(min(rational(a), scale * rational(b)) for a, b in zip(p, q, strict=True))
