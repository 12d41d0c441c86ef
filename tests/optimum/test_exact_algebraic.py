"""K-SEQ in algebraic numbers: the equation holds exactly, the float functions agree to 1e-12."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import sympy
from naive_fractions import K_SEQ_RATE, K_SEQ_RHO, fractions

import otmd
from otmd.optimum import exact

x = sympy.Symbol("x")


def thirds(n: int) -> tuple[list[Fraction], exact.WithReplacement]:
    return fractions("1/3,0,2/3"), exact.WithReplacement(fractions("1/3,1/3,1/3"), n)


def drawn(rng: random.Random) -> list[Fraction]:
    masses = [0]
    while not any(masses):
        masses = [rng.choice((0, 1, 1, 2, 3, 5, 17)) for _ in range(4)]
    return [Fraction(mass, sum(masses)) for mass in masses]


def test_ground_truth() -> None:
    scale = exact.k_sequential_scale(*thirds(2))
    rate = exact.k_sequential_rate(*thirds(2))
    assert scale == (5 + sympy.sqrt(13)) / 6
    assert rate == (11 + sympy.sqrt(13)) / 18
    assert float(scale) == pytest.approx(K_SEQ_RHO, abs=1e-6)
    assert float(rate) == pytest.approx(K_SEQ_RATE, abs=1e-6)
    assert sympy.minimal_polynomial(scale, x) == 3 * x**2 - 5 * x + 1


def test_many_digits_and_the_minimal_polynomial() -> None:
    scale = exact.k_sequential_scale(*thirds(5))
    digits = scale.evalf(50)
    assert len(str(digits)) == 51
    polynomial = sympy.minimal_polynomial(scale, x)
    assert sympy.degree(polynomial) == 5
    assert abs(polynomial.subs(x, digits)) < 1e-44
    rate = exact.k_sequential_rate(*thirds(5))
    assert sympy.degree(sympy.minimal_polynomial(rate, x)) == 5


def test_agrees_with_floats_and_solves_the_equation() -> None:
    rng = random.Random(8)
    irrational = 0
    for _ in range(100):
        p, q, n = drawn(rng), drawn(rng), rng.randint(1, 4)
        scale, rate = (
            exact.k_sequential_scale(p, exact.WithReplacement(q, n)),
            exact.k_sequential_rate(p, exact.WithReplacement(q, n)),
        )
        irrational += not scale.is_rational
        assert 1 <= scale <= n
        near, accepted = scale.evalf(40), rate.evalf(40)
        W = sum(
            max(sympy.Rational(a) - near * sympy.Rational(b), 0) for a, b in zip(p, q, strict=True)
        )
        assert abs(1 - W - accepted) < 1e-35
        assert abs((1 - (1 - W) / near) ** n - W) < 1e-35
        curve = otmd.RatioCurve(np.array(p, dtype=float), np.array(q, dtype=float))
        assert curve.k_sequential_scale(n) == pytest.approx(float(scale), rel=0, abs=1e-12)
        assert curve.k_sequential_rates(n)[-1] == pytest.approx(float(rate), rel=0, abs=1e-12)
        assert rate <= sympy.Rational(exact.optimal_acceptance(p, exact.WithReplacement(q, n)).rate)
    assert irrational >= 30


@pytest.mark.parametrize(
    ("p", "q", "n", "scale", "rate"),
    [
        ("1/2,1/2", "1/2,1/2", 3, 1, 1),
        ("1,0", "0,1", 3, 1, 0),
        ("1,0", "1/2,1/2", 1, 1, Fraction(1, 2)),
        ("1", "1", 4, 1, 1),
        # All of q lies where p/q = 1/2: every ρ accepts 1/2, and 1 − (1 − 1/(2ρ))² = 1/2.
        ("1/2,1/2", "1,0", 2, 1 / (2 - sympy.sqrt(2)), Fraction(1, 2)),
    ],
)
def test_hostile(p: str, q: str, n: int, scale: object, rate: Fraction) -> None:
    found = exact.k_sequential_scale(fractions(p), exact.WithReplacement(fractions(q), n))
    assert sympy.simplify(found - scale) == 0
    assert exact.k_sequential_rate(
        fractions(p), exact.WithReplacement(fractions(q), n)
    ) == sympy.Rational(rate)


@pytest.mark.parametrize("function", [exact.k_sequential_scale, exact.k_sequential_rate])
def test_bad_input(function) -> None:
    with pytest.raises(ValueError, match=r"target_probs.*5/6"):
        function(["1/2", "1/3"], exact.WithReplacement(["1/2", "1/2"], 2))
    with pytest.raises(ValueError, match=r"target_probs.*1 tokens.*expected 2"):
        function([1], exact.WithReplacement(["1/2", "1/2"], 2))
    with pytest.raises(TypeError, match=r"law: got .*exact\.WithReplacement"):
        function([1], exact.WithoutReplacement([1], 1))
