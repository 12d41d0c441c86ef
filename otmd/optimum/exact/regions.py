"""Cuts the line of a symbol into cells on which one function is the least, exactly."""

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from otmd.optimum.exact.rational import tokens_of
from otmd.optimum.exact.reading import require_sympy


@dataclass(frozen=True)
class Region:
    """A closed interval of the symbol on which one cut is optimal.

    Attributes
    ----------
    low, high : sympy.Expr
        Its ends, rational or algebraic numbers (or ±∞).
    rate : sympy.Expr
        α* in the symbol.
    subset : tuple of int
        H*, the smallest cut that is optimal on the whole interval.
    """

    low: Any
    high: Any
    rate: Any
    subset: tuple[int, ...]


def smallest_cuts(rates: list[Any]) -> dict[Any, int]:
    """Each distinct function and the smallest subset that it belongs to.

    Minimisers are closed under intersection, so for a function that is the least on some interval that
    subset lies in all others.
    """
    cuts: dict[Any, int] = {}
    for mask in sorted(range(len(rates)), key=int.bit_count):
        cuts.setdefault(rates[mask], mask)
    return cuts


def regions_of(cuts: dict[Any, int], entries: list[Any], field: Any) -> list[Region]:
    """Neighbouring cells in which the same function is the least, joined."""
    differences = [a - b for a, b in combinations(cuts, 2)]
    roots = _Roots([*entries, *cuts, *differences], field)
    joined: list[tuple[int, int, Any]] = []
    for cell, point in enumerate(roots.points):
        if any(_at(entry, point) < 0 for entry in entries):
            continue
        best = min(cuts, key=lambda function: _at(function, point))
        if joined and joined[-1][1] == cell and joined[-1][2] == best:
            joined[-1] = joined[-1][0], cell + 1, best
        else:
            joined.append((cell, cell + 1, best))
    return [
        Region(roots.end(low), roots.end(high), field.to_sympy(best), tokens_of(cuts[best]))
        for low, high, best in joined
    ]


def _at(function: Any, point: Any) -> Any:
    return function.numer(point) / function.denom(point)


class _Roots:
    """The real roots and poles of rational functions, and a rational point between neighbours.

    Attributes
    ----------
    points : list
        One in each cell; cell i lies between :meth:`end` i and :meth:`end` i + 1.
    """

    def __init__(self, functions: list[Any], field: Any) -> None:
        sympy = require_sympy()
        factors = {
            factor
            for function in functions
            for part in (function.numer, function.denom)
            for factor, _ in sympy.Poly(part.as_expr(), field.gens[0].as_expr()).factor_list()[1]
        }
        if not factors:
            raise ValueError(
                "symbol: got entries that do not depend on it, wanted at least one that does"
            )
        self.factors = sorted(factors, key=str)
        isolated = sympy.intervals(self.factors, strict=True)
        self.owners = [next(iter(owner)) for _, owner in isolated]
        brackets = [bracket for bracket, _ in isolated]
        if not brackets:
            self.points = [field.domain.zero]
            return
        between = [(low[1] + high[0]) / 2 for low, high in pairwise(brackets)]
        points = [brackets[0][0] - 1, *between, brackets[-1][1] + 1]
        self.points = [field.domain.from_sympy(point) for point in points]

    def end(self, index: int) -> Any:
        """Return the end before cell ``index``: −∞, a root, or ∞ after the last."""
        sympy = require_sympy()
        if index == 0:
            return -sympy.oo
        if index > len(self.owners):
            return sympy.oo
        owner = self.owners[index - 1]
        return self.factors[owner].real_roots()[self.owners[: index - 1].count(owner)]
