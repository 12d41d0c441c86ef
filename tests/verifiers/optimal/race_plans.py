"""Helpers: tails and plans of drafts without replacement, and a check by all sets that a plan is lossless."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
from strategies import Array

import otmd
from otmd.verifiers.optimal import ChoicePlan
from otmd.verifiers.optimal.race_tail import Tail, ratio_values
from otmd.verifiers.prepared import ChoosingVerifier


def tail_at(places: Array, rates: Array, nodes: Array, inert: Array, n: int) -> Tail:
    """A tail of tokens at these places among the nodes."""
    tail = Tail.at_ratios(rates, rates * places, places, nodes, 0, inert)
    return tail.moved(ratio_values(nodes, n, 1.0))[0]


def prepared(
    tol: float, target: Array, law: otmd.WithoutReplacement
) -> tuple[otmd.PreparedVerifier, ChoicePlan]:
    rule = otmd.Optimal(tol).prepare(target, law)
    assert isinstance(rule, ChoosingVerifier)
    assert rule.choice is not None
    return rule, rule.choice


def assert_lossless(
    rule: otmd.PreparedVerifier, plan: ChoicePlan, law: otmd.WithoutReplacement
) -> None:
    """The output law is p, and the accepted mass of each token is right relative to its own size.

    The rule depends only on the set of drafts, so the probabilities of all orders of a set are added.
    """
    accepted, rejected = np.zeros(law.vocab_size), 0.0
    every = np.array(list(combinations(np.flatnonzero(law.draft_probs), law.num_drafts)))
    probs, residual = np.zeros(len(every)), rule.residual(every[0])
    for order in permutations(range(law.num_drafts)):
        probs += law.tuple_prob(every[:, list(order)])
    for i, (tokens, prob) in enumerate(zip(every, probs, strict=True)):
        chances = plan.choice_probs(tokens)
        accepted[tokens] += prob * chances
        rejected += prob * (1.0 - chances.sum())
        if i % 16 == 0:
            given = (1.0 - chances.sum()) * residual
            given[tokens] += chances
            assert np.abs(rule.conditional_law(tokens) - given).max() < 1e-13
    output = accepted + rejected * residual
    np.testing.assert_allclose(output, rule.target, rtol=0, atol=1e-12)
    np.testing.assert_allclose(accepted, plan.accepted, rtol=1e-11, atol=1e-300)
