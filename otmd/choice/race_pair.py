"""Two drafts without replacement: how often each class is chosen, in closed form.

Tokens i and j are drafted, in either order, with probability a_i b_j + a_j b_i, a = q and b = q/(1 − q).
Of two drafts with weights w and w' the first is chosen with probability w/(w + w' + w_0). So no integral is
needed, and the derivatives are exact. Heavy tokens are classes of their own.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from otmd.choice.race import ClassRates
from otmd.choice.race_tail import NodeValues, Tail
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray
from otmd.race.quadrature import POWERS

# Tokens of larger q are heavy; for the others q^14 is below the rounding of q.
HEAVY_PAIR = 1.0 / 256.0


@dataclass(frozen=True, eq=False)
class PairRace:
    """The heavy tokens of one side: a = q and b = q/(1 − q), each of shape (M,)."""

    first: FloatArray
    second: FloatArray

    def total(self, sums: FloatArray) -> float:
        """Probability that both drafts are on this side; the tail has the power sums Σ q^r (R,)."""
        heavy = np.outer(self.first, self.second)
        np.fill_diagonal(heavy, 0.0)
        first, second = float(sums[1]), float(sums[1:].sum())
        both = float(self.first.sum()) * second + float(self.second.sum()) * first
        return float(heavy.sum()) + both + max(0.0, first * second - float(sums[2:].sum()))

    def drafted(self, sums: FloatArray) -> float:
        """P(a tail token is drafted, and the other draft is on this side), in units of its q."""
        return float(self.first.sum() + self.second.sum() + sums[1] + sums[1:].sum())

    def classes(
        self, tail: Tail, able_nodes: BoolArray, able_heavy: BoolArray, rejects: bool
    ) -> "PairRates":
        """The rates of these classes, as a function of the weights."""
        return PairRates(tail, able_nodes, able_heavy, rejects, 2, self)


@dataclass(frozen=True, eq=False)
class PairRates(ClassRates):
    """The rates of the classes of two drafts."""

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
        """How often two able classes are drafted together, an able and another one, and two others."""
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
        return (
            np.ascontiguousarray(pairs[np.ix_(able, able)]),
            pairs[able][:, ~able].sum(axis=1),
            idle,
        )

    def __call__(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See :class:`ClassRates`."""
        rates, coupling = np.empty(log_weights.size), np.empty((log_weights.size,) * 2)
        pair_rates(np.exp(log_weights), *self.pairs, self.rejects, rates, coupling)
        return rates, coupling

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


@kernel(error_model="numpy")
def pair_rates(weights, pairs, alone, idle, with_rejection, rates, coupling):
    """Fill the probability that each class is chosen, and −∂rates/∂log weights off the diagonal.

    ``pairs`` (A, A) is how often two classes are drafted together, twice that for two of one class, ``alone``
    (A,) how often one with a token that is never chosen, ``idle`` how often two of those. With a rejection
    ``weights``, ``rates`` and ``coupling`` have one more entry, for it.
    """
    size = alone.size
    rejection = weights[size] if with_rejection else 0.0
    rates[:] = 0.0
    coupling[:] = 0.0
    rejected = idle
    for g in range(size):
        for h in range(g + 1):
            wait = 1.0 / (weights[g] + weights[h] + rejection)
            meet = pairs[g, h] * wait * (0.5 if g == h else 1.0)
            answers = meet * wait
            rates[g] += meet * weights[g]
            rates[h] += meet * weights[h]
            rejected += meet * rejection
            if g != h:
                coupling[g, h] = coupling[h, g] = answers * weights[g] * weights[h]
            if with_rejection:
                coupling[g, size] += answers * weights[g] * rejection
                coupling[h, size] += answers * weights[h] * rejection
        wait = 1.0 / (weights[g] + rejection)
        rates[g] += alone[g] * wait * weights[g]
        rejected += alone[g] * wait * rejection
        if with_rejection:
            coupling[g, size] += alone[g] * wait * wait * weights[g] * rejection
    if with_rejection:
        rates[size] = rejected
        for g in range(size):
            coupling[size, g] = coupling[g, size]
