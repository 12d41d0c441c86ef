"""The optimal plan for drafts drawn one after another without replacement.

Each heavy token is a class of its own. The other tokens, the tail, are spread over few classes. Within a
class the probability to be chosen is nearly proportional to q. Places and weights are found in turn: given
the weights, each token moves between its two nodes to where it is chosen with probability p; given the
places, the weights are solved for again.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from otmd.choice.classes import CutCurve, cut_curve
from otmd.choice.plan import ChoicePlan, Quadrature, Side, quadrature_for_weights
from otmd.choice.race import ClassRates, RaceWeights, TimedRace, TimedRates
from otmd.choice.race_pair import HEAVY_PAIR, PairRace, PairRates
from otmd.choice.race_tail import NodeValues, Tail, nodes_of_tail, ratio_values
from otmd.choice.weights import balance
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.containment import ExponentialRace, RaceCurve, mass_beside_most, power_sums
from otmd.race.quadrature import HEAVY, POWERS, latest_win, win_times

# The search ends after this many rounds, or when two rounds together gain less than a tenth.
_ROUNDS, _STALLED = 16, 0.9
# Rates are cut off at this multiple of the n-th largest: a faster token is not drafted with probability
# 1e-100.
_SURE = 1e100
# The tolerance is shared by two sides, and on each side by the classes and the weights.
_OF_SIDE, _OF_CLASSES = 0.25, 0.1


class RaceSolution(NamedTuple):
    """The end of a round: the side with its tokens at their places, and its log weights.

    ``values`` are those of the nodes; ``heavy`` (M,) and ``tail`` (T,) how often each token is chosen.
    ``lost`` is, inside H*, the part of p that is not chosen; outside it, what is chosen beyond p.
    """

    rates: ClassRates
    log_weights: FloatArray
    values: NodeValues
    heavy: FloatArray
    tail: FloatArray
    lost: float

    @property
    def weights(self) -> RaceWeights:
        """The weights."""
        return self.rates.weights(self.log_weights)


class SideTokens(NamedTuple):
    """The tokens that take part on one side: M heavy ones that race, and the tail's that may be chosen.

    Inside H*, tokens of the other side must not arrive. Outside, tokens of H* arrive and are never chosen:
    ``able`` (M,) marks the heavy tokens that may be, ``inert`` (R,) has power sums of other tail tokens.
    """

    inner: bool
    heavy: IntArray
    tail: IntArray
    able: BoolArray
    inert: FloatArray


@dataclass(frozen=True, eq=False)
class RacePosition:
    """A position of a race: p, and ``rates`` (V,), which are ``unit`` times q; the curve and H* (V,)."""

    target: FloatArray
    rates: FloatArray
    num_drafts: int
    unit: float
    curve: CutCurve
    subset: BoolArray

    def tokens(self, inner: bool) -> SideTokens:
        """The tokens of one side, by their parts in the race."""
        racing = self.rates > 0
        if inner:
            racing &= self.subset
        able = racing & (self.target > 0) & (self.subset == inner)
        light = racing & (self.rates <= (HEAVY_PAIR if self.num_drafts == 2 else HEAVY))
        heavy = np.flatnonzero(racing & ~light)
        inert = power_sums(self.rates[light & ~able], None, POWERS)
        return SideTokens(inner, heavy, np.flatnonzero(light & able), able[heavy], inert)

    def race(self, tokens: SideTokens) -> TimedRace | PairRace:
        """The race of one side."""
        heavy = self.rates[tokens.heavy]
        if self.num_drafts == 2:
            beside = 1.0 - heavy
            # The difference would cancel.
            beside[heavy > 0.5] = mass_beside_most(self.rates)
            return PairRace(heavy, heavy / beside)
        blocked = float(self.rates[~self.subset].sum()) if tokens.inner else 0.0
        times = win_times(1.0, self.unit, self.num_drafts, self.num_drafts)
        return TimedRace(self.num_drafts, heavy, blocked, Quadrature(*times))


@dataclass(frozen=True, eq=False)
class RaceSide(Side):
    """A side whose heavy tokens are classes of their own.

    By token (V,): its ``lower`` class, its ``share`` of it (the rest is the next one's), and how often it
    is chosen.
    """

    lower: IntArray
    share: FloatArray
    rates: FloatArray

    @classmethod
    def of(cls, position: RacePosition, tokens: SideTokens, found: RaceSolution) -> Self:
        """The side, from what was found for its heavy tokens and its tail."""
        tail, weights, size = found.rates.tail, found.weights, position.rates.size
        lower, share, rates = np.zeros(size, np.int64), np.ones(size), np.zeros(size)
        lower[tokens.tail], share[tokens.tail] = tail.lower, tail.share
        rates[tokens.tail] = found.tail
        lower[tokens.heavy] = tail.nodes.size + np.arange(tokens.heavy.size)
        rates[tokens.heavy] = found.heavy
        clocks = np.append(weights.nodes, weights.heavy)
        quadrature = quadrature_for_weights(found.log_weights, position.num_drafts)
        return cls(clocks, weights.rejection, quadrature, lower, share, rates)

    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`Side`."""
        return self.lower[tokens], self.share[tokens]

    def offered(self, tokens: IntArray) -> FloatArray:
        """See :class:`Side`."""
        return self.rates[tokens]


def plan_without_replacement(
    target: FloatArray, draft: FloatArray, num_drafts: int, tol: float
) -> ChoicePlan:
    """The optimal plan for n ≥ 2 drafts without replacement, at a single position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. At least n tokens of the
    draft distribution (V,) have mass. ``tol`` is how much acceptance may be lost; never correctness.
    """
    largest = _SURE * float(np.partition(draft, -num_drafts)[-num_drafts])
    if draft.max() > largest:
        draft = np.minimum(draft, largest)
        draft /= draft.sum()
    blocked = RaceCurve(target, ExponentialRace(draft, num_drafts), [num_drafts])
    (cut,) = blocked.smallest_cuts()
    unit = 1.0 if num_drafts == 2 else latest_win(draft, num_drafts)
    curve, subset = cut_curve(blocked, cut.size), blocked.ratios() < cut.end
    position = RacePosition(target, draft * unit, num_drafts, unit, curve, subset)
    sides = [
        _solve_side(position, position.tokens(inner), _OF_SIDE * tol) for inner in (True, False)
    ]
    return ChoicePlan(target, subset, 1.0 + cut.value, *sides)


def _solve_side(position: RacePosition, tokens: SideTokens, tol: float) -> RaceSide | None:
    """Find weights and places with which every token is chosen with probability p; None without tokens."""
    if tokens.tail.size == 0 and not tokens.able.any():
        return None
    rates, wanted = position.rates[tokens.tail], position.target[tokens.tail]
    race, sums = position.race(tokens), tokens.inert + power_sums(rates, None, POWERS)
    unit, inner, nodes = position.unit, tokens.inner, np.array([0.0, 1.0])
    total, drafted = race.whole(sums)
    drafted *= unit
    with np.errstate(over="ignore"):
        ratio = wanted / rates * unit
    if rates.size:
        low, high = np.minimum([ratio.min(), ratio.max()], max(drafted, 1.0)).tolist()
        ends, largest = (low, high), float(rates.max()) / unit
        nodes = nodes_of_tail(position.curve, ends, largest, inner, drafted, _OF_CLASSES * tol)
    lowest = 0 if inner or nodes.size == 2 else 1
    tail = Tail.at_ratios(rates, wanted, ratio, nodes, lowest, tokens.inert)
    search = RaceSearch(race, tokens.able, position.target[tokens.heavy], total, inner)
    found = search(tail, ratio_values(nodes, position.num_drafts, unit), tol)
    return RaceSide.of(position, tokens, found)


class RaceSearch(NamedTuple):
    """The search for the weights and places of one side.

    ``able`` (M,) marks the heavy tokens that may be chosen, ``heavy`` (M,) is their p, ``total`` the
    probability that all drafts are of the side.
    """

    race: TimedRace | PairRace
    able: BoolArray
    heavy: FloatArray
    total: float
    inner: bool

    def __call__(self, tail: Tail, values: NodeValues, tol: float) -> RaceSolution:
        """Find places and weights in turn, the first places at p/q by ``values``; the best round."""
        found, best, lost = None, None, []
        for _ in range(_ROUNDS):
            tail = tail.placed(values)
            found = self._balanced(tail, tol, found)
            values = found.values
            if best is None or found.lost < best.lost:
                best = found
            lost.append(found.lost)
            stalls = len(lost) > 3 and min(lost[-2:]) > _STALLED * min(lost[:-2])
            if found.lost <= 2.0 * tol or stalls:
                break
        assert best is not None
        return best

    def _balanced(self, tail: Tail, tol: float, start: RaceSolution | None) -> RaceSolution:
        """Solve for the weights of tokens at their places."""
        able_nodes = tail.by_node > 0
        heavy = self.heavy[self.able]
        targets = np.concatenate([tail.by_node[able_nodes], heavy])
        rejected = self.total - float(targets.sum()) if self.inner else 0.0
        if rejected > 0:
            targets = np.append(targets, rejected)
        race, known = self.race, (tail, able_nodes, self.able, rejected > 0)
        classes = (
            PairRates(*known, race) if isinstance(race, PairRace) else TimedRates(*known, race)
        )
        first = None if start is None else _carried(start, classes)
        log_weights, rates = balance(classes, targets, not self.inner, tol, first)
        values = classes.node_values(log_weights)
        of_tail, chosen = tail.values(values), np.zeros(self.heavy.size)
        count = np.count_nonzero(able_nodes)
        chosen[self.able] = rates[count : count + heavy.size]
        sign = 1.0 if self.inner else -1.0
        short = np.maximum(sign * (tail.wanted - of_tail), 0.0)
        of_heavy = np.maximum(sign * (heavy - chosen[self.able]), 0.0)
        lost = float(of_heavy.sum() + short.sum())
        return RaceSolution(classes, log_weights, values, chosen, of_tail, lost)


def _carried(start: RaceSolution, classes: ClassRates) -> FloatArray | None:
    """The log weights of the round before, for classes that may be others."""
    before = start.rates
    if before.rejects != classes.rejects or before.able_nodes.any() < classes.able_nodes.any():
        return None
    weights = start.weights
    carried = [weights.nodes[classes.able_nodes], weights.heavy[classes.able_heavy]]
    return np.log(np.concatenate([*carried, [weights.rejection] * classes.rejects]))
