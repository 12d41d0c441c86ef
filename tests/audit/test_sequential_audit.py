"""The audit that may be stopped at any time: fair to sound rules, by listing every sequence.

A sound rule is ever called faulty with a probability of at most 1e-3; there are 16 of them, on fixed seeds.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from honest import HONEST, NAMES, P, Q
from scipy import stats

import otmd
from otmd import audit

LAW = otmd.WithReplacement(Q, 2)


def outcomes(rule: otmd.Verifier, target: np.ndarray, law: otmd.DraftLaw) -> list[tuple]:
    """(drafts, token, probability) of one sample."""
    prepared = rule.prepare(target, law)
    return [
        (tuple(tokens.tolist()), y, prob * mass)
        for tokens, prob in zip(*law.enumerate(), strict=True)
        for y, mass in enumerate(prepared.conditional_law(tokens))
        if mass > 0
    ]


def expected_wealth(
    samples: list[tuple], target: np.ndarray, law: otmd.DraftLaw, length: int
) -> float:
    total = 0.0
    for sequence in product(samples, repeat=length):
        own = audit.SequentialAudit(target, law)
        own.update([drafts for drafts, _, _ in sequence], [token for _, token, _ in sequence])
        total += np.prod([prob for _, _, prob in sequence]) * np.exp(own.log_wealth)
    return total


@pytest.mark.parametrize(
    ("rule", "law", "target"),
    [
        (otmd.Preference(), otmd.WithReplacement([0.3, 0.7], 1), [0.6, 0.4]),
        (otmd.TargetOnly(), otmd.Greedy([0.3, 0.5, 0.2], 2), [0.2, 0.3, 0.5]),
    ],
    ids=repr,
)
def test_a_sound_rule_makes_no_wealth_on_average(rule, law, target):
    target = np.array(target)
    samples = outcomes(rule, target, law)
    for length in (1, 2, 3):
        assert expected_wealth(samples, target, law, length) <= 1 + 1e-9


def test_a_faulty_rule_makes_wealth_on_average():
    """The check above can fail: a rule that emits the first draft as it is."""
    law, target = otmd.WithReplacement([0.3, 0.7], 1), np.array([0.6, 0.4])
    samples = [((0,), 0, 0.3), ((1,), 1, 0.7)]
    assert expected_wealth(samples, target, law, 4) > 1 + 1e-3


@pytest.mark.parametrize(("rule", "law", "target"), HONEST, ids=NAMES)
def test_a_sound_rule_is_never_called_faulty(rule, law, target):
    rng = np.random.default_rng(21)
    sampler = audit.sampler_of(rule.prepare(target, law).conditional_law, rng=rng)
    own = audit.SequentialAudit(target, law)
    for _ in range(10):
        drafts = law.sample(rng=rng, size=5_000)
        own.update(drafts, sampler(drafts))
    assert not own.faulty, own
    assert own.detected_at is None
    assert own.verdict == "no fault found so far, in 50000 samples"


@pytest.mark.parametrize("control", audit.negative_controls(), ids=lambda own: own.name)
def test_every_fault_is_found(control):
    rng = np.random.default_rng(22)
    sampler = audit.sampler_of(control.verifier, rng=rng)
    own = audit.SequentialAudit(control.target_probs, control.law)
    while not own.faulty and own.num_samples < 200_000:
        drafts = control.law.sample(rng=rng, size=2_000)
        own.update(drafts, sampler(drafts))
    assert own.faulty
    assert own.num_samples - 2_000 < own.detected_at <= own.num_samples
    assert own.p_value <= 1e-3
    assert own.verdict.startswith("not lossless: ")


def test_false_alarms_at_any_time_are_as_rare_as_stated():
    rng, runs, alarms = np.random.default_rng(23), 300, 0
    for _ in range(runs):
        own = audit.SequentialAudit(P, LAW, false_alarm=0.25)
        own.update(LAW.sample(rng=rng, size=1_500), rng.choice(6, size=1_500, p=P))
        alarms += own.faulty
    assert stats.binomtest(alarms, runs, 0.25, alternative="greater").pvalue > 1e-6
    assert alarms > 0


def test_an_impossible_token_is_proof_from_then_on():
    target = np.array([0.5, 0.5, 0.0])
    own = audit.SequentialAudit(target, otmd.WithReplacement(np.full(3, 1 / 3), 1))
    own.update([[0], [1], [2], [0]], [0, 1, 2, 0])
    assert (own.detected_at, own.impossible, own.p_value) == (3, 1, 0.0)
    own.update([[0]], [0])
    assert own.log_wealth == np.inf
    assert own.verdict == "not lossless: 1 of the tokens have target probability zero: proof"


def test_an_acceptance_above_the_ceiling_is_found():
    rng, law = np.random.default_rng(24), LAW.with_num_drafts(1)
    own = audit.SequentialAudit(P, law)
    tokens = rng.choice(6, size=5_000, p=P)
    own.update(tokens[:, None], tokens)
    assert own.faulty


def test_samples_may_come_in_pieces():
    rng = np.random.default_rng(25)
    drafts, tokens = LAW.sample(rng=rng, size=3_000), rng.choice(6, size=3_000, p=Q)
    whole, pieces = audit.SequentialAudit(P, LAW), audit.SequentialAudit(P, LAW)
    whole.update(drafts, tokens)
    for start, stop in [(0, 0), (0, 1), (1, 777), (777, 3_000)]:
        pieces.update(drafts[start:stop], tokens[start:stop])
    assert pieces.log_wealth == pytest.approx(whole.log_wealth)
    assert (pieces.detected_at, pieces.num_samples) == (whole.detected_at, 3_000)
    assert pieces.worst == whole.worst
    assert "token     observed" in str(whole)


def test_one_hot_targets_and_a_vocabulary_of_one():
    for target in (np.ones(1), np.array([0.0, 1.0, 0.0])):
        law = otmd.WithReplacement(np.full(target.size, 1 / target.size), 1)
        own = audit.SequentialAudit(target, law)
        own.update(
            law.sample(rng=np.random.default_rng(0), size=100), np.full(100, target.argmax())
        )
        assert not own.faulty


@pytest.mark.parametrize(
    ("drafts", "tokens", "told"),
    [
        ([[0, 1]], [6], r"output_tokens.*\[0, 6\)"),
        ([[0, 1]], [0.5], "output_tokens.*float64"),
        ([[0, 1]], [0, 1], r"output_tokens.*\(1,\)"),
        ([[0]], [0], "draft_tokens"),
        ([0, 1], [0], r"draft_tokens.*\(M, n\)"),
        ([[0, 9]], [0], "draft_tokens"),
    ],
)
def test_bad_samples_are_named(drafts, tokens, told):
    with pytest.raises(ValueError, match=told):
        audit.SequentialAudit(P, LAW).update(np.array(drafts), np.array(tokens))


def test_a_bad_start_is_named():
    with pytest.raises(ValueError, match="target_probs"):
        audit.SequentialAudit(P[:3], LAW)
    with pytest.raises(ValueError, match="false_alarm"):
        audit.SequentialAudit(P, LAW, false_alarm=1)
