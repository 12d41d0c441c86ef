"""Classes of similar draft mass, and their tokens by ratio, against plain loops."""

import naive
import numpy as np
import pytest

from otmd.kernels.rejection_classes import classes_of_mass, tokens_by_class
from otmd.kernels.rejection_node import count_at_most


@pytest.mark.parametrize("widest", [1.0, 0.1, 1e-3, 0.0])
def test_classes_and_their_tokens(widest: float) -> None:
    for seed in range(30):
        rng = np.random.default_rng([83, seed])
        size = int(rng.integers(1, 60))
        mass = np.sort(rng.dirichlet(np.full(size, 0.4)))[::-1].copy()
        mass[size // 2 :] = mass[size // 2]
        rank = np.empty(size, np.int32)
        starts = classes_of_mass(mass, widest, rank)
        assert (starts[:-1].tolist(), rank.tolist()) == naive.classes_of_mass(mass.tolist(), widest)
        assert starts[-1] == size

        by_ratio = rng.permutation(size)
        p, ratio = rng.dirichlet(np.ones(size)), np.sort(rng.random(size))
        tokens, level = (ratio, p, mass[by_ratio]), rank[by_ratio]
        dealt, before = np.empty(size), np.empty((2, size + starts.size - 1))
        tokens_by_class(level, starts, tokens, dealt, *before)
        wanted = naive.tokens_by_class(level.tolist(), *(column.tolist() for column in tokens))
        assert dealt.tolist() == wanted[0]
        np.testing.assert_allclose(before, wanted[1:], rtol=1e-14)


def test_how_many_are_at_most_a_number() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 17, 64):
        ascending = np.sort(rng.integers(0, 9, size)).astype(float)
        for limit in (-1.0, 0.0, 3.0, 3.5, 8.0, 9.0, np.inf):
            assert count_at_most(ascending, limit) == sum(x <= limit for x in ascending.tolist())
