"""Who takes part on a side of the cut of two drafts without replacement, and the nodes of light tokens."""

from collections.abc import Sequence

import numpy as np

from otmd.choice.pair_cells import CELL_SUMS, CLOSE, INERT, LARGEST, nearest_edge, used_cells
from otmd.choice.pair_position import PairPosition
from otmd.choice.pair_search import LightTokens, PairTokens
from otmd.choice.race_places import nodes_of_tail
from otmd.curve.ratio_groups import ratios_of
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.cut import RaceCut

# How far the last node lies beyond the others, at least, in units of it.
_LEAST_ROOM = 1e-9


def tokens_of_side(position: PairPosition, inner: bool, tol: float) -> PairTokens:
    """Find who takes part on a side.

    Parameters
    ----------
    position : PairPosition
        The position.
    inner : bool
        Whether the side is H*.
    tol : float
        How much mass may be misplaced.

    Returns
    -------
    PairTokens
    """
    heavy = _heavy_tokens(position, inner)
    used, others, *ends = used_cells(position.cells, position.cut.edge, not inner)
    larger, idle = _larger_tokens(position, inner)
    # Of H* only tokens without p are never chosen; beside it all of H* is.
    inert = idle + (position.cells[INERT, :CELL_SUMS] if inner else others)
    mass, wanted, square = light = np.concatenate([used, larger], axis=1)
    nodes = np.array([0.0, 1.0, 2.0])
    if mass.size > 0:
        every = inert + light.sum(axis=1)
        drafted = float(heavy[1].sum() + heavy[2].sum() + 2.0 * every[0] + every[2])
        nodes = _nodes(position.cut, inner, _widened(ends, larger), drafted, 0.1 * tol)
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


def _heavy_tokens(
    position: PairPosition, inner: bool
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray, BoolArray]:
    """The heavy tokens that take part; q, q/(1 − q) and p of each, and which may be chosen."""
    tokens, second = position.heavy, position.second
    inside = ratios_of(position.target, position.draft, tokens) < position.cut.edge
    if inner:
        tokens, second, inside = tokens[inside], second[inside], inside[inside]
    target = position.target[tokens]
    return tokens, position.draft[tokens], second, target, (target > 0) & (inside == inner)


def _larger_tokens(position: PairPosition, inner: bool) -> tuple[FloatArray, FloatArray]:
    """q, p and q²/(1 − q) of larger tokens that may be chosen, (CELL_SUMS, T), and the sums of others."""
    q, p = position.draft[position.larger], position.target[position.larger]
    masses, ratio = np.array([q, p, q * (q / (1.0 - q))]), p / q
    chosen = (ratio > 0) & ((ratio < position.cut.edge) == inner)
    idle = (ratio == 0) if inner else ~chosen
    return masses[:, chosen], masses[:, idle].sum(axis=1)


def _widened(ends: Sequence[float], larger: FloatArray) -> tuple[float, float, float]:
    """Between what p/q of cells and of larger tokens lies, and how far their places may reach."""
    ratio, odds = larger[1] / larger[0], larger[2] / larger[0]
    lowest, highest, reach = ends
    lowest, highest = min(lowest, ratio.min(initial=np.inf)), max(highest, ratio.max(initial=0.0))
    # By what its tokens do not meet of themselves the first node may give more than its ratio.
    lowest = max(lowest - odds.max(initial=LARGEST / (1.0 - LARGEST)), 0.5 * lowest)
    return lowest, highest, max(reach, (ratio + 2.0 * odds).max(initial=0.0))


def _nodes(
    cut: RaceCut, inner: bool, ends: tuple[float, float, float], drafted: float, tol: float
) -> FloatArray:
    """The nodes of light tokens, for ends as of :func:`_widened`; ``drafted`` bounds what they are worth."""
    lowest, highest, reach = ends
    # The farthest cell must have a share of the last node, or nothing could move there.
    highest = min(highest, max(drafted, 1.0))
    if inner:
        # No class beyond can have its share of p.
        reach = min(reach, drafted, cut.edge)
    else:
        lowest = max(lowest, cut.edge)
    room = max(reach - highest, _LEAST_ROOM * highest)
    nodes = nodes_of_tail(cut, (lowest, highest), room, inner, drafted, tol)
    # No cell may lie on either side of a node, where its tokens' places are not that of their mean.
    inside = nodes[2 - inner : -1]
    far = np.abs(inside - cut.edge) > 2.0 * CLOSE * cut.edge
    inside[far] = [nearest_edge(node) for node in inside[far]]
    return np.unique(nodes)
