"""Fractions, algebraic numbers and closed forms: against the table of exact values, the twins and floats."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import reference
import sympy
from naive_fractions import K_SEQ_RATE, K_SEQ_RHO, ROWS, Row, fractions
from sympy import Rational

import otmd
from otmd.optimum import exact

x, t = sympy.symbols("x t")
TWINS = {
    exact.WithReplacement: reference.with_replacement,
    exact.WithoutReplacement: reference.without_replacement,
}
OPTIMA = {"iid": exact.WithReplacement, "wor": exact.WithoutReplacement}


def drawn(rng: random.Random, vocab_size: int) -> list[Fraction]:
    """Small numerators: ties, zero masses and one-hot distributions come up often."""
    masses = [0]
    while not any(masses):
        masses = [rng.choice((0, 0, 1, 1, 2, 3, 5, 17)) for _ in range(vocab_size)]
    return [Fraction(mass, sum(masses)) for mass in masses]


def floats(values: list[Fraction]) -> np.ndarray:
    return np.array([float(value) for value in values])


@pytest.mark.parametrize(
    ("row", "name"), [(row, name) for row in ROWS for name in row.values if name in OPTIMA]
)
def test_ground_truth(row: Row, name: str) -> None:
    best = exact.optimal_acceptance(row.p, OPTIMA[name](row.q, row.num_drafts))
    assert best.rate == row.values[name]
    assert best.subset == row.cut or name != "iid" or row.cut is None


@pytest.mark.parametrize("law", TWINS, ids=lambda law: law.__name__)
def test_optimum_agrees_with_twin_and_floats(law: type) -> None:
    rng = random.Random(20)
    compared = 0
    for _ in range(60):
        vocab_size = rng.randint(1, 5)
        p, q, n = drawn(rng, vocab_size), drawn(rng, vocab_size), rng.randint(1, 4)
        if law is exact.WithoutReplacement and n > sum(mass > 0 for mass in q):
            continue
        compared += 1
        best, table = exact.optimal_acceptance(p, law(q, n)), TWINS[law](q, n)
        assert (best.rate, best.subset) == reference.optimal_by_subsets(p, table)
        assert best == exact.optimal_acceptance(p, exact.Joint(table))
        rounded = otmd.optimal_acceptance(floats(p), getattr(otmd, law.__name__)(floats(q), n))
        assert rounded.rate == pytest.approx(float(best.rate), rel=0, abs=1e-12)
        rows = [q, drawn(rng, vocab_size)]
        best = exact.optimal_acceptance(p, exact.Independent(rows))
        table = reference.independent(rows)
        assert (best.rate, best.subset) == reference.optimal_by_subsets(p, table)
    assert compared > 20


@pytest.mark.parametrize("law", TWINS, ids=lambda law: law.__name__)
def test_pairs_whose_ratios_overflow(law: type) -> None:
    """Masses from 1 down to the smallest float64, some of them nearly equal."""
    rng = random.Random(7)
    for _ in range(60):
        size = rng.randint(4, 6)
        faintest = rng.choice((0, 8, 300, 316, 323))
        masses = np.array(
            [rng.uniform(1, 9) * 10.0 ** -rng.choice((0, faintest)) for _ in range(2 * size)]
        ).reshape(2, size)
        p, q = masses / masses.sum(axis=1, keepdims=True)
        if np.count_nonzero(q) < 3:
            continue
        best = exact.optimal_acceptance(
            reference.exact(p.tolist()), law(reference.exact(q.tolist()), 3)
        )
        rounded = otmd.optimal_acceptance(p, getattr(otmd, law.__name__)(q, 3))
        assert rounded.rate == pytest.approx(float(best.rate), rel=0, abs=1e-12)


def test_what_counts_as_a_number() -> None:
    law = exact.WithReplacement([0.25, 0.25, 0.5], np.int64(2))
    for p in (
        ["1/2", "1/4", "1/4"],
        np.array([0.5, 0.25, 0.25], dtype=np.float32),
        (Fraction(1, 2), Decimal("0.25"), "0.25"),
        (value for value in ("2/4", "25e-2", np.float64(0.25))),
    ):
        assert exact.optimal_acceptance(p, law) == exact.ExactOptimum(Fraction(15, 16), (1, 2))
    tiny = Fraction(1, 10**300)
    best = exact.optimal_acceptance([1 - tiny, tiny], exact.WithReplacement([tiny, 1 - tiny], 2))
    assert (best.rate, best.subset) == (3 * tiny - tiny**2, (1,))


HALVES = ["1/2", "1/2"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"p": ["1/2", "1/3"]}, ["target_probs", "sum to 5/6", "exactly 1"]),
        ({"p": [0.1, 0.2, 0.7]}, ["target_probs", "sum to 1 -", "'1/10'"]),
        ({"p": ["3/2", "-1/2"]}, ["target_probs[1]", "-1/2", "≥ 0"]),
        ({"p": [float("nan"), 1]}, ["target_probs[0]", "nan", "finite"]),
        ({"p": ["1/0", 1]}, ["target_probs[0]", "1/0"]),
        ({"p": "1/2,1/2"}, ["target_probs", "1/2,1/2", "list"]),
        ({"p": np.array(1.0)}, ["target_probs", "list"]),
        ({"p": np.eye(2)}, ["target_probs[0]", "array"]),
        ({"p": []}, ["target_probs", "list"]),
        ({"p": [1, *[0] * 12]}, ["target_probs", "13", "at most 12", "2^V"]),
        ({"p": ["1/3"] * 3}, ["target_probs", "3 tokens", "expected 2"]),
        ({"q": ["1/2", "1/3"]}, ["draft_probs", "5/6"]),
        ({"n": 0}, ["num_drafts", "0"]),
        ({"n": 3, "law": exact.WithoutReplacement}, ["num_drafts", "3", "at most 2"]),
        ({"law": lambda q, n: otmd.Greedy([0.5, 0.5], n)}, ["law", "Greedy", "exact.ExactLaw"]),
        ({"law": lambda q, n: exact.Independent(q)}, ["draft_probs[0]", "list"]),
        ({"law": lambda q, n: exact.Joint(q)}, ["table", "mapping"]),
        ({"law": lambda q, n: exact.Joint({(0, 2): 1})}, ["table", "(0, 2)", "[0, 2)"]),
        ({"law": lambda q, n: exact.Joint({(0, 1): 1, (0,): 0})}, ["table", "(0,)"]),
        ({"law": lambda q, n: exact.Joint({(0, 1): "1/2"})}, ["table", "exactly 1"]),
    ],
)
def test_bad_input(changes: dict, words: list[str]) -> None:
    given = {"p": HALVES, "q": HALVES, "n": 2, "law": exact.WithReplacement, **changes}
    with pytest.raises((ValueError, TypeError)) as caught:
        exact.optimal_acceptance(given["p"], given["law"](given["q"], given["n"]))
    assert [word for word in words if word not in str(caught.value)] == []


def test_fractions_need_no_sympy() -> None:
    """Nor does importing the module that has the algebraic numbers beside them."""
    code = (
        "import sys; sys.modules['sympy'] = None\n"
        "from otmd.optimum import exact\n"
        "law = exact.WithReplacement(['1/2', '1/2'], 1)\n"
        "print(exact.optimal_acceptance([1, 0], law).rate)\n"
        "exact.k_sequential_scale([1, 0], law)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1/2"
    assert "ImportError" in done.stderr
    assert 'pip install -e ".[exact]"' in done.stderr


# ---------------------------------------------------------------- K-SEQ in algebraic numbers


def test_k_sequential_ground_truth_and_many_digits() -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    scale = exact.k_sequential_scale(p, exact.WithReplacement(q, 2))
    rate = exact.k_sequential_rate(p, exact.WithReplacement(q, 2))
    assert (scale, rate) == ((5 + sympy.sqrt(13)) / 6, (11 + sympy.sqrt(13)) / 18)
    assert (float(scale), float(rate)) == pytest.approx((K_SEQ_RHO, K_SEQ_RATE), abs=1e-6)
    scale = exact.k_sequential_scale(p, exact.WithReplacement(q, 5))
    polynomial = sympy.minimal_polynomial(scale, x)
    assert sympy.degree(polynomial) == 5
    assert abs(polynomial.subs(x, scale.evalf(50))) < 1e-44


def test_k_sequential_agrees_with_floats_and_solves_the_equation() -> None:
    rng = random.Random(8)
    irrational = 0
    for _ in range(20):
        p, q, n = drawn(rng, 4), drawn(rng, 4), rng.randint(1, 4)
        law = exact.WithReplacement(q, n)
        scale, rate = exact.k_sequential_scale(p, law), exact.k_sequential_rate(p, law)
        irrational += not scale.is_rational
        near, accepted = scale.evalf(40), rate.evalf(40)
        W = sum(max(Rational(a) - near * Rational(b), 0) for a, b in zip(p, q, strict=True))
        assert abs(1 - W - accepted) < 1e-35
        assert abs((1 - (1 - W) / near) ** n - W) < 1e-35
        curve = otmd.RatioCurve(floats(p), floats(q))
        assert curve.k_sequential_scale(n) == pytest.approx(float(scale), rel=0, abs=1e-12)
        assert curve.k_sequential_rates(n)[-1] == pytest.approx(float(rate), rel=0, abs=1e-12)
    assert irrational >= 3


@pytest.mark.parametrize(
    ("p", "q", "n", "scale", "rate"),
    [
        ("1/2,1/2", "1/2,1/2", 3, 1, 1),
        ("1,0", "0,1", 3, 1, 0),
        ("1", "1", 4, 1, 1),
        # All of q lies where p/q = 1/2: every ρ accepts 1/2, and 1 − (1 − 1/(2ρ))² = 1/2.
        ("1/2,1/2", "1,0", 2, 1 / (2 - sympy.sqrt(2)), Fraction(1, 2)),
    ],
)
def test_hostile_k_sequential(p: str, q: str, n: int, scale: object, rate: Fraction) -> None:
    law = exact.WithReplacement(fractions(q), n)
    assert sympy.simplify(exact.k_sequential_scale(fractions(p), law) - scale) == 0
    assert exact.k_sequential_rate(fractions(p), law) == Rational(rate)
    with pytest.raises(TypeError, match=r"law: got .*exact\.WithReplacement"):
        exact.k_sequential_rate([1], exact.WithoutReplacement([1], 1))


# ---------------------------------------------------------------- the optimum in closed form


HALF = Rational(1, 2)
FOUR = (
    [HALF + t, Rational(1, 4) - t, "1/8", "1/8"],
    [Rational(1, 4) - t, "1/8", HALF + t / 2, Rational(1, 8) + t / 2],
)
MOVING: dict[str, tuple[list, Callable[[Callable], exact.ExactLaw]]] = {
    "the target": ([HALF + t, HALF - t, 0], lambda at: exact.WithReplacement(["1/3"] * 3, 2)),
    "the draft": (["1/3", "2/3"], lambda at: exact.WithReplacement([at(t), at(1 - t)], 4)),
    "fractions": ([1 / (1 + t), t / (1 + t)], lambda at: exact.WithReplacement(["1/3", "2/3"], 2)),
    "equal": ([t, 1 - t], lambda at: exact.WithReplacement([at(t), at(1 - t)], 2)),
    "without": (FOUR[0], lambda at: exact.WithoutReplacement([at(y) for y in FOUR[1]], 2)),
    "independent": (
        FOUR[0],
        lambda at: exact.Independent([[at(y) for y in row] for row in FOUR]),
    ),
    "a table": ([t, 1 - t], lambda at: exact.Joint({(0, 1): at(t), (1, 1): at(1 - t)})),
}


def substitute(value: Rational) -> Callable:
    return lambda entry: Fraction(str(sympy.sympify(entry).subs(t, value)))


@pytest.mark.parametrize("case", MOVING)
def test_regions(case: str) -> None:
    """Numbers in place of the symbol give the same, and neighbours agree at their common end."""
    p, law = MOVING[case]
    best = exact.piecewise_optimum(p, law(lambda entry: entry), t)
    for region in best.regions:
        high = region.low + 10 if region.high == sympy.oo else region.high
        for i in (1e-6, 0.3, 0.7, 1 - 1e-6):
            point = Rational(str(sympy.N(region.low + (high - region.low) * Rational(str(i)), 30)))
            at = substitute(point)
            fixed = exact.optimal_acceptance(map(at, p), law(at))
            assert best.rate(point) == region.rate.subs(t, point) == Rational(fixed.rate)
            assert fixed.subset == region.subset
            assert best.piecewise().subs(t, point) == best.rate(point)
    for left, right in zip(best.regions, best.regions[1:], strict=False):
        assert left.high == right.low
        assert left.subset != right.subset
        jump = sympy.fraction(sympy.together(left.rate - right.rate))[0]
        # Divisible by the minimal polynomial of the end: zero there, and not only small.
        assert sympy.rem(jump, sympy.minimal_polynomial(left.high, t), t) == 0
    text = best.latex()
    assert text.count("H^*") == len(best.regions)
    assert text.count("{") == text.count("}")


def test_known_regions() -> None:
    p, law = MOVING["the target"]
    best = exact.piecewise_optimum(p, law(lambda entry: entry), t)
    sixth = Rational(1, 6)
    assert [(r.low, r.high, r.rate, r.subset) for r in best.regions] == [
        (-HALF, -sixth, t + Rational(19, 18), (0, 2)),
        (-sixth, sixth, Rational(8, 9), (2,)),
        (sixth, HALF, Rational(19, 18) - t, (1, 2)),
    ]
    assert best.rate("1/8") == best.rate(0.125) == Rational(8, 9)
    assert best.rate(sympy.sqrt(2) / 5) == Rational(19, 18) - sympy.sqrt(2) / 5
    for wrong in (t, sympy.I, sympy.Float(0.1), None, "x", 2):
        with pytest.raises(ValueError, match="value"):
            best.rate(wrong)


def test_separate_intervals() -> None:
    """p = t² ≤ 1 and q = 4t² − 1 ≥ 0 leave two intervals, and nothing between them."""
    law = exact.WithReplacement([t**2 * 4 - 1, 2 - t**2 * 4], 2)
    best = exact.piecewise_optimum([t**2, 1 - t**2], law, t)
    assert best.regions[0].low == -sympy.sqrt(2) / 2
    assert any(a.high < b.low for a, b in zip(best.regions, best.regions[1:], strict=False))
    with pytest.raises(ValueError, match=r"value.*got 0.*in one of"):
        best.rate(0)


@pytest.mark.parametrize(
    ("p", "symbol", "words"),
    [
        ([t, HALF], t, ["target_probs", "sum to t + 1/2", "identically"]),
        ([sympy.sqrt(t), 1 - sympy.sqrt(t)], t, ["target_probs[0]", "rational"]),
        ([sympy.Symbol("s"), 1], t, ["target_probs[0]", "function of t"]),
        ([sympy.Float(0.5), HALF], t, ["target_probs[0]"]),
        (["1/5"] * 5, t, ["target_probs", "at most 4"]),
        (["1/2", "1/2"], t, ["symbol", "do not depend"]),
        ([2 + t**2, -1 - t**2], t, ["nowhere", "interval of t"]),
        ([t, 1 - t], "t", ["symbol", "sympy.Symbol"]),
    ],
    ids=str,
)
def test_bad_functions(p: list, symbol: object, words: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        exact.piecewise_optimum(p, exact.WithReplacement(["1/2", "1/2"], 2), symbol)
    assert [word for word in words if word not in str(caught.value)] == []
