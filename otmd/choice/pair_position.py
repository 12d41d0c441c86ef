"""A position as two drafts without replacement see it: single tokens, and cells of others that are alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from otmd.choice.pair_cells import (
    CELL_SUMS,
    CLOSE,
    COLUMNS,
    LARGEST,
    MOST_LARGER,
    NUM_CELLS,
    NUM_PARTS,
    UNDRAFTED,
    sum_cells,
    sum_groups,
)
from otmd.choice.pair_near import split_cells, tokens_near
from otmd.choice.pair_runs import ALONE, count_runs, fill_runs, parts_between, sort_tokens
from otmd.choice.pair_search import LightTokens, PairTokens
from otmd.curve.ratio_groups import group_edges, ratios_of
from otmd.drafts import WithoutReplacement
from otmd.probabilities import FloatArray, IntArray
from otmd.race.containment import ExponentialRace
from otmd.race.cut import Groups, RaceCut, race_cuts, sums_of_tokens
from otmd.race.quadrature import RATE_UNIT

# Tokens of larger q are classes of their own.
HEAVIEST = 2.0**-8
# So many tokens that lie nearer to the cut than so many times their q are classes of their own as well: there
# weights run to infinity, in an order that classes of many tokens could not keep.
_MOST_NEAR, _NEAR = 128, 100.0


@dataclass(frozen=True, eq=False)
class PairPosition:
    """A position, its best cut, and its tokens.

    Attributes
    ----------
    target, draft : ndarray of float64, shape (V,)
        p and q.
    cut : RaceCut
        The best cut.
    heavy : ndarray of int64, shape (M,)
        The tokens that are classes of their own, ascending.
    second : ndarray of float64, shape (M,)
        Their q/(1 − q).
    larger : ndarray of int32, shape (L,)
        Other tokens that are in no cell.
    cell : ndarray of int16, shape (V,)
        The cell of each token, of the heavy ones that of tokens which are never drafted.
    cells : ndarray of float64, shape (NUM_CELLS, COLUMNS)
        Sums over tokens that are alike, see :mod:`otmd.choice.pair_cells`.
    """

    target: FloatArray
    draft: FloatArray
    cut: RaceCut
    heavy: IntArray
    second: FloatArray
    larger: NDArray[np.int32]
    cell: NDArray[np.int16]
    cells: FloatArray

    @classmethod
    def of(cls, target: FloatArray, law: WithoutReplacement) -> Self:
        """Find the cut, and sort the tokens."""
        draft, groups = law.draft_probs, Groups.empty(target.size)
        cells, cell = np.zeros((NUM_CELLS, COLUMNS)), np.empty(target.size, np.int16)
        larger = np.empty(MOST_LARGER + 1, np.int32)
        larger = larger[: sum_cells(target, draft, groups.group, cell, cells, larger)]
        sum_groups(cells, RATE_UNIT, groups.sums)
        race = ExponentialRace(draft, 2)
        sums_of_tokens(target, draft, larger, group_edges()[:-1], race.scale, groups.sums)
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
        cell[heavy] = UNDRAFTED
        first = draft[heavy]
        # 1 − q would cancel for a token of more than half.
        second = first / np.where(first > 0.5, race.scale[0], 1.0 - first)
        return cls(target, draft, cut, heavy, second, larger[~single[larger]], cell, cells)

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
        counts[1, ALONE] += np.count_nonzero((ratio > 0) & (ratio >= edge))
        ends = counts.cumsum().reshape(counts.shape)
        starts, tokens = ends - counts, np.empty(ends[-1, -1] + 1, np.int32)
        sort_tokens(self.target, self.draft, self.cell, edge, runs, starts, tokens)

        def own_tokens(k: int) -> LightTokens:
            alone = tokens[starts[k, ALONE] : ends[k, ALONE]]
            masses = self.target, self.draft, self.draft
            return LightTokens(*masses, alone, tokens, starts[k, : sides[k].nodes.size], beyond[k])

        return own_tokens(0), own_tokens(1)

    @property
    def _ends_of_runs(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Between which ratios a part may be in a run, in H* and beside it."""
        return (0.0, (1.0 - CLOSE) * self.cut.edge), ((1.0 + CLOSE) * self.cut.edge, np.inf)
