"""The optimal cut of drafts with replacement in one pass over the tokens, without a sort."""

import numpy as np

from otmd.probabilities import BoolArray, FloatArray
from otmd.ratio_histogram import RatioHistogram

# Rounding can make a prefix look better than a smaller one that is as good.
SLACK = 1e-13


def ratio_cut(histogram: RatioHistogram, num_drafts: int) -> tuple[RatioHistogram, int]:
    """The smallest prefix H of the ratio order that minimises p(H) − q(H)^n.

    Groups of tokens whose bound shows that no better prefix ends inside them stay as they are; only
    the others are sorted.

    Parameters
    ----------
    histogram : RatioHistogram
        Of (p, q), not resolved; p need not sum to 1.
    num_drafts : int
        n.

    Returns
    -------
    histogram : RatioHistogram
        Resolved where the minimum lies.
    size : int
        H holds the tokens below ``histogram.edges[size]``.
    """
    every = np.arange(histogram.edges.size)
    values = prefix_values(histogram, num_drafts)
    target, draft = histogram.vertices(every)
    inside = at_issue(values, target - draft**num_drafts)
    inside &= np.diff(histogram.draft_before) > 0
    resolved = histogram.resolve(inside)
    values = prefix_values(resolved, num_drafts)
    return resolved, int(np.argmax(values <= values.min() + SLACK))


def prefix_values(histogram: RatioHistogram, num_drafts: int) -> FloatArray:
    """p(H) − q(H)^n of the tokens below each edge, shape (K + 1,)."""
    # The tokens that are never drafted come last, and no best prefix holds them.
    return histogram.target_before - histogram.draft_before**num_drafts


def at_issue(values: FloatArray, lowest: FloatArray) -> BoolArray:
    """Which blocks may hold the smallest minimiser.

    Parameters
    ----------
    values : ndarray of float64, shape (K + 1,)
        p − g of the prefixes between the blocks.
    lowest : ndarray of float64, shape (K,)
        What no prefix that ends inside a block lies below.

    Returns
    -------
    ndarray of bool, shape (K,)
        Those that may hold less than every prefix known, or as little as the least of these before
        the first that does.
    """
    least = values.min()
    first = int(np.argmax(values <= least + SLACK))
    before = np.arange(lowest.size) < first
    return lowest <= np.where(before, least + SLACK, least - SLACK)
