"""Maximum flow from sets to tokens against SciPy's, with integer capacities; its cut against its value."""

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from otmd.optimum.minimum_cut import max_flow, tokens_short_of_demand


def _random_sets(rng: np.random.Generator, num_sets: int, num_tokens: int):
    sets = [
        rng.choice(num_tokens, size=rng.integers(1, min(4, num_tokens) + 1), replace=False)
        for _ in range(num_sets)
    ]
    starts = np.concatenate([[0], np.cumsum([s.size for s in sets])])
    return starts, np.concatenate(sets)


def _scipy_value(starts, tokens, supply, demand) -> int:
    num_sets, num_tokens = supply.size, demand.size
    source, sink = num_sets + num_tokens, num_sets + num_tokens + 1
    owners = np.repeat(np.arange(num_sets), np.diff(starts))
    rows = np.concatenate([np.full(num_sets, source), owners, num_sets + np.arange(num_tokens)])
    columns = np.concatenate([np.arange(num_sets), num_sets + tokens, np.full(num_tokens, sink)])
    capacity = np.concatenate([supply, np.full(tokens.size, 10**6), demand]).astype(np.int32)
    graph = csr_array((capacity, (rows, columns)), shape=(sink + 1, sink + 1))
    return maximum_flow(graph, source, sink).flow_value


@pytest.mark.parametrize("seed", range(60))
def test_value_and_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_sets, num_tokens = rng.integers(1, 40), rng.integers(1, 12)
    starts, tokens = _random_sets(rng, num_sets, num_tokens)
    supply = rng.integers(0, 20, num_sets).astype(float)
    demand = rng.integers(0, 40, num_tokens).astype(float)
    left, short = supply.copy(), demand.copy()
    flow = max_flow(starts, tokens, left, short)
    assert flow.sum() == _scipy_value(starts, tokens, supply, demand)
    assert (flow >= 0).all()
    owners = np.repeat(np.arange(num_sets), np.diff(starts))
    np.testing.assert_array_equal(np.bincount(owners, flow, num_sets) + left, supply)
    np.testing.assert_array_equal(np.bincount(tokens, flow, num_tokens) + short, demand)
    cut = tokens_short_of_demand(starts, tokens, left, short, flow, 1e-15)
    inside = np.array([cut[tokens[a:b]].all() for a, b in itertools.pairwise(starts)])
    assert demand[cut].sum() + supply[~inside].sum() == flow.sum()


def test_ends_on_capacities_that_are_not_representable() -> None:
    rng = np.random.default_rng(0)
    starts, tokens = _random_sets(rng, 3000, 60)
    supply, demand = rng.dirichlet(np.full(3000, 0.1)), rng.dirichlet(np.full(60, 0.1))
    left, short = supply.copy(), demand.copy()
    flow = max_flow(starts, tokens, left, short)
    cut = tokens_short_of_demand(starts, tokens, left, short, flow, 1e-15)
    inside = np.array([cut[tokens[a:b]].all() for a, b in itertools.pairwise(starts)])
    assert demand[cut].sum() + supply[~inside].sum() == pytest.approx(flow.sum(), abs=1e-12)
