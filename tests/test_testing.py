"""What users' tests are given: assertions that pass what is sound, fail what is not, and say why."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import otmd
import otmd.testing
from otmd.audit.output_mistakes import RejectionFault, RejectionSteps
from otmd.testing import assert_lossless, assert_rate, hostile_names, hostile_pairs
from otmd.verifiers import verifiers_serving

P, Q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6])
LAW = otmd.WithReplacement(Q, 2)
SKIPPED = RejectionSteps(P, LAW, RejectionFault.DUPLICATES_SKIPPED)


def laws(q: np.ndarray) -> list[otmd.DraftLaw]:
    support = np.count_nonzero(q)
    every: list[otmd.DraftLaw] = [otmd.WithReplacement(q, 2)]
    return every if support < 2 else [*every, otmd.WithoutReplacement(q, 2), otmd.Hub(q)]


@pytest.mark.parametrize(("p", "q"), hostile_pairs(), ids=hostile_names())
def test_every_verifier_is_lossless_on_hostile_pairs(p, q):
    """Exactly, but for 1,000 tokens, where two drafts have too many tuples and 500 samples are drawn."""
    for law in laws(q):
        for rule in verifiers_serving(law):
            if p.size == 1000 and isinstance(rule, otmd.Optimal):
                continue
            assert_lossless(rule, p, law, num_samples=500)


def test_hostile_pairs_are_distributions_each_with_a_name():
    pairs, names = hostile_pairs(), hostile_names()
    assert len(pairs) == len(set(names)) == len(names) >= 20
    for p, q in pairs:
        assert p.shape == q.shape
        otmd.validate_probs("p", p)
        otmd.validate_probs("q", q)
    by_name = dict(zip(names, pairs, strict=True))
    assert by_name["rounded to float16"][0].dtype == np.float16
    assert 0 < by_name["subnormal target mass"][0].min() < np.finfo(np.float64).tiny
    assert by_name["disjoint supports"][0] @ by_name["disjoint supports"][1] == 0
    assert by_name["Zipf, 1,000 tokens"][0].size == 1000
    # A caller may spoil what it is given: the next one gets it fresh.
    by_name["equal"][0][:] = 0
    assert dict(zip(names, hostile_pairs(), strict=True))["equal"][0].sum() == pytest.approx(1)


def faulty_sampler(seed: int = 1):
    return otmd.audit.sampler_of(SKIPPED, rng=np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("rule", "returns"),
    [
        (SKIPPED, "law"),
        (faulty_sampler(), "tokens"),
        (lambda own: int(own[0]), "token"),
    ],
    ids=["law", "tokens", "token"],
)
def test_a_fault_is_shown_at_a_glance(rule, returns):
    with pytest.raises(AssertionError) as caught:
        assert_lossless(rule, P, LAW, returns=returns)
    message = str(caught.value)
    assert message.startswith("not lossless: ")
    assert "observed     expected   difference    ratio" in message


def test_a_sound_rule_passes_in_every_form():
    rule = otmd.RecursiveRejection()
    prepared = rule.prepare(P, LAW)
    rng = np.random.default_rng(3)
    assert_lossless(rule, P, LAW)
    assert_lossless(prepared.conditional_law, P, LAW, returns="law")
    assert_lossless(lambda own: prepared.verify(own, rng=rng).token, P, LAW, num_samples=3_000)
    batched = otmd.audit.sampler_of(prepared.conditional_law, rng=rng)
    assert_lossless(batched, P, LAW, returns="tokens")


def test_the_same_seed_without_a_generator():
    seen = []

    def note(drafts):
        seen.append(drafts)
        return np.random.default_rng(0).choice(3, size=len(drafts), p=P)

    for options in ({}, {"rng": 0}, {"rng": 9}):
        assert_lossless(note, P, LAW, returns="tokens", **options)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert (seen[0] != seen[2]).any()


def test_a_rate_that_agrees():
    assert_rate(704, 1000, 0.7)
    assert_rate(704, 1000, (0.5, 0.69))
    assert_rate(0, 10, 0.0)
    assert_rate(10, 10, 1.0)


@pytest.mark.parametrize("rate", [0.6, 0.8, (0.1, 0.6), (0.8, 0.9)], ids=str)
def test_a_rate_that_does_not(rate):
    with pytest.raises(AssertionError, match=r"accepted 700 of 1000 = 0\.7.*between.*expected"):
        assert_rate(700, 1000, rate)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: assert_rate(11, 10, 0.5), "accepted.*at most"),
        (lambda: assert_rate(5, 0, 0.5), "num_samples"),
        (lambda: assert_rate(5, 10, (0.6, 0.5)), "rate"),
        (lambda: assert_rate(5, 10, np.nan), "rate"),
        (lambda: assert_rate(5, 10, 0.5, false_alarm=0), "false_alarm"),
        (lambda: assert_lossless(otmd.TargetOnly(), P, LAW, returns="words"), "returns"),
        (lambda: assert_lossless(otmd.TargetOnly(), P[:2], LAW), "target_probs"),
    ],
)
def test_bad_input_is_named(call, told):
    with pytest.raises(ValueError, match=told):
        call()


def test_it_needs_no_pytest_and_is_reached_lazily():
    code = (
        "import sys, otmd\n"
        "assert 'otmd.audit' not in sys.modules and 'otmd.testing' not in sys.modules\n"
        "otmd.testing.hostile_pairs(), otmd.audit.losslessness\n"
        "print(*[m for m in ('pytest', 'hypothesis', 'torch', 'polars') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    assert {"audit", "testing"} <= set(dir(otmd))
