"""Inclusion in a race against sums over every tuple, exact values, and values token by token."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import reference
from strategies import unit

from otmd.laws.race.inclusion import race_inclusion


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_tuple_in_fractions(n: int) -> None:
    for seed in range(6):
        rng = np.random.default_rng([67, n, seed])
        q = unit(10.0 ** rng.uniform(-1.0 - 7.0 * (seed % 3), 0.0, 7))
        exact = [Fraction(mass) / sum(map(Fraction, q.tolist())) for mass in q.tolist()]
        wanted = np.array(reference.inclusion(reference.without_replacement(exact, n), 7), float)
        np.testing.assert_allclose(race_inclusion(q, n), wanted, rtol=1e-12)


def test_two_drafts_have_a_closed_form() -> None:
    rng = np.random.default_rng(3)
    q = unit(10.0 ** rng.uniform(-9, 0, 5000))
    alone = q / (1.0 - q)
    wanted = q * (1.0 + alone.sum() - alone)
    np.testing.assert_allclose(race_inclusion(q, 2), wanted, rtol=1e-12)
