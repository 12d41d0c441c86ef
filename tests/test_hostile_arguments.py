"""Arguments that a fuzzer found: each raised something else than ValueError, or never ended."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import otmd

HUGE = 10**400
Q = np.array([0.5, 0.25, 0.25])
LAWS = (otmd.WithReplacement, otmd.WithoutReplacement, otmd.ConditionalPoisson, otmd.Greedy)


@pytest.mark.parametrize("count", [HUGE, 2**31, 10_001])
@pytest.mark.parametrize("law", LAWS)
def test_more_drafts_than_anyone_draws(law, count):
    with pytest.raises(ValueError, match="num_drafts"):
        law(Q, count)
    with pytest.raises(ValueError, match="num_drafts"):
        law(Q, 2).with_num_drafts(count)


def test_draws_that_no_array_holds():
    with pytest.raises(ValueError, match="size: got"):
        otmd.WithReplacement(Q, 1).sample(rng=np.random.default_rng(0), size=HUGE)


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p"])
def test_numbers_beyond_float64(name):
    with pytest.raises(ValueError, match=f"{name}: got 1000"):
        otmd.Processing(**{name: HUGE})


def test_numbers_of_other_types_are_read():
    logits = np.array([1.0, 0.5, 0.0])
    wanted = otmd.probs_from_logits(logits, 0.5, top_p=0.75, min_p=0.25)
    narrow = np.float16(0.5)
    found = otmd.probs_from_logits(logits, narrow, top_p=Fraction(3, 4), min_p=Fraction(1, 4))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.skipif(
    np.finfo(np.longdouble).max <= np.finfo(float).max, reason="longdouble is float64 here"
)
def test_longdoubles_beyond_float64():
    largest = np.finfo(np.longdouble).max
    with pytest.raises(ValueError, match="probs: got inf"):
        otmd.WithReplacement(np.array([largest, 0.0]), 1)
    with pytest.raises(ValueError, match="logits: got inf"):
        otmd.probs_from_logits(np.array([largest, 0.0]))


@pytest.mark.parametrize("tokens", [None, [0.5], [7], [-1], [[0]], [HUGE], [[0], [0, 1]], "a"])
@pytest.mark.parametrize("law", [otmd.WithReplacement, otmd.WithoutReplacement])
def test_a_prepared_rule_checks_its_drafts(law, tokens):
    rule = otmd.RecursiveRejection().prepare(Q, law(Q, 1))
    error = TypeError if tokens in (None, [0.5], [HUGE], "a") else ValueError
    with pytest.raises(error, match="tokens: got"):
        rule.verify(tokens, rng=np.random.default_rng(0))
    with pytest.raises(TypeError, match="rng: got str"):
        rule.verify(np.array([0]), rng="3")
