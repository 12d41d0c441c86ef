"""The optimal plan for drafts drawn one after another without replacement.

Each heavy token, one with a large q, is a class of its own. The other tokens are the tail, and share few
classes, each with a node of p/q: a token's place is between two neighbouring nodes
(:mod:`otmd.choice.race_tail`). Within a class the probability to be chosen is nearly proportional to q.
Places and weights are found in turn. Given the weights, each token moves to the place where it is chosen with
probability p; given the places, the weights are solved for again. The race needs only the moments
Σ share^a q^r of the tail.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from otmd.choice import choice_plan
from otmd.choice.race import ClassRates, RaceWeights, TimedRace, TimedRates
from otmd.choice.race_pair import HEAVY_PAIR, PairRace, PairRates
from otmd.choice.race_tail import Tail, ratio_values
from otmd.choice.weights import balance
from otmd.drafts import Race
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.containment import ExponentialRace, RaceCurve, mass_beside_most, power_sums
from otmd.race.quadrature import HEAVY, POWERS, latest_win, win_times

# The search ends after this many rounds, or when two rounds together reduce the loss by less than a tenth.
_ROUNDS, _STALLED = 16, 0.9
# The search is repeated with more nodes, up to this many times in all, while it loses more than this multiple
# of the tolerance.
_GRIDS, _LOOSE = 3, 1e3
# Rates are cut off at this multiple of the n-th largest: a faster token is missed with probability 1e-100.
_SURE = 1e100
# The parts of the tolerance for each side of the cut, and on each side for grouping tokens into classes.
_OF_SIDE, _OF_CLASSES = 0.25, 0.1


@dataclass(frozen=True, eq=False)
class RacePosition:
    """One position: p, the ``rates`` (V,) of the race, which are ``unit`` times q, the curve and H* (V,).

    The other arrays (V,) are filled for each side in turn: the ``lower`` class of each token, the ``share``
    of it (the rest is the next class's), and the probability that the token is ``chosen``.
    """

    target: FloatArray
    rates: FloatArray
    num_drafts: int
    unit: float
    curve: choice_plan.CutCurve
    subset: BoolArray
    lower: IntArray
    share: FloatArray
    chosen: FloatArray

    def locate(self, tokens: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """See :class:`otmd.choice.choice_plan.Side`."""
        return self.lower[tokens], self.share[tokens], self.chosen[tokens]

    def race(self, heavy: FloatArray, inner: bool) -> TimedRace | PairRace:
        """The race of one side, whose heavy tokens have these rates. Inside H*, no token outside may win."""
        if self.num_drafts == 2:
            beside = 1.0 - heavy
            # For the one token with more than half of the mass, the difference would cancel.
            beside[heavy > 0.5] = mass_beside_most(self.rates)
            return PairRace(heavy, heavy / beside)
        blocked = float(self.rates[~self.subset].sum()) if inner else 0.0
        times = win_times(1.0, self.unit, self.num_drafts, self.num_drafts)
        return TimedRace(self.num_drafts, heavy, blocked, choice_plan.Quadrature(*times))


def plan_without_replacement(target: FloatArray, race: Race, tol: float) -> choice_plan.ChoicePlan:
    """The optimal plan for n ≥ 2 drafts without replacement, at a single position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. The rate may be ``tol`` below
    the optimum; the plan is lossless at every ``tol``.
    """
    draft, num_drafts = race.probs, race.num_drafts
    fastest = _SURE * float(np.partition(draft, -num_drafts)[-num_drafts])
    if draft.max() > fastest:
        draft = np.minimum(draft, fastest)
        draft /= draft.sum()
    blocked = RaceCurve(target, ExponentialRace(draft, num_drafts), [num_drafts])
    (cut,) = blocked.smallest_cuts()
    unit = 1.0 if num_drafts == 2 else latest_win(draft, num_drafts)
    curve, subset = choice_plan.cut_curve(blocked, cut.size), blocked.subset(cut.end)
    places = np.zeros(draft.size, np.int64), np.ones(draft.size), np.zeros(draft.size)
    position = RacePosition(target, draft * unit, num_drafts, unit, curve, subset, *places)
    sides = [_solve_side(position, inner, _OF_SIDE * tol) for inner in (True, False)]
    return choice_plan.ChoicePlan(target, subset.__getitem__, 1.0 + cut.value, *sides)


def _solve_side(position: RacePosition, inner: bool, tol: float) -> choice_plan.Side | None:
    """Find places and weights with which every token is chosen with probability p; None without tokens.

    Inside H*, no token outside may be drafted. Outside H*, tokens of H* may be, and are never chosen.
    """
    rates, unit = position.rates, position.unit
    racing = rates > 0
    if inner:
        racing &= position.subset
    able = racing & (position.target > 0) & (position.subset == inner)
    light = racing & (rates <= (HEAVY_PAIR if position.num_drafts == 2 else HEAVY))
    heavy, tokens = np.flatnonzero(racing & ~light), np.flatnonzero(light & able)
    if tokens.size == 0 and not able[heavy].any():
        return None
    own, wanted = rates[tokens], position.target[tokens]
    inert = power_sums(rates[light & ~able], None, POWERS)
    race = position.race(rates[heavy], inner)
    total, drafted, likely = race.whole(inert + power_sums(own, None, POWERS))
    with np.errstate(over="ignore"):
        ratio = wanted / own * unit
    most = float(own.max(initial=0.0)) / unit, drafted * unit
    nodes = choice_plan.nodes_of_tail(position.curve, ratio, *most, inner, _OF_CLASSES * tol)
    lowest = 0 if inner or nodes.size == 2 else 1
    search = RaceSearch(race, able[heavy], position.target[heavy], total, drafted, likely, inner)
    grids = 0
    while True:
        tail = Tail.at_ratios(own, wanted, ratio, nodes, lowest, inert)
        first = tail.placed(ratio_values(nodes, position.num_drafts, unit))[0]
        lost, (tail, weights, of_heavy, position.chosen[tokens]) = search(first, tol)
        grids += 1
        many = nodes.size > choice_plan.MOST_NODES_OF_RACE
        if lost <= _LOOSE * tol or nodes.size == 2 or grids == _GRIDS or many:
            break
        # The search stalled; another node between each two may help.
        nodes = np.unique(np.concatenate([nodes, 0.5 * (nodes[1:-1] + nodes[2:])]))
    position.lower[tokens], position.share[tokens] = tail.lower, tail.share
    own = able[heavy]
    position.lower[heavy[own]] = nodes.size + np.flatnonzero(own)
    position.chosen[heavy[own]] = of_heavy[own]
    clocks = np.append(weights.nodes, weights.heavy)
    running = np.append(clocks[clocks > 0], [weights.rejection] * (weights.rejection > 0))
    quadrature = choice_plan.quadrature_for_weights(np.log(running), position.num_drafts)
    tiers = np.zeros(clocks.size, np.int64)
    return choice_plan.Side(clocks, tiers, weights.rejection, quadrature, position.locate)


class RaceSearch(NamedTuple):
    """The search for the weights and places of one side.

    ``able`` (M,) marks the heavy tokens that may be chosen; ``heavy`` (M,) is p of all heavy tokens. See
    :meth:`otmd.choice.race.TimedRace.whole` for ``total``, ``drafted`` and ``likely``.
    """

    race: TimedRace | PairRace
    able: BoolArray
    heavy: FloatArray
    total: float
    drafted: float
    likely: FloatArray
    inner: bool

    def __call__(
        self, tail: Tail, tol: float
    ) -> tuple[float, tuple[Tail, RaceWeights, FloatArray, FloatArray]]:
        """Find places and weights in turn; return the loss of the best round, and its solution.

        The solution is the places, the weights, and how often the heavy tokens (M,) and those of the tail
        (T,) are chosen. The loss is the part of p that is not chosen inside H*, and what is chosen beyond p
        outside.
        """
        best, before, lost = None, None, []
        wanted, sign = self.heavy[self.able], 1.0 if self.inner else -1.0
        for _ in range(_ROUNDS):
            rates, log_weights, heavy = self._balanced(tail, tol, before)
            before = rates, rates.weights(log_weights)
            moved, chosen, wrong = tail.placed(rates.node_values(log_weights))
            of_heavy = np.maximum(sign * (wanted - heavy[self.able]), 0.0)
            lost.append(float(of_heavy.sum()) + wrong[0 if self.inner else 1])
            if lost[-1] == min(lost):
                best = tail, before[1], heavy, chosen
            stalls = len(lost) > 3 and min(lost[-2:]) > _STALLED * min(lost[:-2])
            if lost[-1] <= 2.0 * tol or stalls:
                break
            tail = moved
        assert best is not None
        return min(lost), best

    def _balanced(
        self, tail: Tail, tol: float, before: tuple[ClassRates, RaceWeights] | None
    ) -> tuple[ClassRates, FloatArray, FloatArray]:
        """The rates as a function, log weights that balance them, and how often heavy tokens are chosen."""
        nodes, heavy, start = tail.by_node > 0, self.heavy[self.able], None
        targets = np.concatenate([tail.by_node[nodes], heavy])
        rejected = self.total - float(targets.sum()) if self.inner else 0.0
        rejects = rejected > 0
        if rejects:
            targets = np.append(targets, rejected)
        race, known = self.race, (tail, nodes, self.able, rejects)
        classes = (
            PairRates(*known, race) if isinstance(race, PairRace) else TimedRates(*known, race)
        )
        # The last round may have had other classes.
        if before and before[0].rejects == rejects and before[0].able_nodes.any() >= nodes.any():
            weights = before[1].nodes[nodes], before[1].heavy[self.able]
            start = np.log(np.concatenate([*weights, [before[1].rejection] * rejects]))
        drafted = (tail.mass * self.drafted)[nodes], self.likely[self.able]
        likely = np.concatenate([*drafted, [self.total] * rejects])
        log_weights, rates = balance(classes, targets, not self.inner, tol, start, likely)
        chosen, count = np.zeros(self.heavy.size), np.count_nonzero(nodes)
        chosen[self.able] = rates[count : count + heavy.size]
        return classes, log_weights, chosen
