"""Audits of a verifier, exact or by samples, their number decided in advance or not: fair, and find faults.

Their false alarms are in test_false_alarms.py.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import reference
from faulty_verifiers import RejectionFault, RejectionSteps, negative_controls
from honest import P, Q
from scipy import stats
from strategies import instances

import otmd
from otmd import audit
from otmd.audit.base import acceptance_ceiling
from otmd.audit.samples import judge_tokens
from otmd.audit.statistics import detectable_total_variation

LAW = otmd.WithReplacement(Q, 2)
ONE = LAW.with_num_drafts(1)
NO_P = np.array([0.5, 0.5, 0.0])
THIRDS = otmd.WithReplacement(np.full(3, 1 / 3), 1)


@pytest.mark.parametrize("control", negative_controls(), ids=lambda control: control.name)
def test_every_fault_is_found(control):
    rng = np.random.default_rng(22)
    sampler = audit.sampler_of(control.verifier, rng=rng)
    report = audit.losslessness(sampler, control.target_probs, control.law, 50_000, batched=True, rng=rng)
    assert report.verdict.startswith("not lossless: ")
    assert "token     observed     expected" in str(report)
    assert f"at least {report.total_variation_bound:.4f}" in str(report)
    exact = audit.enumerated(control.verifier, control.target_probs, control.law)
    assert report.total_variation_bound <= exact.total_variation
    running = audit.SequentialAudit(control.target_probs, control.law)
    while not running.faulty and running.num_samples < 100_000:
        drafts = control.law.sample(rng=rng, size=2_000)
        running.update(drafts, sampler(drafts))
    assert running.verdict.startswith("not lossless: ")
    assert running.num_samples - 2_000 < running.detected_at <= running.num_samples
    assert running.p_value <= 1e-3


def test_a_sound_verifier_makes_no_wealth_on_average():
    """Over all sequences of drafts and tokens; a verifier that emits the draft as it is makes wealth."""
    target, law = np.array([0.6, 0.4]), otmd.WithReplacement([0.3, 0.7], 1)
    sound = otmd.Preference().prepare(target, law).conditional_law
    for conditional_law, lengths in ((sound, (1, 2, 3)), (lambda x: np.eye(2)[x[0]], (4,))):
        outcomes = [
            (tokens, y, prob * mass)
            for tokens, prob in zip(*law.enumerate(), strict=True)
            for y, mass in enumerate(conditional_law(tokens))
            if mass
        ]
        for length in lengths:
            mean = 0.0
            for sequence in product(outcomes, repeat=length):
                running = audit.SequentialAudit(target, law)
                drafts, tokens, probs = map(np.array, zip(*sequence, strict=True))
                running.update(drafts, tokens)
                mean += probs.prod() * np.exp(running.log_wealth)
            assert (mean <= 1 + 1e-9) if conditional_law is sound else (mean > 1 + 1e-3)


def test_an_impossible_token_is_proof():
    tokens = np.arange(1000) % 2
    tokens[500] = 2
    report = judge_tokens(NO_P, THIRDS, tokens[:, None], tokens, 1e-3, rng=np.random.default_rng(0))
    assert report.impossible == 1
    assert report.reasons[0] == "1 of the tokens have target probability zero: proof"
    assert report.worst[0].token == 2
    assert "∞" in str(report)
    running = audit.SequentialAudit(NO_P, THIRDS)
    running.update([[0], [1], [2], [0]], [0, 1, 2, 0])
    assert (running.detected_at, running.impossible, running.p_value) == (3, 1, 0.0)
    running.update([[0]], [0])
    assert running.log_wealth == np.inf
    assert running.verdict == "not lossless: 1 of the tokens have target probability zero: proof"


def test_an_acceptance_above_the_ceiling_is_proof():
    """Tokens of the target, but chosen among drafts more often than any lossless verifier can."""
    rng = np.random.default_rng(1)
    tokens = rng.choice(6, size=20_000, p=P)
    report = judge_tokens(P, ONE, tokens[:, None], tokens, 1e-3, rng=rng)
    assert report.acceptance.rate == 1
    assert report.acceptance.ceiling == acceptance_ceiling(P, ONE) < 0.99
    assert report.p_value > 1e-3
    assert len(report.reasons) == 1
    assert "no lossless verifier accepts more than" in report.verdict
    running = audit.SequentialAudit(P, ONE)
    running.update(tokens[:5_000, None], tokens[:5_000])
    assert running.faulty


def test_the_ceiling_is_guaranteed_for_every_law():
    few = otmd.Independent(np.stack([Q, P]))
    for law in (LAW, few, otmd.Stratified(Q, 3), otmd.ConditionalPoisson(Q, 3)):
        best = otmd.optimal_acceptance(P, law).rate
        assert acceptance_ceiling(P, law) == pytest.approx(best)
    many = otmd.Independent(np.stack([Q, P, Q, P, Q]))
    bound = np.minimum(P, many.inclusion_probs()).sum()
    assert otmd.optimal_acceptance(P, many).rate <= acceptance_ceiling(P, many)
    assert acceptance_ceiling(P, many) == pytest.approx(bound)
    joint = otmd.Joint(np.array([[0, 1]]), np.array([1.0]), 6)
    assert acceptance_ceiling(P, joint) == pytest.approx(P[:2].sum())


def test_one_token_at_a_time_is_the_same_as_all_at_once():
    by_row = audit.losslessness(lambda x: int(x[0]), Q, LAW, 500, rng=3)
    assert by_row == audit.losslessness(lambda x: x[:, 0], Q, LAW, 500, batched=True, rng=3)
    assert by_row != audit.losslessness(lambda x: int(x[0]), Q, LAW, 500, rng=4)


def test_samples_may_come_in_pieces():
    rng = np.random.default_rng(25)
    drafts = LAW.sample(rng=rng, size=3_000)
    tokens = rng.choice(6, size=3_000, p=Q)
    at_once = audit.SequentialAudit(P, LAW)
    at_once.update(drafts, tokens)
    pieces = audit.SequentialAudit(P, LAW)
    for start, stop in [(0, 0), (0, 1), (1, 777), (777, 3_000)]:
        pieces.update(drafts[start:stop], tokens[start:stop])
    assert pieces.log_wealth == pytest.approx(at_once.log_wealth)
    assert (pieces.detected_at, pieces.num_samples) == (at_once.detected_at, 3_000)
    assert pieces.worst == at_once.worst
    assert "token     observed     expected" in str(at_once)


def test_one_hot_targets_and_a_vocabulary_of_one():
    for target in (np.ones(1), np.array([0.0, 1.0, 0.0])):
        law = otmd.WithReplacement(np.full(target.size, 1 / target.size), 1)
        drafts, tokens = law.sample(rng=0, size=100), np.full(100, target.argmax())
        report = judge_tokens(target, law, drafts, tokens, 1e-3, rng=np.random.default_rng(0))
        assert report.p_value == report.detectable == 1
        assert "so there is nothing random to test" in report.verdict
        running = audit.SequentialAudit(target, law)
        running.update(drafts, tokens)
        assert running.verdict == "no fault found so far, in 100 samples"


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.5, 0.9])
def test_so_many_samples_find_a_fault_with_that_power(power):
    rng = np.random.default_rng(0)
    output = 0.9 * P + 0.1 * Q
    number = audit.samples_to_detect(P, LAW, output, power=power, false_alarm=0.05)
    detected = 0
    for _ in range(100):
        tokens = rng.choice(6, size=number, p=output)
        # No draft equals its token, so that the acceptance never speaks.
        report = judge_tokens(P, LAW, np.full((number, 2), -1), tokens, 0.05, rng=rng)
        detected += report.impossible > 0 or report.p_value <= report.share
    # Within four standard errors, and as far again for the approximation.
    assert detected / 100 == pytest.approx(power, abs=0.25)


def test_fewer_samples_for_easier_faults():
    def needed(distance, power, alarm):
        return audit.samples_to_detect(P, LAW, total_variation=distance, power=power, false_alarm=alarm)

    cases = [(0.2, 0.9, 1e-3), (0.02, 0.9, 1e-3), (0.02, 0.99, 1e-3), (0.02, 0.99, 1e-4)]
    numbers = [needed(*case) for case in cases]
    assert numbers == sorted(set(numbers))
    assert detectable_total_variation(numbers[1], 6, 1e-3 / 3) == pytest.approx(0.02, rel=1e-2)
    # A known deviation of the same total variation needs no more than the worst one.
    output = 0.9 * P + 0.1 * Q
    distance = 0.5 * np.abs(output - P).sum()
    assert audit.samples_to_detect(P, LAW, output) <= needed(distance, 0.9, 1e-3)
    assert audit.samples_to_detect(P, LAW, P) is None
    # An impossible token is found at its first.
    number = audit.samples_to_detect(NO_P, THIRDS, np.array([0.495, 0.495, 0.01]))
    assert number == pytest.approx(np.log(0.1) / np.log(0.99), abs=2)


def test_a_sampler_of_a_conditional_law():
    rng, asked = np.random.default_rng(6), []

    def halves(drafts):
        asked.append(tuple(drafts.tolist()))
        return np.eye(6)[drafts[0]] * 0.5 + np.eye(6)[5] * 0.5

    sampler = audit.sampler_of(halves, rng=rng)
    drafts = LAW.sample(rng=rng, size=5_000)
    tokens = np.concatenate([sampler(drafts[:2_500]), sampler(drafts[2_500:])])
    assert len(asked) == len(set(asked))
    assert ((tokens == drafts[:, 0]) | (tokens == 5)).all()
    others = drafts[:, 0] != 5
    hits = int((tokens[others] == drafts[others, 0]).sum())
    assert stats.binomtest(hits, int(others.sum()), 0.5).pvalue > 1e-6


def test_torch_tensors_are_arrays():
    torch = pytest.importorskip("torch")
    half = torch.tensor([0.5, 0.25, 0.25], dtype=torch.bfloat16)
    p = half.clone().requires_grad_()
    law = otmd.WithReplacement([0.5, 0.25, 0.25], 1)
    assert not audit.enumerated(lambda _: half.requires_grad_(), p, law).faulty
    batched = lambda x: torch.as_tensor(x[:, 0])  # noqa: E731
    assert not audit.losslessness(batched, p, law, 500, batched=True, rng=0).faulty
    running = audit.SequentialAudit(p, law)
    running.update(torch.zeros((4, 1), dtype=torch.int64), torch.tensor([0, 1, 2, 0]))
    assert running.num_samples == 4
    assert not audit.draft_law(torch.as_tensor(law.sample(rng=0, size=50)), law, rng=0).faulty


def test_it_is_the_twins():
    small = [x for x in instances(150, seed=11) if x.vocab_size <= 4 and x.num_drafts <= 3]
    for instance in small[:40]:
        p, q, n = np.array(instance.p), np.array(instance.q), instance.num_drafts
        drafts, law = otmd.WithReplacement(q, n), reference.with_replacement(instance.q, n)
        skipping = RejectionSteps(p, drafts, RejectionFault.DUPLICATES_SKIPPED)
        for rule, twin in (
            (skipping, reference.skipping_duplicates),
            (RejectionSteps(p, drafts), reference.rrs),
            (otmd.RecursiveRejection(), reference.rrs),
        ):
            rate, output = reference.judged(law, twin(instance.p, instance.q), p.size)
            found = audit.enumerated(rule, p, drafts, tol=1e-9)
            np.testing.assert_allclose(found.output_distribution, output, atol=1e-10)
            assert found.acceptance == pytest.approx(rate, abs=1e-10)
            assert found.faulty == (np.abs(np.array(output) - p).max() > 1e-9)


def test_the_parts_of_the_total_variation_sum_to_it():
    """Few enough tuples that all of them are shown."""
    rule = lambda drafts: np.eye(3)[drafts[0]]  # noqa: E731
    p, law = np.array([0.6, 0.3, 0.1]), otmd.WithReplacement([0.2, 0.2, 0.6], 1)
    found = audit.enumerated(rule, p, law)
    assert found.total_variation == pytest.approx(0.5)
    assert [draw.tokens for draw in found.worst_drafts] == [(2,), (0,), (1,)]
    np.testing.assert_allclose(found.deviation, [-0.4, -0.1, 0.5], atol=1e-15)
    assert [row.token for row in found.worst] == [2, 0, 1]
    # Only the third token is emitted too often, and only where it was drafted.
    assert [draw.excess for draw in found.worst_drafts] == pytest.approx([0.5, 0, 0])
    assert found.worst_drafts[0].prob == pytest.approx(0.6)
    text = str(found)
    assert "(2,): drafted with probability 0.6, part of the total variation 0.5" in text
    assert "not lossless: total variation 0.5 from the target" in text


def test_a_sound_verifier_is_within_its_bounds():
    p, law = np.array([0.6, 0.3, 0.1]), otmd.WithReplacement([0.2, 0.2, 0.6], 2)
    report = audit.losslessness(otmd.RecursiveRejection(), p, law, 2_000, rng=0)
    assert report.verdict.startswith("no fault found in 2000 samples")
    accepted = report.acceptance
    assert accepted.low < accepted.rate < accepted.high
    assert accepted.low <= otmd.acceptance_rate(otmd.RecursiveRejection(), p, law) <= accepted.high
    assert accepted.ceiling >= otmd.optimal_acceptance(p, law).rate - 1e-12
