"""The rates of the classes for two drafts without replacement, as the search for weights asks for them.

Tokens i ≠ j are drawn, in either order, with probability a_i b_j + a_j b_i, where a = q and b = q/(1 − q): a
product of sums over the tokens of two classes, less what a token would have with itself. Of such a
pair the one with weight w is chosen with probability w/(w + w' + w_0): no integral is left.
"""

from dataclasses import dataclass

import numpy as np

from otmd.kernels.pair_classes import meetings, node_terms
from otmd.kernels.pair_places import TERMS
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

    def meetings(self, able: BoolArray) -> "Meetings":
        """How often classes are drafted together, some of which may be chosen, shape (C,)."""
        size = int(np.count_nonzero(able))
        among, alone = np.empty((size, size)), np.empty(size)
        idle = meetings(self.first, self.second, self.own, self.shared, able, among, alone)
        return Meetings(among, alone, idle)


@dataclass(frozen=True, eq=False)
class Meetings:
    """How often two drafts are of which classes.

    Attributes
    ----------
    among : ndarray of float64, shape (A, A)
        Able classes, twice for a pair of one class.
    alone : ndarray of float64, shape (A,)
        An able class and a draft that is never chosen.
    idle : float
        Two drafts that are never chosen.
    """

    among: FloatArray
    alone: FloatArray
    idle: float

    @property
    def total(self) -> float:
        """How often there are two drafts."""
        return 0.5 * float(self.among.sum()) + float(self.alone.sum()) + self.idle


@dataclass(frozen=True, eq=False)
class PairBalance:
    """One side of the cut, whose log weights are those of the able classes and of the rejection.

    Attributes
    ----------
    masses : PairMasses
        The classes' masses.
    meetings : Meetings
        Of these classes.
    nodes : ndarray of float64, shape (G,)
        Ascending places, beginning with 0, the class that is never chosen.
    able : ndarray of bool, shape (C,)
        The classes that may be chosen.
    rejects : bool
        Whether both drafts may be rejected.
    """

    masses: PairMasses
    meetings: Meetings
    nodes: FloatArray
    able: BoolArray
    rejects: bool

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
        met = self.meetings
        known = met.among, met.alone, met.idle, self.rejects
        pair_rates(np.exp(log_weights), *known, rates, coupling)
        return Choice(rates, coupling)

    def terms(self, log_weights: FloatArray) -> FloatArray:
        """What tokens are chosen with at the nodes, shape (G, TERMS), see :mod:`otmd.kernels.pair_places`."""
        weights, rejection = self.clocks(log_weights)
        terms = np.zeros((self.nodes.size, TERMS))
        node_terms(weights, rejection, self.masses.first, self.masses.second, terms)
        return terms
