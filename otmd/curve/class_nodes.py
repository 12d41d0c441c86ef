"""Nodes of the ratio between which tokens may be classed without loss."""

import numpy as np
from numba import njit

from otmd.curve.ratio_cut import power
from otmd.curve.ratio_groups import span_vertex


@njit(cache=True, nogil=True)
def _chord(places, values, place):
    """The value at a place, linear between ascending places."""
    k = np.searchsorted(places, place, side="right")
    if k == 0 or k == places.size:
        return values[min(k, places.size - 1)]
    width = places[k] - places[k - 1]
    return values[k - 1] + (values[k] - values[k - 1]) * ((place - places[k - 1]) / width)


@njit(cache=True, nogil=True)
def choose_nodes(edges, target_before, draft_before, contained, num_drafts, first, last, tol):
    """Indices of the edges from ``first`` to ``last`` with no corner between two of them below the best cut.

    A span whose corner p − g lies lower than every prefix by more than ``tol`` is halved. At the edges g is
    ``contained`` (K + 1,); between them it is the power of q for ``num_drafts`` ≥ 1, and else linear in q.
    """
    least = (target_before - contained).min()
    chosen = np.zeros(edges.size, np.bool_)
    chosen[first] = chosen[last] = True
    lefts, rights = np.empty(edges.size, np.int64), np.empty(edges.size, np.int64)
    lefts[0], rights[0], waiting = first, last, 1
    while waiting > 0:
        waiting -= 1
        left, right = lefts[waiting], rights[waiting]
        if right - left <= 1:
            continue
        p, q = span_vertex(edges, target_before, draft_before, left, right)
        g = power(q, num_drafts) if num_drafts else _chord(draft_before, contained, q)
        if p - g < least - tol:
            middle = np.searchsorted(edges, 0.5 * (edges[left] + edges[right]))
            middle = min(max(middle, left + 1), right - 1)
            chosen[middle] = True
            lefts[waiting], rights[waiting] = left, middle
            lefts[waiting + 1], rights[waiting + 1] = middle, right
            waiting += 2
    return np.flatnonzero(chosen)
