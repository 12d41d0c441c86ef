"""Places of tokens for two drafts without replacement: against every pair, and against sums one by one."""

from __future__ import annotations

from dataclasses import dataclass

import naive
import numpy as np
import pytest
from strategies import Array, unit

from otmd.choice.pair_classes import meetings, node_terms
from otmd.choice.pair_places import SUMS, TERMS, locate_pairs, pair_values, sum_places
from otmd.choice.pair_rounds import clocks_of_classes, masses_of_classes
from otmd.choice.weighted_choice import pair_rates

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
    def lowest(self) -> int:
        return 0 if self.inner else 1

    def sums(self, terms: Array) -> Array:
        sums = np.zeros((NODES.size - 1, SUMS))
        target, light = self.draft * self.ratio, self.light.astype(np.int32)
        own = target, self.draft, self.draft, light
        sum_places(*own, NODES, terms, self.lowest, sums)
        return sums

    def places(self, terms: Array) -> tuple[Array, Array]:
        lower, share = np.empty(self.light.size, np.int64), np.empty(self.light.size)
        own = self.draft[self.light], self.ratio[self.light]
        locate_pairs(*own, terms, self.lowest, lower, share)
        return lower, share

    def classes(self) -> Classes:
        """The classes of tokens that are placed by their ratios."""
        first = self.draft[self.heavy]
        heavy = first, first / (1.0 - first), first * self.ratio[self.heavy], self.able
        inert = self.draft[-1], self.draft[-1] ** 2 / (1.0 - self.draft[-1])
        masses = masses_of_classes(self.sums(by_ratio()), by_ratio(), heavy, inert)[:4]
        able = np.concatenate([[False, True, True, True], self.able])
        return Classes(able, self.inner, masses)

    def naive(self, terms: Array, classes: Classes) -> tuple[list, list, list, float]:
        """Each token's class and share, the classes' weights, and the rejection's."""
        lower, share = self.places(terms)
        weights, rejection = classes.clocks(self.log_weights)
        single = (NODES.size + np.arange(self.heavy.size)).tolist()
        # The inert token is of the first class, whose clock never rings.
        every, shares = [*single, *lower.tolist(), 0], [1.0] * len(single) + share.tolist()
        return every, [*shares, 1.0], [*weights.tolist(), 0.0], rejection


@dataclass(frozen=True)
class Classes:
    """Nodes and heavy tokens, which of them may be chosen, and whether both drafts may be rejected."""

    able: Array
    rejects: bool
    masses: tuple[Array, Array, Array, Array]

    def clocks(self, log_weights: Array) -> tuple[Array, float]:
        return clocks_of_classes(log_weights, NODES, self.able, self.rejects)

    def rates(self, log_weights: Array) -> tuple[Array, Array]:
        size = int(np.count_nonzero(self.able))
        among, alone = np.empty((size, size)), np.empty(size)
        idle = meetings(*self.masses, self.able, among, alone)
        rates, coupling = np.empty(log_weights.size), np.empty((log_weights.size,) * 2)
        met = among, alone, idle, self.rejects
        pair_rates(np.exp(log_weights), *met, rates, coupling)
        return rates, coupling

    def terms(self, log_weights: Array) -> Array:
        terms = np.zeros((NODES.size, TERMS))
        node_terms(*self.clocks(log_weights), *self.masses[:2], terms)
        return terms


def by_ratio() -> Array:
    terms = np.zeros((NODES.size, 5))
    terms[:, 0] = NODES
    return terms


@pytest.mark.parametrize("seed", range(24))
def test_rates_and_values_are_those_of_every_pair(seed: int) -> None:
    pairs = Pairs.random(seed)
    law = naive.without_replacement(pairs.draft.tolist(), 2)
    classes = pairs.classes()
    placed = pairs.naive(by_ratio(), classes)
    rates, _ = classes.rates(pairs.log_weights)
    wanted = np.array(naive.race_choice_rates(law, *placed), float)
    kept = np.append(classes.able, [False, pairs.inner])
    np.testing.assert_allclose(rates, wanted[kept], rtol=1e-11)
    terms, (lower, share) = classes.terms(pairs.log_weights), pairs.places(by_ratio())
    values = np.empty(lower.size)
    pair_values(pairs.draft[pairs.light], lower, share, terms, values)
    tokens = np.array(naive.token_rates(law, *placed), float)
    np.testing.assert_allclose(values, tokens[pairs.light], rtol=1e-11, atol=1e-300)
    assert rates.sum() <= 1.0 + 1e-12


@pytest.mark.parametrize("seed", range(24))
def test_coupling_is_the_derivative(seed: int) -> None:
    pairs = Pairs.random(seed)
    classes, step = pairs.classes(), 1e-5
    _, coupling = classes.rates(pairs.log_weights)
    np.testing.assert_allclose(coupling, coupling.T, rtol=1e-12)
    for g, way in enumerate(step * np.eye(pairs.log_weights.size)):
        ends = [classes.rates(pairs.log_weights + sign * way)[0] for sign in (1.0, -1.0)]
        slope = (ends[1] - ends[0]) / (2.0 * step)
        slope[g] = 0.0
        np.testing.assert_allclose(coupling[g], slope, atol=1e-9)


@pytest.mark.parametrize("seed", range(24))
def test_tokens_are_placed_where_they_get_what_they_want(seed: int) -> None:
    """After weights were chosen: whoever lies between the nodes gets its p, others all there is."""
    pairs = Pairs.random(seed)
    # Ascending weights, so that higher places are worth more.
    pairs.log_weights[:3] = np.sort(pairs.log_weights[:3])
    terms = pairs.classes().terms(pairs.log_weights)
    lower, share = pairs.places(terms)
    values = np.empty(lower.size)
    own = pairs.draft[pairs.light]
    pair_values(own, lower, share, terms, values)
    place = NODES[lower + 1] - share * (NODES[lower + 1] - NODES[lower])
    highest, lowest = place == NODES[-1], place == NODES[pairs.lowest]
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
    terms = pairs.classes().terms(pairs.log_weights)
    lower, share = pairs.places(terms)
    wanted = np.zeros((NODES.size - 1, SUMS - 2))
    for y, g, s in zip(pairs.light, lower, share, strict=True):
        q = pairs.draft[y]
        e = q * q / (1.0 - q)
        wanted[g] += [q, q * s, e, e * s, e * s * s]
    np.testing.assert_allclose(pairs.sums(terms)[:, :5], wanted, rtol=1e-12, atol=1e-300)
