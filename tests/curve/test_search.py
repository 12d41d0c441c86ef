"""Places among ascending numbers, and the largest of many."""

import numpy as np
import pytest

from otmd.curve.search import count_at_most, fill_blocks
from otmd.race.quadrature import largest


def test_how_many_are_at_most_a_number() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 17, 64):
        ascending = np.sort(rng.integers(0, 9, size)).astype(float)
        for limit in (-1.0, 0.0, 3.0, 3.5, 8.0, 9.0, np.inf):
            assert count_at_most(ascending, limit) == sum(x <= limit for x in ascending.tolist())


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64])
def test_blocks_by_where_they_begin(size: int) -> None:
    rng = np.random.default_rng(size)
    low = np.sort(rng.random(size))
    values = np.concatenate([rng.random(50), low, [0.0, 2.0, np.inf]])
    block = np.full(values.size + 1, 99, np.uint64)
    fill_blocks(low, values, block)
    wanted = [max(0, sum(x <= own for x in low.tolist()) - 1) for own in values.tolist()]
    assert block[:-1].tolist() == wanted
    assert block[-1] == 99


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "tied"])
@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_largest(count: int, order: str) -> None:
    rng = np.random.default_rng(count)
    values = rng.integers(0, 30, 500) / 30.0 if order == "tied" else rng.random(500)
    if order in ("ascending", "descending"):
        values.sort()
    values = values[::-1].copy() if order == "descending" else values
    assert sorted(largest(values, count).tolist()) == sorted(values.tolist())[-count:]
    assert sorted(largest(values[:count], count)) == sorted(values[:count])
