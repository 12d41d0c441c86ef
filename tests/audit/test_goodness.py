"""The exact G-test: against loops, and its p-value held to what a p-value is."""

from __future__ import annotations

from itertools import product
from math import factorial, log, prod

import numpy as np
import pytest
from scipy import stats

from otmd.audit import counts as module
from otmd.audit.counts import exact_p_value, g_statistic, possible_counts

ALARM = 1e-6
LAWS = {
    "two cells": ([0.5, 0.5], 9),
    "uneven": ([0.7, 0.25, 0.05], 7),
    "thin": ([0.98, 0.01, 0.01], 6),
    "four": ([0.4, 0.3, 0.2, 0.1], 5),
}


def naive_g(counts: tuple[int, ...], probs: list[float]) -> float:
    total = sum(counts)
    return sum(2 * c * log(c / (total * p)) for c, p in zip(counts, probs, strict=True) if c)


def chance(counts: tuple[int, ...], probs: list[float]) -> float:
    ways = factorial(sum(counts)) // prod(factorial(c) for c in counts)
    return ways * prod(p**c for c, p in zip(counts, probs, strict=True))


def outcomes(total: int, cells: int) -> list[tuple[int, ...]]:
    return [c for c in product(range(total + 1), repeat=cells) if sum(c) == total]


def naive_p_value(counts: tuple[int, ...], probs: list[float]) -> float:
    own = naive_g(counts, probs)
    every = outcomes(sum(counts), len(probs))
    return sum(chance(c, probs) for c in every if naive_g(c, probs) >= own - 1e-9)


def assert_super_uniform(p_values: list[float], chances: list[float]) -> None:
    """P(p ≤ x) ≤ x at every x that is attained."""
    for x in p_values:
        reached = sum(c for p, c in zip(p_values, chances, strict=True) if p <= x)
        assert reached <= x + 1e-9, f"P(p ≤ {x}) = {reached}"


@pytest.mark.parametrize("name", LAWS)
def test_every_count_is_listed_once(name):
    probs, total = LAWS[name]
    assert sorted(map(tuple, possible_counts(total, len(probs)))) == outcomes(total, len(probs))


@pytest.mark.parametrize("name", LAWS)
def test_the_p_value_is_the_twins_and_super_uniform(name):
    probs, total = LAWS[name]
    every, rng = outcomes(total, len(probs)), np.random.default_rng(0)
    values = [exact_p_value(np.array(c), np.array(probs), 1e-3, rng=rng) for c in every]
    for counts, value in zip(every, values, strict=True):
        assert g_statistic(np.array(counts), np.array(probs)) == pytest.approx(
            naive_g(counts, probs), abs=1e-12
        )
        assert value == pytest.approx(min(1.0, naive_p_value(counts, probs)), abs=1e-10)
    assert_super_uniform(values, [chance(c, probs) for c in every])


def test_the_check_of_p_values_can_fail():
    every = outcomes(9, 2)
    chances = [chance(c, [0.5, 0.5]) for c in every]
    halved = [naive_p_value(c, [0.5, 0.5]) / 2 for c in every]
    with pytest.raises(AssertionError, match="P\\(p"):
        assert_super_uniform(halved, chances)


def test_p_values_by_draws_agree_with_the_listed_ones(monkeypatch):
    probs, counts = np.array([0.7, 0.25, 0.05]), np.array([2, 4, 1])
    rng = np.random.default_rng(1)
    listed = exact_p_value(counts, probs, 1e-3, rng=rng)
    monkeypatch.setattr(module, "_MOST_ENUMERATED", 0)
    drawn = [exact_p_value(counts, probs, 1e-3, rng=rng) for _ in range(200)]
    # 20 extreme draws give an estimate with a relative error of about 1/√20 each.
    assert np.mean(drawn) == pytest.approx(listed, rel=0.1)


@pytest.mark.parametrize("level", [0.02, 0.3])
def test_p_values_by_draws_are_super_uniform(monkeypatch, level):
    monkeypatch.setattr(module, "_MOST_ENUMERATED", 0)
    rng, probs, runs = np.random.default_rng(2), np.full(40, 1 / 40), 2000
    every = rng.multinomial(100, probs, size=runs)
    small = sum(exact_p_value(counts, probs, 0.01, rng=rng) <= level for counts in every)
    assert stats.binomtest(small, runs, level, alternative="greater").pvalue > ALARM
    assert small > 0.3 * level * runs


def test_a_deviation_has_the_smallest_p_value():
    counts, probs = np.array([900, 50, 50]), np.full(3, 1 / 3)
    rng = np.random.default_rng(3)
    assert exact_p_value(counts, probs, 1e-3, rng=rng) <= 1 / 10_000


def test_a_level_beyond_draws_is_refused():
    with pytest.raises(ValueError, match=r"level.*1e-06.*SequentialAudit"):
        exact_p_value(np.array([5, 5]), np.array([0.5, 0.5]), 1e-9, rng=np.random.default_rng(0))
    with pytest.raises(TypeError, match="rng"):
        exact_p_value(np.array([5, 5]), np.array([0.5, 0.5]), 1e-3, rng=0.5)  # type: ignore[arg-type]
