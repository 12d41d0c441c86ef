"""What users' tests are given: assertions that pass what is sound, fail what is not, and say why."""

from __future__ import annotations

import itertools
import subprocess
import sys

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
    with pytest.raises(AssertionError) as failure:
        assert_step_lossless(step, FAIR, FAIR, 0, num_samples=100, false_alarm=2.001 * expected)
    assert "after (), token 0: 30 of 100 times, expected 50.0, p-value 7.9e-05" in str(
        failure.value
    )


def test_a_step_names_the_prefix_that_deviates():
    """The first token is right, and the second is where it is emitted: after 1 it is always 1."""
    step = emits((0,), (1, 1))
    with pytest.raises(AssertionError) as failure:
        assert_step_lossless(step, FAIR, FAIR, 1, prefixes=[(1, 0)], num_samples=100)
    (line,) = str(failure.value).split("\n")[1:]
    assert line.startswith("  request 0, after (1, 0, 1), token 0: 0 of 50 times, expected 25.0")
    # As often 0 after 1, and whatever the length is: nothing deviates.
    assert_step_lossless(emits((0,), (1, 1), (0,), (1, 0)), FAIR, FAIR, 1, num_samples=100)


def test_an_impossible_token_is_proof():
    never = TableModel([[0.5, 0.5, 0.0]])
    with pytest.raises(AssertionError, match=r"token 2: 1 of 3 times, expected 0\.0, p-value 0"):
        assert_step_lossless(emits((0,), (1,), (2,)), never, never, 0, num_samples=3)


def test_requests_that_emit_the_same_tokens_are_dependent():
    """Two counts of each request, and four of the two together."""
    turns = itertools.cycle([[(0,), (0,)], [(1,), (1,)]])
    with pytest.raises(AssertionError, match="for all 8 counts") as failure:
        assert_step_lossless(
            lambda *given: next(turns), FAIR, FAIR, 0, prefixes=[(), (1,)], num_samples=100
        )
    (line,) = str(failure.value).split("\n")[1:]
    assert line.startswith(
        "  requests 0 and 1 together, first tokens 0, 1: 0 of 100 times, expected 25.0"
    )


def test_sound_steps_fail_no_more_often_than_stated():
    rng = np.random.default_rng(5)
    target = TableModel.random(3, 1, rng=rng)

    def step(target, draft, prefixes, rng):
        first = [int(rng.choice(3, p=target(()))) for _ in prefixes]
        # A second token after most, by the first: lengths depend on tokens.
        return [
            (x, int(rng.choice(3, p=target((x,))))) if rng.random() < x / 2 else (x,) for x in first
        ]

    failed = 0
    for _ in range(200):
        try:
            assert_step_lossless(
                step,
                target,
                target,
                1,
                prefixes=[(), ()],
                num_samples=40,
                false_alarm=0.25,
                rng=rng,
            )
        except AssertionError:
            failed += 1
    # The counts are few, so far fewer than 50 are expected; 66 would have a probability below 1%.
    assert 0 < failed < 66


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ([()], "step, request 0: got .*expected 1 to 2 integers in .0, 2"),
        ([(0, 1, 0)], "step, request 0.*1 to 2 integers"),
        ([(0, 2)], "step, request 0.*in .0, 2"),
        ([(-1,)], "step, request 0"),
        ([(0.5,)], "step, request 0"),
        ([0], "step, request 0"),
        ([], "step: got 0 sequences of tokens, expected 1, one for each prefix"),
        ([(0,), (1,)], "step: got 2 sequences"),
    ],
)
def test_a_step_that_returns_something_else_is_named(returned, told):
    with pytest.raises(ValueError, match=told):
        assert_step_lossless(lambda *given: returned, FAIR, FAIR, depth=1, num_samples=3)


def test_a_step_that_returns_nothing_is_named():
    with pytest.raises(TypeError, match="step: got NoneType, expected the tokens of each request"):
        assert_step_lossless(lambda *given: None, FAIR, FAIR, depth=1, num_samples=3)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"depth": -1}, "depth"),
        ({"prefixes": []}, "prefixes"),
        ({"num_samples": 0}, "num_samples"),
        ({"false_alarm": 0}, "false_alarm"),
        ({"draft": TableModel([[1.0]])}, r"draft\(\(\)\): got shape \(1,\), expected \(2,\)"),
        ({"target": lambda prefix: [[0.5, 0.5]]}, r"target\(\(\)\): got shape"),
    ],
)
def test_bad_arguments_of_a_step_are_named(given, told):
    with pytest.raises(ValueError, match=told):
        assert_step_lossless(
            **{"step": emits((0,)), "target": FAIR, "draft": FAIR, "depth": 0} | given
        )


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


def test_steps_of_too_many_counts_and_texts_of_no_tokens_are_named() -> None:
    model = otmd.testing.TableModel([np.full(256, 1 / 256)])
    arguments = (lambda *_: [[0]], model, model)
    with pytest.raises(ValueError, match="depth: got 128 with 256 tokens"):
        otmd.testing.assert_step_lossless(*arguments, depth=128, num_samples=1)
    with pytest.raises(TypeError, match="prefixes"):
        otmd.testing.assert_step_lossless(*arguments, depth=1, prefixes=(1,), num_samples=1)
