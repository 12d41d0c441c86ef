"""The optimal cut of a law without a ratio order: a minimum cut between tokens and draft sets."""

import numpy as np

from otmd.drafts import DraftLaw
from otmd.optimum.max_flow import max_flow, tokens_short_of_demand
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Less residual capacity than this is rounding, not an open arc.
_CLOSED = 1e-15


def minimum_cut(target: FloatArray, law: DraftLaw) -> tuple[BoolArray, float]:
    """The smallest H that minimises p(H) − g(H), for a single position.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    law : DraftLaw
        A law that can be enumerated. Tuples with the same set of tokens are merged.

    Returns
    -------
    subset : ndarray of bool, shape (V,)
        H*.
    rate : float
        The value of the maximum flow, α*.

    Raises
    ------
    ValueError
        For a law with too many tuples to enumerate.
    """
    starts, tokens, supply = draft_sets(*law.enumerate())
    left, demand = supply.copy(), target.copy()
    flow = max_flow(starts, tokens, left, demand)
    subset = tokens_short_of_demand(starts, tokens, left, demand, flow, _CLOSED)
    return subset, float(flow.sum())


def draft_sets(
    tuples: IntArray, probs: FloatArray, merge: bool = True
) -> tuple[IntArray, IntArray, FloatArray]:
    """The token sets of draft tuples, each token of a tuple once.

    Parameters
    ----------
    tuples : ndarray of int64, shape (T, n)
        Draft tuples.
    probs : ndarray of float64, shape (T,)
        Their probabilities.
    merge : bool
        Make one of all tuples with the same set; without it every tuple keeps its place.

    Returns
    -------
    starts : ndarray of int64, shape (S + 1,)
        Where each set begins in ``tokens``.
    tokens : ndarray of int64, shape (E,)
        The sets one after another, ascending within each.
    supply : ndarray of float64, shape (S,)
        The probability of each set.
    """
    beyond = tuples.max() + 1
    sets = np.sort(tuples, axis=-1)
    sets[:, 1:][sets[:, 1:] == sets[:, :-1]] = beyond
    sets.sort(axis=-1)
    supply = probs
    if merge:
        sets, row = _distinct_rows(sets)
        supply = np.bincount(row, probs, minlength=len(sets)).astype(np.float64)
    sizes = (sets < beyond).sum(axis=-1)
    return np.concatenate([[0], sizes.cumsum()]), sets[sets < beyond], supply


def _distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct rows in lexicographic order, and which of them each row is.

    A row is read as the digits of one number: numbers are sorted many times faster than rows. Their
    order is the rows', and their base the number of distinct entries.
    """
    present = np.zeros(rows.max() + 1, dtype=bool)
    present[rows] = True
    digits = present.cumsum() - 1
    base = int(digits[-1]) + 1
    if base ** rows.shape[1] > np.iinfo(np.int64).max:
        distinct, place = np.unique(rows, axis=0, return_inverse=True)
        return distinct, place.ravel()
    numbers = np.zeros(len(rows), np.int64)
    for column in rows.T:
        numbers = numbers * base + digits[column]
    _, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    return rows[first], place
