"""Arrivals among growing sets against products of factors, and g of blocks against g of their tokens."""

import numpy as np
import pytest
from reference import arrivals

import otmd
from otmd.kernel import every_kernel_compiled
from otmd.laws.race.containment import ExponentialRace, PrefixArrivals, _sum_tokens, power_sums
from otmd.laws.race.quadrature import POWERS


def few_heavy(size: int, seed: int) -> np.ndarray:
    rates = np.random.default_rng(seed).dirichlet(np.full(size, 0.3))
    return np.where(rates < 1e-9, 0.0, rates)


@pytest.mark.parametrize("num_drafts", [3, 8])
@pytest.mark.parametrize("size", [9, 400])
def test_arrivals_of_prefixes(size: int, num_drafts: int) -> None:
    rates = few_heavy(size, seed=size + num_drafts)
    race = PrefixArrivals(rates, num_drafts)
    blocks = np.arange(size) * 5 // size
    light = np.where(rates > race.heaviest, 0.0, rates * race.end)
    moments = np.stack([power_sums(light[blocks == b], None, POWERS) for b in range(5)])
    heavy = np.arange(race.heavy.size)
    outside = np.array([rates[blocks >= b].sum() for b in range(6)])
    every = np.arange(3, num_drafts + 1)
    found = race.times(moments, heavy, blocks[race.heavy], outside, every)
    for b in range(6):
        own = rates[blocks < b]
        counts = np.array([arrivals(own.tolist(), t, num_drafts)[2:] for t in race.nodes.tolist()])
        expected = (race.steps * np.exp(-outside[b] * race.nodes)) @ counts.cumsum(axis=1)
        # Times are counted in units of 1/Σq, in which the whole race takes at most a few.
        assert found[:, b] == pytest.approx(expected, rel=1e-11, abs=1e-13 * race.steps.sum())


@pytest.mark.parametrize("num_drafts", [2, 3, 8])
@pytest.mark.parametrize("size", [9, 400])
def test_contained_in_the_first_blocks(size: int, num_drafts: int) -> None:
    p, q = np.random.default_rng(size).dirichlet(np.ones(size), 2)
    race, low = ExponentialRace(q, num_drafts), np.array([0.0, 0.3, 1.0, 1.5, 40.0])
    sums = np.zeros((low.size, race.width))
    block = np.searchsorted(low, p / q, side="right") - 1
    _sum_tokens(p, q, np.arange(size, dtype=np.int32), block, race.scale, sums)
    counts = [2, num_drafts]
    found = race.contained(block[race.heavy], sums, counts)
    for k, edge in enumerate([*low, np.inf]):
        wanted = [otmd.WithoutReplacement(q, n).containment(p / q < edge) for n in counts]
        assert found[:, k] == pytest.approx(wanted, abs=1e-13)


def test_an_infinite_product_of_unit_and_end_is_not_met() -> None:
    """A race with tokens without mass may end so late that its end times the unit would be infinite."""
    law = otmd.WithoutReplacement([0.0, 1.6e-238, 1.4e-319, 1.0], 3)
    with every_kernel_compiled():
        assert law.containment(np.ones(4, bool)) == 1.0
        assert law.containment(np.array([True, True, False, True])) == 0.0


@pytest.mark.parametrize("n", [100, 1000])
def test_a_large_number_of_even_drafts_is_a_hypergeometric_draw(n: int) -> None:
    """The count of arrivals passes n within a small part of its time, which the rule must resolve."""
    law = otmd.WithoutReplacement(np.full(5000, 1 / 5000), n)
    assert law.containment(np.arange(5000) > 0) == pytest.approx(1 - n / 5000, abs=1e-12)
