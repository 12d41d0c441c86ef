"""The rates of the classes without replacement, as the search for weights asks for them."""

from dataclasses import dataclass

import numpy as np

from otmd.choice.race_model import RaceChoice, TimedRace
from otmd.choice.race_places import weights_at_nodes
from otmd.choice.race_tail import Tail
from otmd.choice.times import times_for_weights
from otmd.probabilities import BoolArray, FloatArray

_INAUDIBLE = 1e-200


@dataclass(frozen=True, eq=False)
class Weights:
    """Rates of the clocks: of the tail's classes, of the heavy tokens, and of the rejection."""

    nodes: FloatArray
    heavy: FloatArray
    rejection: float


@dataclass(frozen=True, eq=False)
class RaceBalance:
    """One side of the cut, whose log weights are those of ``able_nodes``, ``able_heavy`` and rejection.

    Attributes
    ----------
    race : TimedRace
        The race, and its heavy tokens.
    tail : Tail
        The other tokens.
    able_nodes, able_heavy : ndarray of bool, shape (G,) and (M,)
        What may be chosen.
    rejects : bool
        Whether all drafts may be rejected.
    """

    race: TimedRace
    tail: Tail
    able_nodes: BoolArray
    able_heavy: BoolArray
    rejects: bool

    def weights(self, log_weights: FloatArray) -> Weights:
        """Lay the log weights out over the classes, see :func:`weights_at_nodes`."""
        heavy, rates = np.zeros(self.able_heavy.size), np.exp(log_weights)
        count = np.count_nonzero(self.able_nodes)
        nodes = weights_at_nodes(self.tail.nodes, self.able_nodes, log_weights[:count])
        heavy[self.able_heavy] = rates[count : count + np.count_nonzero(self.able_heavy)]
        return Weights(nodes, heavy, float(rates[-1]) if self.rejects else 0.0)

    def clock(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Times and steps that serve these weights."""
        return times_for_weights(log_weights, self.tail.num_drafts)

    def choose(self, times: FloatArray, weights: Weights) -> RaceChoice:
        """Evaluate the race at these times of the clocks."""
        silent = np.exp(-np.outer(times, weights.heavy)), np.exp(-np.outer(times, weights.nodes))
        return self.race.choice(*silent, self.tail.moments)

    def tail_polynomials(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How often tail tokens would be chosen at the nodes, see :meth:`Tail.polynomials`."""
        weights = self.weights(log_weights)
        times, steps = self.clock(log_weights)
        silent = np.exp(-np.outer(times, weights.nodes))
        waiting = steps * np.exp(-weights.rejection * times)
        rings = weights.nodes * silent * waiting[:, None]
        return self.tail.polynomials(self.choose(times, weights).tail, silent, rings)

    def __call__(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the rates and how they depend on the weights, as ``balance`` asks for them."""
        weights = self.weights(log_weights)
        times, steps = self.clock(log_weights)
        choice = self.choose(times, weights)
        silent_nodes = np.exp(-np.outer(times, weights.nodes))
        of_nodes = silent_nodes * self.tail.slopes(choice.tail, silent_nodes)
        of_heavy = np.exp(-np.outer(times, weights.heavy)) * choice.heavy
        waiting = steps * np.exp(-weights.rejection * times)
        drafted = np.hstack([of_nodes[:, self.able_nodes], of_heavy[:, self.able_heavy]])
        drafted *= np.concatenate([weights.nodes[self.able_nodes], weights.heavy[self.able_heavy]])
        rates = waiting @ drafted
        coupling = self._coupling(drafted, of_heavy, choice.expected, waiting * times)
        if self.rejects:
            rejected = weights.rejection * waiting
            both = (rejected * times) @ drafted
            coupling = np.block([[coupling, both[:, None]], [both[None, :], np.zeros((1, 1))]])
            rates = np.append(rates, rejected @ choice.expected)
        np.fill_diagonal(coupling, 0.0)
        return rates, coupling

    def _coupling(
        self, drafted: FloatArray, of_heavy: FloatArray, expected: FloatArray, strength: FloatArray
    ) -> FloatArray:
        """Hájek's approximation of how often two classes are drafted together, at each time.

        π_gh ≈ π_g π_h (1 − (1 − π_g)(1 − π_h)/Σ π(1 − π)) for samples of a fixed size (Hájek 1964). It
        steers the search alone: the rates are exact, and so is where the search ends.
        """
        audible = (expected > _INAUDIBLE)[:, None]
        share, certain = np.zeros_like(drafted), np.zeros_like(of_heavy)
        np.divide(drafted, expected[:, None], out=share, where=audible)
        np.divide(of_heavy, expected[:, None], out=certain, where=audible)
        varied = share.copy()
        varied[:, np.count_nonzero(self.able_nodes) :] *= 1.0 - certain[:, self.able_heavy]
        spread = np.maximum(self.tail.num_drafts - (certain**2).sum(axis=1), 1e-3)
        pair = strength * expected
        independent = (share * pair[:, None]).T @ share
        repelled = (varied * (pair / spread)[:, None]).T @ varied
        return np.maximum(independent - repelled, 1e-6 * independent)
