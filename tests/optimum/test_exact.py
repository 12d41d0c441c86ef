"""Fractions: the table of ground truth exactly, the twins exactly, the float functions to 1e-12."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import reference as naive
from naive_fractions import ROWS, Row

import otmd
from otmd.optimum import exact

TOLERANCE = 1e-12
OPTIMA = {"iid": exact.WithReplacement, "wor": exact.WithoutReplacement}
OPTIMA |= {"greedy": exact.Greedy, "hub": exact.Hub}
RATES = {"rrs": exact.WithReplacement, "rrsw": exact.WithoutReplacement}
TWINS = {
    exact.WithReplacement: naive.with_replacement,
    exact.WithoutReplacement: naive.without_replacement,
    exact.ConditionalPoisson: naive.conditional_poisson,
    exact.Greedy: naive.greedy,
    exact.Hub: lambda q, n: naive.hub(q),
}


def drawn(rng: random.Random, vocab_size: int) -> list[Fraction]:
    """Small numerators: ties, zero masses and one-hot distributions come up often."""
    masses = [0]
    while not any(masses):
        masses = [rng.choice((0, 0, 1, 1, 2, 3, 5, 17)) for _ in range(vocab_size)]
    return [Fraction(mass, sum(masses)) for mass in masses]


def cases(count: int = 100) -> Iterator[tuple[list[Fraction], list[Fraction], int]]:
    rng = random.Random(20)
    for _ in range(count):
        vocab_size = rng.randint(1, 5)
        p, q = drawn(rng, vocab_size), drawn(rng, vocab_size)
        yield p, (p if rng.random() < 0.1 else q), rng.randint(1, 4)


CASES = list(cases())


def serves(law: type, q: list[Fraction], n: int) -> bool:
    distinct = 1 if law is exact.WithReplacement else n
    return sum(mass > 0 for mass in q) >= distinct and (law is not exact.Hub or n == 2)


def in_floats(law: type) -> type:
    """The law of otmd that has the name of the exact one."""
    return getattr(otmd, law.__name__)


def floats(values: list[Fraction]) -> np.ndarray:
    return np.array([float(value) for value in values])


def in_fractions(masses: np.ndarray) -> list[Fraction]:
    """The floats' exact values, over their exact sum."""
    values = [Fraction(mass) for mass in masses.tolist()]
    return [value / sum(values) for value in values]


def entries(names: dict) -> list:
    return [pytest.param(row, name) for row in ROWS for name in row.values if name in names]


@pytest.mark.parametrize(("row", "name"), entries(OPTIMA))
def test_ground_truth_optimum(row: Row, name: str) -> None:
    best = exact.optimal_acceptance(row.p, OPTIMA[name](row.q, row.num_drafts))
    assert best.rate == row.values[name]
    if name == "iid" and row.cut is not None:
        assert best.subset == row.cut


@pytest.mark.parametrize(("row", "name"), entries(RATES))
def test_ground_truth_recursive_rejection(row: Row, name: str) -> None:
    rate = exact.recursive_rejection_rate(row.p, RATES[name](row.q, row.num_drafts))
    assert isinstance(rate, Fraction)
    assert rate == row.values[name]


@pytest.mark.parametrize("law", TWINS, ids=lambda law: law.__name__)
def test_optimum_agrees_with_twin_and_floats(law: type) -> None:
    seen = 0
    for p, q, n in CASES:
        if not serves(law, q, n):
            continue
        seen += 1
        best = exact.optimal_acceptance(p, law(q, n))
        table = TWINS[law](q, n)
        assert (best.rate, best.subset) == naive.optimal_by_subsets(p, table)
        assert best == exact.optimal_acceptance(p, exact.Joint(table))
        rounded = otmd.optimal_acceptance(floats(p), in_floats(law)(floats(q), num_drafts=n))
        assert rounded.rate == pytest.approx(float(best.rate), rel=0, abs=TOLERANCE)
    assert seen >= 10


def test_independent_agrees_with_twin_and_floats() -> None:
    rng = random.Random(3)
    for p, q, n in CASES:
        rows = [q, *(drawn(rng, len(p)) for _ in range(min(n, 3) - 1))]
        best = exact.optimal_acceptance(p, exact.Independent(rows))
        assert (best.rate, best.subset) == naive.optimal_by_subsets(p, naive.independent(rows))
        rate = exact.recursive_rejection_rate(p, exact.Independent(rows))
        twin = naive.judged(naive.independent(rows), naive.rrs_independent(p, rows), len(p))[0]
        law = otmd.Independent([floats(row) for row in rows])
        rounded = otmd.acceptance_rate(otmd.RecursiveRejection(), floats(p), law)
        assert rounded == pytest.approx(float(rate), rel=0, abs=TOLERANCE)
        assert rate == twin <= best.rate


