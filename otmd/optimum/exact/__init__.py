"""Exact arithmetic for small vocabularies: fractions in, fractions or algebraic numbers out.

The functions take a target and a law of drafts, as their float twins do. The laws of this package are made from
exact numbers: ``exact.WithReplacement(["1/3", "2/3"], 2)``.

Rates of the optimum and of recursive rejection are fractions. K-SEQ's scale and rate are algebraic numbers, and the optimum as a function of a symbol is a piecewise rational function; these two need sympy
(``pip install 'otmd[exact]'``), which is imported when they are called.
"""

from otmd.optimum.exact.algebraic import k_sequential_rate, k_sequential_scale
from otmd.optimum.exact.laws import (
    ConditionalPoisson,
    ExactLaw,
    Greedy,
    Hub,
    Independent,
    Joint,
    WithoutReplacement,
    WithReplacement,
)
from otmd.optimum.exact.piecewise import PiecewiseOptimum, piecewise_optimum
from otmd.optimum.exact.rational import ExactOptimum, optimal_acceptance
from otmd.optimum.exact.regions import Region
from otmd.optimum.exact.rejection import recursive_rejection_rate

__all__ = [
    "ConditionalPoisson",
    "ExactLaw",
    "ExactOptimum",
    "Greedy",
    "Hub",
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
    "recursive_rejection_rate",
]
