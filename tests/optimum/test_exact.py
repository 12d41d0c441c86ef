"""Fractions and algebraic numbers: against the twins and floats."""

from __future__ import annotations

import random
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import reference
import sympy
from reference import fractions
from sympy import Rational

import otmd
from otmd import exact

LAWS = {
    "iid": (exact.with_replacement, reference.with_replacement, otmd.WithReplacement),
    "wor": (exact.without_replacement, reference.without_replacement, otmd.WithoutReplacement),
    "greedy": (exact.greedy, reference.greedy, otmd.Greedy),
}


def drawn(rng: random.Random, vocab_size: int) -> list[Fraction]:
    """Small numerators: ties, zero masses and one-hot distributions come up often."""
    masses = [0]
    while not any(masses):
        masses = [rng.choice((0, 0, 1, 1, 2, 3, 5, 17)) for _ in range(vocab_size)]
    return [Fraction(mass, sum(masses)) for mass in masses]


def floats(values: list[Fraction]) -> np.ndarray:
    return np.array([float(value) for value in values])


@pytest.mark.parametrize("name", LAWS)
def test_optimum_agrees_with_twin_and_floats(name: str) -> None:
    make, twin, law = LAWS[name]
    rng = random.Random(20)
    compared = 0
    for _ in range(60):
        vocab_size = rng.randint(1, 5)
        p, q, n = drawn(rng, vocab_size), drawn(rng, vocab_size), rng.randint(1, 4)
        if name != "iid" and n > sum(mass > 0 for mass in q):
            with pytest.raises(ValueError, match=r"num_drafts: got .* distinct drafts"):
                make(q, n)
            continue
        compared += 1
        table = make(q, n)
        assert table == twin(q, n)
        best = exact.optimal_acceptance(p, table)
        assert (best.rate, best.subset) == reference.optimal_by_subsets(p, table)
        dual = sum(prob * best.draft_duals[drafts] for drafts, prob in table.items())
        assert dual + sum(p[y] for y in best.subset) == best.rate
        assert all(u or {*drafts} <= {*best.subset} for drafts, u in best.draft_duals.items())
        rounded = otmd.optimal_acceptance(floats(p), law(floats(q), n))
        assert rounded.rate == pytest.approx(float(best.rate), rel=0, abs=1e-12)
        rows = [q, drawn(rng, vocab_size)]
        assert exact.independent(rows) == reference.independent(rows)
    assert compared > 20


def test_pairs_whose_ratios_overflow() -> None:
    """Masses from 1 down to the smallest float64, some of them nearly equal."""
    rng = np.random.default_rng(7)
    for faintest in (8, 300, 316, 323) * 3:
        p, q = rng.uniform(1, 9, (2, 4)) * 10.0 ** -rng.choice([0.0, faintest], (2, 4))
        p, q = p / p.sum(), q / q.sum()
        table = exact.without_replacement(reference.exact(q.tolist()), 3)
        best = exact.optimal_acceptance(reference.exact(p.tolist()), table)
        rate = otmd.optimal_acceptance(p, otmd.WithoutReplacement(q, 3)).rate
        assert rate == pytest.approx(float(best.rate), rel=0, abs=1e-12)


def test_what_counts_as_a_number() -> None:
    table = exact.with_replacement([0.25, 0.25, 0.5], 2)
    for p in (
        ["1/2", "1/4", "1/4"],
        np.array([0.5, 0.25, 0.25], dtype=np.float32),
        (Fraction(1, 2), Decimal("0.25"), "0.25"),
        (value for value in ("2/4", "25e-2", np.float64(0.25))),
    ):
        best = exact.optimal_acceptance(p, table)
        assert (best.rate, best.subset) == (Fraction(15, 16), (1, 2))
    tiny = Fraction(1, 10**300)
    best = exact.optimal_acceptance([1 - tiny, tiny], exact.with_replacement([tiny, 1 - tiny], 2))
    assert (best.rate, best.subset) == (3 * tiny - tiny**2, (1,))


