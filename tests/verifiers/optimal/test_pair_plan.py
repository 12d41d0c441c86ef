"""Two drafts without replacement from many tokens: how often each token is accepted."""

from __future__ import annotations

import numpy as np
import pytest
from race_plans import assert_lossless, prepared
from strategies import Array, unit

import otmd
from otmd.verifiers.optimal import ChoicePlan

LONG = 4600


@pytest.mark.parametrize("V", [300, 2000, 20_000])
@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0, 3.0])
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
    """How often a token is accepted, as a sum over all tokens that may be drafted with it."""
    draft = law.draft_probs
    alone = draft / law.race.mass_left(np.arange(LONG)[:, None])
    total = 0.0
    for other in np.flatnonzero(draft):
        if other != token:
            drafted = draft[token] * alone[other] + draft[other] * alone[token]
            total += drafted * plan.choice_probs(np.array([token, other]))[0]
    return total


@pytest.mark.parametrize(
    "kind", ["peaked", "flat", "even", "almost equal", "ties", "far apart", "partly drafted"]
)
def test_tokens_are_given_what_is_kept_of_them(kind: str) -> None:
    """Each token is accepted exactly as often as the plan says, on which its thinning relies."""
    target, draft = many_tokens(kind)
    law = otmd.WithoutReplacement(draft, 2)
    _, plan = prepared(1e-10, target, law)
    assert -1e-12 <= plan.bound - plan.rate <= 1e-9
    likely = np.argsort(draft)
    drafted = likely[np.count_nonzero(draft == 0.0) :]
    for token in [*drafted[[0, drafted.size // 2, -40, -1]], *drafted[:: drafted.size // 4]]:
        wanted = plan.accepted[token]
        assert given(plan, law, int(token)) == pytest.approx(wanted, rel=1e-12, abs=1e-300)


def some_heavy_and_many_light(seed: int) -> tuple[Array, otmd.WithoutReplacement]:
    """A target and a law with five heavy tokens and ninety light ones."""
    rng = np.random.default_rng([97, seed])
    draft = unit(np.append(rng.uniform(0.5, 1.0, 5), 10.0 ** rng.uniform(-7.0, -3.5, 90)))
    target = unit(draft * np.exp([0.3, 1.0, 2.0][seed % 3] * rng.standard_normal(95)))
    return target, otmd.WithoutReplacement(draft, 2)


@pytest.mark.parametrize("tol", [1e-10, 1e-3, 0.3])
def test_few_heavy_tokens_and_many_light_ones(tol: float) -> None:
    for seed in range(6):
        target, law = some_heavy_and_many_light(seed)
        rule, plan = prepared(tol, target, law)
        assert_lossless(rule, plan, law)
        assert -1e-12 <= plan.bound - plan.rate <= max(tol, 1e-9), seed
