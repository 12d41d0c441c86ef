"""Counts of an exponential race against products of factors, one node and one token at a time."""

import numpy as np
import pytest
from naive import counts_of_arrivals

from otmd.race.race import prefix_counts

RATES = {
    "even": np.full(6, 1 / 6),
    "one heavy": np.array([0.999, 4e-4, 3e-4, 2e-4, 1e-4]),
    "zero mass": np.array([0.0, 0.5, 0.0, 0.3, 0.2]),
    "thirty orders": 10.0 ** -np.array([0.0, 6.0, 12.0, 18.0, 24.0, 30.0]),
    "one token": np.array([1.0]),
}
TIMES = np.geomspace(1e-5, 1e4, 40)
WEIGHTS = np.linspace(0.5, 2.0, 40) / 40
NUM_DRAFTS = 4


@pytest.mark.parametrize("rates", RATES.values(), ids=RATES.keys())
def test_prefix_counts(rates: np.ndarray) -> None:
    outside = np.append(rates[::-1].cumsum()[::-1], 0.0)
    out = np.zeros((NUM_DRAFTS, rates.size + 1))
    prefix_counts(rates, outside, TIMES, WEIGHTS, out)
    for k in range(1, rates.size + 1):
        expected = np.zeros(NUM_DRAFTS)
        for time, weight in zip(TIMES, WEIGHTS, strict=True):
            counts = np.array(counts_of_arrivals(rates[:k], time, NUM_DRAFTS))
            expected += weight * np.exp(-outside[k] * time) * counts
        np.testing.assert_allclose(out[2:, k], expected[2:], rtol=1e-12, atol=1e-300)
