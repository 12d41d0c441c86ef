"""Cells of draft tuples, whose probabilities a declared law knows, and how often they occurred."""

import numpy as np

from otmd.audit.cells import make_cells
from otmd.drafts import DraftLaw
from otmd.probabilities import FloatArray, IntArray

_MOST_LISTED = 20_000
_CELLS = 64
# Less than this is rounding of a containment, which is a sum over the vocabulary.
_LEAST_CELL = 1e-9


def counts_of_tuples(
    law: DraftLaw, tuples: IntArray, counts: IntArray
) -> list[tuple[IntArray, FloatArray]]:
    """Counts and probabilities of cells of tuples, if they can be listed."""
    support = np.count_nonzero(law.inclusion_probs())
    if not law.can_enumerate() or support**law.num_drafts > _MOST_LISTED:
        return []
    every, probs = law.enumerate()
    distinct = np.count_nonzero(np.diff(np.sort(every, axis=-1), axis=-1), axis=-1)
    cells = make_cells(probs, np.lexsort((probs, distinct)), _CELLS)
    known, place = np.unique(np.concatenate([every, tuples]), axis=0, return_inverse=True)
    seen = np.zeros(len(known), np.int64)
    seen[place.ravel()[len(every) :]] = counts
    by_tuple = seen[place.ravel()[: len(every)]]
    return [(np.bincount(cells.labels, by_tuple).astype(np.int64), cells.probs)]


def counts_of_extremes(law: DraftLaw, tokens: IntArray) -> list[tuple[IntArray, FloatArray]]:
    """Counts and probabilities of the place of each tuple's least likely draft, and of its likeliest.

    All drafts are among the k likeliest tokens with probability g(those k), which every law knows at any
    vocabulary.
    """
    descending = np.argsort(-law.inclusion_probs(), kind="stable")
    return [_counts_of_last(law, tokens, order) for order in (descending, descending[::-1])]


def _counts_of_last(
    law: DraftLaw, tokens: IntArray, order: IntArray
) -> tuple[IntArray, FloatArray]:
    size = order.size
    sizes = np.unique(np.append(np.geomspace(1, size, _CELLS).astype(np.int64), size))
    within, contained = np.zeros(size, dtype=bool), []
    for number in sizes:
        within[order[:number]] = True
        contained.append(float(law.containment(within)))
    # Cells end where enough probability has come together since the last one.
    ends = [-1]
    for i, reached in enumerate(contained):
        if reached - (contained[ends[-1]] if ends[-1] >= 0 else 0.0) >= _LEAST_CELL:
            ends.append(i)
    ends = ends[1:]
    ends[-1] = len(sizes) - 1
    rank = np.empty(size, np.int64)
    rank[order] = np.arange(size)
    cell = np.searchsorted(sizes[ends], rank[tokens].max(axis=-1), side="right")
    probs = np.diff([contained[i] for i in ends], prepend=0.0)
    return np.bincount(cell, minlength=probs.size), probs / probs.sum()
