"""P-values, bounds and bets hold what they say, by listing every outcome or against loops."""

from __future__ import annotations

from itertools import product
from math import factorial, log, prod

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln
from strategies import instances

from otmd.audit import statistics
from otmd.audit.claims import CLAIMS
from otmd.audit.judge import Classes, Evidence, judge_claim
from otmd.audit.statistics import (
    IMPOSSIBLE,
    CellBets,
    EventBets,
    exact_p_value,
    g_statistic,
    lower_bound,
    make_cells,
    ratio_order,
    token_cells,
    total_variation_bound,
    upper_bound,
)

LEVELS = (0.2, 0.05, 0.001)


def naive_g(counts: tuple[int, ...], probs: list[float]) -> float:
    total = sum(counts)
    return sum(2 * c * log(c / (total * p)) for c, p in zip(counts, probs, strict=True) if c)


def chance(counts: tuple[int, ...], probs: list[float]) -> float:
    ways = factorial(sum(counts)) // prod(factorial(c) for c in counts)
    return ways * prod(p**c for c, p in zip(counts, probs, strict=True))


@pytest.mark.parametrize(
    ("probs", "total"),
    [([0.5, 0.5], 9), ([0.7, 0.25, 0.05], 7), ([0.98, 0.01, 0.01], 6), ([0.4, 0.3, 0.2, 0.1], 5)],
    ids=str,
)
def test_the_p_value_is_the_twins_and_super_uniform(probs, total):
    every = [c for c in product(range(total + 1), repeat=len(probs)) if sum(c) == total]
    chances = np.array([chance(c, probs) for c in every])
    statistic = np.array([naive_g(c, probs) for c in every])
    rng = np.random.default_rng(0)
    values = [exact_p_value(np.array(c), np.array(probs), 1e-3, rng=rng) for c in every]
    assert g_statistic(np.array(every), np.array(probs)) == pytest.approx(statistic, abs=1e-12)
    twins = [min(1.0, chances[statistic >= own - 1e-9].sum()) for own in statistic]
    assert values == pytest.approx(twins, abs=1e-10)
    # P(p ≤ x) ≤ x at every x that is attained, and no less at the smallest.
    for x in values:
        assert chances[np.array(values) <= x].sum() <= x + 1e-9
    assert chances[np.array(values) <= min(values)].sum() > min(values) / 2


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.02, 0.3])
def test_p_values_by_draws_are_super_uniform(monkeypatch, level):
    monkeypatch.setattr(statistics, "_MOST_ENUMERATED", 0)
    rng, probs, runs = np.random.default_rng(2), np.full(40, 1 / 40), 600
    every = rng.multinomial(100, probs, size=runs)
    small = sum(exact_p_value(counts, probs, 0.01, rng=rng) <= level for counts in every)
    assert stats.binomtest(small, runs, level, alternative="greater").pvalue > 1e-6
    assert small > 0.3 * level * runs


def test_cells_are_intervals_of_about_equal_mass():
    for index, instance in enumerate(instances(100, seed=47)):
        p, q, number = np.array(instance.p), np.array(instance.q), 1 + index % 9
        order = ratio_order(p, q)
        cells = make_cells(p, order, number)
        labels = cells.labels[order]
        assert (np.diff(labels[labels != IMPOSSIBLE]) >= 0).all()
        assert ((cells.labels == IMPOSSIBLE) == (p == 0)).all()
        masses = [p[cells.labels == k].sum() for k in range(cells.probs.size)]
        np.testing.assert_allclose(cells.probs, masses, rtol=1e-12)
        assert (cells.probs > 0).all()
        # The middles of a cell's tokens lie in an interval of length 1/number.
        assert cells.probs.max() <= 1 / number + p.max() + 1e-12


