"""The tail of an exponential race: many tokens of small q, spread over a few classes.

Nodes are placed on the axis of p/q. A token between two nodes belongs to the class of the lower node with
probability ``share``, and else to that of the upper node. The probability that it is chosen is a polynomial
in its q and its share, with the same coefficients for all tokens between two nodes (:class:`NodeValues`). So
one pass finds for each token the place and share with which it is chosen with probability p. The race needs
only the moments Σ share^a q^r.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from otmd.choice.classes import CutCurve, choose_nodes
from otmd.kernel import kernel
from otmd.probabilities import FloatArray, IntArray
from otmd.race.quadrature import POWERS

# Moves of a token: each crosses one node, or improves its share by a digit or more.
_MOST_MOVES = 20
_LOWEST_RATIO = 1e-13
# How far tokens may move beyond the largest ratio, in units of it.
_HEADROOM = 0.1
_CONTRACT = {"contract", "nsz"}


class NodeValues(NamedTuple):
    """The probability that a token is chosen if its class is the node below it, or the node above it.

    Both have the shape (G − 1, A, R) and hold the coefficients of share^a q^r between two nodes.
    """

    below: FloatArray
    above: FloatArray


@dataclass(frozen=True, eq=False)
class Tail:
    """T tokens and their places among G nodes, which ascend from 0, the class that is never chosen.

    ``rates`` are the tokens' q in the race's unit, ``wanted`` their p. No token is placed below the node
    ``lowest``. ``inert`` (R,) is Σ q^r of further tokens, which are never chosen. A token is of the class of
    the node ``lower`` with probability ``share``, and else of the next one's. ``moments`` (G − 1, n + 1, R)
    are Σ share^a q^r over the tokens between two nodes, inert ones at the first. ``by_node`` (G,) is the
    tokens' p, divided between their two nodes in proportion to how often each is chosen.
    """

    rates: FloatArray
    wanted: FloatArray
    nodes: FloatArray
    lowest: int
    inert: FloatArray
    lower: IntArray
    share: FloatArray
    moments: FloatArray
    by_node: FloatArray

    @classmethod
    def at_ratios(
        cls,
        rates: FloatArray,
        wanted: FloatArray,
        ratio: FloatArray,
        nodes: FloatArray,
        lowest: int,
        inert: FloatArray,
    ) -> Self:
        """Place each token at its p/q, the ``ratio`` (T,). :meth:`placed` fills the moments."""
        ratio = np.minimum(ratio, nodes[-1])
        lower = np.clip(np.searchsorted(nodes, ratio, "right") - 1, lowest, nodes.size - 2)
        share = np.clip((nodes[lower + 1] - ratio) / np.diff(nodes)[lower], 0.0, 1.0)
        return cls(rates, wanted, nodes, lowest, inert, lower, share, np.empty(0), np.empty(0))

    def placed(self, values: NodeValues) -> Self:
        """Move the tokens to where they are chosen with their p, and add up their moments there."""
        lower, share = self.lower.copy(), self.share.copy()
        terms = values.below.shape[1]
        moments = np.zeros((self.nodes.size - 1, terms + 1, POWERS))
        by_node = np.zeros(self.nodes.size)
        tokens = self.rates, self.wanted
        place_tokens(*tokens, *values, self.nodes, self.lowest, lower, share, moments, by_node)
        # A node that holds tokens may be chosen, even where their p is almost 0.
        held = np.zeros(self.nodes.size)
        held[:-1] = moments[:, 1, 1]
        held[1:] = np.maximum(held[1:], (moments[:, 0, 1] - moments[:, 1, 1]))
        least = 1e-14 * np.append(moments[:, 0, 1], moments[-1, 0, 1])
        by_node[held > least] = np.maximum(by_node[held > least], 1e-300)
        moments[0] += self.inert
        by_node[0] = 0.0
        return replace(self, lower=lower, share=share, moments=moments, by_node=by_node)

    def values(self, values: NodeValues) -> FloatArray:
        """The probability that each token is chosen at its place, shape (T,)."""
        found = np.empty(self.rates.size)
        token_values(self.rates, self.lower, self.share, *values, found)
        return found


def ratio_values(nodes: FloatArray, num_drafts: int, unit: float) -> NodeValues:
    """The values for which each token's place is its p/q; rates are ``unit`` times q."""
    values = np.zeros((nodes.size, num_drafts, POWERS))
    values[:, 0, 1] = nodes / unit
    return NodeValues(values[:-1], values[1:])


