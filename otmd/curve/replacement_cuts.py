"""The optimal cut of drafts with replacement, without a sort of the tokens."""

from dataclasses import dataclass

import numpy as np

from otmd.checked_rows import CheckedRows
from otmd.curve.cut_rows import cut_rows, cut_subsets
from otmd.curve.ratio_cut import SLACK, mark_blocks
from otmd.curve.ratio_groups import group_edges
from otmd.curve.ratio_histogram import RatioHistogram
from otmd.parallel import in_threads
from otmd.probabilities import BoolArray, FloatArray
from otmd.rows import Rows

# How far the value of a cut may move between two sums of the same numbers.
_SAME = 1e-10


@dataclass(frozen=True, eq=False)
class ReplacementCuts:
    """The smallest minimisers H of p(H) − q(H)^n for n = ``first``, ``first`` + 1, … at each position.

    Attributes
    ----------
    target, draft : Rows or CheckedRows, of B positions
        p and q; neither need sum to 1.
    first : int
        The least number of drafts.
    ends : ndarray of float64, shape (B, N)
        H holds the tokens whose p/q is below.
    value, found : ndarray of float64, shape (B, N)
        p(H) − q(H)^n summed over H, and as the search found it.
    """

    target: Rows | CheckedRows
    draft: Rows
    first: int
    ends: FloatArray
    value: FloatArray
    found: FloatArray

    def subsets(self) -> BoolArray:
        """H, shape (B, N, V).

        Raises
        ------
        ValueError
            If p or q are no longer what they were when the cuts were found.
        """
        subset = np.empty((*self.ends.shape, self.draft.values.shape[1]), dtype=bool)
        value = np.empty(self.ends.shape)

        def work(start: int, stop: int) -> None:
            for own, p in self.target.blocks(start, stop):
                q = self.draft[own]
                rows = p.values, p.row, q.values, q.row
                cut_subsets(*rows, self.first, self.ends[own], value[own], subset[own])

        in_threads(work, len(subset), self.draft.values.shape[1])
        off = np.abs(value - self.value).max(initial=0.0)
        # Written so that a number that is none is too far off as well.
        if not off <= _SAME:
            raise ValueError(
                f"target_probs: got numbers with which the cut is worth {off:.2g} more or less, wanted "
                "those that it was found with: leave them as they are until the subset was asked for"
            )
        return subset


def cuts_with_replacement(
    target: Rows | CheckedRows, draft: Rows, first: int, last: int
) -> ReplacementCuts:
    """The smallest minimisers H of p(H) − q(H)^n for n = first … last.

    Parameters
    ----------
    target, draft : Rows or CheckedRows, of B positions
        p and q; neither need sum to 1.
    first, last : int
        The numbers of drafts.

    Raises
    ------
    ValueError
        For a target that is no distribution, where it is checked when read.
    """
    ends, value, found = np.empty((3, draft.row.size, last - first + 1))
    edges = group_edges()

    def work(start: int, stop: int) -> None:
        for own, p in target.blocks(start, stop):
            q = draft[own]
            drafts = q.values, q.row, first, last
            cut_rows(p.values, p.row, *drafts, edges, ends[own], value[own], found[own])

    in_threads(work, draft.row.size, draft.values.shape[1])
    return ReplacementCuts(target, draft, first, ends, value, found)


def cut_with_replacement(
    target: FloatArray, draft: FloatArray, num_drafts: int
) -> tuple[BoolArray, float]:
    """The smallest minimiser H of p(H) − q(H)^n at a single position, and the least value as found.

    Parameters
    ----------
    target, draft : ndarray of float64, shape (V,)
        p and q; neither need sum to 1.
    num_drafts : int
        n.
    """
    cuts = cuts_with_replacement(Rows.of(target), Rows.of(draft), num_drafts, num_drafts)
    return cuts.subsets()[0, 0], float(cuts.found[0, 0])


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