def test_rare_tokens_are_a_cell_apart():
    p = np.array([0.5, 0.5 - 3e-9, 1e-9, 2e-9, 0.0])
    for mass, apart in [(4e-9, [2, 3]), (1.5e-9, [2]), (0.0, [])]:
        labels = make_cells(p, np.arange(5), 1, mass).labels
        assert labels.tolist() == [0, 0, *(int(y in apart) for y in (2, 3)), IMPOSSIBLE]
    cells = token_cells(p, ratio_order(p, np.full(5, 0.2)), 1000)
    assert cells.labels[2] == cells.labels[3]
    assert np.sort(cells.probs)[0] < 1e-8


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("trials", [1, 2, 7, 1000])
def test_it_is_clopper_pearson_beyond_one_hit(level, trials):
    for hits in {0, 2, trials // 2, trials} - {1}:
        if hits > trials:
            continue
        interval = stats.binomtest(hits, trials).proportion_ci(1 - 2 * level, "exact")
        assert lower_bound(hits, trials, level) == pytest.approx(interval.low, abs=1e-12)
        if hits < trials - 1 or hits == trials:
            assert upper_bound(hits, trials, level) == pytest.approx(interval.high, abs=1e-12)
    assert lower_bound(1, trials, level) <= stats.beta.ppf(level, 1, trials) + 1e-15


@pytest.mark.parametrize("level", LEVELS)
def test_the_bounds_cover_the_mean_of_unequal_chances(level):
    rng = np.random.default_rng(0)
    for trials in (1, 2, 3, 8, 20):
        low = np.array([lower_bound(h, trials, level) for h in range(trials + 1)])
        high = np.array([upper_bound(h, trials, level) for h in range(trials + 1)])
        for _ in range(20):
            chances = rng.beta(*rng.choice([0.1, 1.0, 5.0], size=2), size=trials)
            chances *= rng.choice([1.0, 0.1, level])
            law_of_hits = np.ones(1)
            for x in chances:
                law_of_hits = np.convolve(law_of_hits, [1 - x, x])
            assert law_of_hits[low > chances.mean() + 1e-15].sum() <= level + 1e-12
            assert law_of_hits[high < chances.mean() - 1e-15].sum() <= level + 1e-12


@pytest.mark.parametrize(
    "output",
    [[0.6, 0.4, 0.0], [0.7, 0.3, 0.0], [0.9, 0.1, 0.0], [0.55, 0.35, 0.1], [0.0, 1.0, 0.0]],
    ids=str,
)
def test_the_total_variation_bound_is_too_high_no_more_often_than_it_says(output):
    """Over all sequences of labels; the last outcome is impossible."""
    output, probs = np.array(output), np.array([0.6, 0.4])
    distance = 0.5 * np.abs(output - np.append(probs, 0.0)).sum()
    for number in (1, 6, 7):
        wrong = 0.0
        for sequence in product([0, 1, IMPOSSIBLE], repeat=number):
            labels = np.array(sequence)
            prob = output[labels].prod()
            if prob and total_variation_bound(labels, probs, 0.2) > distance + 1e-12:
                wrong += prob
        assert wrong <= 0.2 + 1e-12


def test_the_set_must_not_be_judged_by_the_samples_that_chose_it():
    """The same bound without the split fails: the halves are not a formality."""
    rng, probs, failures = np.random.default_rng(1), np.full(50, 0.02), 0
    for _ in range(60):
        labels = rng.integers(50, size=500)
        often = np.bincount(labels, minlength=50) > 10
        hits = int(often[labels].sum())
        failures += lower_bound(hits, 500, 0.05) - probs[often].sum() > 0
        assert total_variation_bound(labels, probs, 1e-6) == 0
    assert failures > 50


@pytest.mark.slow
def test_the_bound_holds_for_dependent_positions():
    """Two cells, the first likelier after itself. Fails by chance with probability 1e-6 at most."""
    rng = np.random.default_rng(0)
    wrong = below = 0
    for _ in range(150):
        labels, distances = np.zeros(401, np.int64), np.empty(400)
        for i in range(400):
            chance = 0.7 if labels[i] == 0 else 0.4
            labels[i + 1] = rng.random() >= chance
            distances[i] = abs(chance - 0.5)
        bound = total_variation_bound(labels[1:], np.array([0.5, 0.5]), 0.1, independent=False)
        wrong += bound > distances[200:].mean()
        below += bound == 0
    assert wrong <= stats.binom.isf(1e-6, 150, 0.1)
    assert below < 150


def test_the_bound_is_near_the_distance_with_many_samples():
    rng = np.random.default_rng(1)
    labels = rng.choice(4, 40_000, p=[0.4, 0.3, 0.2, 0.1])
    bound = total_variation_bound(labels, np.full(4, 0.25), 1e-3, independent=False)
    assert 0.17 < bound <= 0.2


def test_impossible_outcomes_count_as_too_often():
    labels, one = np.where(np.arange(2000) % 2, IMPOSSIBLE, 0), np.array([1.0])
    assert total_variation_bound(labels, one, 1e-3, independent=False) > 0.4
    assert total_variation_bound(labels[:1], one, 1e-3, independent=False) == 0


def test_bets_on_classes_find_what_cells_of_numbers_hide():
    """Classes that lie elsewhere at each position: the numbers stay uniform, and the classes are off."""
    rng = np.random.default_rng(4)
    numbers, none = rng.random(2000), np.zeros(2000, bool)
    probs = np.tile([0.5, 0.5], (2000, 1))
    labels = (rng.random(2000) < 0.6).astype(np.int64)
    classes = [Classes(labels, probs)]
    found = judge_claim(Evidence(CLAIMS[0], numbers, none, classes), 1e-3, rng=rng)
    assert found.betting_p_value <= 1e-3
    assert found.p_value > 1e-3


# ---------------------------------------------------------------- bets


def expected_wealth(probs, wealth):
    """The mean wealth over all sequences of cells, drawn from rows (M, K) that may differ."""
    total = 0.0
    for sequence in product(range(probs.shape[-1]), repeat=len(probs)):
        prob = probs[np.arange(len(probs)), sequence].prod()
        total += prob * np.exp(wealth(np.array(sequence))[-1]) if prob else 0.0
    return total


@pytest.mark.parametrize("caution", [0.1, 3.0, 1000.0])
def test_bets_on_cells_are_fair(caution):
    same = np.broadcast_to([0.5, 0.3, 0.2], (5, 3))
    different = np.random.default_rng(0).dirichlet(np.ones(3), size=5)
    with_zeros = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]])
    for probs in (same, different, with_zeros):
        mean = expected_wealth(probs, lambda x, probs=probs: CellBets(3, caution).update(x, probs))
        assert mean == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("caution", [0.5, 30.0])
