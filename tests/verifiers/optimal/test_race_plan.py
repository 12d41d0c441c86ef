"""The rates of a race's classes against sums over every draft tuple."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product

import choice_twins
import numpy as np
import pytest
import reference
from race_plans import tail_at
from strategies import Array, unit

import otmd
from otmd.laws.race.quadrature import HEAVY, POWERS, latest_win, win_times
from otmd.verifiers.optimal.choice_plan import Quadrature
from otmd.verifiers.optimal.race_pair import HEAVY_PAIR, PairRace, PairRates
from otmd.verifiers.optimal.race_rates import ClassRates, TimedRace, TimedRates

ROUNDING = 1e-13
NODES = np.array([0.0, 0.7, 1.5])


def at_times(rates: Array, times: Array, steps: Array, n: int, silent: Array) -> float:
    """E[Π ℓ; the n-th arrival is at one of these times], as a sum over every set of tokens."""
    start = [1.0] + [0.0] * (n - 1), [0.0] * n
    ended = [
        choice_twins.arrivals(rates.tolist(), silent.tolist(), t, *start)[1][-1] for t in times
    ]
    return float(steps @ ended)


def ends_of(silent: Array) -> list[tuple[Array, Array]]:
    """ℓ with each token's own set to 1, and to 0: the expectation is linear in it."""
    tokens = np.eye(silent.size, dtype=bool)
    return [(np.where(own, 1.0, silent), np.where(own, 0.0, silent)) for own in tokens]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("blocked", [0.0, 0.8])
def test_every_split_into_heavy_tokens_and_a_tail(n: int, blocked: float) -> None:
    """The race at single times agrees with the twin, which multiplies the tail's tokens one by one as well.

    q·t stays below 1/5. Nearer to 1/2 the powers that are left out could be seen, but not in a whole race.
    """
    for number, split in enumerate(product((False, True), repeat=5)):
        rng = np.random.default_rng([43, n, number])
        heavy = np.array(split)
        rates = rng.uniform(0.0, 0.2, 5) * np.where(heavy, 20.0, 1.0)
        nodes = np.vstack([rng.random((2, 3)), rng.integers(0, 2, (2, 3)).astype(float)])
        places = rng.uniform(0.0, 1.5, (~heavy).sum())
        tail = tail_at(places, rates[~heavy], NODES, np.zeros(POWERS), n)
        silent = rng.random((4, 5))
        above = nodes[:, tail.lower + 1]
        silent[:, ~heavy] = above + tail.share * (nodes[:, tail.lower] - above)
        times, steps = np.array([0.02, 0.4, 1.0]), rng.random(3)
        race = TimedRace(n, rates[heavy], blocked, Quadrature(times, steps))
        found = race.choice(silent[:, heavy], nodes, tail.moments)
        for j, ells in enumerate(silent):
            expected = partial(at_times, rates, times, steps * np.exp(-blocked * times), n)
            slopes = [expected(one) - expected(zero) for one, zero in ends_of(ells)]
            own = silent[j, ~heavy]
            powers = own ** np.arange(n)[:, None], rates[~heavy] ** np.arange(POWERS)[:, None]
            of_tail = np.einsum("mr,mt,rt->t", found.tail[..., j], *powers)
            assert found.expected[j] == pytest.approx(expected(ells), abs=ROUNDING)
            np.testing.assert_allclose(found.heavy[j], np.array(slopes)[heavy], atol=ROUNDING)
            np.testing.assert_allclose(of_tail, np.array(slopes)[~heavy], atol=ROUNDING)


