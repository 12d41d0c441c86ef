"""Exact arithmetic for small vocabularies: fractions in, fractions or algebraic numbers out.

The functions take a target and a law of drafts, as their float twins do. The laws of this package are made
from exact numbers: ``exact.WithReplacement(["1/3", "2/3"], 2)``. The optimum is a fraction. K-SEQ's scale and
rate are algebraic numbers, and the optimum as a function of a symbol is a piecewise rational function. These
need sympy (``pip install -e ".[exact]"`` in a clone), which is imported when they are called.
"""

from otmd.optimum.exact.laws import (
    ExactLaw,
    Independent,
    Joint,
    WithoutReplacement,
    WithReplacement,
)
from otmd.optimum.exact.piecewise import PiecewiseOptimum, Region, piecewise_optimum
from otmd.optimum.exact.rates import (
    ExactOptimum,
    k_sequential_rate,
    k_sequential_scale,
    optimal_acceptance,
)

__all__ = [
    "ExactLaw",
    "ExactOptimum",
    "Independent",
    "Joint",
    "PiecewiseOptimum",
    "Region",
    "WithReplacement",
    "WithoutReplacement",
    "k_sequential_rate",
    "k_sequential_scale",
    "optimal_acceptance",
    "piecewise_optimum",
]
