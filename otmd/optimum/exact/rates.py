"""Rates without rounding: the optimum by trying every subset, and K-SEQ in algebraic numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from otmd.optimum.exact.laws import (
    ExactLaw,
    import_sympy,
    mass_of_all,
    rational_probs,
    validate_law,
    validate_small,
)
from otmd.probabilities import wrong_type

_MOST_TOKENS = 12


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


def optimal_acceptance(target_probs: Iterable[Any], law: ExactLaw) -> ExactOptimum:
    """Optimal acceptance rate as a fraction: 1 + min of p(H) − g(H) over all subsets H (Hu et al. 2025, (8)).

    Every number is an int, a Fraction, a string (``"1/3"``, ``"0.1"``) or a float, which counts as the
    binary fraction that it is: 0.5 is 1/2, but 0.1 is not 1/10.

    Parameters
    ----------
    target_probs : iterable of numbers, length V ≤ 12
        p; the sum must be exactly 1.
    law : ExactLaw
        A law of this package, such as ``exact.WithReplacement(draft_probs, num_drafts)``.

    Returns
    -------
    ExactOptimum
        The rate and the cut.

    Raises
    ------
    ValueError
        For an invalid distribution, one that does not sum to exactly 1, more than 12 tokens (all 2^V
        subsets are tried), or more distinct drafts than tokens with mass.
    TypeError
        For another law.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> law = exact.WithReplacement(["1/4", "1/4", "1/2"], 2)
    >>> exact.optimal_acceptance(["1/2", "1/4", "1/4"], law)
    ExactOptimum(rate=Fraction(15, 16), subset=(1, 2))
    """
    validate_law(law)
    p = rational_probs("target_probs", target_probs)
    validate_small(p, _MOST_TOKENS, "all 2^V subsets are tried")
    contained = law.containment(len(p), rational_probs)
    values = [mass - inside for mass, inside in zip(mass_of_all(p), contained, strict=True)]
    least = min(values)
    return ExactOptimum(1 + least, smallest_cuts(values)[least])


def smallest_cuts(values: list[Any]) -> dict[Any, tuple[int, ...]]:
    """Each distinct value and the tokens of the smallest subset that has it; ``values`` go by bit mask.

    p − g is submodular, so its minimisers are closed under intersection: the smallest lies in all others.
    """
    cuts: dict[Any, int] = {}
    for mask in sorted(range(len(values)), key=int.bit_count):
        cuts.setdefault(values[mask], mask)
    return {
        value: tuple(token for token in range(mask.bit_length()) if mask >> token & 1)
        for value, mask in cuts.items()
    }


def k_sequential_scale(target_probs: Iterable[Any], law: ExactLaw) -> Any:
    """ρ* of K-SEQ: the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) in [1, n] (SpecTr, Algorithm 3).

    W is linear between two neighbouring ratios p/q. On the piece that holds the root, ρ* is a root of a
    polynomial of degree at most n with rational coefficients.

    Parameters
    ----------
    target_probs : iterable of numbers, length V
        p, the numbers as in :func:`optimal_acceptance`, for errors as well.
    law : exact.WithReplacement
        The law of the drafts; TypeError for another.

    Returns
    -------
    sympy.Expr
        Exact: ``.evalf(50)`` gives 50 digits, ``sympy.minimal_polynomial`` the polynomial. 1 for disjoint
        supports, where every ρ is a root. ImportError where sympy is missing.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> exact.k_sequential_scale(["1/3", 0, "2/3"], exact.WithReplacement(["1/3"] * 3, 2))
    sqrt(13)/6 + 5/6
    """
    p, q, num_drafts = _pair(target_probs, law)
    sympy = import_sympy()

    def surplus(scale: Fraction) -> Fraction:
        """Falls with ρ, strictly where p and q overlap, and is zero at ρ*."""
        left = sum(
            (max(a - scale * b, Fraction(0)) for a, b in zip(p, q, strict=True)), Fraction(0)
        )
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


def k_sequential_rate(target_probs: Iterable[Any], law: ExactLaw) -> Any:
    """The acceptance rate of K-SEQ, 1 − W(ρ*) = ρ*β(ρ*) (SpecTr, Algorithm 3), linear in ρ*.

    Parameters
    ----------
    target_probs, law
        As for :func:`k_sequential_scale`, for errors as well.

    Returns
    -------
    sympy.Expr
        The rate, in the form of the scale.

    Examples
    --------
    >>> from otmd.optimum import exact
    >>> exact.k_sequential_rate(["1/3", 0, "2/3"], exact.WithReplacement(["1/3"] * 3, 2))
    sqrt(13)/18 + 11/18
    """
    p, q, _ = _pair(target_probs, law)
    scale = k_sequential_scale(p, law)
    rational = import_sympy().Rational
    return sum(min(rational(a), scale * rational(b)) for a, b in zip(p, q, strict=True))


def _pair(target_probs: Iterable[Any], law: ExactLaw) -> tuple[list[Fraction], list[Fraction], int]:
    """P, q and n, where all drafts are drawn from one q."""
    validate_law(law)
    p = rational_probs("target_probs", target_probs)
    q = law.single(len(p), rational_probs)
    if q is None:
        raise wrong_type("law", law, "an exact.WithReplacement")
    return p, q, law.num_drafts
