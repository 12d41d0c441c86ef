"""Sums over blocks of a race against sums token by token."""

import numpy as np
import pytest

from otmd.curve.blocks import NUM_GROUPS, fill_groups
from otmd.laws.race.containment import POWER, RaceScale, _sum_groups, _sum_tokens, power_sums
from otmd.laws.race.quadrature import POWERS as MOST_POWERS

SIZES = [7, 2500]
END, UNIT, POWERS = 30.0, 2.0**256, 13
HEAVIEST = 0.1 / END


def position(size: int) -> tuple[np.ndarray, np.ndarray]:
    """p, and q of all sizes: one of more than half if there are several, and some without mass."""
    rng = np.random.default_rng(size)
    p, q = rng.dirichlet(np.full(size + 1, 0.2)), 10.0 ** rng.uniform(-12, 0, size + 1)
    q[rng.random(q.size) < 0.1] = 0.0
    q[0] = 2.0 * (q[1:].sum() + 0.1)
    return p, q / q.sum()


def race_of(q: np.ndarray) -> RaceScale:
    return RaceScale(float(q[1:].sum()), UNIT, END / UNIT, HEAVIEST)


def naive_sums(p: np.ndarray, q: np.ndarray, powers: int) -> np.ndarray:
    """p, q, q/(1 − q) and powers of the rate of each token, of which a heavy one has none."""
    rate = np.where(q <= HEAVIEST, q * END, 0.0)
    return np.column_stack([p, q, q / (1 - q), *(rate**r for r in range(1, powers + 1))])


def assert_sums(found: np.ndarray, wanted: np.ndarray, size: int) -> None:
    scale = np.ones(found.shape[-1])
    # The sums of q/(1 − q) are in the unit of time.
    scale[2] = UNIT
    np.testing.assert_allclose(found * scale, wanted, rtol=1e-12, atol=size * 1e-20)


@pytest.mark.parametrize("powers", [0, POWERS])
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_groups(size: int, powers: int) -> None:
    p, q = position(size)
    group, wanted_group = np.empty((2, p.size), np.int16)
    sums = np.zeros((NUM_GROUPS, POWER + powers))
    _sum_groups(p, q, race_of(q), group, sums)
    fill_groups(p, q, np.empty(p.size), wanted_group)
    np.testing.assert_array_equal(group, wanted_group)
    wanted = np.zeros(sums.shape)
    np.add.at(wanted, group, naive_sums(p, q, powers))
    assert_sums(sums, wanted, size)


@pytest.mark.parametrize("powers", [0, POWERS])
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_tokens_in_blocks(size: int, powers: int) -> None:
    p, q = position(size)
    low = np.array([0.0, 0.3, 1.0, 1.0 + 1e-9, 40.0])
    tokens = np.flatnonzero((np.arange(p.size) % 3 < 2) & (q > 0)).astype(np.int32)
    block = np.array([sum(x <= p[y] / q[y] for x in low) - 1 for y in tokens])
    sums, wanted = np.zeros((2, low.size, POWER + powers))
    _sum_tokens(p, q, tokens, block, race_of(q), sums)
    np.add.at(wanted, block, naive_sums(p, q, powers)[tokens])
    assert_sums(sums, wanted, size)


def test_power_sums_are_sums_of_powers() -> None:
    """Power sums agree with plain sums at sizes around the kernel's parts, up to terms that it leaves out."""
    rng = np.random.default_rng(0)
    for size in (0, 1, 1024, 2500):
        rates = 10.0 ** rng.uniform(-12, -1, size)
        wanted = [0.0] + [float((rates**r).sum()) for r in range(1, MOST_POWERS)]
        found = power_sums(rates, None, MOST_POWERS)
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=size * 1e-20)
        weights = rng.random(size)
        wanted = [0.0] + [float((weights * rates**r).sum()) for r in range(1, MOST_POWERS)]
        found = power_sums(rates, weights, MOST_POWERS)
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=size * 1e-20)
