"""The maximum flow from draft sets to tokens: its sets against Python's, its value against SciPy's."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from otmd.optimum.minimum_cut import draft_sets, max_flow, tokens_short_of_demand

KINDS = {
    "few tokens": (5, 4, 400),
    "ids whose products would overflow": (10**6, 4, 200),
    "more digits than an integer holds": (40, 30, 50),
    "one token": (1, 90, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sets_are_merged_in_the_order_of_their_tokens(kind: str) -> None:
    largest, length, count = KINDS[kind]
    rng = np.random.default_rng(0)
    tuples = rng.choice(rng.integers(largest, size=7), size=(count, length))
    probs = rng.dirichlet(np.ones(count))
    expected = defaultdict(float)
    for row, prob in zip(tuples.tolist(), probs.tolist(), strict=True):
        expected[tuple(sorted(set(row)))] += prob
    starts, tokens, supply = draft_sets(tuples, probs)
    merged = [tuple(part.tolist()) for part in np.split(tokens, starts[1:-1])]
    # A token that is not there comes after all that are, as in a sort of padded rows.
    padded = [(*row, *[largest] * (length - len(row))) for row in merged]
    assert padded == sorted(padded)
    assert dict(zip(merged, supply.tolist(), strict=True)) == pytest.approx(expected, abs=1e-15)


def test_sets_kept_apart_keep_their_order() -> None:
    starts, tokens, _ = draft_sets(np.array([[2, 0], [1, 1], [0, 2]]), np.ones(3) / 3, False)
    assert (starts.tolist(), tokens.tolist()) == ([0, 2, 3, 5], [0, 2, 1, 0, 2])


def random_sets(rng: np.random.Generator, num_sets: int, num_tokens: int):
    most = min(4, num_tokens)
    sets = [rng.permutation(num_tokens)[: rng.integers(1, most + 1)] for _ in range(num_sets)]
    return np.concatenate([[0], np.cumsum([s.size for s in sets])]), np.concatenate(sets)


def scipy_value(starts, tokens, supply, demand) -> int:
    num_sets, num_tokens = supply.size, demand.size
    source, sink = num_sets + num_tokens, num_sets + num_tokens + 1
    owners = np.repeat(np.arange(num_sets), np.diff(starts))
    rows = np.concatenate([np.full(num_sets, source), owners, num_sets + np.arange(num_tokens)])
    columns = np.concatenate([np.arange(num_sets), num_sets + tokens, np.full(num_tokens, sink)])
    capacity = np.concatenate([supply, np.full(tokens.size, 10**6), demand]).astype(np.int32)
    graph = csr_array((capacity, (rows, columns)), shape=(sink + 1, sink + 1))
    return maximum_flow(graph, source, sink).flow_value


def flow_and_cut(starts, tokens, supply, demand) -> tuple[np.ndarray, float]:
    """The flow, which keeps to all capacities, and the value of the cut."""
    left, short = supply.copy(), demand.copy()
    flow = max_flow(starts, tokens, left, short)
    owners = np.repeat(np.arange(supply.size), np.diff(starts))
    assert (flow >= 0).all()
    np.testing.assert_allclose(np.bincount(owners, flow, supply.size) + left, supply, atol=1e-15)
    np.testing.assert_allclose(np.bincount(tokens, flow, demand.size) + short, demand, atol=1e-15)
    cut = tokens_short_of_demand(starts, tokens, left, short, flow, 1e-15)
    inside = np.array([cut[tokens[a:b]].all() for a, b in itertools.pairwise(starts)])
    return flow, demand[cut].sum() + supply[~inside].sum()


@pytest.mark.parametrize("seed", range(15))
def test_value_and_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_sets, num_tokens = rng.integers(1, 40), rng.integers(1, 12)
    starts, tokens = random_sets(rng, num_sets, num_tokens)
    supply = rng.integers(0, 20, num_sets).astype(float)
    demand = rng.integers(0, 40, num_tokens).astype(float)
    flow, cut = flow_and_cut(starts, tokens, supply, demand)
    assert flow.sum() == cut == scipy_value(starts, tokens, supply, demand)


def test_ends_on_capacities_that_are_not_representable() -> None:
    rng = np.random.default_rng(0)
    supply, demand = rng.dirichlet(np.full(3000, 0.1)), rng.dirichlet(np.full(60, 0.1))
    flow, cut = flow_and_cut(*random_sets(rng, 3000, 60), supply, demand)
    assert cut == pytest.approx(flow.sum(), abs=1e-12)
