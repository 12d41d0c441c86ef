"""The order of tokens along which the best cut of stratified drafts is a prefix.

With P_j(x) the least p of tokens of stratum G_j whose q_j sums to x, the cut minimises
Σ_j P_j(x_j) − Π_j x_j.
Write the product as e^u, u = Σ_j log x_j. The exponential is the largest of its tangents,

    e^u = max_t [t (1 + u) − t log t],    so    min Σ_j P_j(x_j) − Π_j x_j
                                              = min_t [t log t − t + Σ_j min_x (P_j(x) − t log x)].

For a fixed t each stratum is a problem of its own. There tokens are taken in ascending order of p/q_j, and a
token is taken if t (log x_after − log x_before) exceeds its p. The t at which this begins ascends along the
stratum, since log is concave. So the sets that are best for some t are nested, and the best cut is one of
them: a prefix of all tokens in ascending order of that t. The smallest minimiser is among these prefixes as
well.
"""

from itertools import pairwise

import numpy as np

from otmd.curve._kernels import ratios_of
from otmd.drafts import Stratified
from otmd.probabilities import FloatArray, IntArray


def stratified_order(target: FloatArray, law: Stratified) -> IntArray:
    """The tokens in an order of which the smallest minimiser of p(H) − Π_j q_j(H ∩ G_j) is a prefix.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    law : Stratified
        The law of the drafts at a single position.

    Returns
    -------
    ndarray of int64, shape (V,)
        A permutation of the tokens; tokens that are never drafted come last.
    """
    _, tokens, starts, inclusion = law.position_strata
    ordered, entry = np.empty(target.size, np.int64), np.empty(target.size)
    for first, end in pairwise(starts):
        own = tokens[first:end]
        own = own[np.argsort(ratios_of(target, inclusion, own))]
        ordered[first:end] = own
        entry[first:end] = _entries(target[own], inclusion[own])
    # Stable: tokens of one stratum that enter together stay in their order.
    return ordered[np.argsort(entry, kind="stable")]


def _entries(target: FloatArray, draft: FloatArray) -> FloatArray:
    """The t from which each token of a stratum is taken, ascending; inf without q_j."""
    before = np.concatenate([[0.0], draft[:-1].cumsum()])
    entry = np.full(target.size, np.inf)
    drawn = draft > 0.0
    entry[drawn & (before == 0.0)] = 0.0
    later = drawn & (before > 0.0)
    gain = np.log1p(draft[later] / before[later])
    # A gain that underflows to 0 is that of a token with almost no q_j: it comes last.
    entry[later] = np.divide(target[later], gain, out=np.full(gain.size, np.inf), where=gain > 0.0)
    # By rounding, an entry may fall below the one before it.
    return np.maximum.accumulate(entry)
