"""The audit of a fixed number of samples: what it passes, what it finds, and what it refuses.

With `FALSE_ALARM` for each of the sound rules a run over all of them raises a false alarm with a
probability of at most 3.2e-2 over the choice of the seeds, which are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from honest import HONEST, NAMES, P, Q
from scipy import stats

import otmd
from otmd import audit
from otmd.audit.by_samples import judge_tokens
from otmd.audit.samples import acceptance_ceiling

FALSE_ALARM = 1e-3
LAW = otmd.WithReplacement(Q, 2)


def sound(drafts: np.ndarray) -> np.ndarray:
    """Tokens of the target, whatever was drafted."""
    return np.random.default_rng(5).choice(6, size=len(drafts), p=P)


@pytest.mark.parametrize(("rule", "law", "target"), HONEST, ids=NAMES)
def test_a_verifier_passes_as_it_is_used(rule, law, target):
    rng = np.random.default_rng(11)
    found = audit.losslessness(rule, target, law, 2_000, FALSE_ALARM, rng=rng)
    assert not found.faulty, found


@pytest.mark.parametrize(("rule", "law", "target"), HONEST, ids=NAMES)
def test_a_verifier_passes_with_many_samples(rule, law, target):
    rng = np.random.default_rng(12)
    sampler = audit.sampler_of(rule.prepare(target, law).conditional_law, rng=rng)
    found = audit.losslessness(sampler, target, law, 200_000, FALSE_ALARM, batched=True, rng=rng)
    assert not found.faulty, found
    rate = otmd.acceptance_rate(rule, target, law)
    assert found.acceptance.low <= rate <= found.acceptance.high
    assert rate <= found.acceptance.ceiling
    assert found.verdict.startswith("no fault found in 200000 samples")


@pytest.mark.parametrize("control", audit.negative_controls(), ids=lambda own: own.name)
def test_every_fault_is_found(control):
    rng = np.random.default_rng(13)
    where = control.target_probs, control.law, 200_000, FALSE_ALARM
    sampler = audit.sampler_of(control.verifier, rng=rng)
    found = audit.losslessness(sampler, *where, batched=True, rng=rng)
    assert found.faulty
    assert found.verdict.startswith("not lossless: ")
    exact = audit.enumerated(control.verifier, control.target_probs, control.law)
    assert found.total_variation_bound <= exact.total_variation


def test_false_alarms_are_as_rare_as_stated():
    rng, runs, alarms = np.random.default_rng(14), 600, 0
    for _ in range(runs):
        tuples, tokens = LAW.sample(rng=rng, size=400), rng.choice(6, size=400, p=P)
        alarms += judge_tokens(P, LAW, tuples, tokens, 0.2, rng=rng).faulty
    assert stats.binomtest(alarms, runs, 0.2, alternative="greater").pvalue > 1e-6
    assert alarms > 0


def test_an_impossible_token_is_proof():
    target = np.array([0.5, 0.5, 0.0])
    drafts = otmd.WithReplacement(np.full(3, 1 / 3), 1)
    tokens = np.arange(1000) % 2
    tokens[500] = 2
    found = judge_tokens(
        target, drafts, tokens[:, None], tokens, 1e-3, rng=np.random.default_rng(0)
    )
    assert found.impossible == 1
    assert found.reasons[0] == "1 of the tokens have target probability zero: proof"
    assert found.worst[0].token == 2
    assert "∞" in str(found)


def test_an_acceptance_above_the_ceiling_is_proof():
    """Tokens of the target, but chosen among drafts more often than any lossless verifier can."""
    rng, ceiling = np.random.default_rng(1), acceptance_ceiling(P, LAW.with_num_drafts(1))
    tokens = rng.choice(6, size=20_000, p=P)
    law = LAW.with_num_drafts(1)
    found = judge_tokens(P, law, tokens[:, None], tokens, 1e-3, rng=rng)
    assert found.acceptance.rate == 1
    assert found.acceptance.ceiling == ceiling < 0.99
    assert found.p_value > 1e-3
    assert len(found.reasons) == 1
    assert "no lossless verifier accepts more than" in found.verdict


def test_the_ceiling_is_certain_for_every_law():
    assert acceptance_ceiling(P, LAW) == pytest.approx(otmd.optimal_acceptance(P, LAW).rate)
    few = otmd.Independent(np.stack([Q, P]))
    assert acceptance_ceiling(P, few) == pytest.approx(otmd.optimal_acceptance(P, few).rate)
    many = otmd.Independent(np.stack([Q, P, Q, P, Q]))
    bound = np.minimum(P, many.inclusion_probs()).sum()
    assert acceptance_ceiling(P, many) == pytest.approx(bound)
    assert otmd.optimal_acceptance(P, many).rate <= acceptance_ceiling(P, many)
    joint = otmd.Joint(np.array([[0, 1]]), np.array([1.0]), 6)
    assert acceptance_ceiling(P, joint) == pytest.approx(P[:2].sum())


def test_one_token_at_a_time_is_the_same_as_all_at_once():
    def by_row(rng):
        return audit.losslessness(lambda own: int(own[0]), Q, LAW, 500, rng=rng)

    def at_once(rng):
        return audit.losslessness(lambda own: own[:, 0], Q, LAW, 500, batched=True, rng=rng)

    assert by_row(np.random.default_rng(3)) == at_once(np.random.default_rng(3))
    assert by_row(np.random.default_rng(3)) != by_row(np.random.default_rng(4))


def test_a_vocabulary_of_one():
    drafts = otmd.WithReplacement(np.ones(1), 1)
    found = audit.losslessness(lambda _: 0, np.ones(1), drafts, 100, rng=np.random.default_rng(0))
    assert not found.faulty
    assert found.p_value == 1
    assert found.detectable == 1


def test_the_report_can_be_read():
    found = audit.losslessness(sound, Q, LAW, 5_000, batched=True, rng=np.random.default_rng(0))
    text = str(found)
    assert found.faulty
    assert "not lossless: the output does not follow the target: p-value" in text
    assert "token     observed     expected" in text
    assert f"at least {found.total_variation_bound:.4f}" in text
    assert 0 < found.total_variation_bound <= 0.5 * np.abs(P - Q).sum()
    worst = found.worst[0]
    largest = np.abs(P - Q) / np.sqrt(Q)
    assert largest[worst.token] > 0.7 * largest.max()


GOOD = {"verifier": sound, "target_probs": P, "law": LAW, "num_samples": 10, "batched": True}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target_probs": [0.5, 0.6]}, "target_probs"),
        ({"target_probs": [0.5, 0.5]}, r"target_probs.*2.*6"),
        ({"target_probs": np.stack([P, P])}, "leading axes"),
        ({"law": Q}, "law.*DraftLaw"),
        ({"law": otmd.WithReplacement(np.stack([Q, Q]), 2)}, "one position"),
        ({"num_samples": 1}, "num_samples"),
        ({"num_samples": 2.5}, "num_samples"),
        ({"false_alarm": 0.0}, "false_alarm"),
        ({"false_alarm": 0.3}, r"false_alarm.*0\.25"),
        ({"false_alarm": True}, "false_alarm"),
        ({"false_alarm": 1e-9}, r"level.*SequentialAudit"),
        ({"rng": "0"}, "rng"),
        ({"verifier": 3}, "verifier.*callable"),
        ({"verifier": lambda x: x}, r"verifier.*\(10,\)"),
        ({"verifier": lambda x: np.full(len(x), 0.5)}, "verifier.*float64"),
        ({"verifier": lambda x: np.full(len(x), 6)}, r"verifier.*\[0, 6\)"),
        ({"verifier": lambda x: np.full(len(x), -1)}, r"verifier.*\[0, 6\)"),
        ({"verifier": lambda x: x, "batched": False}, r"verifier.*batched=True"),
        ({"verifier": lambda x: 0.5, "batched": False}, "verifier.*float64"),
        ({"verifier": otmd.SpecHub()}, "SpecHub"),
    ],
)
def test_bad_input_is_named(change, told):
    of_type = told in ("law.*DraftLaw", "rng", "verifier.*callable")
    of_type |= change.get("num_samples") == 2.5 or change.get("false_alarm") is True
    with pytest.raises(TypeError if of_type else ValueError, match=f"(?s){told}"):
        audit.losslessness(**{"rng": np.random.default_rng(0), **GOOD, **change})


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda rng: audit.losslessness(otmd.TargetOnly, P, LAW, rng=rng),
            r"instance: TargetOnly\(\)",
        ),
        (
            lambda rng: audit.losslessness(sound, P, otmd.WithReplacement, rng=rng),
            "law: got the class",
        ),
        (lambda rng: audit.losslessness(sound, LAW, P, rng=rng), "are the two swapped"),
        (
            lambda rng: audit.draft_law(LAW, LAW.sample(rng=rng, size=9), rng=rng),
            "are the two swapped",
        ),
        (
            lambda rng: audit.enumerated(otmd.TargetOnly, P, LAW),
            "verifier: got the class TargetOnly",
        ),
        (lambda rng: audit.SequentialAudit(LAW, P), "are the two swapped"),
        (lambda rng: audit.samples_to_detect(P, otmd.Hub, total_variation=0.1), "class Hub"),
    ],
)
def test_classes_and_swapped_arguments_are_named(call, told):
    with pytest.raises(TypeError, match=told):
        call(np.random.default_rng(0))


def test_torch_tensors_are_arrays():
    torch = pytest.importorskip("torch")
    rng, half = np.random.default_rng(0), torch.tensor([0.5, 0.25, 0.25], dtype=torch.bfloat16)
    p, law = half.clone().requires_grad_(), otmd.WithReplacement([0.5, 0.25, 0.25], 1)
    assert not audit.enumerated(lambda _: half.requires_grad_(), p, law).faulty
    batched = lambda own: torch.as_tensor(own[:, 0])  # noqa: E731
    assert not audit.losslessness(batched, p, law, 500, batched=True, rng=rng).faulty
    running = audit.SequentialAudit(p, law)
    running.update(torch.zeros((4, 1), dtype=torch.int64), torch.tensor([0, 1, 2, 0]))
    assert running.num_samples == 4
    assert not audit.draft_law(torch.as_tensor(law.sample(rng=rng, size=50)), law, rng=rng).faulty
    row = {"target_probs": p, "draft_probs": half, "draft_tokens": torch.tensor([1])}
    found = audit.recorded_run([row | {"output_token": torch.tensor(1)}] * 3, rng=rng)
    assert not found.cases


def test_a_sampler_from_a_law():
    rng = np.random.default_rng(6)
    asked = []

    def rule(drafts):
        asked.append(tuple(drafts.tolist()))
        return np.eye(6)[drafts[0]] * 0.5 + np.eye(6)[5] * 0.5

    sampler = audit.sampler_of(rule, rng=rng)
    drafts = LAW.sample(rng=rng, size=5_000)
    tokens = np.concatenate([sampler(drafts[:2_500]), sampler(drafts[2_500:])])
    assert len(asked) == len(set(asked))
    assert ((tokens == drafts[:, 0]) | (tokens == 5)).all()
    others = drafts[:, 0] != 5
    hits = int((tokens[others] == drafts[others, 0]).sum())
    assert stats.binomtest(hits, int(others.sum()), 0.5).pvalue > 1e-6
    with pytest.raises(ValueError, match="verifier"):
        audit.sampler_of(lambda _: [0.5, 0.6], rng=rng)(drafts)
    with pytest.raises(TypeError, match="rng"):
        audit.sampler_of(rule, rng="0")
