"""The optimal cut of drafts with replacement, without a sort of the tokens."""

import numpy as np

from otmd.kernels.ratio_cut import SLACK, cut_rows, mark_blocks
from otmd.kernels.ratio_groups import group_edges
from otmd.parallel import in_threads
from otmd.probabilities import BoolArray, FloatArray
from otmd.ratio_histogram import RatioHistogram


def cuts_with_replacement(
    target: FloatArray, draft: FloatArray, first: int, last: int
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """The smallest minimisers H of p(H) − q(H)^n for n = first … last.

    Parameters
    ----------
    target, draft : ndarray of float64, shape (…, V)
        p and q, their leading axes broadcast against each other; neither need sum to 1.
    first, last : int
        The numbers of drafts.

    Returns
    -------
    value, found : ndarray of float64, shape (…, N)
        p(H) − q(H)^n summed over H, and as the search found it.
    subset : ndarray of bool, shape (…, N, V)
        H.
    """
    batch = np.broadcast_shapes(target.shape[:-1], draft.shape[:-1])
    count, V, N = int(np.prod(batch, dtype=np.int64)), target.shape[-1], last - first + 1
    rows = [
        (mass.reshape(-1, V), np.broadcast_to(_row_numbers(mass), batch).ravel())
        for mass in (target, draft)
    ]
    (p, p_row), (q, q_row) = rows
    value, found = np.empty((count, N)), np.empty((count, N))
    subset = np.empty((count, N, V), dtype=bool)
    edges = group_edges()

    def work(start: int, stop: int) -> None:
        own = slice(start, stop)
        drafts = q, q_row[own], first, last
        cut_rows(p, p_row[own], *drafts, edges, value[own], found[own], subset[own])

    in_threads(work, count, V)
    return value.reshape(*batch, N), found.reshape(*batch, N), subset.reshape(*batch, N, V)


def _row_numbers(mass: FloatArray) -> np.ndarray:
    shape = mass.shape[:-1]
    return np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)


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
    wanted = np.zeros(histogram.single.size, dtype=bool)
    masses = histogram.target_mass, histogram.draft_mass
    mark_blocks(histogram.edges, *masses, num_drafts, wanted)
    resolved = histogram.resolve(wanted)
    values = prefix_values(resolved, num_drafts)
    return resolved, int(np.argmax(values <= values.min() + SLACK))


def prefix_values(histogram: RatioHistogram, num_drafts: int) -> FloatArray:
    """p(H) − q(H)^n of the tokens below each edge, shape (K + 1,)."""
    # The tokens that are never drafted come last, and no best prefix holds them.
    return histogram.target_before - histogram.draft_before**num_drafts
