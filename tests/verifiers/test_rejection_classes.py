"""Classes of similar draft mass, and their tokens by ratio, against plain loops."""

import numpy as np
import pytest
import rejection_twins

from otmd.curve._kernels import ratios_of
from otmd.verifiers.rejection_classes import classes_of_mass, masses_by_class, tokens_by_class

INTERVALS = [(1.0, 1.7e308), (1.2, 2.0), (1.5, 1.5)]


@pytest.mark.parametrize("widest", [1.0, 0.1, 1e-3, 0.0])
def test_classes(widest: float) -> None:
    for seed in range(30):
        rng = np.random.default_rng([83, seed])
        size = int(rng.integers(1, 60))
        mass = np.sort(rng.dirichlet(np.full(size, 0.4)))[::-1].copy()
        mass[size // 2 :] = mass[size // 2]
        starts = size - classes_of_mass(mass[::-1], widest)
        assert starts[:-1].tolist() == rejection_twins.classes_of_mass(mass.tolist(), widest)
        assert starts[-1] == size


def test_equal_masses_stay_together_and_many_classes_are_held() -> None:
    mass = np.repeat(2.0 ** -np.arange(300.0), 3)
    assert classes_of_mass(mass[::-1], 0.0).tolist() == list(range(900, -1, -3))


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("size", [5, 60, 2500])
def test_tokens_by_class(size: int, interval: tuple[float, float]) -> None:
    rng = np.random.default_rng(size)
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    smallest = np.sort(q)[classes_of_mass(np.sort(q), 0.05)[1:]]
    level = [int((smallest > own).sum()) for own in q]
    tokens = np.argsort(p / q).astype(np.int32)
    ratios = ratios_of(p, q, tokens)
    tokens = tokens[(ratios > interval[0]) & (ratios <= interval[1])]
    merged = np.zeros((smallest.size, 4, 2))
    kept = masses_by_class(p, q, (1.0, *interval), smallest[::-1].copy(), merged)
    for c, own in enumerate(merged):
        here = [i for i in range(size) if level[i] == c]
        wanted = rejection_twins.merged_masses(p[here].tolist(), q[here].tolist(), interval)
        np.testing.assert_allclose(own[[0, 1, 3]], wanted, rtol=1e-12)
    starts = np.append(0, np.cumsum(1 + kept))
    ratio, before = np.empty(starts[-1]), np.empty((2, starts[-1] + smallest.size))
    low = smallest[::-1].copy()
    tokens_by_class(p, q, tokens, low, starts, merged, 1.0, ratio, *before)
    dealt = rejection_twins.tokens_by_class(level, p.tolist(), q.tolist(), interval)
    assert ratio.tolist() == dealt[0]
    np.testing.assert_allclose(before, dealt[1:], rtol=1e-12)


def test_tokens_that_are_never_drafted_are_in_no_class() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.5, 0.0, 0.5])
    merged = np.zeros((1, 4, 2))
    kept = masses_by_class(p, q, (1.0, 1.2, 1.7e308), np.array([0.5]), merged)
    assert kept.tolist() == [0]
    assert merged[0].tolist() == [[0.75, 1.0], [0.0, 0.0], [0.25, 0.0], [0.0, 0.0]]
