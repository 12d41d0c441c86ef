"""The Poisson coupling: its rate in fractions and by simulation, its invariance, hostile masses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import otmd

COUPLING = otmd.PoissonCoupling()


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_rates_in_fractions_and_the_published_floor(num_drafts):
    for seed in range(5):
        parts = np.random.default_rng(seed).integers(1, 30, size=(2, 4))
        p, q = ([Fraction(int(x), int(row.sum())) for x in row] for row in parts)
        rate = Fraction(0)
        for a, b in zip(p, q, strict=True):
            total = 1 + sum(max(a / b * y - x, 0) for x, y in zip(p, q, strict=True))
            rate += a * (1 - (1 - 1 / total) ** num_drafts)
        target, draft = ([float(x) for x in row] for row in (p, q))
        found = COUPLING.acceptance_rate(target, otmd.WithReplacement(draft, num_drafts))
        assert found == pytest.approx(float(rate), abs=1e-12)
        apart = 0.5 * np.abs(np.array(target) - draft).sum()
        assert found >= (1 - apart) / (1 + apart)


def test_both_sides_meet_at_the_rate():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(5, 0.7), size=2)
    drafts = otmd.WithReplacement(q, 3)
    draws = [COUPLING.clocks(5, 3, rng=rng) for _ in range(2000)]
    proposed = np.array([COUPLING.draft_tokens(q, clocks) for clocks in draws])
    emitted = np.array([COUPLING.output_token(p, clocks) for clocks in draws])
    assert not otmd.audit.draft_law(proposed, drafts, rng=rng).faulty
    assert (np.abs(np.bincount(emitted, minlength=5) / 2000 - p) < 4.5 * np.sqrt(p / 2000)).all()
    rate = COUPLING.acceptance_rate(p, drafts)
    hits = (proposed == emitted[:, None]).any(axis=1).mean()
    assert abs(hits - rate) < 4.5 * np.sqrt(rate * (1 - rate) / 2000)


def test_the_output_does_not_change_with_the_draft_model():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(20))
    for seed in range(5):
        clocks = COUPLING.clocks(20, 4, rng=seed)
        drafts = [COUPLING.draft_tokens(rng.dirichlet(np.ones(20)), clocks) for _ in range(3)]
        assert len({tuple(tokens.tolist()) for tokens in drafts}) > 1
        output = COUPLING.output_token(p, COUPLING.clocks(20, 4, rng=seed))
        assert output == COUPLING.output_token(p, clocks)
        assert output in COUPLING.draft_tokens(p, clocks)


@pytest.mark.parametrize(
    ("p", "q", "rate"),
    [
        ([1.0], [1.0], 1.0),
        ([0.25] * 4, [0.25] * 4, 1.0),
        ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5], 0.0),
        ([5e-324, 1.0, 0.0], [0.5, 0.25, 0.25], None),
        ([0.5, 0.25, 0.25], [5e-324, 0.5, 0.5], None),
        ([1.0, 1e-310, 0.0, 1e-320], [1e-310, 1.0, 1e-320, 0.0], None),
    ],
)
def test_hostile_pairs(p, q, rate):
    for n in (1, 4):
        found = COUPLING.acceptance_rate(p, otmd.WithReplacement(q, n))
        assert 0.0 <= found <= 1.0
        assert rate is None or found == pytest.approx(rate, abs=1e-12)
