"""Sums over blocks of a race against sums token by token."""

import numpy as np
import pytest

from otmd.curve.blocks import NUM_GROUPS, fill_groups
from otmd.laws.race.containment import POWER, RaceScale, _sum_groups, _sum_tokens

END, UNIT = 30.0, 2.0**256
HEAVIEST = 0.1 / END


@pytest.mark.parametrize("powers", [0, 13])
@pytest.mark.parametrize("size", [7, 2500])
def test_sums_of_groups_and_of_tokens(size: int, powers: int) -> None:
    """q is of all sizes: one token of more than half, and some without mass."""
    rng = np.random.default_rng(size)
    p, q = rng.dirichlet(np.full(size + 1, 0.2)), 10.0 ** rng.uniform(-12, 0, size + 1)
    q[rng.random(q.size) < 0.1] = 0.0
    q[0] = 2.0 * (q[1:].sum() + 0.1)
    q /= q.sum()
    # A heavy token has no powers; sums of q/(1 − q) are in the unit of time.
    rate = np.where(q <= HEAVIEST, q * END, 0.0)
    terms = np.column_stack([p, q, q / (1 - q) / UNIT, *(rate**r for r in range(1, powers + 1))])
    scale = RaceScale(float(q[1:].sum()), UNIT, END / UNIT, HEAVIEST)
    group, expected_group = np.empty((2, p.size), np.int16)
    sums, expected = np.zeros((2, NUM_GROUPS, POWER + powers))
    _sum_groups(p, q, scale, group, sums)
    fill_groups(p, q, np.empty(p.size), expected_group)
    np.testing.assert_array_equal(group, expected_group)
    np.add.at(expected, group, terms)
    np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=size * 1e-20)
    tokens = rng.permutation(p.size)[: 2 * size // 3].astype(np.int32)
    block = rng.integers(5, size=tokens.size)
    sums, expected = np.zeros((2, 5, POWER + powers))
    _sum_tokens(p, q, tokens, block, scale, sums)
    np.add.at(expected, block, terms[tokens])
    np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=size * 1e-20)
