"""A position as two drafts without replacement see it: single tokens, and cells of others that are alike."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from otmd.drafts import WithoutReplacement
from otmd.kernels.pair_places import LARGEST, NEARNESS, NUM_CELLS, OCTAVES, part_edges, tail_cells
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


def _single(draft: FloatArray, ratio: FloatArray, edge: float) -> BoolArray:
    """The tokens that are classes of their own, shape (V,)."""
    single = draft > _HEAVIEST
    # Both may be infinite, for tokens that are never drafted and a cut beyond all others.
    with np.errstate(invalid="ignore"):
        apart = np.abs(ratio - edge)
    near = np.flatnonzero(apart < _NEAR * draft)
    if near.size > _MOST_NEAR:
        nearest = np.argpartition(apart[near] / draft[near], _MOST_NEAR)
        near = near[nearest[:_MOST_NEAR]]
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
    edge : float
        H* holds the tokens with a smaller ratio.
    heavy : ndarray of int64, shape (M,)
        The tokens that are classes of their own, ascending.
    second : ndarray of float64, shape (M,)
        Their q/(1 − q).
    light : tuple of LightTokens
        The other tokens that may be chosen, in H* and beside it.
    reach : tuple of float
        How far their places may reach.
    cells : ndarray of float64, shape (K, OCTAVES, 3)
        Sums of q, p and q²/(1 − q), see :func:`~otmd.kernels.pair_places.tail_cells`.
    sums : ndarray of float64, shape (K, 3)
        The same for all octaves together.
    edges : ndarray of float64, shape (K,)
        Bounds of their tokens' p/q from below, on the same side of the cut.
    """

    target: FloatArray
    draft: FloatArray
    cut: RaceCut
    edge: float
    heavy: IntArray
    second: FloatArray
    light: tuple[LightTokens, LightTokens]
    reach: tuple[float, float]
    cells: FloatArray
    sums: FloatArray
    edges: FloatArray

    @classmethod
    def of(cls, target: FloatArray, law: WithoutReplacement) -> Self:
        """Find the cut, and sort the tokens."""
        cut, draft = race_cut(target, law), law.draft_probs
        edge = float(cut.histogram.edges[cut.size])
        cells = np.zeros((NUM_CELLS, OCTAVES, 3))
        single = _single(draft, cut.histogram.ratio, edge)
        heavy = np.flatnonzero(single)
        light = [(np.empty(draft.size + 1), np.empty(draft.size + 1)) for _ in range(2)]
        tokens = target, draft, cut.histogram.ratio, single
        counts, reach = tail_cells(*tokens, edge, cells, *light)
        inner, outer = (
            LightTokens(mass[:count], mass[:count], ratio[:count])
            for (mass, ratio), count in zip(light, counts, strict=True)
        )
        second = draft[heavy] / law.mass_left(heavy[:, None])
        sums = cells.sum(axis=1)
        edges = np.sort(np.concatenate([[0.0], part_edges(), [edge]]))
        edges = np.concatenate([edges, np.repeat([0.5 * edge, edge], NEARNESS)])
        return cls(
            target, draft, cut, edge, heavy, second, (inner, outer), reach, cells, sums, edges
        )

    def cells_of(self, inner: bool) -> BoolArray:
        """The cells of light tokens that may be chosen on one side, shape (K,)."""
        # Tokens without p are never chosen; no more are those of H* beside it.
        own = (self.edges < self.edge) == inner
        own[0] = False
        return own

    def cells_as_tokens(self, own: BoolArray) -> LightTokens:
        """A light token for each cell, of the same sums."""
        used = (self.cells[:, :, 0] > 0) & own[:, None]
        mass, target, square = self.cells[used].T
        return LightTokens(mass, square / (mass + square), target / mass)

    def tokens(self, inner: bool, own: BoolArray, tol: float) -> PairTokens:
        """Who takes part on a side whose light tokens are in these cells (K,)."""
        inside = self.cut.histogram.ratio[self.heavy] < self.edge
        racing = inside if inner else np.ones(inside.size, dtype=bool)
        tokens, second = self.heavy[racing], self.second[racing]
        first, target = self.draft[tokens], self.target[tokens]
        sums = self.sums
        inert = sums[0] if inner else sums[~own].sum(axis=0)
        nodes = np.array([0.0, 1.0, 2.0])
        used = np.flatnonzero(own & (sums[:, 0] > 0))
        if used.size:
            light = inert + sums[own].sum(axis=0)
            drafted = float(first.sum() + second.sum() + 2.0 * light[0] + light[2])
            mean = sums[used, 1] / sums[used, 0]
            # The farthest cell must have a share of the last node, or nothing could move there.
            ends = float(self.edges[used].min()), min(float(mean.max()), max(drafted, 1.0))
            reach = self.reach[0 if inner else 1]
            if inner:
                # No class beyond can have its share of p.
                reach = min(reach, self.edge, drafted)
            room = max(reach - ends[1], _LEAST_ROOM * ends[1])
            nodes = nodes_of_tail(self.cut, ends, room, inner, drafted, 0.1 * tol)
        able = (target > 0) & (inside[racing] == inner)
        lost = float(inert[0]), float(inert[2])
        return PairTokens(inner, nodes, lost, tokens, first, second, target, able)
