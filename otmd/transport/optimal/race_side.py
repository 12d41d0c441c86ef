"""One side of the cut of a race: weights by token for the heavy ones, by class for the tail.

Within a class of the tail the rates are all but proportional to q. What is missing of a token's p moves it
a little between its nodes, after which the weights are solved for again.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from otmd.drafts.exponential_race import HEAVY, win_times
from otmd.optimum.race_cut import RaceCut
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.transport.optimal.balance import balance
from otmd.transport.optimal.classes import nodes_between
from otmd.transport.optimal.plan import Side
from otmd.transport.optimal.race_balance import RaceBalance, Weights
from otmd.transport.optimal.race_model import RaceTimes
from otmd.transport.optimal.race_tail import Tail

# How far tokens may move beyond the farthest ratio, in its logarithm.
_HEADROOM = 0.1
_LOWEST_RATIO = 1e-13
# Rounds end after so many, or where one gains less than a tenth.
_ROUNDS, _STALLED = 16, 0.9


@dataclass(frozen=True, eq=False)
class RacePosition:
    """A position: p, q in units of the race's end ``latest``, n and the best cut."""

    target: FloatArray
    rates: FloatArray
    num_drafts: int
    latest: float
    cut: RaceCut


@dataclass(frozen=True, eq=False)
class SideTokens:
    """Who takes part on one side; tokens beside H* block its race, those of H* are inert outside.

    Attributes
    ----------
    inner : bool
        Whether the side is H*.
    able : ndarray of bool, shape (V,)
        What may be chosen.
    heavy, tail : ndarray of int64, shape (M,) and (T,)
        The tokens that race.
    blocked : float
        The rate of those that must not win.
    """

    inner: bool
    able: BoolArray
    heavy: IntArray
    tail: IntArray
    blocked: float

    @classmethod
    def of(cls, position: RacePosition, inner: bool) -> Self:
        """Sort the tokens of a position."""
        drawn, subset = position.rates > 0, position.cut.subset
        able = drawn & (position.target > 0) & (subset == inner)
        racing = drawn & subset if inner else drawn
        heavy = np.flatnonzero(racing & (position.rates > HEAVY))
        tail = np.flatnonzero(racing & (position.rates <= HEAVY))
        return cls(inner, able, heavy, tail, float(position.rates[~racing].sum()))


@dataclass(frozen=True, eq=False)
class RaceSide(Side):
    """A side whose heavy tokens are classes of their own.

    Attributes
    ----------
    lower : ndarray of int64, shape (V,)
        The class of each token.
    share : ndarray of float64, shape (V,)
        The probability to be of it; of the next class otherwise.
    rates : ndarray of float64, shape (V,)
        How often each token is chosen.
    """

    lower: IntArray
    share: FloatArray
    rates: FloatArray

    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`Side`."""
        return self.lower[tokens], self.share[tokens]

    def offered(self, tokens: IntArray) -> FloatArray:
        """See :class:`Side`."""
        return self.rates[tokens]


def solve_side(position: RacePosition, tokens: SideTokens, tol: float) -> RaceSide:
    """Find the weights and places that give every token its p.

    Parameters
    ----------
    position : RacePosition
        The position.
    tokens : SideTokens
        Who takes part.
    tol : float
        How much mass may be misplaced.

    Returns
    -------
    RaceSide
        The best of the rounds.
    """
    race = _race(position, tokens)
    rates, able_heavy = position.rates[tokens.heavy], tokens.able[tokens.heavy]
    wanted = np.where(tokens.able, position.target, 0.0)
    tail, total = _first_tail(position, tokens, race, tol)
    low, high = tail.nodes[tail.lower], tail.nodes[tail.lower + 1]
    sides: list[tuple[float, RaceSide]] = []
    log_weights = None
    for _ in range(_ROUNDS):
        by_node = _by_node(tail, low, high, wanted[tokens.tail])
        able_nodes = by_node > 0
        targets = np.concatenate([by_node[able_nodes], wanted[tokens.heavy][able_heavy]])
        rejected = total - float(targets.sum()) if tokens.inner else 0.0
        if rejected > 0:
            targets = np.append(targets, rejected)
        evaluate = RaceBalance(race, rates, tail, able_nodes, able_heavy, rejected > 0)
        if log_weights is not None and log_weights.size != targets.size:
            log_weights = None
        log_weights = balance(evaluate, targets, not tokens.inner, tol, log_weights)
        low, high = evaluate.tail_values(log_weights)
        side = _side(position, tokens, evaluate, log_weights, tail.mix(low, high))
        wrong = (wanted - side.rates if tokens.inner else side.rates - wanted)[tokens.able]
        sides.append((float(np.maximum(wrong, 0.0).sum()), side))
        if sides[-1][0] <= 2.0 * tol or _stalls([lost for lost, _ in sides]):
            break
        tail = _moved(tail, low, high, wanted[tokens.tail], tokens.inner)
        low, high = replace(evaluate, tail=tail).tail_values(log_weights)
    return min(sides, key=lambda found: found[0])[1]


def _stalls(lost: list[float]) -> bool:
    return len(lost) > 3 and min(lost[-2:]) > _STALLED * min(lost[:-2])


def _race(position: RacePosition, tokens: SideTokens) -> RaceTimes:
    n = position.num_drafts
    times, steps = win_times(1.0, position.latest, n, n)
    growth = np.outer(position.rates[tokens.heavy], times)
    return RaceTimes(times, steps, tokens.blocked, np.exp(-growth), -np.expm1(-growth))


def _first_tail(
    position: RacePosition, tokens: SideTokens, race: RaceTimes, tol: float
) -> tuple[Tail, float]:
    """Place the tail by p/q, and count how often all winners are of this side."""
    rates, heavy = position.rates[tokens.tail], position.rates[tokens.heavy]
    able = tokens.able[tokens.tail]
    still = Tail(rates, np.zeros(rates.size), np.array([0.0, 1.0]), position.num_drafts)
    nobody = np.zeros(2, dtype=bool), np.zeros(heavy.size, dtype=bool)
    asleep = Weights(np.zeros(2), np.zeros(heavy.size), 0.0)
    everyone = RaceBalance(race, heavy, still, *nobody, False).choose(np.zeros(1), asleep)
    # A token of the tail is drafted with probability q times this, to first order in q.
    drafted = float(everyone.tail[:, 1, 0].sum()) * position.latest
    ratio = np.minimum(position.cut.histogram.ratio[tokens.tail], max(drafted, 1.0))
    nodes = _nodes(position.cut, ratio[able], tokens.inner, drafted, tol)
    place = _within(np.where(able, ratio, 0.0), nodes, tokens.inner)
    return Tail(rates, place, nodes, position.num_drafts), float(everyone.expected[0])


def _within(place: FloatArray, nodes: FloatArray, inner: bool) -> FloatArray:
    """Keep places among the nodes; beside H* whatever may be chosen has a clock that rings."""
    lowest = 0.0 if inner else nodes[1]
    return np.where(place > 0, np.clip(place, lowest, nodes[-1]), 0.0)


def _nodes(cut: RaceCut, ratio: FloatArray, inner: bool, drafted: float, tol: float) -> FloatArray:
    """Nodes from 0 to beyond the tail's ratios, where no corner of the tangents lies below the cut."""
    if ratio.size == 0:
        return np.array([0.0, 1.0])
    edges = cut.histogram.edges

    def containment(mass: FloatArray) -> FloatArray:
        return np.interp(mass, cut.histogram.draft_before, cut.contained)

    highest = float(ratio.max())
    if inner:
        nodes = nodes_between(cut.histogram, containment, 0, cut.size, 0.1 * tol)
        highest *= np.exp(_HEADROOM)
    else:
        last = max(cut.size, int(np.searchsorted(edges, min(highest, drafted))))
        nodes = nodes_between(cut.histogram, containment, cut.size, last, 0.1 * tol)
        highest = min(highest * np.exp(_HEADROOM), drafted)
    lowest = max(float(ratio.min()), _LOWEST_RATIO)
    # The last class must hold some token from the start, or nothing could move towards it.
    inside = nodes[(nodes > (0.0 if inner else lowest)) & (nodes < min(highest, ratio.max()))]
    first = [0.0] if inner else [0.0, lowest]
    return np.unique(np.concatenate([first, inside, [max(highest, lowest)]]))