def test_with_one_law_it_is_the_dirichlet_mixture(caution):
    rng, probs = np.random.default_rng(1), np.array([0.6, 0.3, 0.1])
    labels = rng.choice(3, size=10_000, p=[0.5, 0.3, 0.2])
    counts, alpha = np.bincount(labels, minlength=3), caution * probs
    mixture = gammaln(caution) - gammaln(caution + counts.sum())
    mixture += (gammaln(alpha + counts) - gammaln(alpha)).sum()
    bets = CellBets(3, [caution, 7.0])
    path = bets.update(labels, probs)
    assert path[0, -1] == pytest.approx(mixture - counts @ np.log(probs))
    np.testing.assert_array_equal(path[1], CellBets(3, 7.0).update(labels, probs))
    assert (bets.log_wealth > 100).all()


@pytest.mark.parametrize("stake", [0.004, 0.25, 0.9])
def test_bets_on_a_chance_are_fair_up_to_the_largest(stake):
    for largest, chance in [(0.7, 0.7), (0.7, 0.4), (0.01, 0.01), (1.0, 0.9)]:
        probs = np.tile([1 - chance, chance], (5, 1))
        wealth = lambda x, a=largest: EventBets(stake).update(x == 1, a)  # noqa: E731
        mean = expected_wealth(probs, wealth)
        assert mean <= 1 + 1e-12
        assert chance < largest or mean == pytest.approx(1, abs=1e-12)


def test_a_chance_above_the_largest_makes_wealth():
    happened, bets = np.random.default_rng(3).random(5_000) < 0.8, EventBets(0.1)
    bets.update(happened, np.full(5_000, 0.7))
    assert bets.log_wealth > 20
    assert bets.update(happened[:0], 0.7).size == 0
