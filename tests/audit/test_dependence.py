"""Drafts that depend on one another are found, and sound ones raise no alarm more often than stated.

Each count of false alarms fails by chance with probability 1e-4 at most, were the seeds not fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

import otmd
from otmd import audit
from otmd.audit.claims import DRAFTS, ROWS, SLOTS
from otmd.audit.counts import p_value_of_exchangeable
from otmd.audit.run_audit import recorded_run

CONTEXTS, V = 20, 50
LOGITS = np.random.default_rng(0).normal(scale=2.0, size=(CONTEXTS, V))
DRAFT_PROBS = [otmd.probs_from_logits(own) for own in LOGITS]
LAWS = {id(q): otmd.WithReplacement(q, 2) for q in DRAFT_PROBS}
FAR = otmd.WithReplacement(otmd.probs_from_logits(np.random.default_rng(1).normal(size=400)), 3)


def rows(draw, number: int, seed: int) -> list[dict]:
    """Positions with laws of their own; what ``draw(q, before, rng)`` draws, and a token of the target."""
    rng, before, made = np.random.default_rng(seed), None, []
    for i in range(number):
        q = DRAFT_PROBS[i * 7 % CONTEXTS]
        before = draw(q, before, rng)
        given = {"target_probs": q, "draft_probs": q, "draft_tokens": before}
        made.append(given | {"output_token": int(rng.choice(V, p=q))})
    return made


def sound(q, before, rng):
    return LAWS[id(q)].sample(rng=rng)


def copied(share: float):
    def draw(q, before, rng):
        tokens = sound(q, before, rng)
        return tokens[[0, 0]] if rng.random() < share else tokens

    return draw


def first_copied_to_third(q, before, rng):
    tokens = otmd.WithReplacement(q, 3).sample(rng=rng)
    return tokens[[0, 1, 0]] if rng.random() < 0.3 else tokens


def mirrored(q, before, rng):
    """The second uniform number is 1 − the first: hardly ever equal, and never independent."""
    u = rng.random()
    return np.searchsorted(q.cumsum(), [u, (1 - u) * (1 - 1e-12)], side="right").clip(0, V - 1)


class SharedSeeds:
    """Two positions in turn use the same random numbers."""

    def __init__(self):
        self.calls = 0

    def __call__(self, q, before, rng):
        if self.calls % 2 == 0:
            self.numbers = rng.random(2)
        self.calls += 1
        return np.searchsorted(q.cumsum(), self.numbers, side="right").clip(0, V - 1)


FAULTS = {
    "the second a copy of the first": (copied(1.0), 1500, SLOTS),
    "copies in a fifth of the rows": (copied(0.2), 6000, SLOTS),
    "the third at times a copy of the first": (first_copied_to_third, 2000, SLOTS),
    "mirrored numbers": (mirrored, 2000, SLOTS),
    "seeds used twice": (SharedSeeds(), 2000, ROWS),
}


@pytest.mark.parametrize("name", FAULTS)
def test_dependent_drafts_of_a_run_are_found(name):
    draw, number, claim = FAULTS[name]
    found = recorded_run(rows(draw, number, 1), rng=np.random.default_rng(1))
    assert [own.name for own in found.claims if own.refuted] == [claim]
    assert found.verdict.startswith("FAULTY: ")
    if name == "the second a copy of the first":
        assert "Most likely cause: one draw repeated for every draft" in str(found)
        assert "drafts 1 and 2 are equal 1,500 times, expected " in str(found)
    if name == "copies in a fifth of the rows":
        assert "a copy of the one before it (with probability 0.2)" in str(found)
    if name == "the third at times a copy of the first":
        assert "drafts 1 and 3 are equal" in found.most_repeated


def test_independent_drafts_of_runs_raise_alarms_at_the_stated_rate():
    alarms = counted = 0
    for seed in range(30):
        found = recorded_run(
            rows(sound, 150, seed), false_alarm=0.2, rng=np.random.default_rng(seed)
        )
        alarms += found.faulty
        counted += {DRAFTS, SLOTS, ROWS} <= {own.name for own in found.claims}
    assert counted == 30
    assert alarms <= binom.isf(1e-4, 30, 0.2)


def spoilt(samples: np.ndarray, name: str, rng: np.random.Generator) -> np.ndarray:
    chosen = np.flatnonzero(rng.random(len(samples)) < 0.2)
    if name == "copies":
        samples[chosen, 1] = samples[chosen, 0]
    elif name == "draws repeated":
        samples[chosen[chosen > 0]] = samples[chosen[chosen > 0] - 1]
    else:
        samples[1::2] = samples[::2]
    return samples


@pytest.mark.parametrize("name", ["copies", "draws repeated", "every draw twice"])
def test_dependent_drafts_of_a_position_are_found(name):
    rng = np.random.default_rng(2)
    found = audit.draft_law(spoilt(FAR.sample(rng=rng, size=3_000), name, rng), FAR, rng=rng)
    assert found.faulty
    assert "they depend on one another" in found.verdict
    assert any(name in str(found) for name in found.dependent)
    if name == "copies":
        assert set(found.dependent) == {"equal drafts in a draw", "neighbouring drafts of a draw"}


@pytest.mark.parametrize("law", [FAR, otmd.WithoutReplacement(FAR.draft_probs, 3)], ids=repr)
def test_sound_drafts_of_a_position_raise_alarms_at_the_stated_rate(law):
    alarms = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        alarms += audit.draft_law(law.sample(rng=rng, size=300), law, 0.2, rng=rng).faulty
    assert alarms <= binom.isf(1e-4, 30, 0.2)


def test_p_values_of_exchangeable_sets_are_super_uniform():
    rng, law = np.random.default_rng(3), np.array([0.5, 0.3, 0.15, 0.05])
    values = [
        p_value_of_exchangeable(rng.multinomial(40, law), rng.multinomial(90, law), 0.01, rng=rng)
        for _ in range(1_000)
    ]
    for x in (0.02, 0.1, 0.5):
        assert sum(own <= x for own in values) <= binom.isf(1e-6, 1_000, x)
    far = p_value_of_exchangeable(np.array([40, 0]), np.array([10, 80]), 1e-3, rng=rng)
    assert far <= 1e-3
