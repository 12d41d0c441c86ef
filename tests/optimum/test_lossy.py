"""The lossy front against convex programs over all subsets, exact fractions, and α* of its output law."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from conformance import VARIANTS
from scipy.special import kl_div

import otmd
from otmd import exact

DIVERGENCES = {
    "total_variation": lambda out, p: 0.5 * np.abs(out - p).sum(),
    "kl": lambda out, p: kl_div(out, p).sum(),
    "reverse_kl": lambda out, p: kl_div(p, out).sum(),
    "chi_squared": lambda out, p: math.fsum((out - p) * ((out - p) / p)),
    "leniency": lambda out, p: (out / p).max(),
}
LAWS = {
    name: (make, 3 if name.startswith("top, then") else 2)
    for name, make in VARIANTS.items()
    if name != "independent"
}
LAWS |= {"one draft": (otmd.WithReplacement, 1), "three": (otmd.WithoutReplacement, 3)}
NAMES = [pytest.param(name, marks=pytest.mark.slow if name == "three" else ()) for name in LAWS]
SIZE = 5
SUBSETS = (np.arange(2**SIZE)[:, None] >> np.arange(SIZE) & 1).astype(bool)


def law_of(name: str, q: np.ndarray) -> otmd.DraftLaw:
    make, num_drafts = LAWS[name]
    return make(q, num_drafts)


@pytest.mark.parametrize("divergence", ["kl", "reverse_kl", "chi_squared", "total_variation"])
@pytest.mark.parametrize("name", ["with-replacement", "without-replacement", "stratified"])
def test_no_law_is_cheaper_by_a_convex_program(name, divergence):
    cp = pytest.importorskip("cvxpy")
    p, q = np.random.default_rng(3).dirichlet(np.ones(SIZE), size=2)
    law = law_of(name, q)
    contained = np.array([law.containment(subset) for subset in SUBSETS])
    best = otmd.optimal_acceptance(p, law).rate
    rate = best + 0.4 * (1.0 - best)
    output = cp.Variable(SIZE, nonneg=True)
    objective = {
        "kl": cp.sum(cp.kl_div(output, p)),
        "reverse_kl": cp.sum(cp.kl_div(p, output)),
        "chi_squared": cp.sum(cp.multiply(cp.square(output - p), 1.0 / p)),
        "total_variation": 0.5 * cp.norm1(output - p),
    }[divergence]
    constraints = [cp.sum(output) == 1, SUBSETS.astype(float) @ output >= contained - (1.0 - rate)]
    least = cp.Problem(cp.Minimize(objective), constraints).solve(solver="CLARABEL")
    front = otmd.lossy_frontier(p, law, divergence)
    assert front.divergence_at(rate) == pytest.approx(least, abs=1e-6)
    if divergence != "total_variation":
        assert np.abs(front.output_distribution(front.divergence_at(rate)) - output.value).max() < 1e-3


def spent(divergence: str, output: np.ndarray, p: np.ndarray) -> float:
    """The divergence, where some tokens have no target mass."""
    able = p > 0
    if divergence in ("chi_squared", "leniency"):
        return np.inf if output[~able].any() else DIVERGENCES[divergence](output[able], p[able])
    return float(DIVERGENCES[divergence](output, p))


def hostile(rng: np.random.Generator) -> np.ndarray:
    """Random, tied or zero masses, or masses hundreds of orders of magnitude apart."""
    mass = [
        rng.dirichlet(np.full(SIZE, 0.5)),
        rng.integers(0, 3, SIZE).astype(float),
        10.0 ** -rng.uniform(0, 300, SIZE),
        10.0 ** -rng.choice([0.0, 17.0, 100.0, 300.0], SIZE),
        10.0 ** -rng.uniform(0, 30, SIZE),
    ][rng.integers(5)]
    mass[rng.integers(SIZE)] += 0.2
    return mass / mass.sum()


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("name", NAMES)
def test_hostile_masses_over_all_subsets(name, divergence):
    rng = np.random.default_rng(len(name))
    least = 1.0 if divergence == "leniency" else 0.0
    for _ in range(6):
        p, q = hostile(rng), hostile(rng)
        if np.count_nonzero(q) < 3:
            continue
        law = law_of(name, q)
        contained = np.array([law.containment(subset) for subset in SUBSETS])
        front = otmd.lossy_frontier(p, law, divergence)
        assert front.divergence_at(front.lossless_rate) == least
        assert front.lossless_rate == pytest.approx(otmd.optimal_acceptance(p, law).rate, abs=1e-12)
        rates = front.lossless_rate + (1.0 - front.lossless_rate) * rng.random(2)
        reached = [b for b in front.divergence_at(rates) if np.isfinite(b)]
        for rate, budget in zip(rates, front.divergence_at(rates), strict=True):
            if np.isfinite(budget):
                assert front.rate_at(budget) == pytest.approx(rate, abs=1e-8)
                output = front.output_distribution(budget)
                assert spent(divergence, output, p) == pytest.approx(budget, rel=1e-7, abs=1e-7)
        for budget in [*(least + 10.0 ** rng.uniform(-12, 3, 3)), *reached]:
            where = f"{p.tolist()} {law!r} {q.tolist()} {budget}"
            output, rate = front.output_distribution(budget), front.rate_at(budget)
            assert output.sum() == pytest.approx(1.0, abs=1e-14), where
            assert spent(divergence, output, p) <= budget * (1.0 + 1e-11) + 1e-15, where
            assert 1.0 + (SUBSETS @ output - contained).min() >= rate - 1e-12, where
            caps = {"total_variation": (1.0, budget), "leniency": (budget, 0.0)}
            if divergence in caps:
                factor, gain = caps[divergence]
                most = 1.0 + gain + (factor * (SUBSETS @ p) - contained).min()
                assert rate == pytest.approx(min(1.0, most), abs=1e-12), where


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("temperature", [0.05, 0.6])
def test_a_large_vocabulary_at_low_temperatures(divergence, temperature):
    logits = 4.0 * np.random.default_rng(5).standard_normal((2, 5000)) / temperature
    p, q = otmd.probs_from_logits(logits[0]), otmd.probs_from_logits(logits.sum(axis=0))
    budgets = np.array([1e-3, 0.1, 1.0]) + (divergence == "leniency")
    for law in (otmd.WithReplacement(q, 4), otmd.Stratified(q, 4), otmd.WithoutReplacement(q, 2)):
        front = otmd.lossy_frontier(p, law, divergence)
        for budget, rate in zip(budgets, front.rate_at(budgets), strict=True):
            output = front.output_distribution(budget)
            # Subnormal numbers have few digits.
            normal = p > 1e-300
            assert spent(divergence, output[normal], p[normal]) <= budget * (1.0 + 1e-11)
            assert otmd.optimal_acceptance(output, law).rate >= rate - 1e-12
            assert (output[p > 0] > 0).all() or divergence != "reverse_kl"


def test_masses_near_zero_do_not_make_nan():
    third = 1.0 / 3.0
    law = otmd.WithReplacement([0.3, 0.1, 0.2, 0.4], 1)
    front = otmd.lossy_frontier([1e-17, third, third, third], law, "leniency")
    assert front.output_distribution(1.3) == pytest.approx([1.3e-17, 0.3, 0.3, 0.4], rel=1e-12)
    law = otmd.WithReplacement([0.4, 0.5, 0.1], 2)
    front = otmd.lossy_frontier([1e-100, 0.5, 0.5], law, "chi_squared")
    assert front.output_distribution(0.5)[1:] == pytest.approx([0.65, 0.35], rel=1e-12)
    assert front.rate_at(0.5) == pytest.approx(0.84, abs=1e-12)


def exact_output(target: list[Fraction], law: exact.Table, loss: Fraction) -> list[Fraction]:
    """The output law by the taut string over all 2^V subsets: each step is the steepest from a corner."""
    size, everything = 1 << len(target), (1 << len(target)) - 1
    members = [{y for y in range(len(target)) if s >> y & 1} for s in range(size)]
    contained = [sum(prob for x, prob in law.items() if {*x} <= inside) for inside in members]
    mass = [sum((t for y, t in enumerate(target) if s >> y & 1), Fraction(0)) for s in range(size)]
    height = [Fraction(0), *(g - loss for g in contained[1:everything]), Fraction(1)]
    corner, output = 0, [Fraction(0)] * len(target)
    while corner != everything:
        further = [s for s in range(size) if mass[s] > mass[corner]]
        steepest = max((height[s] - height[corner]) / (mass[s] - mass[corner]) for s in further)
        reached = [s for s in further if height[s] - height[corner] == steepest * (mass[s] - mass[corner])]
        # The largest set is the corner, since corners are nested.
        following = max(reached, key=lambda s: mass[s])
        for y in range(len(target)):
            if following >> y & 1 and not corner >> y & 1:
                output[y] = target[y] * steepest
        corner = following
    return output


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (otmd.WithReplacement, exact.with_replacement),
        (otmd.WithoutReplacement, exact.without_replacement),
    ],
)
def test_in_fractions(kind, table):
    rng = np.random.default_rng(5)
    for _ in range(3):
        parts = rng.integers(1, 30, size=(2, 4))
        p, q = ([Fraction(int(x), int(row.sum())) for x in row] for row in parts)
        law = table(q, 2)
        best = exact.optimal_acceptance(p, law).rate
        budget = (1 - best) / 3
        output = exact_output(p, law, 1 - best - budget)
        float_law = kind([float(x) for x in q], 2)
        front = otmd.lossy_frontier([float(x) for x in p], float_law)
        assert sum(output) == 1
        assert exact.optimal_acceptance(output, law).rate == best + budget
        assert sum(abs(a - b) for a, b in zip(output, p, strict=True)) == 2 * budget
        assert front.rate_at(float(budget)) == pytest.approx(float(best + budget), abs=1e-12)
        wanted = [float(x) for x in output]
        assert front.output_distribution(float(budget)) == pytest.approx(wanted, abs=1e-12)


def test_deterministic_tokens_without_target_mass_take_all_that_is_given_to_them():
    """Any share for a token that is never drafted would be lost."""
    p = np.array([0.0, 0.5, 0.5, 0.0])
    for law in (otmd.TopK([0.7, 0.1, 0.1, 0.1], 1), otmd.TopK([0.4, 0.1, 0.1, 0.4], 2)):
        front = otmd.lossy_frontier(p, law)
        output = front.output_distribution(0.3)
        assert front.rate_at(0.3) == pytest.approx(0.3, abs=1e-12)
        assert otmd.optimal_acceptance(output, law).rate == pytest.approx(0.3, abs=1e-12)


def test_leading_axes_are_broadcast():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(6), size=(2, 1)), rng.dirichlet(np.ones(6), size=3)
    front = otmd.lossy_frontier(p, otmd.WithReplacement(q, 2), "chi_squared")
    assert front.lossless_rate.shape == (2, 3)
    budgets = np.array([0.1, 0.2, 0.3])
    rates, outputs = front.rate_at(budgets), front.output_distribution(budgets)
    assert rates.shape == (2, 3)
    assert outputs.shape == (2, 3, 6)
    one = otmd.lossy_frontier(p[1, 0], otmd.WithReplacement(q[2], 2), "chi_squared")
    assert rates[1, 2] == one.rate_at(0.3)
    assert np.array_equal(outputs[1, 2], one.output_distribution(0.3))
