"""Lossy rules have the output law and the rate that they are said to have, and none is above the front."""

from __future__ import annotations

import numpy as np
import pytest
from scripts import ROOT

import otmd


@pytest.fixture
def rules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "claims"))
    import lossy_rules

    return lossy_rules.RULES


def test_no_rule_is_above_the_front(rules):
    rng = np.random.default_rng(0)
    for _ in range(30):
        p, q = (probs / probs.sum() for probs in rng.dirichlet(np.full(30, 0.3), size=2) + 1e-9)
        law = otmd.WithReplacement(q, 1)
        front = otmd.lossy_frontier(p, law)
        for name, rule in rules.items():
            output, rate = rule(p, q)
            assert output.sum() == pytest.approx(1.0, abs=1e-10), name
            assert rate <= otmd.optimal_acceptance(output, law).rate + 1e-10, name
            assert rate <= front.rate_at(0.5 * np.abs(output - p).sum()) + 1e-9, name


def test_a_mixture_is_on_the_front_of_total_variation(rules):
    p, q = np.random.default_rng(1).dirichlet(np.ones(20), size=2)
    front = otmd.lossy_frontier(p, otmd.WithReplacement(q, 1))
    for weight in (0.2, 0.5):
        output, rate = rules[f"mixture {weight:g}".replace("0.", ".")](p, q)
        spent = 0.5 * np.abs(output - p).sum()
        assert front.rate_at(spent) == pytest.approx(rate, abs=1e-12)
