"""The ceiling over laws: what is fitted on some positions bounds what laws accept on others."""

from __future__ import annotations

import numpy as np
import pytest

import otmd
from experiments.claims.ceiling import newsvendor, proportional, quantiles

COUNTS = (1, 2, 4)


def pairs(count, rng, sharpness=1.0, cut=0.0):
    """Targets that scatter about the draft, which is then sharpened, and cut to its most likely tokens."""
    drawn = []
    for _ in range(count):
        plain = rng.dirichlet(np.full(60, 0.3)) + 1e-9
        draft = np.where(plain >= cut * plain.max(), plain, 0.0) ** sharpness
        drawn.append((rng.dirichlet(50 * plain + 0.01), draft / draft.sum()))
    return drawn


def bounds(others, held_out):
    ratios = quantiles(others)
    both = [(proportional(*pair, COUNTS), newsvendor(*pair, ratios, COUNTS)) for pair in held_out]
    return np.mean(both, axis=0)


@pytest.mark.parametrize("cut", [0.0, 0.1])
def test_both_bounds_hold_for_laws(cut):
    rng = np.random.default_rng(0)
    held_out = pairs(60, rng, cut=cut)
    plain, fitted = bounds(pairs(60, rng, cut=cut), held_out)
    rates = [
        [float(otmd.optimal_acceptance(p, otmd.Stratified(q, n)).rate) for n in COUNTS] for p, q in held_out
    ]
    # If q > 1/n for a token, its inclusion in strata is not quite the capped proportional one.
    assert (np.mean(rates, axis=0) <= plain + 0.005).all()
    assert rates[0][0] == pytest.approx(proportional(*held_out[0], [1])[0])
    assert fitted == pytest.approx(plain, abs=0.03)


@pytest.mark.parametrize("sharpness", [3.0, 80.0])
def test_what_is_fitted_mends_an_overconfident_draft(sharpness):
    first, second = (pairs(60, np.random.default_rng(seed), sharpness) for seed in (1, 2))
    plain, fitted = bounds(first, second)
    assert (fitted > plain + 0.02).all()
    assert (np.diff(fitted) > 0.05).all()
    # The fitted law knows no more than the draft before it was sharpened.
    equal = (pairs(60, np.random.default_rng(seed)) for seed in (1, 2))
    assert (fitted <= bounds(*equal)[1] + 0.02).all()