@pytest.mark.parametrize(
    ("p", "table", "words"),
    [
        (["1/2", "1/3"], None, ["target_probs", "'1/3'", "exactly 1"]),
        ([0.1, 0.2, 0.7], None, ["target_probs", "0.7", "'1/10'"]),
        (["3/2", "-1/2"], None, ["target_probs", "-1/2", "≥ 0"]),
        ([float("nan"), 1], None, ["target_probs", "nan"]),
        (["1/0", 1], None, ["target_probs", "1/0"]),
        ("1/2,1/2", None, ["target_probs", "str"]),
        (np.eye(2), None, ["target_probs", "array"]),
        ([], None, ["target_probs", "[]"]),
        ([1, *[0] * 12], {(0,): 1}, ["target_probs", "13", "at most 12"]),
        (None, otmd.Greedy([0.5, 0.5], 2), ["table", "Greedy", "mapping"]),
        (None, {(0, 2): 1}, ["table", "(0, 2)", "[0, 2)"]),
        (None, {(0, 1): 1, (0,): 0}, ["table", "(0,)"]),
        (None, {(0, 1): "1/2"}, ["table", "exactly 1"]),
        (None, {}, ["table", "{}"]),
    ],
)
def test_bad_input(p: object, table: object, words: list[str]) -> None:
    halves = ["1/2", "1/2"]
    with pytest.raises((ValueError, TypeError)) as caught:
        exact.optimal_acceptance(halves if p is None else p, {(0, 1): 1} if table is None else table)
    assert [word for word in words if word not in str(caught.value)] == []


def test_where_some_cut_is_a_prefix() -> None:
    """q-convex laws have an optimal prefix by p/q for every p; a law that pairs tokens is not one of them."""
    rng = random.Random(3)
    for _ in range(20):
        q = [Fraction(rng.randint(1, 9)) for _ in range(4)]
        q = [mass / sum(q) for mass in q]
        for make in (exact.with_replacement, exact.without_replacement):
            assert exact.is_q_convex(q, make(q, 2))
        p = drawn(rng, 4)
        table = exact.without_replacement(q, 2)
        order = sorted(range(4), key=lambda y: p[y] / q[y])
        prefixes = [
            1 + sum(p[y] for y in order[:k]) - reference.containment(table, order[:k]) for k in range(5)
        ]
        assert min(prefixes) == exact.optimal_acceptance(p, table).rate
    assert not exact.is_q_convex(["1/4"] * 4, {(0, 1): "1/2", (2, 3): "1/2"})
    greedy = exact.greedy(["2/5", "3/10", "1/5", "1/10"], 2)
    assert not exact.is_q_convex(["2/5", "3/10", "1/5", "1/10"], greedy)


def test_fractions_need_no_sympy() -> None:
    code = (
        "import sys; sys.modules['sympy'] = None\n"
        "from otmd import exact\n"
        "print(exact.optimal_acceptance([1, 0], exact.with_replacement(['1/2', '1/2'], 1)).rate)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1/2"


# ---------------------------------------------------------------- K-SEQ in algebraic numbers


def test_k_sequential_ground_truth_and_many_digits() -> None:
    p, q = fractions("1/3,0,2/3"), fractions("1/3,1/3,1/3")
    scale, rate = exact.k_sequential(p, q, 2)
    assert (scale, rate) == ((5 + sympy.sqrt(13)) / 6, (11 + sympy.sqrt(13)) / 18)
    scale, _ = exact.k_sequential(p, q, 5)
    x = sympy.Symbol("x")
    polynomial = sympy.minimal_polynomial(scale, x)
    assert sympy.degree(polynomial) == 5
    assert abs(polynomial.subs(x, scale.evalf(50))) < 1e-44


def test_k_sequential_agrees_with_floats_and_solves_the_equation() -> None:
    rng = random.Random(8)
    irrational = 0
    for _ in range(20):
        p, q, n = drawn(rng, 4), drawn(rng, 4), rng.randint(1, 4)
        scale, rate = exact.k_sequential(p, q, n)
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
    by_exact = exact.k_sequential(fractions(p), fractions(q), n)
    assert sympy.simplify(by_exact[0] - scale) == 0
    assert by_exact[1] == Rational(rate)
