"""Arrivals among growing sets against products of factors, and moments against loops."""

import numpy as np
import pytest
from naive import counts_of_arrivals

from otmd.race.exponential_race import POWERS, PrefixRace
from otmd.race.race_prefixes import power_sums, weighted_power_sums


def few_heavy(size: int, seed: int) -> np.ndarray:
    rates = np.random.default_rng(seed).dirichlet(np.full(size, 0.3))
    return np.where(rates < 1e-9, 0.0, rates)


@pytest.mark.parametrize("num_drafts", [3, 4, 8])
@pytest.mark.parametrize("size", [9, 40, 400])
def test_arrivals_of_prefixes(size: int, num_drafts: int) -> None:
    rates = few_heavy(size, seed=size + num_drafts)
    race = PrefixRace(rates, num_drafts)
    blocks = np.arange(size) * 5 // size
    light = np.where(rates > race.heaviest, 0.0, rates * race.end)
    moments = np.stack([power_sums(light[blocks == b], POWERS) for b in range(5)])
    heavy = np.arange(race.heavy.size)
    outside = np.array([rates[blocks >= b].sum() for b in range(6)])
    found = race.arrivals(moments, heavy, blocks[race.heavy], outside)
    for b in range(6):
        own = rates[blocks < b]
        counts = np.array(
            [counts_of_arrivals(own.tolist(), t, num_drafts)[2:] for t in race.times.tolist()]
        )
        expected = (race.steps * np.exp(-outside[b] * race.times)) @ counts.cumsum(axis=1)
        # Times are counted in units of 1/Σq, in which the whole race takes at most a few.
        assert found[:, b] == pytest.approx(expected, rel=1e-11, abs=1e-13 * race.steps.sum())


def test_small_rates_are_all_there_is_at_a_large_vocabulary() -> None:
    race = PrefixRace(np.full(20_000, 1 / 20_000), 4)
    assert race.heavy.size == 0
    assert race.end / 20_000 < 1e-2


def test_power_sums_are_sums_of_powers() -> None:
    """In parts of all sizes, the faintest powers left out."""
    rng = np.random.default_rng(0)
    for size in (0, 1, 1023, 1024, 2500):
        rates = 10.0 ** rng.uniform(-12, -1, size)
        wanted = [0.0] + [float((rates**r).sum()) for r in range(1, POWERS)]
        np.testing.assert_allclose(power_sums(rates, POWERS), wanted, rtol=1e-13, atol=size * 1e-20)
        weights = rng.random(size)
        wanted = [0.0] + [float((weights * rates**r).sum()) for r in range(1, POWERS)]
        found = weighted_power_sums(rates, weights, POWERS)
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=size * 1e-20)
