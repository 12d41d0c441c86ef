"""Cells: classes of outcomes, chosen before any sample is seen, whose probabilities are known."""

from dataclasses import dataclass

import numpy as np

from otmd.probabilities import FloatArray, IntArray

IMPOSSIBLE = -1
"""The label of an outcome that has probability zero."""
MOST_CELLS = 64
_SAMPLES_A_CELL = 50
# Two outcomes of so little expected count are already strange.
_RARE_COUNT = 0.01


@dataclass(frozen=True, eq=False)
class Cells:
    """A partition of the possible outcomes.

    Attributes
    ----------
    labels : ndarray of int64, shape (V,)
        The cell of each outcome; :data:`IMPOSSIBLE` where its probability is zero.
    probs : ndarray of float64, shape (K,)
        Probability of each cell, none of them zero.
    """

    labels: IntArray
    probs: FloatArray

    def counts(self, labels: IntArray) -> IntArray:
        """How often each cell occurs among labels (M,), shape (K,)."""
        return np.bincount(labels[labels != IMPOSSIBLE], minlength=self.probs.size)

    def pooled(self, law: FloatArray) -> FloatArray:
        """Mass that another law (V,) of the outcomes gives to each cell, shape (K,)."""
        possible = self.labels != IMPOSSIBLE
        return _masses(self.labels[possible], law[possible], self.probs.size)


def ratio_places(target: FloatArray, drafted: FloatArray) -> FloatArray:
    """Where each token's interval of [0, 1) begins, with the tokens in the order of p/q.

    A token's interval is as long as its target probability, and tokens that are drafted more than they are
    wanted come first. The faults of verifiers move mass along this order, so that classes of neighbours
    show them, however many tokens there are.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    drafted : ndarray of float64, shape (V,)
        How often each token is drafted: q, or P(the token is among the drafts).

    Returns
    -------
    ndarray of float64, shape (V,)

    Notes
    -----
    ``places[y] + target[y] * rng.random()`` is uniform on [0, 1) if y is drawn from the target, whatever the
    target is: the randomised probability integral transform. Positions with different targets have one
    expected law there, even where a position depends on the tokens before it.
    """
    return places_in_order(target, ratio_order(target, drafted))


def ratio_order(target: FloatArray, drafted: FloatArray) -> IntArray:
    """The tokens by p/q ascending, ties by their ids, those without target mass first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.where(target > 0, np.log(target) - np.log(drafted), -np.inf)
    return np.argsort(log_ratio, kind="stable")


def places_in_order(probs: FloatArray, order: IntArray) -> FloatArray:
    """Mass before each outcome in an order, shape (V,)."""
    places = np.empty(probs.size)
    places[order] = np.concatenate([[0.0], np.cumsum(probs[order])[:-1]])
    return places


def make_cells(probs: FloatArray, order: IntArray, num_cells: int, rare_mass: float = 0.0) -> Cells:
    """Cut the outcomes, in an order, into cells of about equal probability.

    Parameters
    ----------
    probs : ndarray of float64, shape (V,)
        Probability of each outcome.
    order : ndarray of int64, shape (V,)
        A permutation of the outcomes.
    num_cells : int
        An outcome whose interval has its middle in the k-th of so many parts of [0, 1) is in the k-th cell,
        so that an outcome with a few parts' probability has a cell of its own.
    rare_mass : float
        The least likely outcomes, together at most this likely, are a cell apart.

    Returns
    -------
    Cells
    """
    middle = places_in_order(probs, order) + 0.5 * probs
    label = np.minimum((num_cells * middle).astype(np.int64), num_cells - 1)
    label[rare(probs, rare_mass)] = num_cells
    possible = probs > 0
    used, label[possible] = np.unique(label[possible], return_inverse=True)
    label[~possible] = IMPOSSIBLE
    return Cells(label, _masses(label[possible], probs[possible], used.size))


def token_cells(target: FloatArray, order: IntArray, num_samples: int) -> Cells:
    """The cells in which so many samples of a position's tokens are counted; see :func:`make_cells`."""
    num_cells = max(2, min(MOST_CELLS, num_samples // _SAMPLES_A_CELL))
    return make_cells(target, order, num_cells, rare_mass=_RARE_COUNT / num_samples)


def rare(probs: FloatArray, mass: float) -> IntArray:
    """The least likely of the possible outcomes that together have at most this probability."""
    ascending = np.argsort(probs, kind="stable")
    within = (np.cumsum(probs[ascending]) <= mass) & (probs[ascending] > 0)
    return ascending[within]


def _masses(labels: IntArray, masses: FloatArray, num_cells: int) -> FloatArray:
    return np.bincount(labels, masses, minlength=num_cells).astype(np.float64)
