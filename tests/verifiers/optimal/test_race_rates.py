"""The rates of a race's classes, and the locations of tail tokens, against sums over every draft tuple."""

from __future__ import annotations

from dataclasses import dataclass

import choice_twins
import numpy as np
import pytest
import reference
from strategies import Array, unit

from otmd.laws.race.quadrature import HEAVY, POWERS, latest_win, win_times
from otmd.verifiers.optimal.choice_plan import Quadrature
from otmd.verifiers.optimal.race_pair import HEAVY_PAIR, PairRace, PairRates
from otmd.verifiers.optimal.race_rates import ClassRates, TimedRace, TimedRates
from otmd.verifiers.optimal.race_tail import Tail, move_tokens, ratio_values

ROUNDING = 1e-13
NODES = np.array([0.0, 0.7, 1.5])


def tail_at(ratios: Array, rates: Array, nodes: Array, inert: Array, n: int) -> Tail:
    """A tail of tokens with these p/q."""
    tail = Tail.at_ratios(rates, rates * ratios, ratios, nodes, 0, inert)
    return tail.moved(ratio_values(nodes, n, 1.0))[0]


@dataclass(frozen=True)
class Race:
    """Four heavy tokens, three tail tokens, and their clocks; some may be barred or never chosen."""

    law: reference.Law
    balance: ClassRates
    classes: list[int]
    shares: list[float]
    log_weights: Array

    @classmethod
    def random(cls, n: int, seed: int, pairs: bool = False) -> Race:
        """A random race; ``pairs`` is for the closed form of two drafts."""
        rng = np.random.default_rng([47, n, seed])
        q = unit(np.append(rng.uniform(0.5, 1.0, 4), 10.0 ** rng.uniform(-8.0, -3.0, 3)))
        law = reference.without_replacement(q.tolist(), n)
        latest = 1.0 if pairs else latest_win(q, n)
        rates = q * latest
        assert (rates[4:] <= (HEAVY_PAIR if pairs else HEAVY)).all()
        heavy = np.arange(1 if seed % 3 == 0 and n < 4 else 0, 4)
        gone = heavy[0]
        blocked = float(rates[:gone].sum())
        race: TimedRace | PairRace = PairRace(rates[heavy], rates[heavy] / (1.0 - rates[heavy]))
        if not pairs:
            times = Quadrature(*win_times(1.0, latest, n, n))
            race = TimedRace(n, rates[heavy], blocked, times)
        ratios = rng.choice([0.0, 0.3, 0.7, 1.1, 1.5], 3)
        tail = tail_at(ratios, rates[4:], NODES, np.zeros(POWERS), n)
        able = rng.random(heavy.size) < 0.8
        able_nodes = np.array([False, True, seed % 4 > 0 or pairs])
        rejects = seed % 2 == 0
        if not able.any():
            able[0] = True
        shared = tail, able_nodes, able, rejects
        balance = PairRates(*shared, race) if isinstance(race, PairRace) else TimedRates(*shared, race)
        law = {tokens: mass for tokens, mass in law.items() if not gone or 0 not in tokens}
        classes = [0] * gone + (3 + np.arange(heavy.size)).tolist() + tail.lower.tolist()
        count = int(able_nodes.sum() + able.sum()) + rejects
        return cls(law, balance, classes, [1.0] * 4 + tail.share.tolist(), rng.uniform(-6, 0, count))

    def clocks(self) -> tuple[list[float], float]:
        weights = self.balance.weights(self.log_weights)
        return [*weights.nodes.tolist(), *weights.heavy.tolist()], weights.rejection


@pytest.mark.parametrize(("n", "pairs"), [(2, True), (2, False), (3, False), (4, False)])
@pytest.mark.parametrize("seed", range(4))
def test_rates_are_those_of_every_tuple(n: int, pairs: bool, seed: int) -> None:
    race = Race.random(n, seed, pairs)
    weights, rejection = race.clocks()
    expected = choice_twins.race_choice_rates(race.law, race.classes, race.shares, weights, rejection)
    able = np.concatenate([race.balance.able_nodes, race.balance.able_heavy])
    rates, coupling = race.balance(race.log_weights)
    np.testing.assert_allclose(
        rates, np.array(expected, float)[np.append(able, race.balance.rejects)], rtol=1e-11
    )
    np.testing.assert_allclose(coupling, coupling.T, rtol=1e-12)
    assert (coupling >= 0).all()
    assert (np.diag(coupling) == 0).all()
    tail = race.balance.tail
    values = tail.moved(race.balance.node_values(race.log_weights))[1]
    tokens = [0.0] * 7
    for drafts, mass in race.law.items():
        located = [race.classes[y] for y in drafts], [race.shares[y] for y in drafts]
        probs = choice_twins.clock_choice_probs(*located, [*weights, 0.0], rejection)
        for y, prob in zip(drafts, probs, strict=True):
            tokens[y] += mass * prob
    np.testing.assert_allclose(values, np.array(tokens[4:], float), rtol=1e-11, atol=1e-300)


