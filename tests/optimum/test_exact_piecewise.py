"""The optimum in closed form: substituting numbers must give what the fractions give."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
from sympy import Rational

from otmd.optimum import exact

t = sympy.Symbol("t")
POINTS = 20
HALF = Rational(1, 2)
FOUR = (
    [HALF + t, Rational(1, 4) - t, "1/8", "1/8"],
    [Rational(1, 4) - t, "1/8", HALF + t / 2, Rational(1, 8) + t / 2],
)
MOVING = {
    "two tokens, one draft": ([t, 1 - t], ["1/3", "2/3"], 1, exact.WithReplacement),
    "two tokens": ([t, 1 - t], ["1/2", "1/2"], 2, exact.WithReplacement),
    "the draft moves": (["1/3", "2/3"], [t, 1 - t], 4, exact.WithReplacement),
    "three tokens": ([HALF + t, HALF - t, 0], ["1/3"] * 3, 2, exact.WithReplacement),
    "quadratic": ([t**2, t - t**2, 1 - t], ["1/4", "1/4", "1/2"], 3, exact.WithReplacement),
    "a fraction of the symbol": (
        [1 / (1 + t), t / (1 + t)],
        ["1/3", "2/3"],
        2,
        exact.WithReplacement,
    ),
    "equal": ([t, 1 - t], [t, 1 - t], 2, exact.WithReplacement),
    "disjoint": ([t, 1 - t, 0, 0], [0, 0, t, 1 - t], 2, exact.WithReplacement),
    "four tokens, four drafts": (*FOUR, 4, exact.WithReplacement),
    "without replacement": (*FOUR, 2, exact.WithoutReplacement),
    "conditional Poisson": (*FOUR, 3, exact.ConditionalPoisson),
    "independent": (FOUR[0], [FOUR[1], FOUR[0]], None, lambda q, n: exact.Independent(q)),
}


def at(entries: list, value: Rational) -> list:
    if isinstance(entries[0], list):
        return [at(row, value) for row in entries]
    return [Fraction(str(sympy.sympify(entry).subs(t, value))) for entry in entries]


def inside(low: sympy.Expr, high: sympy.Expr) -> list[Rational]:
    """Rational points strictly inside a region, one hard by each end."""
    if high == sympy.oo:
        high = low + 10
    step = (high - low) / (POINTS + 1)
    points = [low + step * i for i in range(1, POINTS + 1)]
    points += [low + step / 10**6, high - step / 10**6]
    return [Rational(str(sympy.N(point, 30))) for point in points]


@pytest.mark.parametrize("case", MOVING.values(), ids=MOVING.keys())
def test_substitution(case: tuple) -> None:
    p, q, n, law = case
    best = exact.piecewise_optimum(p, law(q, n), t)
    for region in best.regions:
        for point in inside(region.low, region.high):
            fixed = exact.optimal_acceptance(at(p, point), law(at(q, point), n))
            assert best.rate(point) == Rational(fixed.rate)
            assert set(fixed.subset) == set(region.subset)
            assert best.piecewise().subs(t, point) == best.rate(point)


@pytest.mark.parametrize("case", MOVING.values(), ids=MOVING.keys())
def test_breakpoints(case: tuple) -> None:
    p, q, n, law = case
    best = exact.piecewise_optimum(p, law(q, n), t)
    for left, right in zip(best.regions, best.regions[1:], strict=False):
        assert left.high == right.low
        assert left.subset != right.subset
        jump = sympy.fraction(sympy.together(left.rate - right.rate))[0]
        # Divisible by the minimal polynomial of the end: zero there, and not only small.
        assert sympy.rem(jump, sympy.minimal_polynomial(left.high, t), t) == 0
    if law is exact.WithReplacement:
        for end in {best.regions[0].low, best.regions[-1].high} - {sympy.oo}:
            fixed = exact.optimal_acceptance(at(p, end), law(at(q, end), n))
            assert best.rate(end) == Rational(fixed.rate)


@pytest.mark.parametrize("case", MOVING.values(), ids=MOVING.keys())
def test_latex(case: tuple) -> None:
    best = exact.piecewise_optimum(case[0], case[3](*case[1:3]), t)
    text = best.latex()
    assert text.startswith(r"\alpha^* = \begin{cases}")
    assert text.endswith(r"\end{cases}")
    assert text.count("H^*") == len(best.regions)
    assert text.count("{") == text.count("}")


def test_the_wrong_region_would_be_noticed() -> None:
    p, q, n, _ = MOVING["three tokens"]
    first, second = exact.piecewise_optimum(p, exact.WithReplacement(q, n), t).regions[:2]
    point = inside(first.low, first.high)[3]
    fixed = exact.optimal_acceptance(at(p, point), exact.WithReplacement(at(q, point), n))
    assert second.rate.subs(t, point) != Rational(fixed.rate)


def test_known_regions() -> None:
    best = exact.piecewise_optimum(
        [HALF + t, HALF - t, 0], exact.WithReplacement(["1/3"] * 3, 2), t
    )
    found = [(r.low, r.high, r.rate, r.subset) for r in best.regions]
    sixth = Rational(1, 6)
    assert found == [
        (-HALF, -sixth, t + Rational(19, 18), (0, 2)),
        (-sixth, sixth, Rational(8, 9), (2,)),
        (sixth, HALF, Rational(19, 18) - t, (1, 2)),
    ]
    irrational = exact.piecewise_optimum(["1/3", "2/3"], exact.WithReplacement([t, 1 - t], 2), t)
    ends = [region.high for region in irrational.regions]
    assert ends == [1 - sympy.sqrt(6) / 3, sympy.sqrt(3) / 3, 1]


def test_separate_intervals() -> None:
    """p = t² ≤ 1 and q = 4t² − 1 ≥ 0 leave two intervals, and nothing between them."""
    best = exact.piecewise_optimum(
        [t**2, 1 - t**2], exact.WithReplacement([t**2 * 4 - 1, 2 - t**2 * 4], 2), t
    )
    assert best.regions[0].low == -sympy.sqrt(2) / 2
    assert best.regions[-1].high == sympy.sqrt(2) / 2
    assert any(a.high < b.low for a, b in zip(best.regions, best.regions[1:], strict=False))
    with pytest.raises(ValueError, match=r"value.*got 0.*in one of"):
        best.rate(0)


def test_values() -> None:
    best = exact.piecewise_optimum([t, 1 - t], exact.WithReplacement(["1/2", "1/2"], 2), t)
    assert best.rate("1/8") == best.rate(0.125) == best.rate(Rational(1, 8)) == Rational(7, 8)
    assert best.rate(sympy.sqrt(2) / 12) == sympy.sqrt(2) / 12 + Rational(3, 4)
    for wrong in (t, sympy.I, sympy.Float(0.1), sympy.nan, None, "x"):
        with pytest.raises(ValueError, match="value"):
            best.rate(wrong)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target_probs": [t, HALF]}, ["target_probs", "sum to t + 1/2", "identically"]),
        ({"target_probs": [sympy.sqrt(t), 1 - sympy.sqrt(t)]}, ["target_probs[0]", "rational"]),
        ({"target_probs": [sympy.Symbol("s"), 1]}, ["target_probs[0]", "function of t"]),
        ({"target_probs": [sympy.nan, 1]}, ["target_probs[0]", "rational"]),
        ({"target_probs": [sympy.Float(0.5), HALF]}, ["target_probs[0]"]),
        ({"target_probs": ["t", 1]}, ["target_probs[0]"]),
        ({"target_probs": ["1/5"] * 5, "draft_probs": ["1/5"] * 5}, ["target_probs", "at most 4"]),
        ({"target_probs": ["1/2", "1/2"]}, ["symbol", "do not depend"]),
        ({"target_probs": [2 + t**2, -1 - t**2]}, ["nowhere", "interval of t"]),
        ({"draft_probs": ["1/3"] * 3}, ["target_probs", "2 tokens", "expected 3"]),
        ({"num_drafts": 3, "law": exact.WithoutReplacement}, ["num_drafts", "at most 2"]),
        ({"law": exact.Greedy}, ["law", "Greedy", "WithReplacement"]),
        ({"symbol": "t"}, ["symbol", "sympy.Symbol"]),
        ({"num_drafts": 0}, ["num_drafts"]),
    ],
)
def test_bad_input(arguments: dict, words: list[str]) -> None:
    valid = {"target_probs": [t, 1 - t], "draft_probs": ["1/2", "1/2"], "num_drafts": 2}
    given = {**valid, "symbol": t, "law": exact.WithReplacement, **arguments}

    def run() -> None:
        law = given["law"](given["draft_probs"], given["num_drafts"])
        exact.piecewise_optimum(given["target_probs"], law, given["symbol"])

    with pytest.raises(ValueError) as caught:  # noqa: PT011 — the words follow
        run()
    assert [word for word in words if word not in str(caught.value)] == []
