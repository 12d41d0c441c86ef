"""g of blocks against g of their tokens, and against closed forms."""

import numpy as np
import pytest

import otmd
from otmd.kernel import every_kernel_compiled
from otmd.laws.race.containment import ExponentialRace, _sum_tokens


@pytest.mark.parametrize("num_drafts", [2, 3, 8])
@pytest.mark.parametrize("size", [9, 400])
def test_contained_in_the_first_blocks(size: int, num_drafts: int) -> None:
    p, q = np.random.default_rng(size).dirichlet(np.ones(size), 2)
    race, low = ExponentialRace(q, num_drafts), np.array([0.0, 0.3, 1.0, 1.5, 40.0])
    sums = np.zeros((low.size, race.width))
    block = np.searchsorted(low, p / q, side="right") - 1
    _sum_tokens(p, q, np.arange(size, dtype=np.int32), block, race.scale, sums)
    found = race.contained(block[race.heavy], sums)
    for k, edge in enumerate([*low, np.inf]):
        wanted = otmd.WithoutReplacement(q, num_drafts).containment(p / q < edge)
        assert found[k] == pytest.approx(wanted, abs=1e-13)


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
