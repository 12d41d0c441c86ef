"""K-SEQ's scale ρ* and rate as algebraic numbers, from the linear piece of the ratio curve that holds ρ*."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Any

from otmd.optimum.exact.fractional import Probs, hockey_stick
from otmd.optimum.exact.laws import WithReplacement, require_law
from otmd.optimum.exact.reading import rational_probs, require_sympy


def k_sequential_scale(target_probs: Iterable[object], law: WithReplacement) -> Any:
    """ρ* of K-SEQ: the root of (1 − (1 − W(ρ))/ρ)^n = W(ρ) in [1, n] (SpecTr, Algorithm 3).

    W is linear between two neighbouring ratios p/q. On the piece that holds the root, ρ* is a root of a
    polynomial of degree at most n with rational coefficients.

    Parameters
    ----------
    target_probs : iterable of numbers, length V
        p, the numbers as in :func:`optimal_acceptance`.
    law : exact.WithReplacement
        The law of the drafts.

    Returns
    -------
    sympy.Expr
        Exact: ``.evalf(50)`` gives 50 digits, ``sympy.minimal_polynomial`` the polynomial. 1 for disjoint
        supports, where every ρ is a root.

    Raises
    ------
    ValueError
        For an invalid distribution, one that does not sum to exactly 1, or another law.
    ImportError
        Where sympy is missing.
    """
    return _scale(*_read(target_probs, law))


def k_sequential_rate(target_probs: Iterable[object], law: WithReplacement) -> Any:
    """The acceptance rate of K-SEQ, 1 − W(ρ*) = ρ*β(ρ*) (SpecTr, Algorithm 3), linear in ρ*.

    Parameters, the form of the answer and errors are those of :func:`k_sequential_scale`.
    """
    p, q, count = _read(target_probs, law)
    sympy = require_sympy()
    scale = _scale(p, q, count)
    fixed, slope = Fraction(0), Fraction(0)
    for a, b in zip(p, q, strict=True):
        if b > 0 and scale * sympy.Rational(b) >= sympy.Rational(a):
            fixed += a
        else:
            slope += b
    return sympy.Rational(fixed) + sympy.Rational(slope) * scale


def _read(target_probs: object, law: WithReplacement) -> tuple[Probs, Probs, int]:
    p = rational_probs("target_probs", target_probs)
    require_law(law, (WithReplacement,))
    return p, law.read_probs(len(p), rational_probs), law.num_drafts


def _scale(p: Probs, q: Probs, num_drafts: int) -> Any:
    sympy = require_sympy()

    def surplus(scale: Fraction) -> Fraction:
        """Falls with ρ, strictly where p and q overlap, and is zero at ρ*."""
        left = hockey_stick(p, q, scale)
        return left - (1 - (1 - left) / scale) ** num_drafts

    ratios = {a / b for a, b in zip(p, q, strict=True) if b > 0}
    ends = sorted({Fraction(1), Fraction(num_drafts), *(r for r in ratios if 1 < r < num_drafts)})
    if surplus(ends[0]) == 0:
        return sympy.Integer(1)
    low, high = next(piece for piece in pairwise(ends) if surplus(piece[1]) <= 0)
    if surplus(high) == 0:
        return sympy.Rational(high)
    fixed = sum((a for a, b in zip(p, q, strict=True) if a <= low * b), Fraction(0))
    slope = sum((b for a, b in zip(p, q, strict=True) if a > low * b), Fraction(0))
    return _root_between(_polynomial(fixed, slope, num_drafts), low, high)


def _polynomial(fixed: Fraction, slope: Fraction, num_drafts: int) -> Any:
    """Σ_{i<n} (1 − β)^i = ρ times ρ^{n−1}, with ρβ = fixed + slope·ρ.

    This is 1 − (1 − β)^n = ρβ without the factor β, which has no root where p and q overlap.
    """
    sympy = require_sympy()
    rho = sympy.Symbol("rho")
    missed = rho - sympy.Rational(fixed) - sympy.Rational(slope) * rho
    tries = sum(missed**i * rho ** (num_drafts - 1 - i) for i in range(num_drafts))
    return sympy.Poly(tries - rho**num_drafts, rho)


def _root_between(polynomial: Any, low: Fraction, high: Fraction) -> Any:
    """Return the only root strictly between two rational numbers."""
    sympy = require_sympy()
    for factor, _ in polynomial.factor_list()[1]:
        if factor.count_roots(sympy.Rational(low), sympy.Rational(high)):
            below = factor.count_roots(None, sympy.Rational(low))
            return factor.real_roots()[below]
    raise ArithmeticError(
        f"k_sequential_scale: no root of {polynomial} in [{low}, {high}]; please report the input"
    )
