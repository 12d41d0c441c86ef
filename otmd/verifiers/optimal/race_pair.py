"""Two drafts without replacement: the probability that each class is chosen, in closed form.

Tokens i and j are drafted, in either order, with probability a_i b_j + a_j b_i, where a = q and
b = q/(1 − q). Of two drafts with weights w and w', the first is chosen with probability w/(w + w' + w_0). So
no integral is needed, and the derivatives are exact. Each heavy token is a class of its own.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from otmd.laws.race.quadrature import POWERS
from otmd.probabilities import BoolArray, FloatArray
from otmd.verifiers.optimal.race_rates import ClassRates, DraftedProbs
from otmd.verifiers.optimal.race_tail import NodeValues, Tail

# Tokens with a larger q are heavy; for the others q^14 is below the rounding of q.
HEAVY_PAIR = 1.0 / 256.0


@dataclass(frozen=True, eq=False)
class PairRace:
    """The heavy tokens of one side: a = q and b = q/(1 − q), each of shape (M,)."""

    first: FloatArray
    second: FloatArray
    num_drafts = 2

    def class_rates(
        self, tail: Tail, able_nodes: BoolArray, able_heavy: BoolArray, rejects: bool
    ) -> "PairRates":
        """The rates of the classes, as a function of the weights."""
        return PairRates(tail, able_nodes, able_heavy, rejects, self)

    def drafted_probs(self, sums: FloatArray) -> DraftedProbs:
        """Probabilities of the drafts, where the tail has the power sums Σ q^r (R,)."""
        pairs = np.outer(self.first, self.second)
        np.fill_diagonal(pairs, 0.0)
        first = float(sums[1])
        second = float(sums[1:].sum())
        heavy_first = float(self.first.sum())
        heavy_second = float(self.second.sum())
        total = float(pairs.sum()) + heavy_first * second + heavy_second * first
        total += max(0.0, first * second - float(sums[2:].sum()))
        heavy = (pairs + pairs.T).sum(axis=1) + self.first * second + self.second * first
        return DraftedProbs(total, heavy_first + heavy_second + first + second, heavy)


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
        """P(two classes are drafted together): both able, one able (summed over the other), none.

        The diagonal of the first, two tokens of one class, holds twice the probability.
        """
        first, second = self.masses
        pairs = np.outer(first, second)
        pairs += pairs.T
        size = self.tail.nodes.size
        both_any, one_lower, both_lower = np.moveaxis(self.tail.moments[:, :, 2:].sum(axis=2), 1, 0)
        # A token is never drafted twice: twice the mass of its pair with itself is removed, by class.
        same_class = np.zeros(size)
        two_classes = one_lower - both_lower
        node = np.arange(size)
        same_class[:-1] += both_lower
        same_class[1:] += both_any - one_lower - two_classes
        pairs[node, node] -= 2.0 * same_class
        pairs[node[:-1], node[1:]] -= 2.0 * two_classes
        pairs[node[1:], node[:-1]] -= 2.0 * two_classes
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
        # w Σ pairs/(w + w' + w_0) : rates
        meet = pairs * wait
        meet_alone = alone * wait_alone
        rates = weights * (meet.sum(axis=1) + meet_alone)
        wait *= meet
        coupling = wait * np.outer(weights, weights)
        rejected = idle + rejection * (0.5 * float(meet.sum()) + float(meet_alone.sum()))
        both = rejection * weights * (wait.sum(axis=1) + meet_alone * wait_alone)
        return self._with_rejection(rates, coupling, rejected, both)

    def node_values(self, log_weights: FloatArray) -> NodeValues:
        """See :class:`ClassRates`. A token is not drafted together with itself."""
        weights = self.weights(log_weights)
        size = self.tail.nodes.size
        clocks = np.append(weights.nodes, weights.heavy)
        chosen = clocks[:size, None] / np.maximum(clocks[:size, None] + clocks + weights.rejection, 1e-300)
        first, second = (chosen @ mass for mass in self.masses)
        with_itself = chosen[:, :size].diagonal()
        with_upper = chosen[:, :size].diagonal(1)
        with_lower = chosen[:, :size].diagonal(-1)
        below = np.zeros((size - 1, 2, POWERS))
        above = np.zeros((size - 1, 2, POWERS))
        below[:, 0, 1] = (first + second)[:-1]
        above[:, 0, 1] = (first + second)[1:]
        below[:, 0, 2:] = (first[:-1] - 2.0 * with_upper)[:, None]
        below[:, 1, 2:] = 2.0 * (with_upper - with_itself[:-1])[:, None]
        above[:, 0, 2:] = (first[1:] - 2.0 * with_itself[1:])[:, None]
        above[:, 1, 2:] = 2.0 * (with_itself[1:] - with_lower)[:, None]
        return NodeValues(below, above)
