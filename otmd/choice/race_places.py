"""Where the tail's tokens stand at first: the nodes of the ratio, and a rehearsal with few tokens."""

import numpy as np

from otmd.choice.classes import nodes_between
from otmd.choice.race_tail import Tail
from otmd.probabilities import BoolArray, FloatArray
from otmd.race.cut import RaceCut

_LOWEST_RATIO = 1e-13
# Tokens are rehearsed as one whose q agree to half an octave, or lie below 2^−60, and that lie in the same of
# so many parts of the way between two nodes.
_PARTS = 4
_HALVES = 120
_LOWEST = (1023 - _HALVES // 2) << 1


def nodes_of_tail(
    cut: RaceCut,
    ends: tuple[float, float],
    room: float,
    inner: bool,
    drafted: float,
    tol: float,
) -> FloatArray:
    """Choose nodes from 0 to beyond these ratios, so that no corner of the tangents lies below the cut.

    Parameters
    ----------
    cut : RaceCut
        The best cut.
    ends : tuple of float
        Between these lies p/q of the tail tokens that may be chosen.
    room : float
        How far tokens may move beyond.
    inner : bool
        Whether the side is H*.
    drafted : float
        A token of the tail is drafted with probability q times this, which no ratio exceeds.
    tol : float
        How far a corner may lie below the cut.

    Returns
    -------
    ndarray of float64, shape (G,)
    """
    edges, curve = cut.histogram.edges, (cut.histogram, cut.contained, None)
    lowest, highest = max(ends[0], _LOWEST_RATIO), ends[1]
    farthest = highest + room
    if inner:
        nodes = nodes_between(*curve, 0, cut.size, tol)
    else:
        last = max(cut.size, int(np.searchsorted(edges, min(highest, drafted))))
        nodes = nodes_between(*curve, cut.size, last, tol)
        farthest = min(farthest, drafted)
    # The last class must hold some token from the start, or nothing could move towards it.
    inside = nodes[(nodes > (0.0 if inner else lowest)) & (nodes < min(farthest, highest))]
    first = [0.0] if inner else [0.0, lowest]
    return np.unique(np.concatenate([first, inside, [max(farthest, lowest + room)]]))


def weights_at_nodes(nodes: FloatArray, able: BoolArray, log_weights: FloatArray) -> FloatArray:
    """Weights of all nodes (G,) from the log weights of the able ones; the first is never chosen.

    A node without tokens has the weight that lies between its neighbours', where tokens may move to.
    """
    weights = np.zeros(nodes.size)
    if able.any():
        weights[1:] = np.exp(np.interp(nodes[1:], nodes[able], log_weights))
    return weights


def rehearsal(tail: Tail, wanted: FloatArray) -> tuple[Tail, FloatArray]:
    """Stand in for many tokens by fewer that keep the sums of p, q and q².

    Parameters
    ----------
    tail : Tail
        Tokens placed by p/q.
    wanted : ndarray of float64, shape (T,)
        Their p.

    Returns
    -------
    tail : Tail
        Of a token for all that are alike in place and in q.
    wanted : ndarray of float64
        What each of those wants.
    """
    half = np.clip((tail.rates.view(np.int64) >> 51) - _LOWEST, 0, _HALVES - 1)
    part = np.minimum((tail.share * _PARTS).astype(np.int64), _PARTS - 1)
    key = (tail.lower * _PARTS + part) * _HALVES + half
    sums = [np.bincount(key, tail.rates * weights) for weights in (1.0, tail.rates, tail.place)]
    used = np.flatnonzero(sums[1] > 0)
    mass, square, place = (each[used] for each in sums)
    count = mass * (mass / square)
    rest = tail.nodes, tail.inert, tail.num_drafts
    few = Tail.at(place / mass, square / mass, count, *rest)
    return few, np.bincount(key, wanted)[used] / count
