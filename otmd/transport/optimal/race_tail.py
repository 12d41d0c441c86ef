"""The tail of an exponential race: many tokens of small q, spread over a few classes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from otmd.drafts.exponential_race import POWERS
from otmd.kernels.weighted_race import add_moments, node_values
from otmd.probabilities import FloatArray, IntArray
from otmd.transport.optimal.race_model import mixture_powers


@dataclass(frozen=True, eq=False)
class Tail:
    """Tokens spread over the nodes around them, each in proportion to how near it is.

    Attributes
    ----------
    rates : ndarray of float64, shape (T,)
        The tokens' q, in units of the race's end.
    place : ndarray of float64, shape (T,)
        Where each token lies among the nodes; 0 for one that is never chosen.
    nodes : ndarray of float64, shape (G,)
        Ascending, beginning with 0, the class that is never chosen.
    num_drafts : int
        n.
    """

    rates: FloatArray
    place: FloatArray
    nodes: FloatArray
    num_drafts: int

    @cached_property
    def lower(self) -> IntArray:
        """The node below each token, the last but one for those beyond the last, shape (T,)."""
        below = np.searchsorted(self.nodes, self.place, side="right") - 1
        return np.clip(below, 0, self.nodes.size - 2)

    @cached_property
    def share(self) -> FloatArray:
        """The probability to be of the lower class, shape (T,)."""
        above = self.nodes[self.lower + 1]
        return np.clip((above - self.place) / (above - self.nodes[self.lower]), 0.0, 1.0)

    @cached_property
    def moments(self) -> FloatArray:
        """Σ share^a q^r over the tokens between two nodes, shape (G − 1, n + 1, R)."""
        sums = np.zeros((self.nodes.size - 1, self.num_drafts + 1, POWERS))
        add_moments(self.rates, self.lower, self.share, 1.0, sums)
        return sums

    def slopes(self, tail: FloatArray, silent: FloatArray) -> FloatArray:
        """Derivative of the expectation by ℓ of each class, shape (J, G).

        Parameters
        ----------
        tail : ndarray of float64, shape (n, R, J)
            That by ℓ of a single token, see :class:`~otmd.transport.optimal.race_model.RaceChoice`.
        silent : ndarray of float64, shape (J, G)
            ℓ of the classes.
        """
        slopes = np.zeros(silent.shape)
        for m in range(self.num_drafts):
            mixed = mixture_powers(m, silent)
            of_low = self.moments[:, 1 : m + 2] @ tail[m]
            of_all = self.moments[:, : m + 1] @ tail[m]
            slopes[:, :-1] += np.einsum("jga,gaj->jg", mixed, of_low)
            slopes[:, 1:] += np.einsum("jga,gaj->jg", mixed, of_all - of_low)
        return slopes

    def values(
        self, tail: FloatArray, silent: FloatArray, rings: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """How often each token would be chosen, were it wholly of the node below or above, shape (T,).

        ``rings`` (J, G) is the density of a class's clock times the weights of the integral over time.
        """
        shape = (self.nodes.size - 1, self.num_drafts, POWERS)
        below, above = np.zeros(shape), np.zeros(shape)
        for m in range(self.num_drafts):
            mixed = mixture_powers(m, silent)
            for into, ring in ((below, rings[:, :-1]), (above, rings[:, 1:])):
                weighted = np.moveaxis(mixed * ring[:, :, None], 0, -1)
                into[:, : m + 1] += weighted @ tail[m].T
        low, high = np.empty(self.rates.size), np.empty(self.rates.size)
        node_values(self.rates, self.lower, self.share, below, above, low, high)
        return low, high

    def mix(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """What the tokens are chosen with, from their values at the nodes around them, shape (T,)."""
        return self.share * low + (1.0 - self.share) * high

    def by_node(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Sum masses of the lower and the upper part of each token over the nodes, shape (G,)."""
        mass = np.zeros(self.nodes.size)
        mass += np.bincount(self.lower, low, self.nodes.size)
        mass += np.bincount(self.lower + 1, high, self.nodes.size)
        return mass
