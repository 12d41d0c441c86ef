"""Places of tokens for two drafts without replacement: against every pair, and against sums one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import naive
import numpy as np
import pytest
from strategies import Array, unit

from otmd.kernels.pair_places import (
    LARGEST,
    NEAREST,
    NUM_CELLS,
    OCTAVES,
    PART_BITS,
    REACH,
    SUMS,
    locate_pairs,
    pair_values,
    sum_places,
    tail_cells,
)
from otmd.transport.optimal.pair_balance import PairBalance
from otmd.transport.optimal.pair_search import PairTokens

NODES = np.array([0.0, 0.6, 1.0, 1.5])


@dataclass(frozen=True)
class Pairs:
    """Two drafts of ten tokens: single ones, light ones between the nodes by p/q, and an inert light one."""

    draft: Array
    ratio: Array
    heavy: Array
    able: Array
    inner: bool
    log_weights: Array

    @classmethod
    def random(cls, seed: int) -> Pairs:
        rng = np.random.default_rng([61, seed])
        draft = unit(np.append(rng.uniform(0.5, 1.0, 3), 10.0 ** rng.uniform(-6.0, -1.0, 7)))
        ratio = rng.choice([0.3, 0.6, 0.8, 1.2, 1.4], 10) + 0.1 * rng.random(10)
        ratio[-1] = 0.0
        heavy, able = np.arange(seed % 4), rng.random(seed % 4) < 0.8
        count = 3 + np.count_nonzero(able) + (seed % 2 == 0)
        return cls(draft, ratio, heavy, able, seed % 2 == 0, rng.uniform(-4.0, 0.0, count))

    @property
    def light(self) -> Array:
        return np.arange(self.heavy.size, 9)

    @property
    def tokens(self) -> PairTokens:
        first = self.draft[self.heavy]
        square = self.draft[-1] ** 2 / (1.0 - self.draft[-1])
        target = first * self.ratio[self.heavy]
        lost = float(self.draft[-1]), float(square)
        single = self.heavy, first, first / (1.0 - first), target, self.able
        return PairTokens(self.inner, NODES, lost, *single)

    def sums(self, terms: Array) -> Array:
        sums = np.zeros((NODES.size - 1, SUMS))
        mass = self.draft[self.light]
        sum_places(mass, mass, self.ratio[self.light], NODES, terms, self.tokens.lowest, sums)
        return sums

    def places(self, terms: Array) -> tuple[Array, Array]:
        lower, share = np.empty(self.light.size, np.int64), np.empty(self.light.size)
        own = self.draft[self.light], self.ratio[self.light]
        locate_pairs(*own, terms, self.tokens.lowest, lower, share)
        return lower, share

    def balance(self, terms: Array) -> PairBalance:
        masses, _ = self.tokens.classes(self.sums(terms), terms)
        able = np.concatenate([[False, True, True, True], self.able])
        return PairBalance(masses, masses.meetings(able), NODES, able, self.inner)

    def naive(self, terms: Array, balance: PairBalance) -> tuple[list, list, list, float]:
        """Each token's class and share, the classes' weights, and the rejection's."""
        lower, share = self.places(terms)
        weights, rejection = balance.clocks(self.log_weights)
        single = (NODES.size + np.arange(self.heavy.size)).tolist()
        # The inert token is of the first class, whose clock never rings.
        classes, shares = [*single, *lower.tolist(), 0], [1.0] * len(single) + share.tolist()
        return classes, [*shares, 1.0], [*weights.tolist(), 0.0], rejection


def by_ratio() -> Array:
    terms = np.zeros((NODES.size, 5))
    terms[:, 0] = NODES
    return terms


@pytest.mark.parametrize("seed", range(24))
def test_rates_and_values_are_those_of_every_pair(seed: int) -> None:
    pairs = Pairs.random(seed)
    law = naive.without_replacement(pairs.draft.tolist(), 2)
    balance = pairs.balance(by_ratio())
    placed = pairs.naive(by_ratio(), balance)
    choice = balance(pairs.log_weights)
    wanted = np.array(naive.race_choice_rates(law, *placed), float)
    kept = np.append(balance.able, [False, pairs.inner])
    np.testing.assert_allclose(choice.rates, wanted[kept], rtol=1e-11)
    terms, (lower, share) = balance.terms(pairs.log_weights), pairs.places(by_ratio())
    values = np.empty(lower.size)
    pair_values(pairs.draft[pairs.light], lower, share, terms, values)
    tokens = np.array(naive.token_rates(law, *placed), float)
    np.testing.assert_allclose(values, tokens[pairs.light], rtol=1e-11, atol=1e-300)
    assert choice.rates.sum() <= 1.0 + 1e-12