# ---------------------------------------------------------------- whole races


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
        places = rng.choice([0.0, 0.3, 0.7, 1.1, 1.5], 3)
        tail = tail_at(places, rates[4:], NODES, np.zeros(POWERS), n)
        able = rng.random(heavy.size) < 0.8
        able_nodes = np.array([False, True, seed % 4 > 0 or pairs])
        rejects = seed % 2 == 0
        if not able.any():
            able[0] = True
        known = tail, able_nodes, able, rejects
        own = PairRates(*known, race) if isinstance(race, PairRace) else TimedRates(*known, race)
        law = {tokens: mass for tokens, mass in law.items() if not gone or 0 not in tokens}
        classes = [0] * gone + (3 + np.arange(heavy.size)).tolist() + tail.lower.tolist()
        count = int(able_nodes.sum() + able.sum()) + rejects
        return cls(law, own, classes, [1.0] * 4 + tail.share.tolist(), rng.uniform(-6, 0, count))

    def clocks(self) -> tuple[list[float], float]:
        weights = self.balance.weights(self.log_weights)
        return [*weights.nodes.tolist(), *weights.heavy.tolist()], weights.rejection


@pytest.mark.parametrize(("n", "pairs"), [(2, True), (2, False), (3, False), (4, False)])
@pytest.mark.parametrize("seed", range(12))
def test_rates_are_those_of_every_tuple(n: int, pairs: bool, seed: int) -> None:
    race = Race.random(n, seed, pairs)
    weights, rejection = race.clocks()
    wanted = choice_twins.race_choice_rates(race.law, race.classes, race.shares, weights, rejection)
    able = np.concatenate([race.balance.able_nodes, race.balance.able_heavy])
    rates, coupling = race.balance(race.log_weights)
    np.testing.assert_allclose(
        rates, np.array(wanted, float)[np.append(able, race.balance.rejects)], rtol=1e-11
    )
    np.testing.assert_allclose(coupling, coupling.T, rtol=1e-12)
    assert (coupling >= 0).all()
    assert (np.diag(coupling) == 0).all()
    tail = race.balance.tail
    values = tail.moved(race.balance.node_values(race.log_weights))[1]
    tokens = [0.0] * 7
    for drafts, mass in race.law.items():
        located = [race.classes[y] for y in drafts], [race.shares[y] for y in drafts]
        chances = choice_twins.clock_chances(*located, [*weights, 0.0], rejection)
        for y, chance in zip(drafts, chances, strict=True):
            tokens[y] += mass * chance
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


@pytest.mark.parametrize("n", [2, 3, 4])
def test_expectations_are_those_of_every_tuple(n: int) -> None:
    for seed in range(12):
        race = Race.random(n, seed)
        (weights, _), times = race.clocks(), np.array([0.0, 0.3, 5.0, 1e4])
        assert isinstance(race.balance, TimedRates)
        clocks = race.balance.weights(race.log_weights)
        silent = (np.exp(-np.outer(times, own)) for own in (clocks.heavy, clocks.nodes))
        found = race.balance.race.choice(*silent, race.balance.tail.moments)
        for j, s in enumerate(times):
            rings = np.exp(-s * np.array([*weights, 0.0]))
            silent = [
                share * rings[g] + (1.0 - share) * rings[g + 1]
                for g, share in zip(race.classes, race.shares, strict=True)
            ]
            wanted = float(choice_twins.race_product(race.law, silent))
            assert found.expected[j] == pytest.approx(wanted, abs=ROUNDING), (seed, s)
            slopes = np.array(choice_twins.race_slopes(race.law, silent), float)
            slopes = slopes[4 - race.balance.able_heavy.size : 4]
            np.testing.assert_allclose(found.heavy[j], slopes, atol=ROUNDING, err_msg=str(seed))


def test_a_search_that_is_cut_short_is_lossless_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(6, 0.5), size=2)
    law, rule = otmd.WithoutReplacement(q, 3), otmd.Optimal()
    assert rule.certificate(p, law).status.startswith("optimal")
    monkeypatch.setattr("otmd.verifiers.optimal.race_plan._MOST_WORK", 0)
    assert "more than the tolerance" in rule.certificate(p, law).status
    np.testing.assert_allclose(rule.output_distribution(p, law), p, atol=1e-12)
