"""The optimal cut of a law without a ratio order: a minimum cut between tokens and draft sets."""

import numpy as np

from otmd.drafts import DraftLaw
from otmd.kernels.max_flow import max_flow, tokens_short_of_demand
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
    starts, tokens, supply = _draft_sets(*law.enumerate())
    left, demand = supply.copy(), target.copy()
    flow = max_flow(starts, tokens, left, demand)
    subset = tokens_short_of_demand(starts, tokens, left, demand, flow, _CLOSED)
    return subset, float(flow.sum())


def _draft_sets(tuples: IntArray, probs: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Merge tuples by their token sets: where each set starts, its tokens, and its probability."""
    beyond = np.iinfo(np.int64).max
    ordered = np.sort(tuples, axis=-1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = beyond
    ordered.sort(axis=-1)
    sets, row = np.unique(ordered, axis=0, return_inverse=True)
    supply = np.bincount(row.ravel(), probs, minlength=len(sets)).astype(np.float64)
    sizes = (sets < beyond).sum(axis=-1)
    return np.concatenate([[0], sizes.cumsum()]), sets[sets < beyond], supply