@pytest.mark.parametrize("seed", range(24))
def test_coupling_is_the_derivative(seed: int) -> None:
    pairs = Pairs.random(seed)
    balance = pairs.balance(by_ratio())
    choice, step = balance(pairs.log_weights), 1e-5
    np.testing.assert_allclose(choice.coupling, choice.coupling.T, rtol=1e-12)
    for g, way in enumerate(step * np.eye(pairs.log_weights.size)):
        ends = [balance(pairs.log_weights + sign * way).rates for sign in (1.0, -1.0)]
        slope = (ends[1] - ends[0]) / (2.0 * step)
        slope[g] = 0.0
        np.testing.assert_allclose(choice.coupling[g], slope, atol=1e-9)


@pytest.mark.parametrize("seed", range(24))
def test_tokens_are_placed_where_they_get_what_they_want(seed: int) -> None:
    """After weights were chosen: whoever lies between the nodes gets its p, others all there is."""
    pairs = Pairs.random(seed)
    # Ascending weights, so that higher places are worth more.
    pairs.log_weights[:3] = np.sort(pairs.log_weights[:3])
    balance = pairs.balance(by_ratio())
    terms = balance.terms(pairs.log_weights)
    lower, share = pairs.places(terms)
    values = np.empty(lower.size)
    own = pairs.draft[pairs.light]
    pair_values(own, lower, share, terms, values)
    place = NODES[lower + 1] - share * (NODES[lower + 1] - NODES[lower])
    highest, lowest = place == NODES[-1], place == NODES[pairs.tokens.lowest]
    wanted = own * pairs.ratio[pairs.light]
    inside = ~highest & ~lowest
    # Odds of up to a ninth here, of 1/256 in use, to whose fourth power places are off.
    odds = own / (1.0 - own)
    assert (np.abs(values - wanted)[inside] <= (own * (odds**4 + 1e-13))[inside]).all()
    assert (values[highest] <= wanted[highest] * (1.0 + 1e-13)).all()
    assert (values[lowest] >= wanted[lowest] * (1.0 - 1e-13)).all()


@pytest.mark.parametrize("seed", range(12))
def test_sums_are_those_of_the_places(seed: int) -> None:
    pairs = Pairs.random(seed)
    terms = pairs.balance(by_ratio()).terms(pairs.log_weights)
    lower, share = pairs.places(terms)
    wanted = np.zeros((NODES.size - 1, SUMS - 2))
    for y, g, s in zip(pairs.light, lower, share, strict=True):
        q = pairs.draft[y]
        e = q * q / (1.0 - q)
        wanted[g] += [q, q * s, e, e * s, e * s * s]
    np.testing.assert_allclose(pairs.sums(terms)[:, :5], wanted, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("cut", [1e-6, 0.7, 1.0, 1.03])
def test_cells_hold_the_sums_of_tokens_that_are_alike(cut: float) -> None:
    rng = np.random.default_rng([67, int(1e6 * cut)])
    draft = 10.0 ** rng.uniform(-9.0, -1.0, 400)
    ratio = np.exp(rng.choice([3.0, 0.05, 1e-4], 400) * rng.standard_normal(400))
    ratio[:40], ratio[40:44] = cut * ratio[:40] / ratio[:40].mean(), cut
    target = draft * ratio
    target[-20:] = 0.0
    draft[-30:-20] = 0.0
    with np.errstate(divide="ignore"):
        ratio = target / draft
    single = rng.random(400) < 0.1
    cells, inner, outer = np.zeros((NUM_CELLS, OCTAVES, 3)), *np.empty((2, 2, 401))
    inner, outer = tuple(inner), tuple(outer)
    counts, reach = tail_cells(target, draft, ratio, single, cut, cells, inner, outer)
    light = np.flatnonzero(~single & (draft > 0) & (target > 0))
    below, beside = light[ratio[light] < cut], light[ratio[light] >= cut]
    for tokens, count, (mass, own) in ((below, counts[0], inner), (beside, counts[1], outer)):
        assert mass[:count].tolist() == draft[tokens].tolist()
        assert own[:count].tolist() == ratio[tokens].tolist()
    places = ratio + 2.0 * draft / (1.0 - draft)
    assert reach[1] == pytest.approx(places[light].max(), rel=1e-15)
    assert reach[0] == pytest.approx(places[below].max(initial=0.0), rel=1e-15)
    alike: dict[object, Array] = defaultdict(lambda: np.zeros(3))
    for y in light:
        q = draft[y]
        key = naive.pair_cell(ratio[y], q, cut, (LARGEST, OCTAVES), 2**PART_BITS, NEAREST)
        assert 2.0**-REACH < ratio[y] < 2.0**REACH
        alike[key] += [q, target[y], q * q / (1.0 - q)]
    used = cells[1:][cells[1:, :, 0] > 0]
    wanted = np.array(sorted(map(tuple, alike.values())))
    np.testing.assert_allclose(np.array(sorted(map(tuple, used))), wanted, rtol=1e-12)
    idle = np.flatnonzero(~single & (target == 0) & (draft > 0))
    assert cells[0, :, 0].sum() == pytest.approx(draft[idle].sum(), rel=1e-12)
