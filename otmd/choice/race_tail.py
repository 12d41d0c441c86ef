"""The tail of an exponential race: many tokens of small q, spread over a few classes."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from otmd.choice.race_model import mixture_powers
from otmd.choice.weighted_race import (
    add_moments,
    locate,
    move_tokens,
    split_targets,
    token_values,
)
from otmd.probabilities import FloatArray, IntArray
from otmd.race.quadrature import POWERS

_LEAST = np.finfo(float).tiny


def power_sums(rates: FloatArray) -> FloatArray:
    """Σ q^r of tokens (T,), shape (R,)."""
    sums = np.zeros((1, 1, POWERS))
    add_moments(rates, np.ones(rates.size), np.zeros(rates.size, np.int64), rates, sums)
    return sums[0, 0]


@dataclass(frozen=True, eq=False)
class Tail:
    """Tokens spread over the nodes around them, each in proportion to how near it is.

    Attributes
    ----------
    rates, count : ndarray of float64, shape (T,)
        The tokens' q, in units of the race's end, and how many such tokens there are.
    lower : ndarray of int64, shape (T,)
        The node below each token, the last but one for those at the last.
    share : ndarray of float64, shape (T,)
        The probability to be of the lower node's class.
    nodes : ndarray of float64, shape (G,)
        Ascending, beginning with 0, the class that is never chosen.
    inert : ndarray of float64, shape (R,)
        Σ q^r of further tokens, which are never chosen.
    num_drafts : int
        n.
    """

    rates: FloatArray
    count: FloatArray
    lower: IntArray
    share: FloatArray
    nodes: FloatArray
    inert: FloatArray
    num_drafts: int

    @classmethod
    def at(
        cls,
        place: FloatArray,
        rates: FloatArray,
        count: FloatArray,
        nodes: FloatArray,
        inert: FloatArray,
        num_drafts: int,
    ) -> Self:
        """Put tokens at places (T,) among the nodes."""
        lower, share = np.empty(place.size, np.int64), np.empty(place.size)
        locate(place, nodes, lower, share)
        return cls(rates, count, lower, share, nodes, inert, num_drafts)

    @property
    def place(self) -> FloatArray:
        """Where each token lies among the nodes, shape (T,)."""
        below, above = self.nodes[self.lower], self.nodes[self.lower + 1]
        return above - self.share * (above - below)

    @cached_property
    def moments(self) -> FloatArray:
        """Σ share^a q^r over the tokens between two nodes, shape (G − 1, n + 1, R)."""
        sums = np.zeros((self.nodes.size - 1, self.num_drafts + 1, POWERS))
        add_moments(self.rates, self.count, self.lower, self.share, sums)
        sums[0] += self.inert
        return sums

    def slopes(self, tail: FloatArray, silent: FloatArray) -> FloatArray:
        """Derivative of the expectation by ℓ of each class, shape (J, G).

        Parameters
        ----------
        tail : ndarray of float64, shape (n, R, J)
            That by ℓ of a single token, see :class:`~otmd.choice.race_model.RaceChoice`.
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

    def polynomials(
        self, tail: FloatArray, silent: FloatArray, rings: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """How often a token would be chosen, were it wholly of the node below or above it.

        Each of shape (G − 1, n, R), coefficients of share^a q^r. ``rings`` (J, G) is the density of
        a class's clock times the weights of the integral over time; for the others see :meth:`slopes`.
        """
        shape = (self.nodes.size - 1, self.num_drafts, POWERS)
        below, above = np.zeros(shape), np.zeros(shape)
        for m in range(self.num_drafts):
            mixed = mixture_powers(m, silent)
            for into, ring in ((below, rings[:, :-1]), (above, rings[:, 1:])):
                weighted = np.moveaxis(mixed * ring[:, :, None], 0, -1)
                into[:, : m + 1] += weighted @ tail[m].T
        return below, above

    def values(self, below: FloatArray, above: FloatArray) -> FloatArray:
        """How often each token is chosen, by these :meth:`polynomials`, shape (T,)."""
        values = np.empty(self.rates.size)
        token_values(self.rates, self.lower, self.share, below, above, values)
        return values

    def moved(
        self, wanted: FloatArray, below: FloatArray, above: FloatArray, inner: bool
    ) -> tuple[Self, FloatArray, FloatArray]:
        """Move the tokens to where they are chosen with what they want (T,); their values there.

        Beside H* whatever may be chosen has a clock that rings.
        """
        lower, share = self.lower.copy(), self.share.copy()
        low, high = np.empty(self.rates.size), np.empty(self.rates.size)
        least = _LEAST if inner else float(self.nodes[1])
        places = lower, share, low, high
        move_tokens(self.rates, wanted, below, above, self.nodes, least, *places)
        return replace(self, lower=lower, share=share), low, high

    def by_node(self, wanted: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Divide what the tokens want between their nodes as their values are, shape (G,)."""
        mass = np.zeros(self.nodes.size)
        split_targets(self.count * wanted, low, high, self.lower, self.share, mass)
        mass[0] = 0.0
        return mass
