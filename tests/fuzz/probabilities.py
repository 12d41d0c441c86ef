"""Target: arrays of any kind as probabilities and logits, through the public functions."""

from __future__ import annotations

import numpy as np

import otmd
from fuzz.choices import Choices
from fuzz.laws import any_law, refusals
from otmd.probabilities import validate_probs
from otmd.registry import VERIFIERS

RULES = [entry.load() for entry in VERIFIERS.values() if not entry.coupling]


def one_input(choices: Choices) -> None:
    with refusals():
        choices.pick((_validate, _process, _optimum, _rate, _decide, _curve))(choices)


def _probs(choices: Choices, vocab_size: int) -> object:
    axes = tuple(choices.below(3) for _ in range(choices.below(3)))
    masses = choices.masses(vocab_size, axes if choices.below(2) else ())
    return masses if choices.often() else choices.array()


def _validate(choices: Choices) -> None:
    probs = validate_probs("probs", choices.array() if choices.below(2) else _probs(choices, 5))
    assert probs.dtype == np.float64
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(axis=-1), 1.0, rtol=0, atol=1e-12)


def _process(choices: Choices) -> None:
    logits = choices.array()
    names = ("temperature", "top_k", "top_p", "min_p", "order")
    options = {name: choices.value() for name in names if choices.below(3) == 0}
    probs = otmd.probs_from_logits(logits, **options)
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(axis=-1), 1.0, rtol=0, atol=1e-12)


def _optimum(choices: Choices) -> None:
    drafts = any_law(choices)
    target = _probs(choices, drafts.vocab_size)
    best = otmd.optimal_acceptance(target, drafts)
    assert ((np.asarray(best.rate) >= 0) & (np.asarray(best.rate) <= 1)).all()


def _rate(choices: Choices) -> None:
    rule, drafts = choices.pick(RULES)(), any_law(choices)
    target = _probs(choices, drafts.vocab_size)
    tol = 1e-6 if choices.often() else choices.value()
    low, high = otmd.acceptance_bounds(rule, target, drafts, tol)
    assert (np.asarray(low) <= high).all()
    assert ((np.asarray(low) >= 0) & (np.asarray(high) <= 1)).all()


def _decide(choices: Choices) -> None:
    rule, drafts = choices.pick(RULES)(), any_law(choices)
    target = _probs(choices, drafts.vocab_size)
    rng = np.random.default_rng(0) if choices.often() else choices.value()
    tokens = drafts.sample(rng=np.random.default_rng(1)) if choices.below(2) else choices.array()
    verdict = rule.verify(target, drafts, tokens, rng=rng)
    assert (np.asarray(verdict.token) < drafts.vocab_size).all()
    if not drafts.batch_shape and drafts.vocab_size**drafts.num_drafts < 300:
        rule.prepare(target, drafts).verify(choices.pick((tokens, choices.array())), rng=rng)
        output = rule.output_distribution(target, drafts)
        wanted = validate_probs("target_probs", target)
        np.testing.assert_allclose(output, wanted, rtol=0, atol=1e-9)


def _curve(choices: Choices) -> None:
    vocab_size = 1 + choices.below(6)
    curve = otmd.RatioCurve(_probs(choices, vocab_size), _probs(choices, vocab_size))
    assert curve.hockey_stick(choices.number()) >= 0