@pytest.mark.parametrize("law", RATES.values(), ids=lambda law: law.__name__)
def test_recursive_rejection_agrees_with_twin_and_floats(law: type) -> None:
    rule = {exact.WithReplacement: naive.rrs, exact.WithoutReplacement: naive.rrsw}[law]
    for p, q, n in CASES:
        if not serves(law, q, n):
            continue
        rate = exact.recursive_rejection_rate(p, law(q, n))
        assert rate == naive.judged(TWINS[law](q, n), rule(p, q), len(p))[0]
        assert rate <= exact.optimal_acceptance(p, law(q, n)).rate
        drafts = in_floats(law)(floats(q), num_drafts=n)
        low, high = otmd.acceptance_bounds(otmd.RecursiveRejection(), floats(p), drafts, tol=1e-6)
        assert low - TOLERANCE <= rate <= high + TOLERANCE
        if high - low <= TOLERANCE:
            rounded = otmd.acceptance_rate(otmd.RecursiveRejection(), floats(p), drafts)
            assert rounded == pytest.approx(float(rate), rel=0, abs=TOLERANCE)


def test_what_counts_as_a_number() -> None:
    law = exact.WithReplacement(["1/4", "1/4", "1/2"], 2)
    expected = exact.optimal_acceptance(["1/2", "1/4", "1/4"], law)
    law = exact.WithReplacement([0.25, 0.25, 0.5], np.int64(2))
    for p in (
        [0.5, 0.25, 0.25],
        np.array([0.5, 0.25, 0.25], dtype=np.float32),
        (Fraction(1, 2), Decimal("0.25"), "0.25"),
        (value for value in ("2/4", "25e-2", np.float64(0.25))),
    ):
        assert exact.optimal_acceptance(p, law) == expected
    one = exact.optimal_acceptance([1], exact.WithReplacement([np.int64(1)], 3))
    assert (one.rate, one.subset) == (1, ())


def test_hostile_masses_stay_exact() -> None:
    tiny = Fraction(1, 10**300)
    best = exact.optimal_acceptance([1 - tiny, tiny], exact.WithReplacement([tiny, 1 - tiny], 2))
    assert best.rate == 1 + tiny - (1 - tiny) ** 2 == 3 * tiny - tiny**2
    assert best.subset == (1,)


def wide(rng: random.Random, size: int) -> np.ndarray:
    """Masses from 1 down to the smallest float64, some of them nearly equal."""
    faintest = rng.choice((0, 8, 300, 316, 323))
    masses = [rng.uniform(1, 9) * 10.0 ** -rng.choice((0, faintest)) for _ in range(size)]
    return np.array(masses) / sum(masses)


