"""A race's tail in full use: lossless, optimal, and rehearsed by few tokens."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from strategies import Array, unit

import otmd
from otmd.drafts.exponential_race import POWERS
from otmd.kernels.pair_cells import LARGEST
from otmd.transport.optimal import ChoicePlan, pair_plan, pair_position, race_side
from otmd.transport.optimal.pair_position import HEAVIEST, PairPosition
from otmd.transport.optimal.pair_search import search
from otmd.transport.optimal.pair_tokens import tokens_of_side
from otmd.transport.optimal.race_places import rehearsal
from otmd.transport.optimal.race_tail import Tail
from otmd.verifiers.optimal import _OptimalRule


def prepared(
    tol: float, target: Array, law: otmd.WithoutReplacement
) -> tuple[otmd.Rule, ChoicePlan]:
    rule = otmd.Optimal(tol).prepare(target, law)
    assert isinstance(rule, _OptimalRule)
    assert rule._plan is not None
    return rule, rule._plan


def assert_lossless(rule: otmd.Rule, plan: ChoicePlan, law: otmd.WithoutReplacement) -> None:
    """What is accepted of each token is held to its own size, however small.

    The rule sees the set of drafts alone, so that the orders of a set are summed.
    """
    output, accepted = np.zeros(law.vocab_size), np.zeros(law.vocab_size)
    every = np.array(list(combinations(np.flatnonzero(law.draft_probs), law.num_drafts)))
    probs = np.zeros(len(every))
    for order in permutations(range(law.num_drafts)):
        probs += law.tuple_prob(every[:, list(order)])
    for tokens, prob in zip(every, probs, strict=True):
        output += prob * rule.conditional_law(tokens)
        accepted[tokens] += prob * plan.chances(tokens)
    np.testing.assert_allclose(output, rule.target, rtol=0, atol=1e-12)
    np.testing.assert_allclose(accepted, plan.accepted, rtol=1e-11, atol=1e-300)


def mixed_tokens(plan: ChoicePlan) -> int:
    """How many tokens lie between two classes."""
    shares = []
    for side, own in ((plan.inner, plan.subset), (plan.outer, ~plan.subset)):
        if side is not None:
            shares.append(side.locate(np.flatnonzero(own))[1])
    return sum(int(((share > 1e-6) & (share < 1 - 1e-6)).sum()) for share in shares)


def rehearse_from(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearse tails that are longer than this."""
    for module in (race_side, pair_plan):
        monkeypatch.setattr(module, "_LONG", size)


@pytest.mark.parametrize("tol", [1e-10, 1e-3, 0.3])
@pytest.mark.parametrize("rehearsed", [False, True])
@pytest.mark.parametrize(("V", "n", "threshold"), [(60, 2, 2.0), (90, 2, 1.0), (60, 3, 2.5)])
def test_a_vocabulary_that_is_all_tail(
    V: int, n: int, threshold: float, rehearsed: bool, tol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_side, "HEAVY", threshold)
    monkeypatch.setattr(pair_position, "HEAVIEST", 0.03)
    monkeypatch.setattr(pair_position, "_MOST_NEAR", 12)
    rehearse_from(0 if rehearsed else V, monkeypatch)
    for seed in range(3 if n == 2 else 1):
        rng = np.random.default_rng([V, n, seed])
        law = otmd.WithoutReplacement(unit(1.0 + 0.1 * rng.random(V)), n)
        target = unit(law.draft_probs * np.exp(0.8 * rng.standard_normal(V)))
        rule, plan = prepared(tol, target, law)
        assert mixed_tokens(plan) > V // 2
        assert_lossless(rule, plan, law)
        gap = plan.bound - plan.rate
        assert -1e-12 <= gap <= max(tol, 1e-6), seed


