"""Merging tuples with the same tokens against Python's sets and NumPy's sort of rows."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from otmd.optimum.minimum_cut import draft_sets

KINDS = {
    "few tokens": (5, 4, 400),
    "ids whose products would overflow": (10**6, 4, 200),
    "more digits than an integer holds": (40, 30, 50),
    "one token": (1, 90, 3),
    "one draft": (50, 1, 100),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sets_are_merged_in_the_order_of_their_tokens(kind):
    largest, length, count = KINDS[kind]
    rng = np.random.default_rng(0)
    ids = rng.integers(largest, size=7) if largest >= 10**6 else np.arange(largest)
    tuples = rng.choice(ids, size=(count, length))
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
    assert supply.size == len(expected)


def test_sets_kept_apart_keep_their_place():
    starts, tokens, supply = draft_sets(np.array([[2, 0], [1, 1], [0, 2]]), np.ones(3) / 3, False)
    assert starts.tolist() == [0, 2, 3, 5]
    assert tokens.tolist() == [0, 2, 1, 0, 2]
    assert supply.size == 3
