"""A position as two drafts without replacement see it: single tokens, and cells of others that are alike."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.kernels.pair_cells import (
    CELL_SUMS,
    LARGEST,
    NUM_CELLS,
    OCTAVES,
    mark_heavy,
    tail_cells,
    used_cells,
)
from otmd.kernels.ratio_groups import ratios_of
from otmd.optimum.race_cut import RaceCut, race_cut
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.transport.optimal.pair_search import LightTokens, PairTokens
from otmd.transport.optimal.race_places import nodes_of_tail

# Tokens of larger q are classes of their own.
_HEAVIEST = 2.0**-LARGEST
# How far the last node lies beyond the others, at least, in units of it.
_LEAST_ROOM = 1e-9
# So many tokens that lie nearer to the cut than so many times their q are classes of their own as well: there
# weights run to infinity, in an order that classes of many tokens could not keep.
_MOST_NEAR, _NEAR = 128, 100.0


def _single(target: FloatArray, draft: FloatArray, edge: float) -> BoolArray:
    """The tokens that are classes of their own, shape (V,)."""
    single = np.empty(draft.size, dtype=bool)
    near, apart = mark_heavy(target, draft, edge, _HEAVIEST, _NEAR, single)
    if near.size > _MOST_NEAR:
        near = near[np.argpartition(apart, _MOST_NEAR)[:_MOST_NEAR]]
    single[near] = True
    return single


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
    light : tuple of ndarray of int32
        The other tokens that may be chosen, in H* and beside it.
    reach : tuple of float
        How far their places may reach.
    cells : ndarray of float64, shape (NUM_CELLS + 1, OCTAVES, CELL_SUMS)
        Sums over light tokens that are alike, see :mod:`otmd.kernels.pair_cells`.
    """

    target: FloatArray
    draft: FloatArray
    cut: RaceCut
    heavy: IntArray
    second: FloatArray
    light: tuple[np.ndarray, np.ndarray]
    reach: tuple[float, float]
    cells: FloatArray

    @classmethod
    def of(cls, target: FloatArray, law: WithoutReplacement) -> Self:
        """Find the cut, and sort the tokens."""
        cut, draft = race_cut(target, law), law.draft_probs
        single = _single(target, draft, cut.edge)
        heavy = np.flatnonzero(single)
        cells = np.zeros((NUM_CELLS + 1, OCTAVES, CELL_SUMS))
        tokens = np.empty(draft.size, np.int32)
        counts, reach = tail_cells(target, draft, single, cut.edge, cells, tokens)
        light = tokens[: counts[0]], tokens[draft.size - counts[1] :]
        second = draft[heavy] / law.mass_left(heavy[:, None])
        return cls(target, draft, cut, heavy, second, light, reach, cells)

    def side(self, inner: bool, tol: float) -> tuple[PairTokens, LightTokens, LightTokens]:
        """Who takes part on a side: heavy tokens and nodes, the light tokens, and cells of them."""
        used, own, others, *ends = used_cells(self.cells, self.cut.edge, not inner)
        mass, wanted, square = used
        every = np.arange(mass.size, dtype=np.int32)
        cells = LightTokens(wanted, mass, square / (mass + square), every)
        tokens = self.light[0 if inner else 1]
        light = LightTokens(self.target, self.draft, self.draft, tokens)
        # Of H* only tokens without p are never chosen; beside it all of H* is.
        inert = self.cells[0].sum(axis=0) if inner else others
        return self._heavy_tokens(inner, inert, own, (ends[0], ends[1]), tol), light, cells

    def _heavy_tokens(
        self,
        inner: bool,
        inert: FloatArray,
        own: FloatArray,
        ends: tuple[float, float],
        tol: float,
    ) -> PairTokens:
        """Heavy tokens and nodes, for light tokens of these sums, between whose ends p/q of cells lie."""
        edge, tokens, second = self.cut.edge, self.heavy, self.second
        inside = ratios_of(self.target, self.draft, tokens) < edge
        if inner:
            tokens, second, inside = tokens[inside], second[inside], inside[inside]
        first, target = self.draft[tokens], self.target[tokens]
        nodes = np.array([0.0, 1.0, 2.0])
        if own[0] > 0:
            light = inert + own
            drafted = float(first.sum() + second.sum() + 2.0 * light[0] + light[2])
            # The farthest cell must have a share of the last node, or nothing could move there.
            ends = ends[0], min(ends[1], max(drafted, 1.0))
            reach = self.reach[0 if inner else 1]
            if inner:
                # No class beyond can have its share of p.
                reach = min(reach, edge, drafted)
            room = max(reach - ends[1], _LEAST_ROOM * ends[1])
            nodes = nodes_of_tail(self.cut, ends, room, inner, drafted, 0.1 * tol)
        able = (target > 0) & (inside == inner)
        lost = float(inert[0]), float(inert[2])
        return PairTokens(inner, nodes, lost, tokens, first, second, target, able)
