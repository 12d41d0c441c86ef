"""The optimal verifier for several drafters: its output by enumeration, and its rate against α*."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from strategies import Array, instances, package_law, unit

import otmd
from otmd.laws import Slots
from otmd.verifiers.optimal.overlap_plan import OverlapPlan, _choice_rates, plan_overlapping

ROUNDING = 1e-12
INSTANCES = instances(20, seed=67)


def output_of(plan: OverlapPlan, slots: Slots) -> tuple[Array, float]:
    """Distribution of the output, and the probability that a draft is accepted, over every tuple."""
    accepted = np.zeros(plan.target.size)
    for tokens in product(range(plan.target.size), repeat=slots.num_drafts):
        drafts = np.array(tokens)
        prob = slots.prob(slots.row_of_slot, drafts).prod()
        if prob > 0.0:
            np.add.at(accepted, drafts, prob * plan.choice_probs(drafts))
    residual = np.maximum(plan.target - plan.accepted, 0.0)
    missing = plan.target.sum() - accepted.sum()
    return accepted + missing * residual / max(residual.sum(), 1e-300), accepted.sum()


def deviation(plan: OverlapPlan, slots: Slots) -> float:
    return np.abs(output_of(plan, slots)[0] - plan.target).max()


@pytest.mark.parametrize("tol", [1e-10, 0.3])
def test_random_and_hostile_instances(tol: float) -> None:
    for instance in INSTANCES:
        law = package_law(instance, "independent")
        slots = law.position_structure.slots
        assert slots is not None
        if slots.disjoint:
            continue
        plan = plan_overlapping(unit(instance.target_probs), slots, tol)
        output, rate = output_of(plan, slots)
        assert np.abs(output - plan.target).max() <= ROUNDING, instance
        assert abs(rate - plan.rate) <= ROUNDING
        assert plan.rate >= otmd.optimal_acceptance(plan.target, law).rate - max(tol, 1e-9), (
            instance
        )


def drafters(vocab_size: int, count: int, spread: float = 1.0, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng([71, seed])
    logits = 2.0 * rng.standard_normal(vocab_size)
    others = spread * rng.standard_normal((count, vocab_size))
    return [otmd.probs_from_logits(row) for row in (logits, *(logits + others))]


def test_more_than_the_preference_rule() -> None:
    """A case in which the pair sweep stays below α*, at three drafters of 5,000 tokens."""
    target, *rows = drafters(5000, 3, spread=0.5)
    law = otmd.Independent(rows)
    proof = otmd.Optimal().certificate(target, law)
    assert proof.gap <= 1e-10
    assert proof.upper_bound - otmd.acceptance_rate(otmd.Preference(), target, law) > 1e-3


def test_mixtures_of_the_drafters_and_ties() -> None:
    for seed in range(2):
        _, *rows = drafters(4, 3, seed=seed)
        for weights in ([0.5, 0.5, 0.0], [0.8, 0.1, 0.1], [0.0, 0.0, 1.0]):
            for law in (otmd.Independent(rows), otmd.Independent([rows[0], *rows])):
                target = np.array(weights) @ rows
                slots = law.position_structure.slots
                assert slots is not None
                plan = plan_overlapping(target, slots, 1e-10)
                assert plan.bound - plan.rate <= 1e-9
                assert deviation(plan, slots) <= ROUNDING


def test_what_would_be_lossy() -> None:
    """Drafts that are taken for those of another slot, and a search that ended early and is not thinned."""
    swapped = []
    unthinned = []
    for seed in range(8):
        target, *rows = drafters(6, 2, seed=seed)
        slots = Slots.overlapping(np.array(rows))
        plan = plan_overlapping(target, slots, 0.3)
        assert deviation(plan, slots) <= ROUNDING
        swapped.append(deviation(replace(plan, row_of_slot=plan.row_of_slot[::-1]), slots))
        unthinned.append(deviation(replace(plan, offered=np.minimum(plan.offered, target)), slots))
    assert max(swapped) > 1e-3
    assert max(unthinned) > 1e-3


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("copies", [(1, 1), (2, 1), (1, 1, 1)])
def test_rates_and_their_slopes(copies: tuple[int, ...], rejects: bool) -> None:
    """Rates against sums over every tuple of classes, and coupling against finite differences of rates."""
    rows = np.repeat(np.arange(len(copies)), copies)
    for seed in range(2):
        rng = np.random.default_rng([73, seed])
        masses = rng.dirichlet(np.ones(4), len(copies))
        drafts = masses[:, :3]
        log_weights = rng.uniform(-4.0, 0.0, 3 + rejects)
        weights = np.exp(log_weights)
        expected = np.zeros(log_weights.size)
        # Class 3 is never chosen.
        for classes in product(range(4), repeat=rows.size):
            able = [g for g in classes if g < 3] + [3] * rejects
            prob = masses[rows, classes].prod()
            np.add.at(expected, able, prob * weights[able] / max(weights[able].sum(), 1e-300))

        def rates_at(
            log_weights: Array, drafts: Array = drafts, never: Array = masses[:, 3]
        ) -> tuple:
            return _choice_rates(log_weights, drafts, never, np.array(copies))[1:]

        rates, coupling = rates_at(log_weights)
        np.testing.assert_allclose(rates, expected, atol=1e-13)
        for g, by in enumerate(1e-4 * np.eye(log_weights.size)):
            slope = (rates_at(log_weights - by)[0] - rates_at(log_weights + by)[0]) / 2e-4
            others = np.arange(log_weights.size) != g
            np.testing.assert_allclose(coupling[g, others], slope[others], atol=1e-8)
