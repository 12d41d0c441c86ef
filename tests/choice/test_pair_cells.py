"""Cells of tokens that are alike for two drafts without replacement: against sums token by token."""

from __future__ import annotations

from collections import defaultdict

import naive
import numpy as np
import pytest
from strategies import Array

from otmd.choice.pair_cells import (
    CLOSE,
    COLUMNS,
    COUNT,
    INERT,
    LARGEST,
    MOST_LARGER,
    NEAREST,
    NUM_CELLS,
    PART_BITS,
    REACH,
    UNDRAFTED,
    sum_cells,
    sum_groups,
    used_cells,
)
from otmd.choice.pair_near import split_cells, tokens_near
from otmd.curve.ratio_groups import FARTHEST_OCTAVE, NUM_GROUPS, group_edges, group_of
from otmd.race.block_sums import ALONE, DRAFT, POWER
from otmd.race.containment import ExponentialRace
from otmd.race.cut import sums_of_groups, sums_of_tokens
from otmd.race.quadrature import RATE_UNIT

SIZE = 400
CUTS = [0.0, 1e-6, 0.7, 1.0, 1.03, 2.0**45]


def masses(cut: float) -> tuple[Array, Array]:
    """p and q of tokens of all sizes, many of them around the cut, and some without the one or the other."""
    rng = np.random.default_rng([67, int(1e6 * cut)])
    draft = 10.0 ** rng.uniform(-9.0, -2.0, SIZE)
    ratio = np.exp(rng.choice([3.0, 0.05, 1e-4], SIZE) * rng.standard_normal(SIZE))
    ratio[:40], ratio[40:44] = (cut or 1.0) * ratio[:40] / ratio[:40].mean(), cut
    ratio[44:52] = 2.0 ** rng.uniform(-60.0, 60.0, 8)
    target = draft * ratio
    target[-20:] = 0.0
    draft[-30:-15] = 0.0
    draft[0], target[0], draft[1], target[1] = 0.6, 0.3, 1e-300, 0.01
    return target, draft


def ratios(target: Array, draft: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(draft > 0, target / draft, np.inf)


def cells_of(target: Array, draft: Array) -> tuple[Array, Array, Array]:
    cells = np.zeros((NUM_CELLS, COLUMNS))
    group, larger = np.empty(draft.size, np.int16), np.empty(MOST_LARGER + 1, np.int32)
    cell = np.empty(draft.size, np.int16)
    count = sum_cells(target, draft, group, cell, cells, larger)
    return cells, group, larger[:count]


@pytest.mark.parametrize("cut", CUTS)
def test_sums_of_groups_are_those_that_the_race_adds_up(cut: float) -> None:
    target, draft = masses(cut)
    cells, group, larger = cells_of(target, draft)
    assert larger.tolist() == np.flatnonzero(draft > LARGEST).tolist()
    race, sums = ExponentialRace(draft, 2), np.zeros((NUM_GROUPS, POWER))
    sum_groups(cells, RATE_UNIT, sums)
    sums_of_tokens(target, draft, larger, group_edges()[:-1], race.scale, sums)
    groups, wanted = np.empty(SIZE, np.int16), np.zeros((NUM_GROUPS, POWER))
    sums_of_groups(target, draft, race.scale, groups, wanted)
    assert group.tolist() == groups.tolist()
    # Of what has no ratio p alone matters: the race makes no cut beyond.
    wanted[-1, DRAFT], wanted[-1, ALONE] = sums[-1, DRAFT], sums[-1, ALONE]
    np.testing.assert_allclose(sums, wanted, rtol=1e-12, atol=0.0)
    assert group.tolist() == [group_of(ratio) for ratio in ratios(target, draft)]


@pytest.mark.parametrize("cut", CUTS)
def test_cells_hold_the_sums_of_tokens_that_are_alike(cut: float) -> None:
    target, draft = masses(cut)
    ratio = ratios(target, draft)
    cells, group, _ = cells_of(target, draft)
    ends = [group_of((1.0 - CLOSE) * cut), group_of((1.0 + CLOSE) * cut)]
    tokens = np.flatnonzero((group >= ends[0] - 3) & (group <= ends[1] + 3)).astype(np.int32)
    single = np.zeros(SIZE, dtype=bool)
    single[tokens[::7]] = (ratio[tokens[::7]] > 0) & (ratio[tokens[::7]] < np.inf)
    split_cells(target, draft, tokens, single, cut, cells)
    drafted = ~single & (draft <= LARGEST) & (ratio < np.inf)
    light = np.flatnonzero(drafted & (ratio > 0))
    alike: dict[object, Array] = defaultdict(lambda: np.zeros(4))
    for y in light:
        q, key = draft[y], naive.pair_cell(ratio[y], cut, 2**PART_BITS, NEAREST, FARTHEST_OCTAVE)
        alike[key] += [q, target[y], q * q / (1.0 - q), 1.0]
    used = cells[INERT + 1 : UNDRAFTED]
    wanted = np.array(sorted(map(tuple, alike.values())))
    np.testing.assert_allclose(
        np.array(sorted(map(tuple, used[used[:, COUNT] > 0, :REACH]))), wanted, rtol=1e-12
    )
    idle = drafted & (ratio == 0)
    assert cells[INERT, 0] == pytest.approx(draft[idle].sum(), rel=1e-12)
    for outer in (False, True):
        own = light[(ratio[light] >= cut) == outer]
        sides, others, lowest, highest, reach = used_cells(cells, cut, outer)
        total = sides.sum(axis=1)
        np.testing.assert_allclose(total[:2], [draft[own].sum(), target[own].sum()], rtol=1e-12)
        q = draft[np.setdiff1d(np.flatnonzero(drafted), own)]
        np.testing.assert_allclose(others[[0, 2]], [q.sum(), (q * q / (1.0 - q)).sum()], rtol=1e-11)
        if own.size:
            assert lowest <= ratio[own].min()
            assert not outer or cut <= lowest
            assert highest <= ratio[own].max()
            places = ratio[own] + 2.0 * draft[own] / (1.0 - draft[own])
            assert reach == pytest.approx(places.max(), rel=1e-15)
            if ratio[own].max() < 2.0**FARTHEST_OCTAVE:
                assert ratio[own].max() <= (1.0 + CLOSE) * highest


@pytest.mark.parametrize("cut", [0.7, np.inf])
def test_tokens_near_the_cut_are_found(cut: float) -> None:
    rng = np.random.default_rng(71)
    draft, ratio = 10.0 ** rng.uniform(-9.0, -1.0, 3000), np.exp(rng.standard_normal(3000))
    draft[:10] = 0.0
    target = draft * ratio
    target[:5], target[10:13] = 0.1, 0.0
    tokens = rng.permutation(3000)[:2000].astype(np.int32)
    near, apart = tokens_near(target, draft, tokens, cut, 100.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.where((draft > 0) & (target > 0), np.abs(target / draft - cut) / draft, np.inf)
    wanted = tokens[away[tokens] < 100.0]
    assert wanted.size > 100 or cut == np.inf
    assert near.tolist() == wanted.tolist()
    np.testing.assert_allclose(apart, away[wanted], rtol=1e-12)
