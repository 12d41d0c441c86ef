"""Runs of tokens for two drafts without replacement: against the places of each token."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from strategies import Array, unit

from otmd.choice.pair_cells import (
    CELL_SUMS,
    COLUMNS,
    LARGEST,
    MOST_LARGER,
    NUM_CELLS,
    NUM_PARTS,
    UNDRAFTED,
    bits_of_part,
    part_holding,
    sum_cells,
)
from otmd.choice.pair_near import split_cells
from otmd.choice.pair_places import SUMS, TERMS, locate_pairs, place_beyond, sum_places
from otmd.choice.pair_runs import (
    ALONE,
    BEYOND,
    count_runs,
    fill_runs,
    parts_between,
    sort_tokens,
    sum_runs,
)

SIZE = 5000
CUT = 1.4
# What nodes give, the last but one of H* and the last beside it out of their order.
VALUES = ([0.0, 0.3, 0.9, 1.2, 1.15, 1.41], [0.0, 1.41, 1.5, 1.8, 1.79])


def position() -> tuple[Array, Array, Array]:
    """p, q and which tokens are single: a few heavy ones, and many of all ratios."""
    rng = np.random.default_rng(83)
    draft = unit(10.0 ** rng.uniform(-5.0, -3.0, SIZE) + (np.arange(SIZE) < 9))
    target = draft * np.exp(rng.standard_normal(SIZE))
    target[20:40], draft[40:60], draft[60] = 0.0, 0.0, 1e-310
    draft[61:90] = LARGEST * rng.uniform(0.9, 1.1, 29)
    single = (draft > 2.0 * LARGEST) | (rng.random(SIZE) < 0.02)
    return target, draft, single


def ratios(target: Array, draft: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(draft > 0, target / draft, np.inf)


def terms_of(outer: bool) -> Array:
    rng = np.random.default_rng([89, outer])
    values = VALUES[outer]
    terms = np.zeros((len(values), TERMS))
    terms[:, 0] = values
    terms[:, 1:] = rng.uniform(0.2, 0.6, (len(values), TERMS - 1))
    return terms


def ends_of(outer: bool) -> tuple[float, float]:
    return (1.02 * CUT, np.inf) if outer else (0.0, 0.98 * CUT)


def sorted_tokens() -> tuple[list[Array], list[Array], list[Array], Array]:
    """For each side the tokens of its runs, where these begin, who stands alone; and what is beyond."""
    target, draft, single = position()
    cells = np.zeros((NUM_CELLS, COLUMNS))
    group, larger = np.empty(SIZE, np.int16), np.empty(MOST_LARGER + 1, np.int32)
    cell = np.empty(SIZE, np.int16)
    larger = larger[: sum_cells(target, draft, group, cell, cells, larger)]
    cell[single] = UNDRAFTED
    split_cells(target, draft, np.arange(SIZE, dtype=np.int32), single, CUT, cells)
    runs = np.full(NUM_PARTS, ALONE, np.int16)
    for outer in (False, True):
        fill_runs(parts_between(terms_of(outer), int(outer), ends_of(outer), 1e-3), runs)
    counts, beyond = np.zeros((2, 6), np.int64), np.zeros((2, CELL_SUMS))
    count_runs(cells, CUT, runs, counts, beyond)
    alone = larger[~single[larger]]
    counts[:, -1] += [(target[alone] < CUT * draft[alone]).sum(), 0]
    counts[1, -1] += alone.size - (target[alone] < CUT * draft[alone]).sum()
    ends = counts.cumsum().reshape(counts.shape)
    starts, tokens = ends - counts, np.full(SIZE + 1, -1, np.int32)
    sort_tokens(target, draft, cell, CUT, runs, starts, tokens)
    singly = [tokens[starts[k, -1] : ends[k, -1]] for k in (0, 1)]
    return [tokens, tokens], [starts[0], starts[1, :5]], singly, beyond


def test_every_light_token_is_in_one_place() -> None:
    target, draft, single = position()
    tokens, starts, alone, beyond = sorted_tokens()
    own = [np.concatenate([tokens[k][starts[k][0] : starts[k][-1]], alone[k]]) for k in (0, 1)]
    ratio = ratios(target, draft)
    light = ~single & (ratio > 0) & (ratio < np.inf)
    assert sorted(own[0]) == np.flatnonzero(light & (ratio < CUT)).tolist()
    left = np.setdiff1d(np.flatnonzero(light & (ratio >= CUT)), own[1])
    assert np.isin(own[1], np.flatnonzero(light & (ratio >= CUT))).all()
    assert np.unique(own[1]).size == own[1].size
    q, p = draft[left], target[left]
    np.testing.assert_allclose(beyond, [np.zeros(3), [q.sum(), p.sum(), (q * q / (1 - q)).sum()]])
    assert left.size > 500
    assert all(run.size < 0.5 * SIZE for run in alone)
    assert alone[0].size > 29


@pytest.mark.parametrize("outer", [False, True])
def test_runs_lie_where_their_tokens_are_placed(outer: bool) -> None:
    target, draft, single = position()
    tokens, starts, alone, beyond = (own[int(outer)] for own in sorted_tokens())
    terms, lowest, nodes = terms_of(outer), int(outer), np.array(VALUES[outer])
    for g, (low, high) in enumerate(pairwise(starts)):
        own = tokens[low:high]
        lower, share = np.empty(own.size, np.int64), np.empty(own.size)
        locate_pairs(draft[own], target[own] / draft[own], terms, lowest, lower, share)
        assert (lower == g).all()
        assert ((share > 0.0) & (share < 1.0)).all()
    sums = np.zeros((nodes.size - 1, SUMS))
    short, excess = sum_places(target, draft, draft, alone, nodes, terms, lowest, sums)
    missing, spare = sum_runs(target, draft, tokens, starts, terms, sums)
    missing += place_beyond(beyond, terms, sums)
    ratio = ratios(target, draft)
    every = ~single & (ratio > 0) & (ratio < np.inf) & ((ratio >= CUT) == outer)
    wanted, light = np.zeros(sums.shape), np.flatnonzero(every).astype(np.int32)
    least, most = sum_places(target, draft, draft, light, nodes, terms, lowest, wanted)
    np.testing.assert_allclose(sums, wanted, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose([short + missing, excess + spare], [least, most], atol=1e-15)


def test_a_part_is_in_a_run_where_no_node_may_come() -> None:
    terms, edges = terms_of(False), np.empty(2)
    for margin in (0.0, 1e-2):
        parts = parts_between(terms, 0, (0.05, 1.3), margin)
        runs = np.full(NUM_PARTS, ALONE, np.int16)
        fill_runs(parts, runs)
        slope = terms[:, 1] - 2.0 * terms[:, 2]
        ends = np.array([terms[:, 0], terms[:, 0] + LARGEST / (1.0 - LARGEST) * slope])
        least, most = (1.0 - margin) * ends.min(axis=0), (1.0 + margin) * ends.max(axis=0)
        for part in range(part_holding(0.04), part_holding(1.5)):
            edges.view(np.int64)[:] = bits_of_part(part), bits_of_part(part + 1)
            (low, high), g = edges, runs[part]
            clear = low >= 0.05 and high <= 1.3
            inside = [
                h
                for h in range(terms.shape[0] - 1)
                if most[: h + 1].max() <= low and high <= least[h + 1 :].min()
            ]
            assert g in ([*inside, ALONE] if clear else [ALONE])
            # Left out for nothing are only parts that a bound holds or touches.
            bounds = [*least, *most, 0.05, 1.3]
            if clear and inside and not any(low <= bound <= high for bound in bounds):
                assert g == inside[0]
    assert (runs != BEYOND).all()
