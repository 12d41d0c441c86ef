"""Tokens per step over a candidate's own steps: exact on small models, without the bias of positions."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest

import otmd
from otmd.study.estimate import Estimate, ratios
from otmd.study.steps import LEFT_OUT, NUM_STEPS, Walk, take_steps
from otmd.trees import (
    AdaptiveTree,
    BlockVerification,
    InclusionBound,
    LayerVerification,
    SubtreeVerification,
    TableModel,
    TokenLevel,
    TokenTree,
    tokens_per_step,
)
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled, every_outcome


class Text:
    """A table model after a text."""

    def __init__(self, model, text=()):
        self.model, self.text = model, tuple(text)

    def __call__(self, prefix):
        return self.model((*self.text, *prefix))

    def read(self, prefixes):
        pass

    def extend(self, tokens):
        self.text += tuple(tokens)


def sampled():
    return Sampled(np.random.default_rng(0))


STRATA = partial(TokenTree, branching=(2, 1), law=otmd.Stratified)


@pytest.mark.parametrize(
    "rule", [TokenLevel(otmd.Preference()), SubtreeVerification(), LayerVerification()], ids=repr
)
def test_the_mean_over_all_trees_is_the_tokens_per_step(rule):
    target, draft = (TableModel.random(3, 2, rng=seed) for seed in (1, 2))
    outcomes = every_outcome(
        lambda choices: take_steps(
            [Walk(STRATA, rule, Text(target), Text(draft), choices)], num_steps=1, left_out=0
        )[0]
    )
    means = np.sum([np.array(sums) * prob for sums, prob in outcomes], axis=0)
    law = STRATA(draft)
    exact = [tokens_per_step(way, target, law).value for way in (rule, InclusionBound())]
    assert means == pytest.approx([*exact, 1.0], abs=1e-12)


def test_later_steps_begin_where_the_rule_ends():
    """The second step's mean is that after each text that the first one emits."""
    target, draft = (TableModel.random(2, 3, rng=seed) for seed in (1, 2))
    make, rule = partial(TokenTree, branching=(1, 1)), BlockVerification()
    outcomes = every_outcome(
        lambda choices: take_steps([Walk(make, rule, Text(target), Text(draft), choices)], 2, 1)[0]
    )
    mean = sum(sums.tokens * prob for sums, prob in outcomes)
    expected = 0.0
    for text, prob in every_outcome(partial(rule.run, Context(target, make(draft)))):
        after = tokens_per_step(rule, Text(target, text), make(Text(draft, text))).value
        expected += prob * after
    assert mean == pytest.approx(expected, abs=1e-12)


def test_a_text_that_ends_has_no_more_steps_and_trees_that_adapt_no_bound():
    model = TableModel([[0.5, 0.5]])
    walk = partial(Walk, partial(AdaptiveTree, quotas=(1,)), SubtreeVerification())
    (sums,) = take_steps([walk(Text(model), Text(model), sampled())], 8, 0)
    assert sums == (pytest.approx(16.0), None, 8)
    certain = TableModel([[0.0, 1.0]])
    for left_out, steps in ((0, 1), (1, 0)):
        walks = [walk(Text(at), Text(at), sampled()) for at in (certain, model)]
        ended, going_on = take_steps(walks, 8, left_out, [1])
        assert ended.steps == steps <= going_on.steps


def test_laws_of_a_step_are_freed_without_the_garbage_collector(monkeypatch):
    made = []
    node_law = TokenTree.node_law

    def recorded(*given):
        law = node_law(*given)
        if law is not None:
            made.append(weakref.ref(law))
        return law

    monkeypatch.setattr(TokenTree, "node_law", recorded)
    target, draft = (TableModel.random(3, 2, rng=seed) for seed in (1, 2))
    gc.disable()
    try:
        take_steps([Walk(STRATA, LayerVerification(), Text(target), Text(draft), sampled())], 2, 0)
        assert len(made) > 3
        assert not any(law() for law in made)
    finally:
        gc.enable()


# Acceptance comes in runs: the state, which every token tells, changes once in ten tokens. A token is twice
# the state and its kind. The draft's kind is 0, and the target's with the acceptance of the state.
ACCEPTED = np.array([0.95, 0.3])
STAYS = np.array([[0.9, 0.1], [0.1, 0.9]])
CHAIN = 8


def runs_of_acceptance():
    target = [np.kron(STAYS[s], [a, 1 - a]) for s, a in enumerate(ACCEPTED) for _ in range(2)]
    draft = [np.kron(STAYS[s], [1.0, 0.0]) for s in range(2) for _ in range(2)]
    return tuple(TableModel([np.full(4, 0.25), table]) for table in (target, draft))


def own_and_over_positions():
    """Tokens per step of the decoder's own steps, and of the steps from a random position, one by one."""
    reach = np.eye(2)
    tokens, ends = np.ones(2), np.zeros((2, 2))
    for _ in range(CHAIN):
        ends += reach @ ((1 - ACCEPTED)[:, None] * STAYS)
        reach = reach @ (ACCEPTED[:, None] * STAYS)
        tokens += reach.sum(axis=1)
    ends += reach @ STAYS
    by_step = [np.full(2, 0.5) @ np.linalg.matrix_power(ends, step) @ tokens for step in range(8)]
    return np.linalg.matrix_power(ends, 200)[0] @ tokens, by_step


@pytest.mark.slow
def test_the_interval_has_the_decoders_own_value_and_not_the_mean_over_positions():
    target, draft = runs_of_acceptance()
    own, by_step = own_and_over_positions()
    over_positions = by_step[0]
    assert (own, over_positions) == (pytest.approx(2.473, abs=1e-3), pytest.approx(3.745, abs=1e-3))
    # The numbers of docs/plan.md.
    expected = [3.745, 3.003, 2.694, 2.565, 2.512, 2.489, 2.480, 2.476]
    assert by_step == pytest.approx(expected, abs=5e-4)
    assert np.mean(by_step[LEFT_OUT:]) / own == pytest.approx(1.013, abs=5e-4)
    make = partial(TokenTree, branching=(1,) * CHAIN)
    rng = np.random.default_rng(0)
    rule, starts = BlockVerification(), np.tile([0, 2], 60).tolist()
    sums = np.array(
        [
            take_steps([Walk(make, rule, Text(target, [at]), Text(draft, [at]), Sampled(rng))])[0][::2]
            for at in starts
        ]
    )
    assert sums[:, 1].tolist() == [NUM_STEPS - LEFT_OUT] * len(sums)
    _, low, high = Estimate.of(ratios(*sums.T))
    assert low is not None
    assert high is not None
    assert low < own < high < over_positions
