"""Plans of drafts without replacement with many tokens in the tail are lossless and optimal."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from strategies import Array, optimal_plan, shared_tokens, unit

import otmd
from otmd.verifiers.optimal import ChoicePlan, race_plan

LONG = 4600


def assert_lossless(rule: otmd.PreparedVerifier, plan: ChoicePlan, law: otmd.WithoutReplacement) -> None:
    """The output is distributed as p, and the accepted mass of each token is right relative to its size.

    The rule depends only on the set of drafts, so the probabilities of all orders of a set are added.
    """
    accepted, rejected = np.zeros(law.vocab_size), 0.0
    every = np.array(list(combinations(np.flatnonzero(law.draft_probs), law.num_drafts)))
    probs, residual = np.zeros(len(every)), rule.residual(every[0])
    for order in permutations(range(law.num_drafts)):
        probs += law.tuple_prob(every[:, list(order)])
    for i, (tokens, prob) in enumerate(zip(every, probs, strict=True)):
        accept_probs = plan.choice_probs(tokens)
        accepted[tokens] += prob * accept_probs
        rejected += prob * (1.0 - accept_probs.sum())
        if i % 16 == 0:
            given = (1.0 - accept_probs.sum()) * residual
            given[tokens] += accept_probs
            assert np.abs(rule.conditional_law(tokens) - given).max() < 1e-13
    output = accepted + rejected * residual
    np.testing.assert_allclose(output, rule.target, rtol=0, atol=1e-12)
    np.testing.assert_allclose(accepted, plan.accepted, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize(
    ("V", "n", "threshold", "tol"),
    [
        (90, 2, 1.0, 1e-10),
        (90, 2, 1.0, 0.3),
        pytest.param(60, 3, 2.5, 1e-10, marks=pytest.mark.slow),
    ],
)
def test_a_vocabulary_that_is_all_tail(
    V: int, n: int, threshold: float, tol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_plan, "HEAVY", threshold)
    monkeypatch.setattr(race_plan, "HEAVY_PAIR", 0.03)
    rng = np.random.default_rng([V, n, 0])
    law = otmd.WithoutReplacement(unit(1.0 + 0.1 * rng.random(V)), n)
    target = unit(law.draft_probs * np.exp(0.8 * rng.standard_normal(V)))
    verifier, plan = optimal_plan(target, law, tol)
    assert shared_tokens(plan) > V // 2
    assert_lossless(verifier, plan, law)
    assert -1e-12 <= plan.bound - plan.rate <= max(tol, 1e-6)


@pytest.mark.parametrize("tol", [1e-10, 0.3])
@pytest.mark.parametrize("n", [2, 4])
def test_heavy_tokens_with_a_tail(n: int, tol: float) -> None:
    mixed = 0
    for seed in range(3):
        rng = np.random.default_rng([53, n, seed])
        draft = unit(np.append(rng.uniform(0.5, 1.0, 5), 10.0 ** rng.uniform(-7.0, -3.3, 5)))
        target = unit(draft * np.exp(1.5 * rng.standard_normal(10)))
        law = otmd.WithoutReplacement(draft, n)
        verifier, plan = optimal_plan(target, law, tol)
        mixed += shared_tokens(plan)
        assert_lossless(verifier, plan, law)
        gap = plan.bound - plan.rate
        assert -1e-12 <= gap <= max(tol, 1e-9), seed
    assert mixed >= 5


@pytest.mark.parametrize("seed", [2, 60])
def test_many_tokens_with_the_same_ratio(seed: int) -> None:
    """Tokens between two classes of equal weights move on; the class of the highest ratio holds some."""
    rng = np.random.default_rng(seed)
    size, n = int(rng.choice([60, 200, 600])), int(rng.choice([2, 3]))
    logits = np.round(2.0 * rng.standard_normal(size))
    noise = rng.choice([0.3, 1.0]) * rng.standard_normal(size)
    draft = unit(np.exp(np.round(2.0 * (logits + noise)) / 2.0))
    proof = otmd.Optimal().certificate(unit(np.exp(logits)), otmd.WithoutReplacement(draft, n))
    assert -1e-12 <= proof.gap <= 1e-9


@pytest.mark.parametrize("V", [300, 8_000])
@pytest.mark.parametrize("spread", [0.02, 3.0])
def test_pairs_from_tails_of_any_shape(V: int, spread: float) -> None:
    """Tails of nearly equal tokens, power laws, a few large ones and all sizes; p is close to q or far."""
    ranks, rng = np.arange(1.0, V + 1.0), np.random.default_rng([71, V])
    loud = np.where(rng.random(V) < 0.1, 10.0, 1e-3)
    shapes = [rng.random(V) + 9.0, ranks**-0.7, ranks**-1.5, loud * rng.random(V) + 1e-12]
    for number, shape in enumerate([*shapes, rng.dirichlet(np.full(V, 0.3)) + 1e-300]):
        draft = unit(shape)
        for power in (0.5, 1.0):
            noise = np.exp(spread * rng.standard_normal(V))
            target = unit(shape**power * noise * (rng.random(V) < 0.9) + 1e-30)
            proof = otmd.Optimal().certificate(target, otmd.WithoutReplacement(draft, 2))
            assert -1e-11 <= proof.gap <= 1e-6, (number, power)


def many_tokens(kind: str) -> tuple[Array, Array]:
    """p and q of so many tokens that most are in the tail."""
    rng = np.random.default_rng(103)
    z, noise = rng.standard_normal(LONG), rng.standard_normal(LONG)
    draft = unit(np.exp({"peaked": 6.0, "flat": 0.1}.get(kind, 2.0) * z))
    target = unit(draft * np.exp(0.5 * noise))
    if kind == "almost equal":
        target = unit(draft * (1.0 + 1e-5 * noise))
    elif kind == "ties":
        draft = unit(rng.integers(1, 4, LONG).astype(float))
        target = unit(draft * rng.choice([0.0, 0.5, 1.0, 2.0], LONG))
    elif kind == "far apart":
        draft, target = (unit(10.0 ** rng.uniform(-25.0, 0.0, LONG)) for _ in range(2))
    elif kind == "partly drafted":
        draft = unit(draft * (noise > 0.0))
    return target, draft


def given(plan: ChoicePlan, law: otmd.WithoutReplacement, token: int) -> float:
    """P(a token is accepted), as a sum over all tokens that may be drafted with it."""
    draft = law.draft_probs
    alone = draft / law.position_structure.race.mass_left(np.arange(LONG)[:, None])
    total = 0.0
    for second in np.flatnonzero(draft):
        if second != token:
            drafted = draft[token] * alone[second] + draft[second] * alone[token]
            total += drafted * plan.choice_probs(np.array([token, second]))[0]
    return total


@pytest.mark.parametrize(
    "kind",
    [
        "peaked",
        "partly drafted",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("almost equal", "ties")),
    ],
)
def test_tokens_are_given_what_is_kept_of_them(kind: str) -> None:
    """Each token is accepted exactly as often as the plan says, on which its thinning relies."""
    target, draft = many_tokens(kind)
    law = otmd.WithoutReplacement(draft, 2)
    _, plan = optimal_plan(target, law)
    assert -1e-12 <= plan.bound - plan.rate <= 1e-9
    drafted = np.argsort(draft)[np.count_nonzero(draft == 0.0) :]
    for token in drafted[[0, drafted.size // 2, -40, -1]]:
        accepted = plan.accepted[token]
        assert given(plan, law, int(token)) == pytest.approx(accepted, rel=1e-12, abs=1e-300)


def test_a_search_that_is_cut_short_is_lossless_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(6, 0.5), size=2)
    law, rule = otmd.WithoutReplacement(q, 3), otmd.Optimal()
    assert rule.certificate(p, law).status.startswith("optimal")
    monkeypatch.setattr("otmd.verifiers.optimal.race_plan._MOST_WORK", 0)
    assert "more than the tolerance" in rule.certificate(p, law).status
    np.testing.assert_allclose(rule.output_distribution(p, law), p, atol=1e-12)
