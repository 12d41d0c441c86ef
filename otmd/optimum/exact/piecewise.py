"""The optimal acceptance rate as a function of a symbol: regions, and a closed form in each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise
from typing import Any

from otmd.optimum.exact.laws import (
    ExactLaw,
    entries_of,
    import_sympy,
    mass_of_all,
    rational,
    validate_law,
    validate_small,
)
from otmd.optimum.exact.rates import smallest_cuts
from otmd.probabilities import wrong, wrong_type


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


def _regions_of(
    cuts: dict[Any, tuple[int, ...]], entries: list[Any], field: Any
) -> Iterator[Region]:
    """Join neighbouring cells in which the same function is the smallest."""
    differences = [a - b for a, b in combinations(cuts, 2)]
    ends, points = _cells([*entries, *cuts, *differences], field)
    best = [min(cuts, key=lambda function: _at(function, point)) for point in points]
    valid = [all(_at(entry, point) >= 0 for entry in entries) for point in points]
    for (inside, subset), cells in groupby(
        range(len(points)), key=lambda cell: (valid[cell], cuts[best[cell]])
    ):
        if inside:
            joined = list(cells)
            low, high, rate = ends[joined[0]], ends[joined[-1] + 1], best[joined[0]]
            yield Region(low, high, field.to_sympy(rate), subset)


def _at(function: Any, point: Any) -> Any:
    return function.numer(point) / function.denom(point)


def _cells(functions: list[Any], field: Any) -> tuple[list[Any], list[Any]]:
    """The ends of cells, −∞, the real roots and poles of rational functions, ∞; a rational point in each."""
    sympy = import_sympy()
    factors = {
        factor
        for function in functions
        for part in (function.numer, function.denom)
        for factor, _ in sympy.Poly(part.as_expr(), field.gens[0].as_expr()).factor_list()[1]
    }
    if not factors:
        raise wrong("symbol", "entries that do not depend on it", "at least one that does")
    roots = sorted(root for factor in factors for root in factor.real_roots())
    brackets = [bracket for bracket, _ in sympy.intervals(list(factors), strict=True)]
    points = [sympy.S.Zero]
    if brackets:
        between = [(low[1] + high[0]) / 2 for low, high in pairwise(brackets)]
        points = [brackets[0][0] - 1, *between, brackets[-1][1] + 1]
    return [-sympy.oo, *roots, sympy.oo], [field.domain.from_sympy(point) for point in points]


_MOST_TOKENS = 4


@dataclass(frozen=True)
class PiecewiseOptimum:
    """α* as a function of a symbol, wherever the entries are distributions.

    Attributes
    ----------
    symbol : sympy.Symbol
        The variable.
    regions : tuple of Region
        In ascending order. Neighbours share an end, where both expressions agree.
    """

    symbol: Any
    regions: tuple[Region, ...]

    def rate(self, value: Any) -> Any:
        """α* at a number, exactly.

        Parameters
        ----------
        value : number
            A Fraction, int, string, float (the binary fraction that it is), or real sympy number, at
            which no entry is negative; else ValueError.
        """
        number = _number("value", value)
        for region in self.regions:
            if region.low <= number and number <= region.high:
                return region.rate.subs(self.symbol, number)
        intervals = ", ".join(f"[{region.low}, {region.high}]" for region in self.regions)
        raise wrong("value", value, f"{self.symbol} in one of {intervals}")

    def piecewise(self) -> Any:
        """The same function as a sympy.Piecewise, undefined outside the regions."""
        sympy = import_sympy()
        pieces = [
            (region.rate, sympy.And(region.low <= self.symbol, self.symbol <= region.high))
            for region in self.regions
        ]
        return sympy.Piecewise(*pieces, evaluate=False)

    def latex(self) -> str:
        """The regions as a LaTeX ``cases`` environment, with the cut of each."""
        latex = import_sympy().latex
        lines = []
        for region in self.regions:
            tokens = ", ".join(map(str, region.subset))
            cut = rf"\{{{tokens}\}}" if tokens else r"\emptyset"
            lines.append(
                rf"{latex(region.rate)}, & {latex(region.low)} \le {latex(self.symbol)} \le "
                rf"{latex(region.high)}, \quad H^* = {cut}"
            )
        body = " \\\\\n".join(lines)
        return f"\\alpha^* = \\begin{{cases}}\n{body}\n\\end{{cases}}"


def piecewise_optimum(target_probs: Iterable[Any], law: ExactLaw, symbol: Any) -> PiecewiseOptimum:
    """α* in closed form along a line of distributions (SpecTr's first open question, for small V).

    α* is the least of the 2^V functions 1 + p(H) − g(H) (Hu et al. 2025, eq. 8), each rational in the
    symbol. The real roots of their differences and of the entries, isolated exactly, cut the line into
    cells. The order of the functions is fixed in each cell, so one rational point of the cell decides.

    Parameters
    ----------
    target_probs : iterable, length V ≤ 4
        p. Its entries, and those of the law, are rational functions of ``symbol`` with rational coefficients
        (sympy expressions), or numbers as in :func:`optimal_acceptance`.
    law : ExactLaw
        The law of the drafts.
    symbol : sympy.Symbol
        The variable.

    Returns
    -------
    PiecewiseOptimum
        The regions, with a closed form in each.

    Raises
    ------
    ValueError
        For other expressions, distributions that do not sum to 1 identically, more than four tokens, no
        entry that depends on the symbol, or no interval without negative entries.
    TypeError
        For another law or symbol.
    ImportError
        Where sympy is missing.

    Examples
    --------
    >>> import sympy
    >>> from otmd.optimum import exact
    >>> t = sympy.Symbol("t")
    >>> best = exact.piecewise_optimum([t, 1 - t], exact.WithReplacement(["1/2", "1/2"], 2), t)
    >>> [(region.low, region.high, region.rate) for region in best.regions]
    [(0, 1/4, t + 3/4), (1/4, 3/4, 1), (3/4, 1, 7/4 - t)]
    """
    sympy = import_sympy()
    if not isinstance(symbol, sympy.Symbol):
        raise wrong_type("symbol", symbol, "a sympy.Symbol")
    validate_law(law)
    field = sympy.QQ.frac_field(symbol)
    p = _functions("target_probs", target_probs, field)
    validate_small(p, _MOST_TOKENS, "all pairs of 2^V functions are compared")
    entries = list(p)

    def read(name: str, value: Iterable[Any]) -> list[Any]:
        row = _functions(name, value, field)
        entries.extend(row)
        return row

    contained = law.containment(len(p), read)
    rates = [1 + mass - inside for mass, inside in zip(mass_of_all(p), contained, strict=True)]
    regions = tuple(_regions_of(smallest_cuts(rates), entries, field))
    if not regions:
        expected = f"an interval of {symbol} on which they are"
        raise wrong("target_probs, draft_probs", "entries that are nowhere all ≥ 0", expected)
    return PiecewiseOptimum(symbol, regions)


def _number(name: str, value: Any) -> Any:
    sympy = import_sympy()
    if not isinstance(value, sympy.Expr):
        return sympy.Rational(rational(name, value))
    if isinstance(value, sympy.Float) or not (value.is_number and value.is_real):
        raise wrong(name, value, "an exact real number")
    return value


def _functions(name: str, value: Iterable[Any], field: Any) -> list[Any]:
    """Return a distribution as elements of the field of rational functions of the symbol."""
    sympy = import_sympy()
    row = []
    for i, entry in enumerate(entries_of(name, value)):
        symbolic = isinstance(entry, sympy.Expr) and not isinstance(entry, sympy.Float)
        try:
            row.append(field.from_sympy(entry if symbolic else _number(f"{name}[{i}]", entry)))
        except ValueError as reason:
            expected = f"a rational function of {field.gens[0]} with rational coefficients"
            raise wrong(f"{name}[{i}]", entry, expected) from reason
    total = sum(row, field.zero)
    if total != 1:
        raise wrong(name, f"entries that sum to {total.as_expr()}", "1 identically")
    return row