@pytest.mark.parametrize("law", TWINS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_pairs_whose_ratios_overflow(n: int, law: type) -> None:
    rng, seen = random.Random(7), 0
    for _ in range(150):
        size = rng.randint(2, 6)
        p, q = wide(rng, size), wide(rng, size)
        if not serves(law, q.tolist(), n):
            continue
        best = exact.optimal_acceptance(in_fractions(p), law(in_fractions(q), n))
        rounded = otmd.optimal_acceptance(p, in_floats(law)(q, num_drafts=n))
        assert rounded.rate == pytest.approx(float(best.rate), rel=0, abs=TOLERANCE)
        with np.errstate(over="ignore"):
            seen += bool(np.isinf(p[q > 0] / q[q > 0]).any())
    assert seen >= 10 or (law is exact.Hub and n != 2)


def test_twelve_tokens_are_quick_enough() -> None:
    rng = random.Random(1)
    p, q = drawn(rng, 12), drawn(rng, 12)
    best = exact.optimal_acceptance(p, exact.WithoutReplacement(q, 3))
    drafts = otmd.WithoutReplacement(floats(q), num_drafts=3)
    rounded = otmd.optimal_acceptance(floats(p), drafts)
    assert rounded.rate == pytest.approx(float(best.rate), rel=0, abs=TOLERANCE)


HALVES = ["1/2", "1/2"]
ONE_TOKEN_OF_THIRTEEN = [1, *[0] * 12]


def one(law: type):
    """A law that fixes its number of drafts."""
    return lambda draft_probs, num_drafts: law(draft_probs)


def given(arguments: dict) -> tuple:
    """A target and a law, valid but for what the arguments replace."""
    valid = {"target_probs": HALVES, "draft_probs": HALVES, "num_drafts": 2}
    some = {**valid, "law": exact.WithReplacement, **arguments}
    return some["target_probs"], some["law"](some["draft_probs"], some["num_drafts"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target_probs": ["1/2", "1/3"]}, ["target_probs", "sum to 5/6", "exactly 1"]),
        ({"target_probs": [0.1, 0.2, 0.7]}, ["target_probs", "sum to 1 -", "'1/10'"]),
        ({"target_probs": ["3/2", "-1/2"]}, ["target_probs[1]", "-1/2", "≥ 0"]),
        ({"target_probs": [float("nan"), 1]}, ["target_probs[0]", "nan", "finite"]),
        ({"target_probs": [float("inf"), 1]}, ["target_probs[0]", "inf", "finite"]),
        ({"target_probs": ["1/0", 1]}, ["target_probs[0]", "1/0"]),
        ({"target_probs": [None, 1]}, ["target_probs[0]", "None"]),
        ({"target_probs": "1/2,1/2"}, ["target_probs", "1/2,1/2", "list"]),
        ({"target_probs": {0: 1}}, ["target_probs", "list"]),
        ({"target_probs": np.array(1.0)}, ["target_probs", "list"]),
        ({"target_probs": np.eye(2)}, ["target_probs[0]", "array"]),
        ({"target_probs": []}, ["target_probs", "none"]),
        ({"target_probs": itertools.repeat(0)}, ["target_probs", "more than"]),
        ({"target_probs": ONE_TOKEN_OF_THIRTEEN}, ["target_probs", "13", "at most 12", "2^V"]),
        ({"target_probs": ["1/3"] * 3}, ["target_probs", "3 tokens", "expected 2"]),
        ({"draft_probs": ["1/2", "1/3"]}, ["draft_probs", "5/6"]),
        ({"num_drafts": 0}, ["num_drafts", "0"]),
        ({"num_drafts": None}, ["num_drafts", "None"]),
        ({"num_drafts": 3, "law": exact.WithoutReplacement}, ["num_drafts", "3", "at most 2"]),
        ({"num_drafts": 3, "law": exact.Greedy}, ["num_drafts", "3", "at most 2"]),
        ({"num_drafts": 3, "law": exact.Hub}, ["num_drafts", "3", "expected 2"]),
        ({"law": lambda q, n: otmd.Greedy([0.5, 0.5], n)}, ["law", "Greedy", "exact.ExactLaw"]),
        ({"law": lambda q, n: exact.Greedy}, ["law", "Greedy", "exact.ExactLaw"]),
        ({"law": one(exact.Independent)}, ["draft_probs[0]", "list"]),
        ({"law": one(exact.Independent), "draft_probs": [HALVES, [1]]}, ["tokens", "expected 1"]),
        ({"law": one(exact.Joint)}, ["table", "mapping"]),
        ({"law": one(exact.Joint), "draft_probs": {(0, 2): 1}}, ["table", "(0, 2)", "[0, 2)"]),
        ({"law": one(exact.Joint), "draft_probs": {(0, 1): 1, (0,): 0}}, ["(0,)", "2 tokens"]),
        ({"law": one(exact.Joint), "draft_probs": {0: 1}}, ["table", "tuple"]),
        ({"law": one(exact.Joint), "draft_probs": {(0, 1): "1/2"}}, ["table", "exactly 1"]),
    ],
)
def test_bad_input(arguments: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 — the words follow
        exact.optimal_acceptance(*given(arguments))
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"law": exact.Greedy}, ["law", "Greedy", "WithoutReplacement"]),
        ({"num_drafts": 3, "law": exact.WithoutReplacement}, ["num_drafts", "3", "at most 2"]),
        ({"draft_probs": ["1/3"] * 3}, ["target_probs", "2 tokens", "expected 3"]),
        (
            {
                "target_probs": ["1/30"] * 30,
                "draft_probs": ["1/30"] * 30,
                "num_drafts": 9,
                "law": exact.WithoutReplacement,
            },
            ["num_drafts", "9 of 30", "paths"],
        ),
    ],
)
def test_bad_input_of_recursive_rejection(arguments: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 — the words follow
        exact.recursive_rejection_rate(*given(arguments))
    assert [word for word in words if word not in str(caught.value)] == []


def test_fractions_need_no_sympy() -> None:
    """Nor does importing the module that has the algebraic numbers beside them."""
    code = (
        "import sys; sys.modules['sympy'] = None\n"
        "import otmd\n"
        "from otmd.optimum import exact\n"
        "law = exact.WithReplacement(['1/2', '1/2'], 1)\n"
        "print(exact.optimal_acceptance([1, 0], law).rate)\n"
        "exact.k_sequential_scale([1, 0], law)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1/2"
    assert "ImportError" in done.stderr
    assert 'pip install -e ".[exact]"' in done.stderr
