"""Rows checked and scaled: against sums of fractions, one row at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from otmd.validation import OFF, READY, WRONG, check_rows, scale_rows

ROUNDING, TOLERANCE = 1e-14, 1e-3


def naive_check(values: np.ndarray) -> tuple[list[float], int]:
    """The sums, and what the rows need."""
    totals, worst = [], READY
    for row in values.tolist():
        if not all(np.isfinite(row)) or min(row) < 0:
            totals.append(np.nan)
            worst = WRONG
            continue
        total = float(sum(map(Fraction, row)))
        off = abs(total - 1)
        totals.append(1.0 if off <= ROUNDING else total)
        worst = max(worst, WRONG if off > TOLERANCE else OFF if off > ROUNDING else READY)
    return totals, worst


def rows(dtype: type) -> np.ndarray:
    values = np.full((3, 2048), 1 / 2048, dtype)
    values[:, ::2] *= dtype(1.5)
    values[:, 1::2] *= dtype(0.5)
    return values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("token", [0, 1023, 1024, 2047])
@pytest.mark.parametrize(
    "change", [0.0, 1e-5, -1e-5, 0.5, -0.001, np.nan, np.inf, -np.inf, 1e-16], ids=str
)
def test_what_the_rows_need(dtype: type, row: int, token: int, change: float) -> None:
    values = rows(dtype)
    values[row, token] += dtype(change)
    totals = np.empty(3)
    worst = check_rows(values, ROUNDING, TOLERANCE, totals)
    wanted, needed = naive_check(values)
    assert worst == needed
    known = np.isfinite(wanted)
    np.testing.assert_allclose(totals[known], np.array(wanted)[known], rtol=1e-14)
    assert (totals[np.array(wanted) == 1.0] == 1.0).all()


def test_scaled_rows() -> None:
    values, totals = rows(np.float32), np.array([1.0, 0.5, 3.0])
    out = np.empty(values.shape)
    scale_rows(values, totals, out)
    np.testing.assert_array_equal(out, values.astype(np.float64) / totals[:, None])


def test_no_rows() -> None:
    assert check_rows(np.empty((0, 3)), ROUNDING, TOLERANCE, np.empty(0)) == READY