@pytest.mark.parametrize("tol", [1e-10, 1e-3, 0.3])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_heavy_tokens_with_a_tail(n: int, tol: float) -> None:
    mixed = 0
    for seed in range(6):
        rng = np.random.default_rng([53, n, seed])
        draft = unit(np.append(rng.uniform(0.5, 1.0, 5), 10.0 ** rng.uniform(-7.0, -3.3, 5)))
        target = unit(draft * np.exp(1.5 * rng.standard_normal(10)))
        law = otmd.WithoutReplacement(draft, n)
        rule, plan = prepared(tol, target, law)
        mixed += mixed_tokens(plan)
        assert_lossless(rule, plan, law)
        gap = plan.bound - plan.rate
        assert -1e-12 <= gap <= max(tol, 1e-9), seed
    assert mixed >= 12


@pytest.mark.parametrize("V", [160, 300, 400])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("rehearsed", [False, True])
def test_a_draft_that_is_nearly_uniform(
    V: int, n: int, rehearsed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred tokens, all of the tail and most of them within the cut."""
    rehearse_from(0 if rehearsed else V, monkeypatch)
    for seed in range(12):
        rng = np.random.default_rng([V, n, seed])
        draft = unit(1.0 + 0.1 * rng.random(V))
        spread = [0.3, 0.8, 1.5][seed % 3]
        target = unit(draft * np.exp(spread * rng.standard_normal(V)))
        proof = otmd.Optimal().certificate(target, otmd.WithoutReplacement(draft, n))
        assert -1e-12 <= proof.gap <= 1e-6, seed


@pytest.mark.parametrize("V", [300, 2000, 20_000])
@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0, 3.0])
def test_pairs_from_tails_of_any_shape(V: int, spread: float) -> None:
    """Nearly equal tokens, power laws, a few loud ones, and draws of all sizes; p close to q and far."""
    ranks, rng = np.arange(1.0, V + 1.0), np.random.default_rng([71, V])
    loud = np.where(rng.random(V) < 0.1, 10.0, 1e-3)
    shapes = [rng.random(V) + 9.0, ranks**-0.7, ranks**-1.5, loud * rng.random(V) + 1e-12]
    for number, shape in enumerate([*shapes, rng.dirichlet(np.full(V, 0.3)) + 1e-300]):
        draft = unit(shape)
        for power in (0.5, 1.0):
            noise = np.exp(spread * rng.standard_normal(V))
            target = unit(shape**power * noise * (rng.random(V) < 0.9) + 1e-30)
            proof = otmd.Optimal().certificate(target, otmd.WithoutReplacement(draft, 2))
            assert -1e-11 <= proof.gap <= 1e-6, (number, power)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_tail_is_rehearsed_by_few_tokens_of_the_same_sums(n: int, seed: int) -> None:
    rng = np.random.default_rng([59, n, seed])
    nodes, inert = np.array([0.0, 0.5, 0.9, 2.0]), np.zeros(POWERS)
    rates, place = 10.0 ** rng.uniform(-20, -1, 5000), rng.uniform(0.1, 2.0, 5000)
    tail = Tail.at(place, rates, np.ones(5000), nodes, inert, n)
    wanted = rates * place
    few, each = rehearsal(tail, wanted)
    assert few.rates.size < 1500
    for r in (1, 2):
        assert few.count @ few.rates**r == pytest.approx((rates**r).sum(), rel=1e-12)
        np.testing.assert_allclose(few.moments[:, 0, r], tail.moments[:, 0, r], rtol=1e-12)
    assert few.count @ each == pytest.approx(wanted.sum(), rel=1e-12)
    np.testing.assert_allclose(each, few.rates * few.place, rtol=1e-9)


def some_heavy_and_many_light(seed: int) -> tuple[Array, otmd.WithoutReplacement]:
    """Tokens of which the light ones are in cells, and most of them in runs."""
    rng = np.random.default_rng([97, seed])
    draft = unit(np.append(rng.uniform(0.5, 1.0, 5), 10.0 ** rng.uniform(-7.0, -3.5, 90)))
    target = unit(draft * np.exp([0.3, 1.0, 2.0][seed % 3] * rng.standard_normal(95)))
    return target, otmd.WithoutReplacement(draft, 2)


@pytest.mark.parametrize("tol", [1e-10, 1e-3, 0.3])
def test_runs_of_light_tokens(tol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearse_from(0, monkeypatch)
    monkeypatch.setattr(pair_position, "_MOST_NEAR", 4)
    in_runs, beyond, light = [], [], PairPosition.light

    def watched(self: PairPosition, *args: Any) -> Any:
        found = light(self, *args)
        in_runs.append(sum(int(own.starts[-1] - own.starts[0]) for own in found))
        beyond.append(sum(float(own.beyond[0]) for own in found))
        return found

    monkeypatch.setattr(PairPosition, "light", watched)
    for seed in range(6):
        target, law = some_heavy_and_many_light(seed)
        rule, plan = prepared(tol, target, law)
        assert_lossless(rule, plan, law)
        assert -1e-12 <= plan.bound - plan.rate <= max(tol, 1e-9), seed
    assert len(in_runs) == 6
    assert max(in_runs) > 60
    assert max(beyond) > 0.0


@pytest.mark.parametrize("cut", ["none", "some", "all"])
def test_runs_hold_each_light_token_once(cut: str) -> None:
    """Tokens of p = 0, and larger ones, too; where H* is empty, and where it holds all that are drafted."""
    rng = np.random.default_rng(101)
    draft = unit(
        np.append(10.0 ** rng.uniform(-3.5, -2.0, 60), 10.0 ** rng.uniform(-9.0, -4.0, 6000))
    )
    target = draft * np.exp(rng.standard_normal(draft.size))
    if cut == "none":
        # One token without p is in no best cut: another is always drafted with it.
        target = draft * (1.0 + 1e-3 * rng.random(draft.size))
        target[np.flatnonzero((draft > LARGEST) & (draft < HEAVIEST))[0]] = 0.0
    elif cut == "some":
        target[::7] = 0.0
    else:
        target *= 1e-3
    position = PairPosition.of(
        unit(target) if cut != "all" else target, otmd.WithoutReplacement(draft, 2)
    )
    target, inner = position.target, position.target < position.cut.edge * draft
    assert {"none": not inner.any(), "some": 0 < inner.mean() < 1, "all": inner.all()}[cut]
    sides = [tokens_of_side(position, inner, 1e-10) for inner in (True, False)]
    terms = [side.cells.alone.size > 0 and search(side, side.cells, 1e-12).terms for side in sides]
    known = [own if isinstance(own, np.ndarray) else None for own in terms]
    light = position.light(sides, position.parts_of_runs(sides, known, 1e-5))
    drafted = (target > 0) & ~np.isin(np.arange(target.size), position.heavy)
    for own, side in zip(light, (inner, ~inner), strict=True):
        tokens = np.concatenate([own.alone, own.runs[own.starts[0] : own.starts[-1]]])
        assert np.unique(tokens).size == tokens.size
        assert (drafted & side)[tokens].all()
        sums = draft[tokens].sum() + own.beyond[0]
        assert sums == pytest.approx(draft[drafted & side].sum(), rel=1e-12)


def test_tokens_that_leave_their_runs_are_placed_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rehearse_from(0, monkeypatch)
    # So bad a rehearsal that its runs cannot hold.
    monkeypatch.setattr(pair_plan, "_REHEARSED", (1.0, 1.0))
    monkeypatch.setattr(pair_plan, "_MARGIN", -0.2)
    calls, light = [], PairPosition.light
    monkeypatch.setattr(
        PairPosition, "light", lambda *args: calls.append(len(args)) or light(*args)
    )
    for seed in range(6):
        target, law = some_heavy_and_many_light(seed)
        rule, plan = prepared(1e-10, target, law)
        assert_lossless(rule, plan, law)
        assert -1e-12 <= plan.bound - plan.rate <= 1e-9, seed
    assert len(calls) > 6
