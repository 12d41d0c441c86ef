"""The search for weights: it meets its targets, and Newton's step solves the system of the free classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from otmd.verifiers.optimal.slots_tiers import find_weights
from otmd.verifiers.optimal.weights import balance, movable, newton_step

Array = np.ndarray


def proportional(masses: Array, never: float) -> Callable[[Array], tuple[Array, Array]]:
    """The function that `balance` evaluates, for two drafts: rates and slopes as sums over every pair."""

    def evaluate(log_weights: Array) -> tuple[Array, Array]:
        weights = np.exp(log_weights)
        pairs = 2 * np.outer(masses, masses) / (weights[:, None] + weights)
        rates = weights * pairs.sum(axis=1) + 2 * masses * never
        slopes = pairs * np.outer(weights, weights) / (weights[:, None] + weights)
        np.fill_diagonal(slopes, 0.0)
        return rates, slopes

    return evaluate


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_weights_are_found_that_have_these_rates(capped: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, never = int(rng.integers(2, 6)), float(rng.choice([0.0, 0.4]))
    masses = rng.dirichlet(np.ones(size)) * (1 - never)
    evaluate = proportional(masses, never)
    targets, _ = evaluate(np.sort(rng.uniform(-6.0, 0.0, size)))
    log_weights, _ = balance(evaluate, targets, capped, 1e-12)
    np.testing.assert_allclose(evaluate(log_weights)[0], targets, atol=1e-11)


# Classes outside H* at a position of a real pair, at temperature 0.7: two of them have nearly all mass, and
# weights lie a factor e^{30} apart. Newton's steps alone ended with 5e-4 of the mass misplaced.
TARGETS = np.concatenate(
    [
        [4.387e-11, 1.016e-08, 1.967e-07, 9.748e-08, 7.373e-09, 1.098e-07, 2.163e-07],
        [2.092e-06, 1.105e-06, 5.602e-06, 1.733e-05, 9.698e-05, 5.161e-05, 1.092e-05],
        [2.120e-05, 9.766e-04, 9.235e-03, 4.104e-04, 4.621e-01, 5.270e-01, 3.482e-09],
    ]
)
MASSES = np.concatenate(
    [
        [4.492e-08, 1.032e-05, 1.983e-04, 9.679e-05, 7.106e-06, 9.996e-05, 1.772e-04],
        [1.428e-03, 5.838e-04, 1.995e-03, 3.735e-03, 1.168e-02, 3.303e-03, 3.607e-04],
        [3.619e-04, 8.621e-03, 4.222e-02, 9.729e-04, 5.688e-01, 3.373e-01, 1.161e-09],
    ]
)
DRAFTS, SHORT, TOLERANCE = 3, 1e-7, 2.5e-11


def test_weights_that_lie_far_apart_are_found() -> None:
    never = 1.0 - MASSES.sum()
    served = 1.0 - never**DRAFTS
    # Some class at the cap falls short of its target by this part of the total.
    targets = TARGETS * served * (1.0 + SHORT) / TARGETS.sum()
    drafts, copies = MASSES[None], np.array([DRAFTS])
    log_weights, by_row, excess = find_weights(targets, drafts, np.array([never]), copies, None, TOLERANCE)
    assert log_weights.max() == 0.0
    assert np.maximum(by_row[0] - targets, 0.0).sum() <= TOLERANCE
    assert excess <= TOLERANCE
    assert np.ptp(log_weights) > 20.0


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_newtons_step(seed: int, capped: bool) -> None:
    """Newton's step solves the system of the Laplacian of the free classes' couplings."""
    rng = np.random.default_rng([73, seed])
    coupling = rng.random((6, 6)) * 10.0 ** rng.uniform(-6.0, 0.0, (6, 1))
    coupling += coupling.T
    np.fill_diagonal(coupling, 0.0)
    wrong, targets, excess = 1e-6 * rng.standard_normal(6), rng.random(6), rng.random()
    log_weights = -rng.random(6)
    log_weights[rng.integers(6)] = 0.0
    free = movable(log_weights, wrong, coupling, targets, np.ones(6, dtype=bool), capped, 1e-10)
    assert free.any()
    assert not free.all()
    step = newton_step(free, wrong, coupling, targets, excess)
    ridge = 1e-3 * excess * targets / targets.sum()
    laplacian = (np.diag(coupling.sum(axis=1) + ridge) - coupling)[np.ix_(free, free)]
    np.testing.assert_allclose(step[free], np.linalg.solve(laplacian, -wrong[free]), rtol=1e-9)
    assert not step[~free].any()
