"""Counts of independent events against products of factors, one by one."""

import numpy as np
import pytest
from reference import poisson_binomial

from otmd.laws.conditional_poisson import chances_of_others, counts_from, prefix_chances

CHANCES = {
    "mixed": np.array([0.5, 0.01, 0.99, 0.2, 0.0, 1e-12]),
    "rare": np.full(9, 1e-3),
    "certain": np.array([1.0, 0.5, 1.0]),
    "alone": np.array([0.3]),
}


@pytest.mark.parametrize("present", CHANCES.values(), ids=CHANCES.keys())
def test_counts(present: np.ndarray) -> None:
    rows = counts_from(1 - present, present, 4)
    for i, row in enumerate(rows):
        np.testing.assert_allclose(row, poisson_binomial(present[i:], 4), rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("present", CHANCES.values(), ids=CHANCES.keys())
def test_prefix_chances(present: np.ndarray) -> None:
    out = np.array([prefix_chances(1 - present, present, m) for m in range(4)])
    for k in range(present.size + 1):
        expected = np.prod(1 - present[k:]) * np.array(poisson_binomial(present[:k], 4))
        np.testing.assert_allclose(out[:, k], expected, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("present", CHANCES.values(), ids=CHANCES.keys())
def test_chances_of_others(present: np.ndarray) -> None:
    out = np.array([chances_of_others(1 - present, present, m) for m in range(4)])
    for y in range(present.size):
        others = np.array(poisson_binomial(np.delete(present, y), 4))
        np.testing.assert_allclose(out[:, y], others, rtol=1e-12, atol=1e-300)
