"""The steps of the search for weights against naive versions, class by class."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from otmd.verifiers.optimal.weights import (
    FARTHEST,
    WIDEST,
    allow_weights,
    mark_free,
    newton_step,
    solve_positive,
)

Array = np.ndarray


def settled(log_weights: Array, counts: Array, largest: int, capped: bool) -> Array:
    found = log_weights.copy()
    allow_weights(found, counts, largest, capped)
    return found


def naive_settled(log_weights: Array, counts: Array, largest: int, capped: bool) -> list[float]:
    values = [min(float(x), 0.0) if capped else float(x) for x in log_weights]
    order = sorted(range(len(values)), key=lambda g: -values[g])
    narrowed = {order[0]: values[order[0]]}
    for above, below in pairwise(order):
        narrowed[below] = narrowed[above] - min(values[above] - values[below], WIDEST)
    scale = max(narrowed[g] for g in order if counts[g]) if capped else narrowed[largest]
    top = 0.0 if capped else FARTHEST
    return [min(max(narrowed[g] - scale, -FARTHEST), top) for g in range(len(values))]


def naive_free(
    log_weights: Array,
    wrong: Array,
    coupling: Array,
    known: tuple[Array, int, bool, Array],
) -> list[bool]:
    counts, largest, capped, faint = known
    every = range(len(wrong))
    held = {g for g in every if capped and log_weights[g] >= 0.0 and wrong[g] <= 0.0}
    if capped and not any(counts[g] for g in held):
        held.add(min((g for g in every if counts[g]), key=lambda g: wrong[g]))
    if not capped:
        held.add(largest)
    free = []
    for g in every:
        stuck = log_weights[g] <= -FARTHEST and wrong[g] > 0.0
        answers = sum(coupling[g].tolist()) > faint[g]
        free.append(bool(counts[g]) and not stuck and answers and g not in held)
    return free


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_allowed_and_free(seed: int, capped: bool) -> None:
    rng = np.random.default_rng([71, seed])
    size = int(rng.integers(1, 9))
    log_weights = rng.choice([0.0, 1.0, 30.0, 300.0], size) * rng.standard_normal(size)
    counts = rng.random(size) < 0.7
    largest = int(rng.integers(size))
    counts[largest] = True
    found = settled(log_weights, counts, largest, capped)
    wanted = naive_settled(log_weights, counts, largest, capped)
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-12)
    again = settled(found, counts, largest, capped)
    np.testing.assert_allclose(again, found, rtol=1e-13, atol=1e-12)
    wrong = rng.choice([0.0, 1.0, -1.0], size)
    coupling = rng.choice([0.0, 1e-20, 1.0], (size, size))
    known = counts, largest, capped, np.full(size, 1e-15)
    free = np.empty(size, dtype=bool)
    mark_free(found, wrong, coupling, *known, free)
    assert free.tolist() == naive_free(found, wrong, coupling, known)


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_newtons_step(seed: int, capped: bool) -> None:
    """Newton's step solves the system of the Laplacian of the free classes' couplings."""
    rng = np.random.default_rng([73, seed])
    coupling = rng.random((6, 6)) * 10.0 ** rng.uniform(-6.0, 0.0, (6, 1))
    coupling += coupling.T
    np.fill_diagonal(coupling, 0.0)
    wrong, targets, excess = 1e-6 * rng.standard_normal(6), rng.random(6), rng.random()
    log_weights, largest = -rng.random(6), int(rng.integers(6))
    log_weights[rng.integers(6)] = 0.0
    known = np.ones(6, dtype=bool), largest, capped, np.full(6, 1e-15)
    free, step = np.empty(6, dtype=bool), np.empty(6)
    mark_free(log_weights, wrong, coupling, *known, free)
    assert free.any()
    assert not free.all()
    longest = newton_step(log_weights, wrong, coupling, targets, *known, excess, step)
    ridge = 1e-3 * excess * targets / targets.sum()
    own, laplacian = np.ix_(free, free), np.diag(coupling.sum(axis=1) + ridge) - coupling
    np.testing.assert_allclose(step[free], np.linalg.solve(laplacian[own], -wrong[free]), rtol=1e-9)
    assert not step[~free].any()
    assert longest == np.abs(step).max()


def test_a_long_step_in_one_direction_is_not_short_in_the_others() -> None:
    """Classes 0 and 1 compete with each other, and hardly with class 2."""
    coupling = np.array([[0.0, 1.0, 1e-9], [1.0, 0.0, 1e-9], [1e-9, 1e-9, 0.0]])
    wrong, targets, step = np.array([1e-3, -1e-3 - 1e-6, 1e-6]), np.full(3, 1 / 3), np.empty(3)
    known = np.ones(3, dtype=bool), 2, False, np.full(3, 1e-15)
    longest = newton_step(np.zeros(3), wrong, coupling, targets, *known, 1e-6, step)
    assert step[2] == 0
    assert 0.0 < longest <= 3.0
    assert step[1] - step[0] == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_positive_definite_systems(size: int) -> None:
    rng = np.random.default_rng(size)
    root, vector = rng.standard_normal((size, size + 2)), rng.standard_normal(size)
    matrix = root @ root.T
    found = vector.copy()
    assert solve_positive(np.tril(matrix), found)
    np.testing.assert_allclose(matrix @ found, vector, atol=1e-9)


def test_a_system_that_is_not_positive_definite_is_refused() -> None:
    for matrix in ([[1.0, 0.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[np.nan, 0.0], [0.0, 1.0]]):
        assert not solve_positive(np.array(matrix), np.ones(2))
