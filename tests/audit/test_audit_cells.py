"""Cells of tokens: a partition known before looking, against loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import pairs

from otmd.audit.counts import (
    IMPOSSIBLE,
    exact_p_value,
    make_cells,
    masses_before,
    rare,
    ratio_order,
    token_cells,
)


def naive_cells(p: np.ndarray, q: np.ndarray, number: int) -> list[list[int]]:
    """The tokens of each part of [0, 1), by the middles of their intervals in the order of p/q."""
    tokens = [y for y in range(p.size) if p[y] > 0]
    tokens.sort(key=lambda y: (np.log(p[y]) - np.log(q[y]) if q[y] > 0 else np.inf, y))
    parts: dict[int, list[int]] = {}
    before = 0.0
    for y in tokens:
        parts.setdefault(min(int(number * (before + p[y] / 2)), number - 1), []).append(y)
        before += p[y]
    return [sorted(parts[k]) for k in sorted(parts)]


@given(pair=pairs(), number=st.integers(1, 9))
def test_cells_are_the_twins(pair, number):
    p, q = pair
    cells = make_cells(p, ratio_order(p, q), number)
    found = [np.flatnonzero(cells.labels == k).tolist() for k in range(cells.probs.size)]
    assert found == naive_cells(p, q, number)
    np.testing.assert_allclose(cells.probs, [p[own].sum() for own in found], rtol=1e-12)
    assert ((cells.labels == IMPOSSIBLE) == (p == 0)).all()
    assert (cells.probs > 0).all()


@given(pair=pairs())
def test_places_tile_the_unit_interval_by_ratio(pair):
    p, q = pair
    places = masses_before(p, ratio_order(p, q))
    order = [y for y in np.argsort(places, kind="stable") if p[y] > 0]
    ends = places[order] + p[order]
    np.testing.assert_allclose(places[order[1:]], ends[:-1], atol=1e-12)
    assert places[order[0]] == 0
    assert abs(ends[-1] - 1) < 1e-12


def test_counts_and_pooled_masses():
    p, q = np.array([0.5, 0.0, 0.25, 0.25]), np.array([0.1, 0.3, 0.3, 0.3])
    cells = make_cells(p, ratio_order(p, q), 2)
    assert cells.labels.tolist() == [1, IMPOSSIBLE, 0, 0]
    assert cells.counts(cells.labels[[0, 1, 2, 3, 3]]).tolist() == [3, 1]
    np.testing.assert_allclose(
        cells.counts(cells.labels, np.array([0.1, 0.2, 0.3, 0.4])), [0.7, 0.1]
    )


def test_rare_tokens_are_a_cell_apart():
    p = np.array([0.5, 0.5 - 3e-9, 1e-9, 2e-9, 0.0])
    assert sorted(rare(p, 4e-9)) == [2, 3]
    assert rare(p, 1.5e-9).tolist() == [2]
    assert rare(p, 0.0).size == 0
    cells = token_cells(p, ratio_order(p, np.full(5, 0.2)), 1000)
    assert cells.labels[2] == cells.labels[3]
    assert np.sort(cells.probs)[0] < 1e-8


def test_there_are_no_more_cells_than_samples_can_fill():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5000)), rng.dirichlet(np.ones(5000))
    assert token_cells(p, ratio_order(p, q), 100).probs.size <= 3
    assert 60 <= token_cells(p, ratio_order(p, q), 100_000).probs.size <= 65


def test_positions_with_different_targets_have_one_expected_law():
    """Places at random in the tokens' intervals: uniform for tokens of the targets, not for the drafts."""
    rng, number = np.random.default_rng(1), 3_000
    targets, drafts = rng.dirichlet(np.ones(8), number), rng.dirichlet(np.ones(8), number)

    def p_value(laws: np.ndarray) -> float:
        cells = np.zeros(10, np.int64)
        for p, q, law in zip(targets, drafts, laws, strict=True):
            token = rng.choice(8, p=law)
            place = masses_before(p, ratio_order(p, q))[token] + p[token] * rng.random()
            cells[int(10 * place)] += 1
        return exact_p_value(cells, np.full(10, 0.1), 1e-4, rng=rng)

    assert p_value(targets) > 1e-3
    assert p_value(drafts) < 1e-4
    assert p_value(0.9 * targets + 0.1 * drafts) < 0.05