def nodes_of_tail(
    curve: CutCurve,
    ends: tuple[float, float],
    largest: float,
    inner: bool,
    drafted: float,
    tol: float,
) -> FloatArray:
    """Choose nodes (G,) from 0 on, so that no corner of the tangents lies more than ``tol`` below the cut.

    ``ends`` are the extreme p/q of the tail tokens that may be chosen, ``largest`` is their largest q. Each
    is drafted with probability q times ``drafted``; no ratio can be served beyond.
    """
    lowest, highest = max(ends[0], _LOWEST_RATIO), ends[1]
    room = _HEADROOM * highest
    farthest = highest + room
    first, last = 0, curve.cut
    if not inner:
        first, last = curve.cut, max(curve.cut, curve.edge_at(min(highest, drafted)))
    best, once = float((curve.target_before - curve.contained).min()), np.ones(1, np.int64)
    (chosen,) = choose_nodes([curve], [(first, last)], once, best, tol, linear=True)
    nodes = curve.edges[chosen]
    if not inner:
        farthest = min(farthest, drafted)
        if curve.cut == 0:
            # At equal weights, tokens are chosen with probabilities that differ by a relative amount of about
            # q.
            lowest *= 1.0 - min(4.0 * largest, _HEADROOM)
    # The last class must hold some token from the start, or no token could move towards it.
    inside = nodes[(nodes > (0.0 if inner else lowest)) & (nodes < min(farthest, highest))]
    first = [0.0] if inner else [0.0, lowest]
    return np.unique(np.concatenate([first, inside, [max(farthest, lowest + room)]]))


# These helpers take whole arrays and a node's index: to slice for each token would cost more than the work.
@kernel()
def _add_powers(rate, share, g, sums):
    """sums[g, a, r] += share^a q^r; powers q^r below 1e-17 q are left out."""
    power, least = 1.0, 1e-17 * rate
    for r in range(sums.shape[2]):
        value = power
        for a in range(sums.shape[1]):
            sums[g, a, r] += value
            value *= share
        power *= rate
        if power < least:
            break


@kernel(fastmath=_CONTRACT)
def _at_rate(rate, below, above, g, of_low, of_high):
    """Fill Σ_r terms[g, a, r] q^r of both nodes, coefficients of share^a.

    Powers of q below 1e-15 of the first are left out.
    """
    needed = below.shape[2]
    if rate < 1e-8:
        needed = min(needed, 3)
    elif rate < 5e-4:
        needed = min(needed, 6)
    for a in range(of_low.size):
        of_low[a], of_high[a] = below[g, a, needed - 1], above[g, a, needed - 1]
    for r in range(needed - 2, -1, -1):
        for a in range(of_low.size):
            of_low[a] = of_low[a] * rate + below[g, a, r]
            of_high[a] = of_high[a] * rate + above[g, a, r]


@kernel(fastmath=_CONTRACT)
def _polynomial(x, coefficients):
    value = coefficients[-1]
    for a in range(coefficients.size - 2, -1, -1):
        value = value * x + coefficients[a]
    return value


@kernel()
def token_values(rates, lower, share, below, above, values):
    """Fill the probability that each token is chosen, see :class:`NodeValues`."""
    of_low = np.empty(below.shape[1])
    of_high = np.empty(below.shape[1])
    for y in range(rates.size):
        _at_rate(rates[y], below, above, lower[y], of_low, of_high)
        s = share[y]
        values[y] = s * _polynomial(s, of_low) + (1.0 - s) * _polynomial(s, of_high)


@kernel(error_model="numpy")
def place_tokens(rates, wanted, below, above, nodes, lowest, lower, share, moments, by_node):
    """Move each token to the place where it is chosen with probability p; add up its moments and its p.

    Between two nodes with equal values the place does not matter, and the token stays. A token whose p is
    above what the last node gives is placed at that node; elsewhere the class below would have to give the
    rest.
    """
    last = nodes.size - 2
    of_low = np.empty(below.shape[1])
    of_high = np.empty(below.shape[1])
    for y in range(wanted.size):
        rate, want, g, s = rates[y], wanted[y], lower[y], share[y]
        _at_rate(rate, below, above, g, of_low, of_high)
        low, high = _polynomial(s, of_low), _polynomial(s, of_high)
        for _ in range(_MOST_MOVES):
            if g == last and want > high and high > 0.0:
                moved = 0.0
            elif (high - low) * nodes[g + 1] > 1e-3 * high * (nodes[g + 1] - nodes[g]):
                moved = s - (want - (s * low + (1.0 - s) * high)) / (high - low)
            else:
                break
            crosses = 1 if moved < 0.0 and g < last else -1 if moved > 1.0 and g > lowest else 0
            step = abs(moved - s)
            if crosses != 0:
                g, s = g + crosses, 1.0 if crosses > 0 else 0.0
                _at_rate(rate, below, above, g, of_low, of_high)
            else:
                s = min(max(moved, 0.0), 1.0)
            low, high = _polynomial(s, of_low), _polynomial(s, of_high)
            if crosses == 0 and (step < 1e-9 or moved != s):
                break
        lower[y], share[y] = g, s
        _add_powers(rate, s, g, moments)
        part_low, part_high = s * low, (1.0 - s) * high
        both = part_low + part_high
        if both > 0.0:
            part = want / both
            by_node[g] += part_low * part
            by_node[g + 1] += part_high * part
