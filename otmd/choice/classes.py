"""Classes of tokens by p/q, few enough to solve for and fine enough to lose nothing.

A token between two nodes of the ratio is of the class of either with such probabilities that its own
ratio is their mean. Draft by draft the classes are drawn with replacement, as the tokens are, with
masses of their own; a rule that gives every class its share of p gives every token its p. Spreading
the ratios moves the curve of (q(H), p(H)) down to its tangents at the nodes, and the optimum over
classes is the optimum over tokens unless a corner of the tangents lies below the best cut. So nodes
are added only where a corner does.
"""

from dataclasses import dataclass

import numpy as np

from otmd.curve.class_nodes import choose_nodes
from otmd.curve.ratio_histogram import RatioHistogram
from otmd.probabilities import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class RatioClasses:
    """Classes at the nodes of the ratio, for the tokens of one side of the cut.

    Attributes
    ----------
    nodes : ndarray of float64, shape (G,)
        Ascending ratios; class g has the target mass nodes[g]·mass[g].
    mass : ndarray of float64, shape (G,)
        The classes' draft mass.
    """

    nodes: FloatArray
    mass: FloatArray

    def locate(self, ratio: FloatArray) -> tuple[IntArray, FloatArray]:
        """The lower class of tokens with these ratios (T,), and the probability to be of it."""
        last = self.nodes.size - 1
        lower = np.clip(np.searchsorted(self.nodes, ratio, side="right") - 1, 0, last)
        upper = np.minimum(lower + 1, last)
        width = self.nodes[upper] - self.nodes[lower]
        share = np.ones(ratio.shape)
        inside = lower < last
        np.divide(self.nodes[upper] - ratio, width, out=share, where=inside)
        return lower, share


def nodes_between(
    histogram: RatioHistogram,
    contained: FloatArray,
    num_drafts: int | None,
    first: int,
    last: int,
    tol: float,
) -> FloatArray:
    """Choose the nodes of the tokens between two edges.

    Parameters
    ----------
    histogram : RatioHistogram
        Resolved where the best cut lies.
    contained : ndarray of float64, shape (K + 1,)
        g of the tokens below each edge.
    num_drafts : int or None
        n where g is the n-th power of the draft mass; else it is taken to be linear between edges.
    first, last : int
        Indices of the edges that the nodes reach from and to.
    tol : float
        How far a corner of the tangents may lie below the best cut.

    Returns
    -------
    ndarray of float64, shape (G,)
        Ascending.
    """
    curve = histogram.edges, histogram.target_before, histogram.draft_before, contained
    return histogram.edges[choose_nodes(*curve, num_drafts or 0, first, last, tol)]


def split_masses(
    histogram: RatioHistogram, nodes: FloatArray, first: int, last: int
) -> RatioClasses:
    """Split the draft mass of the tokens between two edges among the nodes, which are edges as well.

    An interval's two masses tell how much of it goes to the node below and to the one above: each token's
    part is linear in its p and q.
    """
    p, q = histogram.target_mass[first:last], histogram.draft_mass[first:last]
    classes = RatioClasses(nodes, np.zeros(nodes.size))
    # The ratio of a resolved interval is its lower edge.
    lower, share = classes.locate(histogram.edges[first:last])
    upper = np.minimum(lower + 1, nodes.size - 1)
    part = share * q
    spread = ~histogram.single[first:last] & (upper > lower)
    below, above = nodes[lower[spread]], nodes[upper[spread]]
    part[spread] = np.clip((above * q[spread] - p[spread]) / (above - below), 0.0, q[spread])
    mass = np.zeros(nodes.size)
    mass += np.bincount(lower, part, nodes.size)
    mass += np.bincount(upper, q - part, nodes.size)
    return RatioClasses(nodes, mass)
