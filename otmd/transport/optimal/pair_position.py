"""A position as two drafts without replacement see it: single tokens, and cells of others that are alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from otmd.drafts import WithoutReplacement
from otmd.drafts.subset_race import RATE_UNIT, SubsetRace
from otmd.kernels.pair_cells import (
    CELL_SUMS,
    CLOSE,
    COLUMNS,
    INERT,
    LARGEST,
    NUM_CELLS,
    NUM_PARTS,
    nearest_edge,
    split_cells,
    sum_cells,
    sum_groups,
    tokens_near,
    used_cells,
)
from otmd.kernels.pair_runs import ALONE, count_runs, fill_runs, parts_between, sort_tokens
from otmd.kernels.race_blocks import sums_of_tokens
from otmd.kernels.ratio_groups import group_edges, ratios_of
from otmd.optimum.race_cut import Groups, RaceCut, race_cuts
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.transport.optimal.pair_search import LightTokens, PairTokens
from otmd.transport.optimal.race_places import nodes_of_tail

# Tokens of larger q are classes of their own.
HEAVIEST = 2.0**-8
# So many tokens that lie nearer to the cut than so many times their q are classes of their own as well: there
# weights run to infinity, in an order that classes of many tokens could not keep.
_MOST_NEAR, _NEAR = 128, 100.0
# How far the last node lies beyond the others, at least, in units of it.
_LEAST_ROOM = 1e-9


@dataclass(frozen=True, eq=False)
class PairPosition:
    """A position, its best cut, and its tokens.

    Attributes
    ----------
    target, draft : ndarray of float64, shape (V,)
        p and q.
    cut : RaceCut
        The best cut.
    single : ndarray of bool, shape (V,)
        The tokens that are classes of their own.
    heavy : ndarray of int64, shape (M,)
        The same, ascending.
    second : ndarray of float64, shape (M,)
        Their q/(1 − q).
    larger : ndarray of int32, shape (L,)
        Other tokens that are in no cell.
    cells : ndarray of float64, shape (NUM_CELLS, COLUMNS)
        Sums over tokens that are alike, see :mod:`otmd.kernels.pair_cells`.
    """

    target: FloatArray
    draft: FloatArray
    cut: RaceCut
    single: BoolArray
    heavy: IntArray
    second: FloatArray
    larger: NDArray[np.int32]
    cells: FloatArray

    @classmethod
    def of(cls, target: FloatArray, law: WithoutReplacement) -> Self:
        """Find the cut, and sort the tokens."""
        draft, groups = law.draft_probs, Groups.empty(target.size)
        cells, larger = np.zeros((NUM_CELLS, COLUMNS)), np.empty(draft.size + 1, np.int32)
        larger = larger[: sum_cells(target, draft, groups.group, cells, larger)]
        sum_groups(cells, RATE_UNIT, groups.sums)
        race = SubsetRace(draft, 2)
        sums_of_tokens(target, draft, larger, group_edges()[:-1], race.numbers, groups.sums)
        (cut,) = race_cuts(target, race, [2], groups)
        single = np.zeros(draft.size, dtype=bool)
        single[larger[draft[larger] > HEAVIEST]] = True
        if cut.edge < np.inf:
            reach = max(_NEAR * LARGEST, CLOSE * cut.edge)
            around = cut.tokens_around(max(cut.edge - reach, 0.0), cut.edge + reach)
            candidates = np.concatenate([around, larger[~single[larger]]])
            near, apart = tokens_near(target, draft, candidates, cut.edge, _NEAR)
            if near.size > _MOST_NEAR:
                near = near[np.argpartition(apart, _MOST_NEAR)[:_MOST_NEAR]]
            single[near] = True
            split_cells(target, draft, around, single, cut.edge, cells)
        heavy = np.flatnonzero(single)
        first = draft[heavy]
        # 1 − q would cancel for a token of more than half.
        second = first / np.where(first > 0.5, race.numbers[0], 1.0 - first)
        return cls(target, draft, cut, single, heavy, second, larger[~single[larger]], cells)

    def side(self, inner: bool, tol: float) -> PairTokens:
        """Who takes part on a side."""
        heavy = self._heavy_tokens(inner)
        used, others, *ends = used_cells(self.cells, self.cut.edge, not inner)
        larger, idle = self._larger_tokens(inner)
        # Of H* only tokens without p are never chosen; beside it all of H* is.
        inert = idle + (self.cells[INERT, :CELL_SUMS] if inner else others)
        mass, wanted, square = light = np.concatenate([used, larger], axis=1)
        nodes = np.array([0.0, 1.0, 2.0])
        if mass.size > 0:
            every = inert + light.sum(axis=1)
            drafted = float(heavy[1].sum() + heavy[2].sum() + 2.0 * every[0] + every[2])
            nodes = self._nodes(inner, _widened(ends, larger), drafted, 0.1 * tol)
        cells = LightTokens(
            wanted,
            mass,
            square / (mass + square),
            np.arange(mass.size, dtype=np.int32),
            np.empty(0, np.int32),
            np.zeros(nodes.size, np.int64),
            np.zeros(CELL_SUMS),
        )
        return PairTokens(inner, nodes, (float(inert[0]), float(inert[2])), *heavy, cells)

    def parts_of_runs(
        self, sides: Sequence[PairTokens], terms: Sequence[FloatArray | None], margin: float = 0.0
    ) -> list[IntArray]:
        """The parts of each run of both sides, (G, 2), where terms are known and may change by the margin."""
        return [
            np.zeros((side.nodes.size, 2), np.int64)
            if own is None
            else parts_between(own, side.lowest, ends, margin)
            for side, own, ends in zip(sides, terms, self._ends_of_runs, strict=True)
        ]

    def light(
        self, sides: Sequence[PairTokens], parts: Sequence[IntArray]
    ) -> tuple[LightTokens, LightTokens]:
        """The light tokens of both sides, in runs of these parts."""
        edge, most = self.cut.edge, max(side.nodes.size for side in sides)
        runs = np.full(NUM_PARTS, ALONE, np.int16)
        for own in parts:
            fill_runs(own, runs)
        counts, beyond = np.zeros((2, most), np.int64), np.zeros((2, CELL_SUMS))
        count_runs(self.cells, edge, runs, counts, beyond)
        ratio = ratios_of(self.target, self.draft, self.larger)
        counts[0, ALONE] += np.count_nonzero((ratio > 0) & (ratio < edge))
        counts[1, ALONE] += np.count_nonzero(ratio >= edge)
        ends = counts.cumsum().reshape(counts.shape)
        starts, tokens = ends - counts, np.empty(self.draft.size + 1, np.int32)
        sort_tokens(self.target, self.draft, self.single, edge, runs, starts, tokens)

        def own_tokens(k: int) -> LightTokens:
            alone = tokens[starts[k, ALONE] : ends[k, ALONE]]
            masses = self.target, self.draft, self.draft
            return LightTokens(*masses, alone, tokens, starts[k, : sides[k].nodes.size], beyond[k])

        return own_tokens(0), own_tokens(1)

    @property
    def _ends_of_runs(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Between which ratios a part may be in a run, in H* and beside it."""
        return (0.0, (1.0 - CLOSE) * self.cut.edge), ((1.0 + CLOSE) * self.cut.edge, np.inf)

    def _heavy_tokens(
        self, inner: bool
    ) -> tuple[IntArray, FloatArray, FloatArray, FloatArray, BoolArray]:
        """The heavy tokens that take part; q, q/(1 − q) and p of each, and which may be chosen."""
        tokens, second = self.heavy, self.second
        inside = ratios_of(self.target, self.draft, tokens) < self.cut.edge
        if inner:
            tokens, second, inside = tokens[inside], second[inside], inside[inside]
        target = self.target[tokens]
        return tokens, self.draft[tokens], second, target, (target > 0) & (inside == inner)

    def _larger_tokens(self, inner: bool) -> tuple[FloatArray, FloatArray]:
        """q, p and q²/(1 − q) of larger tokens that may be chosen, (CELL_SUMS, T); sums of others."""
        q, p = self.draft[self.larger], self.target[self.larger]
        masses, ratio = np.array([q, p, q * (q / (1.0 - q))]), p / q
        within = ratio < self.cut.edge
        chosen = (ratio > 0) & (within == inner)
        idle = (ratio == 0) if inner else ~chosen
        return masses[:, chosen], masses[:, idle].sum(axis=1)

    def _nodes(
        self, inner: bool, ends: tuple[float, float, float], drafted: float, tol: float
    ) -> FloatArray:
        """The nodes of light tokens, for ends as of :func:`_widened`."""
        lowest, highest, reach = ends
        # The farthest cell must have a share of the last node, or nothing could move there.
        highest = min(highest, max(drafted, 1.0))
        if inner:
            # No class beyond can have its share of p.
            reach = min(reach, drafted, self.cut.edge)
        else:
            lowest = max(lowest, self.cut.edge)
        room = max(reach - highest, _LEAST_ROOM * highest)
        nodes = nodes_of_tail(self.cut, (lowest, highest), room, inner, drafted, tol)
        # A cell must not lie on either side of a node, where its tokens' places are not those of their mean.
        inside = nodes[2 - inner : -1]
        far = np.abs(inside - self.cut.edge) > 2.0 * CLOSE * self.cut.edge
        inside[far] = [nearest_edge(node) for node in inside[far]]
        return np.unique(nodes)


def _widened(ends: Sequence[float], larger: FloatArray) -> tuple[float, float, float]:
    """Between what p/q of cells and of larger tokens lies, and how far their places may reach."""
    ratio, odds = larger[1] / larger[0], larger[2] / larger[0]
    lowest, highest, reach = ends
    lowest, highest = min(lowest, ratio.min(initial=np.inf)), max(highest, ratio.max(initial=0.0))
    # By what its tokens do not meet of themselves the first node may give more than its ratio.
    farthest = odds.max(initial=LARGEST / (1.0 - LARGEST))
    return (
        max(lowest - farthest, 0.5 * lowest),
        highest,
        max(reach, (ratio + 2.0 * odds).max(initial=0.0)),
    )
