"""Two drafts without replacement: how often each class is chosen, in closed form.

Tokens i and j are drafted, in either order, with probability a_i b_j + a_j b_i, where a = q and
b = q/(1 − q). Of two drafts with weights w and w', the first is chosen with probability w/(w + w' + w_0). So
no integral is needed, and the derivatives are exact. Each heavy token is a class of its own.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from otmd.choice.race import ClassRates, NodeValues
from otmd.probabilities import FloatArray
from otmd.race.quadrature import POWERS

# Tokens with a larger q are heavy; for the others q^14 is below the rounding of q.
HEAVY_PAIR = 1.0 / 256.0


@dataclass(frozen=True, eq=False)
class PairRace:
    """The heavy tokens of one side: a = q and b = q/(1 − q), each of shape (M,)."""

    first: FloatArray
    second: FloatArray

    def whole(self, sums: FloatArray) -> tuple[float, float, FloatArray]:
        """See :meth:`TimedRace.whole <otmd.choice.race.TimedRace.whole>`."""
        pairs = np.outer(self.first, self.second)
        np.fill_diagonal(pairs, 0.0)
        first, second = float(sums[1]), float(sums[1:].sum())
        heavy_first, heavy_second = float(self.first.sum()), float(self.second.sum())
        total = float(pairs.sum()) + heavy_first * second + heavy_second * first
        total += max(0.0, first * second - float(sums[2:].sum()))
        likely = (pairs + pairs.T).sum(axis=1) + self.first * second + self.second * first
        return total, heavy_first + heavy_second + first + second, likely


@dataclass(frozen=True, eq=False)
class PairRates(ClassRates):
    """The rates of the classes for two drafts."""

    race: PairRace

    @cached_property
    def masses(self) -> tuple[FloatArray, FloatArray]:
        """Σ a and Σ b of the nodes' classes and the heavy tokens, each of shape (G + M,)."""
        of_node = []
        for sums in (self.tail.moments[:, :2, 1], self.tail.moments[:, :2, 1:].sum(axis=2)):
            mass = np.zeros(self.tail.nodes.size)
            mass[:-1] += sums[:, 1]
            mass[1:] += sums[:, 0] - sums[:, 1]
            of_node.append(np.maximum(mass, 0.0))
        first, second = of_node
        return np.append(first, self.race.first), np.append(second, self.race.second)

    @cached_property
    def pairs(self) -> tuple[FloatArray, FloatArray, float]:
        """How often two classes are drafted together: both able, one able (summed over the other), none.

        The diagonal of the first, two tokens of one class, holds twice the probability.
        """
        first, second = self.masses
        pairs = np.outer(first, second)
        pairs += pairs.T
        size = self.tail.nodes.size
        whole, once, twice = np.moveaxis(self.tail.moments[:, :, 2:].sum(axis=2), 1, 0)
        # A token is never drafted twice.
        own, beside, node = np.zeros(size), once - twice, np.arange(size)
        own[:-1] += twice
        own[1:] += whole - once - beside
        pairs[node, node] -= 2.0 * own
        pairs[node[:-1], node[1:]] -= 2.0 * beside
        pairs[node[1:], node[:-1]] -= 2.0 * beside
        heavy = np.arange(size, first.size)
        pairs[heavy, heavy] = 0.0
        np.maximum(pairs, 0.0, out=pairs)
        able = np.append(self.able_nodes, self.able_heavy)
        idle = 0.5 * float(pairs[np.ix_(~able, ~able)].sum())
        return pairs[np.ix_(able, able)], pairs[able][:, ~able].sum(axis=1), idle

    def __call__(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See :class:`ClassRates`. The mean time until a clock of two drafts rings is 1/(w + w' + w_0)."""
        pairs, alone, idle = self.pairs
        weights = np.exp(log_weights[: alone.size])
        rejection = float(np.exp(log_weights[-1])) if self.rejects else 0.0
        wait = 1.0 / (weights[:, None] + weights + rejection)
        wait_alone = 1.0 / (weights + rejection)
        meet, meet_alone = pairs * wait, alone * wait_alone
        rates = weights * (meet.sum(axis=1) + meet_alone)
        wait *= meet
        coupling = wait * np.outer(weights, weights)
        rejected = idle + rejection * (0.5 * float(meet.sum()) + float(meet_alone.sum()))
        both = rejection * weights * (wait.sum(axis=1) + meet_alone * wait_alone)
        return self._answer(rates, coupling, rejected, both)

    def node_values(self, log_weights: FloatArray) -> NodeValues:
        """See :class:`ClassRates`. A token is not drafted together with itself."""
        own, size = self.weights(log_weights), self.tail.nodes.size
        clocks = np.append(own.nodes, own.heavy)
        chosen = clocks[:size, None] / np.maximum(
            clocks[:size, None] + clocks + own.rejection, 1e-300
        )
        first, second = (chosen @ mass for mass in self.masses)
        itself = chosen[:, :size].diagonal()
        up, down = chosen[:, :size].diagonal(1), chosen[:, :size].diagonal(-1)
        shape = size - 1, 2, POWERS
        below, above = np.zeros(shape), np.zeros(shape)
        below[:, 0, 1], above[:, 0, 1] = (first + second)[:-1], (first + second)[1:]
        below[:, 0, 2:] = (first[:-1] - 2.0 * up)[:, None]
        below[:, 1, 2:] = 2.0 * (up - itself[:-1])[:, None]
        above[:, 0, 2:] = (first[1:] - 2.0 * itself[1:])[:, None]
        above[:, 1, 2:] = 2.0 * (itself[1:] - down)[:, None]
        return NodeValues(below, above)
