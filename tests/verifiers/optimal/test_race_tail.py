"""Plans of drafts without replacement with many tokens in the tail are lossless and optimal."""

from __future__ import annotations

import numpy as np
import pytest
from race_plans import assert_lossless, prepared
from strategies import unit

import otmd
from otmd.verifiers.optimal import ChoicePlan, race_plan


def mixed_tokens(plan: ChoicePlan) -> int:
    """The number of tokens that are shared by two classes."""
    shares = []
    for side, own in ((plan.inner, plan.subset), (plan.outer, ~plan.subset)):
        if side is not None:
            shares.append(side.locate(np.flatnonzero(own))[1])
    return sum(int(((share > 1e-6) & (share < 1 - 1e-6)).sum()) for share in shares)


@pytest.mark.parametrize("tol", [1e-10, 1e-3, 0.3])
@pytest.mark.parametrize(("V", "n", "threshold"), [(60, 2, 2.0), (90, 2, 1.0), (60, 3, 2.5)])
def test_a_vocabulary_that_is_all_tail(
    V: int, n: int, threshold: float, tol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_plan, "HEAVY", threshold)
    monkeypatch.setattr(race_plan, "HEAVY_PAIR", 0.03)
    for seed in range(3 if n == 2 else 1):
        rng = np.random.default_rng([V, n, seed])
        law = otmd.WithoutReplacement(unit(1.0 + 0.1 * rng.random(V)), n)
        target = unit(law.draft_probs * np.exp(0.8 * rng.standard_normal(V)))
        rule, plan = prepared(tol, target, law)
        assert mixed_tokens(plan) > V // 2
        assert_lossless(rule, plan, law)
        gap = plan.bound - plan.rate
        assert -1e-12 <= gap <= max(tol, 1e-6), seed


@pytest.mark.parametrize("tol", [1e-10, 1e-3, 0.3])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_heavy_tokens_with_a_tail(n: int, tol: float) -> None:
    mixed = 0
    for seed in range(6):
        rng = np.random.default_rng([53, n, seed])
        draft = unit(np.append(rng.uniform(0.5, 1.0, 5), 10.0 ** rng.uniform(-7.0, -3.3, 5)))
        target = unit(draft * np.exp(1.5 * rng.standard_normal(10)))
        law = otmd.WithoutReplacement(draft, n)
        rule, plan = prepared(tol, target, law)
        mixed += mixed_tokens(plan)
        assert_lossless(rule, plan, law)
        gap = plan.bound - plan.rate
        assert -1e-12 <= gap <= max(tol, 1e-9), seed
    assert mixed >= 12


@pytest.mark.parametrize("V", [160, 300, 400])
@pytest.mark.parametrize("n", [2, 3])
def test_a_draft_that_is_nearly_uniform(V: int, n: int) -> None:
    """A few hundred tokens, all of them in the tail and most of them within the cut."""
    for seed in range(12):
        rng = np.random.default_rng([V, n, seed])
        draft = unit(1.0 + 0.1 * rng.random(V))
        spread = [0.3, 0.8, 1.5][seed % 3]
        target = unit(draft * np.exp(spread * rng.standard_normal(V)))
        proof = otmd.Optimal().certificate(target, otmd.WithoutReplacement(draft, n))
        assert -1e-12 <= proof.gap <= 1e-6, seed


@pytest.mark.parametrize("seed", [2, 36, 60, 73])
def test_many_tokens_with_the_same_ratio(seed: int) -> None:
    """Tokens between two classes of equal weights move on; the class of the highest ratio holds some."""
    rng = np.random.default_rng(seed)
    size, n = int(rng.choice([60, 200, 600])), int(rng.choice([2, 3]))
    logits = np.round(2.0 * rng.standard_normal(size))
    noise = rng.choice([0.3, 1.0]) * rng.standard_normal(size)
    draft = unit(np.exp(np.round(2.0 * (logits + noise)) / 2.0))
    proof = otmd.Optimal().certificate(unit(np.exp(logits)), otmd.WithoutReplacement(draft, n))
    assert -1e-12 <= proof.gap <= 1e-9
