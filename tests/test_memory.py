"""A rate of one position needs little beside p and the law: at most four vectors of V float64."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
from conformance import VARIANTS
from strategies import close_pair

import otmd

V = 151_936
MOST_VECTORS = 4.0
RULES = {
    "with-replacement": (otmd.RecursiveRejection, otmd.KSequential, otmd.TargetOnly),
    "without-replacement": (otmd.RecursiveRejection, otmd.TargetOnly),
    "greedy": (otmd.Preference, otmd.TargetOnly),
    "hub": (otmd.SpecHub, otmd.TargetOnly),
    "top, then without replacement": (otmd.TargetOnly,),
    "top-then": (otmd.TargetOnly,),
}
Pair = tuple[np.ndarray, np.ndarray]


@cache
def pair(noise: float) -> Pair:
    return close_pair(V, noise, 5, scale=3.0)


@cache
def peaked_pair() -> Pair:
    """One token has nearly all mass."""
    rng = np.random.default_rng(5)
    logits = 3.0 * rng.gumbel(size=V)
    return otmd.probs_from_logits(logits), otmd.probs_from_logits(logits + rng.standard_normal(V))


def vectors(run: Callable[[], object]) -> float:
    """Peak of what NumPy, Numba's kernels and Python hold in a second call, in vectors of V float64."""
    run()
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / (8 * V)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", [*RULES, "conditional-poisson"])
@pytest.mark.parametrize("position", [partial(pair, 1.0), peaked_pair])
def test_optimum(position: Callable[[], Pair], name: str, n: int) -> None:
    p, q = position()
    law = VARIANTS[name](q, n)
    # The sums of conditional Poisson drafts hold more.
    most = MOST_VECTORS if name != "conditional-poisson" else 7.0
    assert vectors(lambda: otmd.optimal_acceptance(p, law)) <= most
    best = otmd.optimal_acceptance(p, law)
    proof = 1.0 + p[best.subset].sum() - law.containment(best.subset)
    assert best.rate == pytest.approx(proof, abs=1e-10)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("position", [partial(pair, 1.0), peaked_pair])
def test_rates_of_verifiers(position: Callable[[], Pair], name: str) -> None:
    p, q = position()
    law = VARIANTS[name](q, 4)
    for rule in RULES[name]:
        # Where one token has nearly all mass, RRS scales q so far that the order of most tokens matters.
        scaled = (name, rule) == ("without-replacement", otmd.RecursiveRejection)
        every_order = scaled and position is peaked_pair
        ask = partial(rule().acceptance_bounds, p, law, tol=1e-4)
        assert vectors(ask) <= MOST_VECTORS + 0.5 * every_order, rule.__name__


@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_without_replacement_wherever_the_ratios_lie(noise: float) -> None:
    """All tokens in one group by p/q are as many to look into as there can be."""
    p, q = pair(noise)
    law = otmd.WithoutReplacement(q, 2)
    assert vectors(lambda: otmd.optimal_acceptance(p, law)) <= MOST_VECTORS
    rule = otmd.RecursiveRejection()
    assert vectors(lambda: rule.acceptance_rate(p, law)) <= MOST_VECTORS


def test_kernels_are_counted() -> None:
    """Numba's arrays are seen by tracemalloc, or the tests above would miss them."""
    from otmd.curve.blocks import tokens_of_groups

    group = np.zeros(V, np.int16)
    assert vectors(lambda: tokens_of_groups(group, np.ones(1, dtype=bool))) >= 0.5
