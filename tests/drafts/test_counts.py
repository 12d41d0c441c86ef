"""Counts of independent events against products of factors, one by one."""

import numpy as np
import pytest
from naive import poisson_binomial

from otmd.drafts.counts import (
    add_counts_of_others,
    add_prefix_counts,
    counts,
    nth_largest_before,
)

CHANCES = {
    "mixed": np.array([0.5, 0.01, 0.99, 0.2, 0.0, 1e-12]),
    "rare": np.full(9, 1e-3),
    "certain": np.array([1.0, 0.5, 1.0]),
    "alone": np.array([0.3]),
}


@pytest.mark.parametrize("present", CHANCES.values(), ids=CHANCES.keys())
def test_counts(present: np.ndarray) -> None:
    out = np.empty(4)
    counts(1 - present, present, out)
    np.testing.assert_allclose(out, poisson_binomial(present, 4), rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("present", CHANCES.values(), ids=CHANCES.keys())
def test_prefix_counts(present: np.ndarray) -> None:
    out = np.zeros((4, present.size + 1))
    add_prefix_counts(1 - present, present, 2.0, np.empty(present.size + 1), out)
    for k in range(present.size + 1):
        none = np.prod(1 - present[k:])
        expected = 2.0 * none * np.array(poisson_binomial(present[:k], 4))
        np.testing.assert_allclose(out[:, k], expected, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("present", CHANCES.values(), ids=CHANCES.keys())
def test_counts_of_others(present: np.ndarray) -> None:
    out = np.zeros((4, present.size))
    add_counts_of_others(1 - present, present, present, 0.5, out)
    for y in range(present.size):
        others = np.array(poisson_binomial(np.delete(present, y), 4))
        expected = 0.5 * present[y] * others
        np.testing.assert_allclose(out[:, y], expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_nth_largest_before(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 5, 30).astype(float)
    out = np.empty(31)
    nth_largest_before(values, n, out)
    for k in range(31):
        largest = sorted(values[:k], reverse=True)
        assert out[k] == (largest[n - 1] if k >= n else 0.0)