def test_how_the_rates_of_two_drafts_depend_on_the_weights() -> None:
    """The couplings of the closed form agree with finite differences of the rates."""
    step = 1e-3
    for seed in range(12):
        race = Race.random(2, seed, pairs=True)
        coupling = race.balance(race.log_weights)[1]
        for g in range(race.log_weights.size):
            by = step * np.eye(race.log_weights.size)[g]
            values = [race.balance(race.log_weights + k * by)[0] for k in (-2, -1, 1, 2)]
            slope = -(values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
            others = np.arange(by.size) != g
            np.testing.assert_allclose(coupling[g, others], slope[others], atol=1e-10)


# ---------------------------------------------------------------- locations


MORE_NODES = np.array([0.0, 0.5, 0.9, 2.0])


def polynomial(terms: Array, share: float, rate: float) -> float:
    """Σ terms[a, r] share^a rate^r, term by term."""
    return sum(terms[a, r] * share**a * rate**r for a, r in np.ndindex(*terms.shape))


def test_tokens_are_located_between_their_nodes() -> None:
    ratios = np.array([0.0, 0.1, 0.5, 0.7, 0.9, 1.9999, 2.0, 2.5])
    rates, inert = np.full(8, 0.01), np.zeros(POWERS)
    tail = Tail.at_ratios(rates, ratios * rates / 3.0, ratios, MORE_NODES, 0, inert)
    assert tail.lower.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    ratio = tail.share * MORE_NODES[tail.lower] + (1.0 - tail.share) * MORE_NODES[tail.lower + 1]
    np.testing.assert_allclose(ratio, np.minimum(ratios, 2.0), atol=1e-15)


@pytest.mark.parametrize("lowest", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_placed_where_they_are_chosen_with_their_p(seed: int, lowest: int) -> None:
    """Each token is placed where it is chosen with its p; values rise along the nodes and with the share."""
    rng = np.random.default_rng([61, seed])
    rates = 10.0 ** rng.uniform(-12, -1, 60)
    ratios = rng.uniform(MORE_NODES[lowest], 2.0, 60)
    start = Tail.at_ratios(rates, rates * ratios, ratios, MORE_NODES, lowest, np.zeros(POWERS))
    lower = start.lower
    share = start.share
    terms = np.zeros((4, 3, POWERS))
    terms[:, 0, 1] = [0.0, 0.6, 1.0, 1.8]
    terms[1:, 1, 2] = rng.uniform(-0.5, 0.5, 3)
    below = terms[:-1]
    above = terms[1:]
    target = rates * rng.uniform(0.0, 2.2, 60)
    moments = np.full((3, 5, POWERS), 0.25)
    by_node = np.zeros(4)
    values = np.empty(60)
    tokens = rates, target, np.stack([below, above], axis=-1), MORE_NODES, lowest, 1e-3
    move_tokens(*tokens, lower, share, values, moments, by_node)
    moved = lower.copy(), share.copy()
    move_tokens(*tokens, *moved, values, np.zeros((3, 5, POWERS)), np.zeros(4))
    at_end = (lower == 2) & (share == 0.0)
    at_lowest = (lower == 1) & (share == 1.0) & (lowest == 1)
    assert at_end.any()
    assert at_lowest.any() == (lowest == 1)
    assert (target[at_end] >= values[at_end] * (1.0 - 1e-9)).all()
    assert (target[at_lowest] <= values[at_lowest] * (1.0 + 1e-9)).all()
    inside = ~at_end & ~at_lowest
    np.testing.assert_allclose(values[inside], target[inside], rtol=1e-7)
    for g, a, r in np.ndindex(*moments.shape):
        members = np.flatnonzero(lower == g)
        total = 0.25 + sum(share[members] ** a * rates[members] ** r)
        assert moments[g, a, r] == pytest.approx(total, rel=ROUNDING), (g, a, r)
    mass = np.zeros(4)
    for g, s, rate, mine in zip(lower, share, rates, target, strict=True):
        parts = s * polynomial(below[g], s, rate), (1.0 - s) * polynomial(above[g], s, rate)
        mass[g : g + 2] += mine * np.array(parts) / sum(parts)
    np.testing.assert_allclose(by_node, mass, rtol=1e-11)
