"""The optimal plan of independent drafts: its output by enumeration, its rate against α*, and its classes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import reference
from strategies import Array, close_pair, instances, unit

import otmd
from otmd.laws import Slots
from otmd.verifiers.optimal import ChoicePlan, plan_slots, slots_plan
from otmd.verifiers.optimal.choice_plan import Side, clock_quadrature
from otmd.verifiers.optimal.slots_grid import Entries, grid_of, locate
from otmd.verifiers.optimal.slots_tiers import choice_rates, rates_alone

ROUNDING = 1e-12


def output_of(plan: ChoicePlan, slots: Slots) -> tuple[Array, float]:
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


def deviation(plan: ChoicePlan, slots: Slots) -> float:
    return np.abs(output_of(plan, slots)[0] - plan.target).max()


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


def test_small_vocabularies_at_random() -> None:
    """Three drafters with three tokens were once short by up to .05."""
    rng = np.random.default_rng(83)
    for _ in range(10):
        size, count = rng.integers(2, 8), rng.integers(2, 4)
        p, *rows = rng.dirichlet(np.full(size, 0.5), 1 + count)
        for law in (otmd.Independent(rows), otmd.Independent([p, *rows[1:]])):
            assert otmd.Optimal().certificate(p, law).gap <= 1e-9, (p, law)


def test_mixtures_of_the_drafters_and_ties() -> None:
    for seed in range(2):
        _, *rows = drafters(4, 3, seed=seed)
        for weights in ([0.5, 0.5, 0.0], [0.8, 0.1, 0.1], [0.0, 0.0, 1.0]):
            for law in (otmd.Independent(rows), otmd.Independent([rows[0], *rows])):
                target = np.array(weights) @ rows
                slots = law.position_structure.slots
                assert slots is not None
                plan = plan_slots(target, slots, 1e-10)
                assert plan.bound - plan.rate <= 1e-9
                assert deviation(plan, slots) <= ROUNDING


def test_what_would_be_lossy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that are taken for those of another slot, and a search that ended early and is not thinned."""
    # Of a token that is a class of its own, the slot does not matter.
    monkeypatch.setattr(slots_plan, "_FEW", 0)
    monkeypatch.setattr(slots_plan, "_LARGEST", 1)
    swapped = []
    unthinned = []

    def thinned_away(side: Side | None) -> Side | None:
        """The side with every token said to be chosen with no more than its p."""
        if side is None:
            return None
        return replace(side, offered=lambda y: np.minimum(side.offered(y), target[y]))

    for seed in range(8):
        target, *rows = drafters(6, 2, seed=seed)
        slots = Slots.overlapping(np.array(rows))
        # At this tolerance the search for weights ends where it begins.
        plan = plan_slots(target, slots, 100.0)
        assert deviation(plan, slots) <= ROUNDING
        swapped.append(deviation(replace(plan, row_of_slot=plan.row_of_slot[::-1]), slots))
        sides = {"inner": thinned_away(plan.inner), "outer": thinned_away(plan.outer)}
        unthinned.append(deviation(replace(plan, **sides), slots))
    assert max(swapped) > 1e-3
    assert max(unthinned) > 1e-3


def strict_order_output(rows: Array, rng: np.random.Generator) -> Array:
    """The output of a verifier that accepts the draft whose (slot, token) comes first in a random order."""
    target, passed = np.zeros(rows.shape[1]), np.zeros(len(rows))
    pairs = np.argwhere(rows > 0.0)
    for j, y in rng.permutation(pairs):
        before = np.prod(1.0 - passed)
        passed[j] += rows[j, y]
        target[y] += max(before - np.prod(1.0 - passed), 0.0)
    return unit(target)


@pytest.mark.parametrize(("size", "count"), [(3, 2), (5, 3), (40, 2), (200, 3)])
def test_outputs_of_strict_orders(size: int, count: int) -> None:
    """Weights would have to be infinitely far apart; strata of 200 tokens were once short by 1e-5."""
    for seed in range(3):
        rng = np.random.default_rng([79, size, seed])
        laws: list[otmd.DraftLaw] = [otmd.Independent(rng.dirichlet(np.ones(size), count))]
        if size >= 2 * count:
            laws.append(otmd.Stratified(rng.dirichlet(np.ones(size)), count))
        for law in laws:
            slots = law.position_structure.slots
            assert slots is not None
            target = strict_order_output(slots.dense, rng)
            assert otmd.Optimal().certificate(target, law).gap <= 1e-9, (law, seed)


@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_a_target_that_sums_to_less(scale: float) -> None:
    """No draft is accepted for the rest of the target: the bound is 1 + min p(H) - q(H)^n with this p."""
    for instance in instances(30, seed=92):
        p, q, n = scale * np.array(instance.p), np.array(instance.q), instance.num_drafts
        plan = plan_slots(p, Slots.single(q, n), 1e-10)
        value, _ = reference.smallest_best_cut(p.tolist(), q.tolist(), n)
        assert plan.bound == pytest.approx(1 + value, abs=ROUNDING), instance
        assert plan.bound - plan.rate <= 1e-9, instance
        assert (plan.accepted <= p).all()


# ---------------------------------------------------------------- classes