def _by_node(tail: Tail, low: FloatArray, high: FloatArray, wanted: FloatArray) -> FloatArray:
    """Divide each token's p between its nodes as its rate is, shape (G,)."""
    part_low, part_high = tail.share * low, (1.0 - tail.share) * high
    both = part_low + part_high
    scale = np.divide(wanted, both, out=np.zeros(both.size), where=both > 0)
    mass = tail.by_node(part_low * scale, part_high * scale)
    mass[0] = 0.0
    return mass


def _moved(tail: Tail, low: FloatArray, high: FloatArray, wanted: FloatArray, inner: bool) -> Tail:
    """Move each token so that its rate, linear between its nodes, becomes its p."""
    below, above = tail.nodes[tail.lower], tail.nodes[tail.lower + 1]
    slope = (high - low) / (above - below)
    # Where the nodes' clocks are as fast as each other a token's place does not matter.
    steep = slope > 1e-3 * high / above
    move = np.divide(wanted - tail.mix(low, high), slope, out=np.zeros(low.size), where=steep)
    # What even the last node cannot give moves there whole, lest the class below answer for it.
    short = (tail.lower == tail.nodes.size - 2) & (wanted > high) & (high > 0)
    move = np.where(short, above - tail.place, move)
    moved = np.where(wanted > 0, np.maximum(tail.place + move, np.finfo(float).tiny), 0.0)
    place = _within(moved, tail.nodes, inner)
    return Tail(tail.rates, place, tail.nodes, tail.num_drafts)


def _side(
    position: RacePosition,
    tokens: SideTokens,
    evaluate: RaceBalance,
    log_weights: FloatArray,
    of_tail: FloatArray,
) -> RaceSide:
    weights, tail = evaluate.weights(log_weights), evaluate.tail
    size = position.target.size
    lower, share, rates = np.zeros(size, np.int64), np.ones(size), np.zeros(size)
    lower[tokens.tail], share[tokens.tail], rates[tokens.tail] = tail.lower, tail.share, of_tail
    lower[tokens.heavy] = tail.nodes.size + np.arange(tokens.heavy.size)
    able = evaluate.able_heavy
    first = np.count_nonzero(evaluate.able_nodes)
    chosen = evaluate(log_weights).rates[first : first + np.count_nonzero(able)]
    rates[tokens.heavy[able]] = chosen
    clocks = np.concatenate([weights.nodes, weights.heavy])
    return RaceSide(clocks, weights.rejection, *evaluate.clock(log_weights), lower, share, rates)
