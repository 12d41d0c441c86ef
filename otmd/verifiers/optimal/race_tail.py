"""The tail of a race: tokens without replacement that share classes, and the location of each of them.

A token's location is a pair of neighbouring nodes and a ``share``: the token is of the lower node's class
with probability ``share``, and otherwise of the upper one's. Given the weights, the probability that a token
is chosen is a polynomial of its q and its share. Each token moves to the location where that is its p.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from otmd.kernel import kernel
from otmd.laws.race.quadrature import POWERS
from otmd.probabilities import FloatArray

# The most moves of a token, each across a node or between two.
_MOST_MOVES = 20
# Two nodes whose values differ by less than this, relative to their distance, count as equal.
_FLAT = 1e-3
# Between two nodes of equal values a token stays if it is chosen with its p up to this part of it.
_ALIKE = 1e-12
# Tokens with a smaller q may be light: powers of q below the fifth are exact to rounding.
_LIGHT = 1e-3
_FEW = 5
# A move between two nodes ends where a step changes the probability by less than about this.
_CLOSE = 1e-12
_CONTRACT = {"contract", "nsz"}


class NodeValues(NamedTuple):
    """The probability that a tail token is chosen if its class is the node below it, or the node above it.

    Each is a polynomial in share and q for the tokens between two nodes. The arrays (G − 1, A, R) hold the
    coefficients of share^a q^r, which are 0 for a ≥ r.
    """

    below: FloatArray
    above: FloatArray


@dataclass(frozen=True, eq=False)
class Tail:
    """T tokens of the tail and their locations among G nodes, which ascend from 0, the class never chosen.

    ``rates`` (T,) are q in the unit of the race, ``target`` (T,) is p. No token lies below the node
    ``lowest``. ``inert`` (R,) is Σ q^r of further tokens, which are never chosen. A token is of the class of
    the node ``lower`` with probability ``share``, and otherwise of the next one's. ``mass`` (G,) is q by
    class. ``by_node`` (G,) is p by class: a token's p is divided between its two classes in proportion to
    P(it is chosen) in each. ``moments`` (G − 1, n + 1, R) are Σ share^a q^r over the tokens between two
    nodes; those that are never chosen have share 1 at the first node.
    """

    nodes: FloatArray
    moments: FloatArray
    rates: FloatArray
    target: FloatArray
    lowest: int
    inert: FloatArray
    lower: NDArray[np.int16]
    share: FloatArray
    mass: FloatArray
    by_node: FloatArray

    @classmethod
    def at_ratios(
        cls,
        rates: FloatArray,
        target: FloatArray,
        ratio: FloatArray,
        nodes: FloatArray,
        lowest: int,
        inert: FloatArray,
    ) -> Self:
        """Locate each token at its p/q, the ``ratio`` (T,); the sums are empty until :meth:`moved`."""
        lower = np.searchsorted(nodes[lowest + 1 : -1], ratio, "right") + lowest
        share = nodes[1:][lower]
        share -= ratio
        share /= np.diff(nodes)[lower]
        np.clip(share, 0.0, 1.0, out=share)
        lower = lower.astype(np.int16)
        none = np.empty(0)
        return cls(nodes, none, rates, target, lowest, inert, lower, share, none, none)

    def moved(self, values: NodeValues) -> tuple[Self, FloatArray, tuple[float, float]]:
        """Move each token to the location where it is chosen with its p, and add up the moments there.

        Returns the moved tail, P(each token is chosen) at its old location (T,), and by how much these
        are below p in all, and above.
        """
        lower = self.lower.copy()
        share = self.share.copy()
        chosen = np.empty(share.size)
        by_node = np.zeros(self.nodes.size)
        moments = np.zeros((self.nodes.size - 1, values.below.shape[1] + 1, POWERS))
        first = float(values.above[:, :, 1].max())
        fifth = max(float(np.abs(values.above[:, :, _FEW]).max()), 1e-300)
        lightest = min(_LIGHT, (1e-15 * first / fifth) ** 0.25)
        short, excess = move_tokens(
            self.rates, self.target, np.stack(values, axis=-1), self.nodes, self.lowest, lightest,
            lower, share, chosen, moments, by_node,
        )  # fmt: skip
        mass = np.append(moments[:, 1, 1], 0.0)
        every = moments[:, 0, 1]
        mass[1:] += np.maximum(every - moments[:, 1, 1], 0.0)
        # A node that holds tokens may be chosen, even where their p is almost 0.
        held = mass > 1e-14 * np.append(every, every[-1])
        by_node[held] = np.maximum(by_node[held], 1e-300)
        by_node[0] = 0.0
        moments[0] += self.inert
        tail = replace(self, lower=lower, share=share, moments=moments, mass=mass, by_node=by_node)
        return tail, chosen, (short, excess)


def ratio_values(nodes: FloatArray, num_drafts: int, unit: float) -> NodeValues:
    """The values with which a token is chosen with its p at the location of its p/q; rates are ``unit`` q."""
    values = np.zeros((nodes.size, num_drafts, POWERS))
    values[:, 0, 1] = nodes / unit
    return NodeValues(values[:-1], values[1:])


# These helpers take whole arrays and a node's index: a slice for each token would cost more than the work.
@kernel()
def _add_powers(rate, share, g, powers, sums):
    """sums[g, a, r] += share^a q^r for r < ``powers``."""
    power = 1.0
    for r in range(powers):
        value = power
        for a in range(sums.shape[1]):
            sums[g, a, r] += value
            value *= share
        power *= rate


@kernel(fastmath=_CONTRACT)
def _values(rate, share, g, terms, powers):
    """The polynomials Σ terms[g, a, r, :] share^a q^r, r < ``powers``, of both nodes around a token."""
    # Horner's rule in share·q, as r > a, with coefficients by Horner's rule in q : low, high
    low = 0.0
    high = 0.0
    for a in range(terms.shape[1] - 1, -1, -1):
        of_low = 0.0
        of_high = 0.0
        for r in range(powers - 1, a, -1):
            of_low = (of_low + terms[g, a, r, 0]) * rate
            of_high = (of_high + terms[g, a, r, 1]) * rate
        low = low * (share * rate) + of_low
        high = high * (share * rate) + of_high
    return low, high


@kernel(error_model="numpy", fastmath=_CONTRACT)
def _walk(rate, p, g, s, terms, nodes, lowest, powers):
    """Walk from location (g, s) to the one where a token is chosen with probability ``p``.

    ``low`` and ``high`` are the values of the two nodes at the location. Returns the new location and its
    values. Between two nodes with equal values the location does not matter: the token stays, unless its p
    lies beyond them. A token whose p is above the value of the last node is moved to that node; anywhere
    else, the class below would have to give the rest.
    """
    last = nodes.size - 2
    low, high = _values(rate, s, g, terms, powers)
    chosen = s * low + (1.0 - s) * high
    for _ in range(_MOST_MOVES):
        if g == last and p > high and high > 0.0:
            moved = 0.0
        elif (high - low) * nodes[g + 1] > _FLAT * high * (nodes[g + 1] - nodes[g]):
            moved = s - (p - (s * low + (1.0 - s) * high)) / (high - low)
        elif p < (1.0 - _ALIKE) * min(low, high):
            moved = 2.0
        elif p > (1.0 + _ALIKE) * max(low, high):
            moved = -1.0
        else:
            break
        crosses = 1 if moved < 0.0 and g < last else -1 if moved > 1.0 and g > lowest else 0
        step = abs(moved - s)
        if crosses != 0:
            g = g + crosses
            s = 1.0 if crosses > 0 else 0.0
        else:
            s = min(max(moved, 0.0), 1.0)
            # The values would hardly change.
            if step * rate < _CLOSE:
                break
        low, high = _values(rate, s, g, terms, powers)
        if crosses == 0 and moved != s:
            break
    return chosen, g, s, low, high


@kernel(error_model="numpy", fastmath=_CONTRACT)
def move_tokens(rates, target, terms, nodes, lowest, lightest, lower, share, chosen, sums, by_node):
    """Fill P(each token is chosen), move it to where this is its p, add up its moments and its p.

    A token at location (g, s), s its share of the class g, is chosen with probability s low + (1 − s) high.
    Tokens with q below ``lightest`` are light. Returns by how much the tokens were chosen less than p in all,
    and by how much more.
    """
    short = 0.0
    excess = 0.0
    for y in range(target.size):
        rate = rates[y]
        p = target[y]
        g = lower[y]
        s = share[y]
        if rate < lightest:
            chosen[y], g, s, low, high = _walk(rate, p, g, s, terms, nodes, lowest, _FEW)
            _add_powers(rate, s, g, _FEW, sums)
        else:
            chosen[y], g, s, low, high = _walk(rate, p, g, s, terms, nodes, lowest, POWERS)
            _add_powers(rate, s, g, POWERS, sums)
        short += max(p - chosen[y], 0.0)
        excess += max(chosen[y] - p, 0.0)
        lower[y] = g
        share[y] = s
        part_low = s * low
        part_high = (1.0 - s) * high
        part = p / (part_low + part_high) if part_low + part_high > 0.0 else 0.0
        by_node[g] += part_low * part
        by_node[g + 1] += part_high * part
    return short, excess
