"""Decoding on the real pair: greedy texts are the target's own, sampled ones follow it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

import otmd
from otmd.models import Speculation, decode, load_draft, load_target
from otmd.models.continuations import continuations
from otmd.trees import IIDPaths, TokenLevel, TokenTree, Traversal
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled

pytestmark = pytest.mark.model
RUNS, TEMPERATURE, ALARM = 400, 0.8, 1e-3
WAYS = {
    "K-SEQ": (lambda q: IIDPaths(q, 3, 3), TokenLevel(otmd.KSequential())),
    "recursive rejection": (lambda q: TokenTree(q, (2, 2)), TokenLevel(otmd.RecursiveRejection())),
    "traversal": (lambda q: TokenTree(q, (2, 1)), Traversal()),
}


@pytest.fixture(scope="module")
def target():
    return load_target("default", device="cpu", progress=False)


@pytest.fixture(scope="module")
def prompt(target):
    return target.tokenizer("One, two, three, four, one, two, three,").input_ids


@pytest.fixture(scope="module")
def draft(target, prompt):
    return load_draft("ngram:2+context", target, [prompt])


@pytest.mark.parametrize("name", WAYS)
def test_greedy_texts_are_the_targets_own(target, prompt, draft, name):
    wanted = target.generate([prompt], 12, 0.0, rngs=[np.random.default_rng(0)])[0]
    way = Speculation(draft, *WAYS[name], otmd.Processing())
    found = decode(target, prompt, 12, way, otmd.Processing(0.0), rng=np.random.default_rng(0))
    assert found.tokens == wanted


def p_value(target, prompt, draft, law_of, rule) -> float:
    """The p-value of a χ² test of the first two tokens: the five likeliest pairs, and all others."""
    processing, choices = otmd.Processing(TEMPERATURE), Sampled(np.random.default_rng(11))
    wanted, drafted = continuations(target, prompt), continuations(draft, prompt)
    law = law_of(lambda prefix: drafted.probs(prefix, processing))
    # It keeps what the models said, so that only prefixes seen for the first time cost a call.
    context = Context(lambda prefix: wanted.probs(prefix, processing), law)
    first = context.target(())
    tops = np.argsort(-first)[:3].tolist()
    pairs = {(a, b): first[a] * p for a in tops for b, p in enumerate(context.target((a,)))}
    cells = sorted(pairs, key=lambda pair: -pairs[pair])[:5]
    counts = np.zeros(6)
    for _ in range(RUNS):
        emitted = rule.run(context, choices)[:2]
        if len(emitted) < 2:
            emitted = (*emitted, choices.token(context.target(emitted)))
        counts[cells.index(emitted) if emitted in cells else 5] += 1
    expected = RUNS * np.array([pairs[cell] for cell in cells])
    return float(chisquare(counts, [*expected, RUNS - expected.sum()]).pvalue)


def test_what_is_emitted_follows_the_target(target, prompt, draft):
    """The test has a false-alarm rate of 1 in 1,000; the seed is fixed."""
    assert p_value(target, prompt, draft, *WAYS["recursive rejection"]) > ALARM


def test_accepting_whatever_is_drafted_is_noticed(target, prompt, draft):
    class Credulous(TokenLevel):
        def _decide(self, context, prefix, node, choices):
            return int(node.tokens[0])

    rule = Credulous(otmd.RecursiveRejection())
    assert p_value(target, prompt, draft, WAYS["recursive rejection"][0], rule) < ALARM
