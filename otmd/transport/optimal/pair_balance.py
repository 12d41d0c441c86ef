"""The rates of the classes for two drafts without replacement, as the search for weights asks for them.

Tokens i ≠ j are drawn, in either order, with probability a_i b_j + a_j b_i, where a = q and b = q/(1 − q): a
product of sums over the tokens of two classes, less what a token would have with itself. Of such a
pair the one with weight w is chosen with probability w/(w + w' + w_0): no integral is left.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from otmd.kernels.pair_places import BOTH, DOWN, FIRST, OWN, TERMS, UP
from otmd.kernels.weighted_choice import pair_rates
from otmd.probabilities import BoolArray, FloatArray
from otmd.transport.optimal.balance import Choice
from otmd.transport.optimal.race_places import weights_at_nodes


@dataclass(frozen=True, eq=False)
class PairMasses:
    """Draft masses of C classes: of the G nodes, between which tokens are spread, and of single heavy tokens.

    Attributes
    ----------
    first : ndarray of float64, shape (C,)
        Σ q.
    second : ndarray of float64, shape (C,)
        Σ q/(1 − q).
    own : ndarray of float64, shape (C,)
        Σ s² q²/(1 − q) for shares s: what the tokens of a class would be drafted with themselves.
    shared : ndarray of float64, shape (G − 1,)
        The same between a node's share and the next one's.
    """

    first: FloatArray
    second: FloatArray
    own: FloatArray
    shared: FloatArray

    @cached_property
    def pairs(self) -> FloatArray:
        """How often two classes are drafted together, twice for a pair of one class, shape (C, C)."""
        pairs = np.outer(self.first, self.second)
        pairs += pairs.T
        both = np.arange(self.shared.size)
        np.fill_diagonal(pairs, np.diag(pairs) - 2.0 * self.own)
        pairs[both, both + 1] -= 2.0 * self.shared
        pairs[both + 1, both] -= 2.0 * self.shared
        # What is left where a class is a single token's is rounding.
        return np.maximum(pairs, 0.0, out=pairs)


@dataclass(frozen=True, eq=False)
class PairBalance:
    """One side of the cut, whose log weights are those of the able classes and of the rejection.

    Attributes
    ----------
    masses : PairMasses
        The classes' masses.
    nodes : ndarray of float64, shape (G,)
        Ascending places, beginning with 0, the class that is never chosen.
    able : ndarray of bool, shape (C,)
        The classes that may be chosen.
    rejects : bool
        Whether both drafts may be rejected.
    """

    masses: PairMasses
    nodes: FloatArray
    able: BoolArray
    rejects: bool

    @cached_property
    def _of_able(self) -> tuple[FloatArray, FloatArray, float]:
        """How often able classes meet, each other and the rest, and how often the rest is alone."""
        pairs, others = self.masses.pairs, ~self.able
        among = np.ascontiguousarray(pairs[self.able][:, self.able])
        alone = pairs[self.able] @ others.astype(np.float64)
        return among, alone, 0.5 * float(pairs[others][:, others].sum())

    def clocks(self, log_weights: FloatArray) -> tuple[FloatArray, float]:
        """The classes' weights (C,), see :func:`weights_at_nodes`, and the rejection's."""
        weights, size = np.zeros(self.able.size), self.nodes.size
        able_nodes = self.able[:size]
        weights[self.able] = np.exp(log_weights[: np.count_nonzero(self.able)])
        known = log_weights[: np.count_nonzero(able_nodes)]
        weights[:size] = weights_at_nodes(self.nodes, able_nodes, known)
        return weights, float(np.exp(log_weights[-1])) if self.rejects else 0.0

    def __call__(self, log_weights: FloatArray) -> Choice:
        """Return the rates and how they depend on the weights, as ``balance`` asks for them."""
        size = log_weights.size
        rates, coupling = np.empty(size), np.empty((size, size))
        pair_rates(np.exp(log_weights), *self._of_able, self.rejects, rates, coupling)
        return Choice(rates, coupling)

    def terms(self, log_weights: FloatArray) -> FloatArray:
        """What tokens are chosen with at the nodes, shape (G, TERMS), see :mod:`otmd.kernels.pair_places`."""
        weights, rejection = self.clocks(log_weights)
        nodes = weights[: self.nodes.size]
        wins = np.zeros((nodes.size, weights.size))
        every = nodes[:, None] + (weights + rejection)
        np.divide(nodes[:, None], every, out=wins, where=nodes[:, None] > 0)
        terms = np.zeros((nodes.size, TERMS))
        terms[:, FIRST] = wins @ self.masses.first
        terms[:, BOTH] = terms[:, FIRST] + wins @ self.masses.second
        along = np.arange(nodes.size - 1)
        terms[:, OWN] = np.diag(wins)
        terms[:-1, UP], terms[:-1, DOWN] = wins[along, along + 1], wins[along + 1, along]
        return terms
