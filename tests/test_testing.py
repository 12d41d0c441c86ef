"""Assertions for users' tests pass what is sound, fail what is not, and say why."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest
from faulty_verifiers import RejectionFault, RejectionSteps
from scipy.stats import binom

import otmd
import otmd.testing
from otmd.testing import (
    assert_lossless,
    assert_rate,
    assert_step_lossless,
    hostile_names,
    hostile_pairs,
)
from otmd.trees import LayerVerification, TableModel, TokenTree

P, Q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6])
LAW = otmd.WithReplacement(Q, 2)
SKIPPED = RejectionSteps(P, LAW, RejectionFault.DUPLICATES_SKIPPED)


def test_a_sound_verifier_passes_on_hostile_pairs():
    """Exactly, but for 1,000 tokens, where two drafts have too many tuples and 500 samples are drawn."""
    for p, q in hostile_pairs():
        law = otmd.WithReplacement(q, 2)
        assert_lossless(otmd.RecursiveRejection(), p, law, num_samples=500)


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


@pytest.mark.parametrize(
    ("rule", "returns"),
    [
        (SKIPPED, "law"),
        (otmd.audit.sampler_of(SKIPPED, rng=np.random.default_rng(1)), "tokens"),
        (lambda own: int(own[0]), "token"),
    ],
    ids=["law", "tokens", "token"],
)
def test_a_fault_is_shown_at_a_glance(rule, returns):
    table = r"(?s)^not lossless: .*observed     expected   difference    ratio"
    with pytest.raises(AssertionError, match=table):
        assert_lossless(rule, P, LAW, returns=returns)


def test_a_sound_rule_passes_in_every_form():
    rule = otmd.RecursiveRejection()
    prepared = rule.prepare(P, LAW)
    rng = np.random.default_rng(3)
    assert_lossless(rule, P, LAW)
    assert_lossless(prepared.conditional_law, P, LAW, returns="law")
    one_by_one = lambda drafts: prepared.verify(drafts, rng=rng).token  # noqa: E731
    assert_lossless(one_by_one, P, LAW, num_samples=1_000)
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


# ---------------------------------------------------------------- whole steps

FAIR = TableModel([[0.5, 0.5]])


def emits(*texts):
    """A step of one request that emits these texts in turn."""
    turns = itertools.cycle(texts)
    return lambda target, draft, prefixes, rng: [next(turns)]


def test_a_step_of_a_tree_verifier_passes_on_its_own_drafts():
    target, draft = (TableModel.random(3, 2, rng=seed) for seed in (1, 2))

    def step(target, draft, prefixes, rng):
        after = [(lambda x, text=text: target(text + x)) for text in prefixes]
        tree = TokenTree(draft, (2, 1), otmd.Stratified)
        return [LayerVerification().step(model, tree, rng=rng) for model in after]

    assert_step_lossless(step, target, draft, 2, prefixes=[(), (0, 1)], num_samples=300)
    drafted = lambda target, draft, prefixes, rng: [(rng.choice(3, p=draft(())),)]  # noqa: E731
    with pytest.raises(AssertionError, match=r"request 0, after \(\), token"):
        assert_step_lossless(drafted, target, draft, 2, num_samples=300)


def test_a_step_fails_at_the_exact_binomial_p_value():
    """30 of 100, or fewer, or as many too many: 7.85e-5, and an equal share for each of two counts."""
    step = emits(*[(0,)] * 30, *[(1,)] * 70)
    expected = 2.0 * float(binom.cdf(30, 100, 0.5))
    assert_step_lossless(step, FAIR, FAIR, 0, num_samples=100, false_alarm=1.999 * expected)
    message = r"after \(\), token 0: 30 of 100 times, expected 50.0, p-value 7.9e-05"
    with pytest.raises(AssertionError, match=message):
        assert_step_lossless(step, FAIR, FAIR, 0, num_samples=100, false_alarm=2.001 * expected)


def test_a_step_names_the_prefix_that_deviates():
    """The first token is right, and the second is where it is emitted: after 1 it is always 1."""
    step = emits((0,), (1, 1))
    message = r"counts\)\n  request 0, after \(1, 0, 1\), token 0: 0 of 50 times, expected 25.0"
    with pytest.raises(AssertionError, match=f"{message}, p-value [^\n]*$"):
        assert_step_lossless(step, FAIR, FAIR, 1, prefixes=[(1, 0)], num_samples=100)
    # As often 0 after 1, and whatever the length is: nothing deviates.
    assert_step_lossless(emits((0,), (1, 1), (0,), (1, 0)), FAIR, FAIR, 1, num_samples=100)


def test_an_impossible_token_is_proof():
    never = TableModel([[0.5, 0.5, 0.0]])
    with pytest.raises(AssertionError, match=r"token 2: 1 of 3 times, expected 0\.0, p-value 0"):
        assert_step_lossless(emits((0,), (1,), (2,)), never, never, 0, num_samples=3)


def test_requests_that_emit_the_same_tokens_are_dependent():
    """Two counts of each request, and four of the two together."""
    turns = itertools.cycle([[(0,), (0,)], [(1,), (1,)]])
    step = lambda *given: next(turns)  # noqa: E731
    message = r"for all 8 counts\)\n  requests 0 and 1 together, first tokens 0, 1: 0 of 100 times"
    with pytest.raises(AssertionError, match=f"{message}, expected 25.0, p-value [^\n]*$"):
        assert_step_lossless(step, FAIR, FAIR, 0, prefixes=[(), (1,)], num_samples=100)


@pytest.mark.slow
def test_sound_steps_fail_no_more_often_than_stated():
    rng = np.random.default_rng(5)
    target = TableModel.random(3, 1, rng=rng)

    def step(target, draft, prefixes, rng):
        first = [int(rng.choice(3, p=target(()))) for _ in prefixes]
        # A second token after most, by the first: lengths depend on tokens.
        return [(x, int(rng.choice(3, p=target((x,))))) if rng.random() < x / 2 else (x,) for x in first]

    options = {"prefixes": [(), ()], "num_samples": 40, "false_alarm": 0.25, "rng": rng}
    failed = 200
    for _ in range(200):
        with suppress(AssertionError):
            assert_step_lossless(step, target, target, 1, **options)
            failed -= 1
    # The counts are few, so far fewer than 50 are expected; 66 would have a probability below 1%.
    assert 0 < failed < 66


def step_of(*returned, **change):
    """A step that returns this, or that has other arguments."""
    step = (lambda *given: returned[0]) if returned else emits((0,))
    options = {"step": step, "target": FAIR, "draft": FAIR, "depth": 1, "num_samples": 3}
    return lambda: assert_step_lossless(**options | change)


WIDE = TableModel([np.full(256, 1 / 256)])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: assert_rate(11, 10, 0.5), ValueError, "accepted.*at most"),
        (lambda: assert_rate(5, 0, 0.5), ValueError, "num_samples"),
        (lambda: assert_rate(5, 10, (0.6, 0.5)), ValueError, "rate"),
        (lambda: assert_rate(5, 10, np.nan), ValueError, "rate"),
        (lambda: assert_rate(5, 10, 0.5, false_alarm=0), ValueError, "false_alarm"),
        (lambda: assert_lossless(SKIPPED, P, LAW, returns="words"), ValueError, "returns"),
        (lambda: assert_lossless(SKIPPED, P[:2], LAW), ValueError, "target_probs"),
        (step_of([()]), ValueError, "step, request 0: got .*expected 1 to 2 integers in .0, 2"),
        *((step_of([tokens]), ValueError, "step, request 0.*1 to 2 integers in .0, 2")
          for tokens in ((0, 1, 0), (0, 2), (-1,), (0.5,), 0)),
        (step_of([]), ValueError, "step: got 0 sequences of tokens, expected 1"),
        (step_of([(0,), (1,)]), ValueError, "step: got 2 sequences"),
        (step_of(None), TypeError, "step: got NoneType, expected the tokens of each request"),
        (step_of(depth=-1), ValueError, "depth"),
        (step_of(prefixes=[]), ValueError, "prefixes"),
        (step_of(prefixes=(1,)), TypeError, "prefixes"),
        (step_of(num_samples=0), ValueError, "num_samples"),
        (step_of(false_alarm=0), ValueError, "false_alarm"),
        (step_of(draft=TableModel([[1.0]])), ValueError, r"draft\(\(\)\): got shape \(1,\), expected"),
        (step_of(target=lambda prefix: [[0.5, 0.5]]), ValueError, r"target\(\(\)\): got shape"),
        (step_of(target=WIDE, draft=WIDE, depth=128), ValueError, "depth: got 128 with 256 tokens"),
    ],
)  # fmt: skip
def test_a_refusal(call, error, message):
    with pytest.raises(error, match=message):
        call()