@pytest.mark.parametrize("divisions", [1, 2, 8])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1), (2, 2), (4, 4)])
def test_parts_add_up_to_the_token(rows: int, width: int, divisions: int) -> None:
    """The parts of a token have its σ and its p in all, and each row's share of σ if the rays are fine."""
    rng = np.random.default_rng([rows, width, divisions])
    draft = rng.random((300, width)) * (rng.random((300, width)) < 0.7)
    first_row = rng.integers(rows - width + 1, size=300)
    scale = rng.uniform(0.1, 2.0, rows)
    nodes = np.array([0.0, 0.3, 0.31, 1.0])
    own = np.where(rng.random(300) < 0.1, 0, -1)
    shares = np.zeros((rows, 300))
    for k in range(width):
        shares[first_row + k, np.arange(300)] = draft[:, k] * scale[first_row + k]
    sigma = shares.sum(axis=0)
    target = sigma * rng.random(300)
    grid = grid_of(own, scale, divisions, nodes)
    entries = Entries(target, draft, first_row)
    classes, parts = locate(np.arange(300), entries, grid)
    assert (parts >= 0.0).all()
    np.testing.assert_allclose(parts.sum(axis=1), sigma, atol=1e-14)
    spread = own < 0
    ray, node = np.divmod(classes[spread] - 1, nodes.size)
    np.testing.assert_allclose((parts[spread] * nodes[node]).sum(1), target[spread], atol=1e-14)
    assert (classes[~spread, 0] == 0).all()
    if width == 1 or divisions > 1:
        by_row = np.einsum("tk,rtk->rt", parts[spread], grid.rays[:, ray])
        np.testing.assert_allclose(by_row, shares[:, spread], atol=1e-14)
    assert grid.rays.min() >= 0.0
    np.testing.assert_allclose(grid.rays.sum(axis=0), 1.0)


@pytest.mark.parametrize("n", [2, 8])
def test_a_vocabulary_needs_few_classes(n: int) -> None:
    p, q = close_pair(151_936, 0.7, n)
    plan = plan_slots(p, Slots.single(q, n), 1e-10)
    for side in (plan.inner, plan.outer):
        assert side is not None
        assert 16 < np.count_nonzero(side.weights) <= 64


# ---------------------------------------------------------------- rates


def rates_at(
    log_weights: Array, drafts: Array, never: Array, copies: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """P(chosen) by row and by class, and the coupling."""
    weights = np.exp(log_weights)
    quadrature = clock_quadrature(weights.min(), weights.max() * sum(copies))
    return choice_rates(weights, drafts, never, np.array(copies), *quadrature)


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("spread", [0.0, 4.0, 40.0])
@pytest.mark.parametrize("copies", [(1,), (4,), (2, 1), (1, 1, 1)])
def test_rates_and_their_slopes(copies: tuple[int, ...], spread: float, rejects: bool) -> None:
    """Rates against sums over every tuple of classes, and coupling against finite differences of rates."""
    rows = np.repeat(np.arange(len(copies)), copies)
    for seed in range(2):
        rng = np.random.default_rng([73, seed])
        masses = rng.dirichlet(np.ones(4), len(copies))
        if seed:
            # Rows that share no class.
            masses[:, :3] *= np.arange(3) % len(copies) == np.arange(len(copies))[:, None]
            masses[:, 3] = 1.0 - masses[:, :3].sum(axis=1)
        drafts = masses[:, :3]
        log_weights = rng.uniform(-spread, 0.0, 3 + rejects)
        weights = np.exp(log_weights)
        expected, by_row = np.zeros(log_weights.size), np.zeros(drafts.shape)
        # Class 3 is never chosen.
        for classes in product(range(4), repeat=rows.size):
            able = [g for g in classes if g < 3] + [3] * rejects
            prob = masses[rows, classes].prod() / max(weights[able].sum(), 1e-300)
            np.add.at(expected, able, prob * weights[able])
            for r, g in zip(rows, classes, strict=True):
                by_row[r, g % 3] += prob * weights[g] if g < 3 else 0.0
        of_row, rates, coupling = rates_at(log_weights, drafts, masses[:, 3], copies)
        np.testing.assert_allclose(rates, expected, atol=1e-13)
        np.testing.assert_allclose(of_row, by_row, atol=1e-13)
        np.testing.assert_array_equal(coupling, coupling.T)
        if spread > 4.0:
            continue
        for g, by in enumerate(1e-3 * np.eye(log_weights.size)):
            low2, low, high, high2 = (
                rates_at(log_weights + k * by, drafts, masses[:, 3], copies)[1] for k in (-2, -1, 1, 2)
            )
            slope = -(low2 - 8 * low + 8 * high - high2) / 12e-3
            others = np.arange(log_weights.size) != g
            np.testing.assert_allclose(coupling[g, others], slope[others], atol=1e-10)


def test_a_coarser_quadrature_would_be_noticed() -> None:
    """A control: with every fourth node, the rates are off by a hundred times their tolerance."""
    times, steps = clock_quadrature(1e-3, 1.0)
    assert abs(4 * steps[::4] @ np.exp(-times[::4]) - 1.0) > 1e-11


@pytest.mark.parametrize("copies", [(1,), (4,), (2, 1), (1, 1, 1)])
def test_a_class_alone_in_its_tier(copies: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(copies))
    drafts, below = 0.4 * rng.random((2, len(copies), 5))
    by_row = rates_alone(drafts, below, np.array(copies))
    for g in range(5):
        expected, _, _ = rates_at(np.zeros(1), drafts[:, [g]], below[:, g], copies)
        np.testing.assert_allclose(by_row[:, [g]], expected, atol=1e-14)
