"""Temporary."""

import numpy as np

from otmd.curve.ratio_cut import SLACK, mark_blocks
from otmd.curve.ratio_histogram import RatioHistogram
from otmd.probabilities import FloatArray


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
