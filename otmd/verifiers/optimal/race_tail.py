"""The tail of a race: tokens without replacement that share classes, and the location of each of them.

A token's location is a pair of neighbouring nodes and a ``share``: the token is of the lower node's class
with probability ``share``, and otherwise of the upper one's. Given the weights, the probability that a token
is chosen is a polynomial of its q and its share. Each token moves to the location where that is its p.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from otmd.kernel import kernel
from otmd.laws.race.quadrature import POWERS
from otmd.probabilities import FloatArray
from otmd.verifiers.optimal.race_rates import NodeValues, TailSums

# The most moves of a token, each across a node or between two, and the most Newton steps of a light token.
_MOST_MOVES = 20
_MOST_STEPS = 4
# Two nodes whose values differ by less than this, relative to their distance, count as equal.
_FLAT = 1e-3
# Between two nodes of equal values a token stays if it is chosen with its p up to this part of it.
_ALIKE = 1e-12
# Tokens with a smaller q may be light, which means that four powers of q are exact to rounding.
_LIGHT = 1e-3
_CONTRACT = {"contract", "nsz"}


@dataclass(frozen=True, eq=False)
class Tail(TailSums):
    """T tokens of the tail and their locations among G nodes, which ascend from 0, the class never chosen.

    ``rates`` (T,) are q in the unit of the race, ``target`` (T,) is p. No token lies below the node
    ``lowest``. ``inert`` (R,) is Σ q^r of further tokens, which are never chosen. A token is of the class of
    the node ``lower`` with probability ``share``, and otherwise of the next one's. ``mass`` (G,) is q by
    class. ``by_node`` (G,) is p by class: a token's p is divided between its two classes in proportion to
    P(it is chosen) in each.
    """

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
        short, excess = move_tokens(
            self.rates, self.target, values.below, values.above, self.nodes, self.lowest,
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
def _add_powers(rate, share, g, count, sums):
    """sums[g, a, r] += share^a q^r for r < ``count``."""
    power = 1.0
    for r in range(count):
        value = power
        for a in range(sums.shape[1]):
            sums[g, a, r] += value
            value *= share
        power *= rate


@kernel(fastmath=_CONTRACT)
def _values(rate, share, g, below, above):
    """The polynomials Σ terms[g, a, r] share^a q^r of both nodes around a token."""
    # Horner's rule in the share, with coefficients by Horner's rule in q : low, high
    low = 0.0
    high = 0.0
    for a in range(below.shape[1] - 1, -1, -1):
        of_low = 0.0
        of_high = 0.0
        for r in range(below.shape[2] - 1, -1, -1):
            of_low = of_low * rate + below[g, a, r]
            of_high = of_high * rate + above[g, a, r]
        low = low * share + of_low
        high = high * share + of_high
    return low, high


@kernel()
def _light_terms(terms):
    """The coefficients of share^a q^r with a < r ≤ 4, one row for each g; for a ≥ r they are 0."""
    light = np.zeros((terms.shape[0], 10))
    for g in range(terms.shape[0]):
        for r in range(1, 5):
            for a in range(min(r, terms.shape[1])):
                light[g, r * (r - 1) // 2 + a] = terms[g, a, r]
    return light


@kernel()
def _of_light_tokens(lows, highs, above, nodes):
    """The mass below which a token is light, and between which nodes its location matters.

    For light tokens, the terms from q^5 on are below the rounding of the first.
    """
    first = 0.0
    fifth = 1e-300
    steep = np.empty(nodes.size - 1, np.bool_)
    # A loop compiles several times faster than expressions of arrays.
    for g in range(steep.size):
        low = lows[g, 0]
        high = highs[g, 0]
        gap = nodes[g + 1] - nodes[g]
        first = max(first, high)
        steep[g] = (high - low) * nodes[g + 1] > _FLAT * high * gap
        for a in range(above.shape[1]):
            fifth = max(fifth, abs(above[g, a, 5]))
    return min(_LIGHT, (1e-15 * first / fifth) ** 0.25), steep


@kernel(fastmath=_CONTRACT)
def _light_value(q, s, g, t):
    """The polynomial of a light token at one node, from a row of :func:`_light_terms`."""
    fourth = t[g, 6] + s * (t[g, 7] + s * (t[g, 8] + s * t[g, 9]))
    third = t[g, 3] + s * (t[g, 4] + s * t[g, 5]) + q * fourth
    return q * (t[g, 0] + q * (t[g, 1] + s * t[g, 2] + q * third))


@kernel(fastmath=_CONTRACT)
def _light_values(q, s, g, lows, highs):
    """The polynomials of a light token at both nodes around it."""
    return _light_value(q, s, g, lows), _light_value(q, s, g, highs)


@kernel(error_model="numpy", fastmath=_CONTRACT)
def _walk(rate, p, g, s, below, above, nodes, lowest):
    """Walk from location (g, s) to the one where a token is chosen with probability ``p``.

    Returns the location and the values of its two nodes. Between two nodes with equal values the location
    does not matter: the token stays, unless its p lies beyond them. A token whose p is above the value of
    the last node is moved to that node; anywhere else, the class below would have to give the rest.
    """
    last = nodes.size - 2
    low, high = _values(rate, s, g, below, above)
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
        low, high = _values(rate, s, g, below, above)
        if crosses == 0 and (step < 1e-9 or moved != s):
            break
    return g, s, low, high


@kernel(error_model="numpy", fastmath=_CONTRACT)
def move_tokens(rates, target, below, above, nodes, lowest, lower, share, chosen, sums, by_node):
    """Fill P(each token is chosen), move it to where this is its p, add up its moments and its p.

    A token at location (g, s), s its share of the class g, is chosen with probability s low + (1 − s) high.
    Returns by how much the tokens were chosen less than p in all, and by how much more.
    """
    short = 0.0
    excess = 0.0
    last = nodes.size - 2
    lows, highs = _light_terms(below), _light_terms(above)
    lightest, steep = _of_light_tokens(lows, highs, above, nodes)
    for y in range(target.size):
        rate, p = rates[y], target[y]
        g, s = lower[y], share[y]
        if rate < lightest:
            low, high = _light_values(rate, s, g, lows, highs)
            chosen[y] = s * low + (1.0 - s) * high
            if not steep[g] and abs(p - chosen[y]) > _ALIKE * p:
                s = -1.0
            for _ in range(_MOST_STEPS if steep[g] else 0):
                step = (p - (s * low + (1.0 - s) * high)) / (high - low)
                s -= step
                low, high = _light_values(rate, s, g, lows, highs)
                if abs(step) * rate < 1e-12:
                    break
            if steep[g]:
                s = min(s, 1.0) if g == lowest else max(s, 0.0) if g == last else s
        else:
            low, high = _values(rate, s, g, below, above)
            chosen[y] = s * low + (1.0 - s) * high
            s = -1.0
        if 0.0 <= s <= 1.0:
            _add_powers(rate, s, g, 5, sums)
        else:
            g, s, low, high = _walk(rate, p, g, share[y], below, above, nodes, lowest)
            _add_powers(rate, s, g, POWERS, sums)
        short += max(p - chosen[y], 0.0)
        excess += max(chosen[y] - p, 0.0)
        lower[y], share[y] = g, s
        part_low = s * low
        part_high = (1.0 - s) * high
        part = p / (part_low + part_high) if part_low + part_high > 0.0 else 0.0
        by_node[g] += part_low * part
        by_node[g + 1] += part_high * part
    return short, excess
