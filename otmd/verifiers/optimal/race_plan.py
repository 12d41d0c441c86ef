"""The optimal plan for drafts drawn one after another without replacement.

Each heavy token, one with a large q, is a class of its own. The other tokens are the tail, and share few
classes, each with a node of p/q: a token's location is between two neighbouring nodes
(:mod:`otmd.verifiers.optimal.race_tail`). Within a class the probability to be chosen is nearly proportional
to q. Locations and weights are computed in turn. Given the weights, each token moves to the location where
it is chosen with probability p; given the locations, the weights are solved for again. The race needs only
the moments Σ share^a q^r of the tail.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from otmd.laws import Race
from otmd.laws.race.containment import ExponentialRace, RaceCurve, minority_mass, power_sums
from otmd.laws.race.quadrature import HEAVY, POWERS, latest_win, win_times
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.verifiers.optimal import choice_plan, race_nodes
from otmd.verifiers.optimal.race_pair import HEAVY_PAIR, PairRace
from otmd.verifiers.optimal.race_rates import (
    ClassRates,
    DraftedProbs,
    RaceWeights,
    TimedRace,
)
from otmd.verifiers.optimal.race_tail import Tail, ratio_values
from otmd.verifiers.optimal.weights import balance

# The search ends after this many rounds, or when two rounds together reduce the loss by less than a tenth.
_ROUNDS = 16
_STALLED = 0.9
# The search is repeated with more nodes, up to this many times in all, while it loses more than this multiple
# of the tolerance.
_GRIDS = 3
# The search of a side ends after so much work, in times of a quadrature × classes. Ordinary positions take a
# tenth of it; where weights lie a hundred orders of magnitude apart, a search would take minutes.
_MOST_WORK = 4_000_000
_LOOSE = 1e3
# Rates are cut off at this multiple of the n-th largest: a faster token is missed with probability 1e-100.
_SURE = 1e100
# The parts of the tolerance for each side of the cut, and on each side for grouping tokens into classes.
_OF_SIDE = 0.25
_OF_CLASSES = 0.1


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
    curve: race_nodes.CutCurve
    subset: BoolArray
    lower: IntArray
    share: FloatArray
    chosen: FloatArray

    def classes_of(self, tokens: IntArray, _: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`otmd.verifiers.optimal.choice_plan.Side`."""
        lower, share = self.lower[tokens], self.share[tokens]
        return np.stack([lower, lower + (share < 1.0)], axis=1), np.stack([share, 1.0 - share], axis=1)

    def keep(self, solution: "RaceSolution", tokens: IntArray, heavy: IntArray, able: BoolArray) -> None:
        """Fill the arrays for tokens of the tail (T,), and for the heavy ones (M,) that are ``able``."""
        self.lower[tokens] = solution.tail.lower
        self.share[tokens] = solution.tail.share
        self.chosen[tokens] = solution.tail_chosen
        classes = np.flatnonzero(able)
        self.lower[heavy[able]] = solution.tail.nodes.size + classes
        self.chosen[heavy[able]] = solution.heavy_chosen[able]

    def race(self, heavy: FloatArray, inner: bool) -> TimedRace | PairRace:
        """The race of one side, whose heavy tokens have these rates. Inside H*, no token outside may win."""
        if self.num_drafts == 2:
            others_mass = 1.0 - heavy
            # For the one token with more than half of the mass, the difference would cancel.
            others_mass[heavy > 0.5] = minority_mass(self.rates)
            return PairRace(heavy, heavy / others_mass)
        blocked = float(self.rates[~self.subset].sum()) if inner else 0.0
        times, steps = win_times(1.0, self.unit, self.num_drafts, self.num_drafts)
        quadrature = choice_plan.Quadrature(times, steps)
        return TimedRace(self.num_drafts, heavy, blocked, quadrature)


def plan_without_replacement(target: FloatArray, race: Race, tol: float) -> choice_plan.ChoicePlan:
    """The optimal plan for n ≥ 2 drafts without replacement, at a single position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. The rate may be ``tol`` below
    the optimum; the plan is lossless at every ``tol``.
    """
    draft = race.probs
    num_drafts = race.num_drafts
    fastest = _SURE * float(np.partition(draft, -num_drafts)[-num_drafts])
    if draft.max() > fastest:
        draft = np.minimum(draft, fastest)
        draft /= draft.sum()
    blocked = RaceCurve(target, ExponentialRace(draft, num_drafts))
    (cut,) = blocked.smallest_cuts()
    unit = 1.0 if num_drafts == 2 else latest_win(draft, num_drafts)
    curve = race_nodes.cut_curve(blocked, cut.size)
    subset = blocked.subset(cut.end)
    position = RacePosition(
        target,
        draft * unit,
        num_drafts,
        unit,
        curve,
        subset,
        lower=np.zeros(draft.size, np.int64),
        share=np.ones(draft.size),
        chosen=np.zeros(draft.size),
    )
    inner = _solve_side(position, True, _OF_SIDE * tol)
    outer = _solve_side(position, False, _OF_SIDE * tol)
    rows = np.zeros(num_drafts, int)
    return choice_plan.ChoicePlan(target, rows, subset, 1.0 + cut.value, inner, outer)


def _solve_side(position: RacePosition, inner: bool, tol: float) -> choice_plan.Side | None:
    """Find locations and weights with which every token is chosen with probability p; None without tokens.

    Inside H*, no token outside may be drafted. Outside H*, tokens of H* may be, and are never chosen.
    """
    rates = position.rates
    unit = position.unit
    racing = rates > 0
    if inner:
        racing &= position.subset
    able = racing & (position.target > 0) & (position.subset == inner)
    light = racing & (rates <= (HEAVY_PAIR if position.num_drafts == 2 else HEAVY))
    heavy = np.flatnonzero(racing & ~light)
    tokens = np.flatnonzero(light & able)
    if tokens.size == 0 and not able[heavy].any():
        return None
    tail_rates = rates[tokens]
    tail_target = position.target[tokens]
    inert = power_sums(rates[light & ~able], POWERS)
    race = position.race(rates[heavy], inner)
    drafted = race.drafted_probs(inert + power_sums(tail_rates, POWERS))
    with np.errstate(over="ignore"):
        ratio = tail_target / tail_rates * unit
    largest = float(tail_rates.max(initial=0.0)) / unit
    most = drafted.tail * unit
    nodes = race_nodes.nodes_of_tail(position.curve, ratio, largest, most, inner, _OF_CLASSES * tol)
    lowest = 0 if inner or nodes.size == 2 else 1
    search = RaceSearch(race, able[heavy], position.target[heavy], drafted, inner)
    grids = 0
    while True:
        start = Tail.at_ratios(tail_rates, tail_target, ratio, nodes, lowest, inert)
        solution = search(start.moved(ratio_values(nodes, position.num_drafts, unit))[0], tol)
        grids += 1
        many = nodes.size > race_nodes.MOST_NODES or search.is_enough()
        if solution.loss <= _LOOSE * tol or nodes.size == 2 or grids == _GRIDS or many:
            break
        # The search stalled; another node between each two may help.
        nodes = np.unique(np.concatenate([nodes, 0.5 * (nodes[1:-1] + nodes[2:])]))
    position.keep(solution, tokens, heavy, able[heavy])
    return _side(position, solution.weights)


def _side(position: RacePosition, weights: RaceWeights) -> choice_plan.Side:
    """The choice among the drafts by clocks with these weights."""
    clocks = np.append(weights.nodes, weights.heavy)
    running = np.append(clocks[clocks > 0], [weights.rejection] * (weights.rejection > 0))
    quadrature = choice_plan.quadrature_for_weights(np.log(running), position.num_drafts)
    tiers = np.zeros(clocks.size, np.int64)
    return choice_plan.Side(
        clocks,
        tiers,
        weights.rejection,
        quadrature,
        position.chosen.__getitem__,
        position.classes_of,
    )


class RaceSolution(NamedTuple):
    """The tail at its locations, the weights, and the probabilities to be chosen at these.

    ``heavy_chosen`` (M,) is for heavy tokens, ``tail_chosen`` (T,) for those of the tail. The ``loss`` is the
    part of p that is not chosen inside H*, and what is chosen beyond p outside.
    """

    loss: float
    tail: Tail
    weights: RaceWeights
    heavy_chosen: FloatArray
    tail_chosen: FloatArray


@dataclass
class RaceSearch:
    """The search for the weights and locations of one side.

    ``able`` (M,) marks the heavy tokens that may be chosen; ``heavy`` (M,) is p of all heavy tokens. ``work``
    is the number of times of quadratures × classes, over all evaluations.
    """

    race: TimedRace | PairRace
    able: BoolArray
    heavy: FloatArray
    drafted: DraftedProbs
    inner: bool
    work: int = 0

    def is_enough(self) -> bool:
        """Whether the search has to end."""
        return self.work > _MOST_WORK

    def __call__(self, tail: Tail, tol: float) -> RaceSolution:
        """Find locations and weights in turn; return the solution of the round with the smallest loss."""
        best = None
        previous = None
        losses = []
        target = self.heavy[self.able]
        sign = 1.0 if self.inner else -1.0
        for _ in range(_ROUNDS):
            rates, log_weights, heavy = self._balanced(tail, tol, previous)
            weights = rates.weights(log_weights)
            previous = rates, weights
            moved, chosen, (short, excess) = tail.moved(rates.node_values(log_weights))
            heavy_loss = np.maximum(sign * (target - heavy[self.able]), 0.0)
            losses.append(float(heavy_loss.sum()) + (short if self.inner else excess))
            if losses[-1] == min(losses):
                best = RaceSolution(losses[-1], tail, weights, heavy, chosen)
            stalls = len(losses) > 3 and min(losses[-2:]) > _STALLED * min(losses[:-2])
            if losses[-1] <= 2.0 * tol or stalls or self.is_enough():
                break
            tail = moved
        assert best is not None
        return best

    def _balanced(
        self, tail: Tail, tol: float, previous: tuple[ClassRates, RaceWeights] | None
    ) -> tuple[ClassRates, FloatArray, FloatArray]:
        """The rates as a function, log weights that balance them, and P(each heavy token is chosen)."""
        nodes = tail.by_node > 0
        heavy = self.heavy[self.able]
        start = None
        targets = np.concatenate([tail.by_node[nodes], heavy])
        rejected = self.drafted.total - float(targets.sum()) if self.inner else 0.0
        rejects = rejected > 0
        if rejects:
            targets = np.append(targets, rejected)
        classes = self.race.class_rates(tail, nodes, self.able, rejects)
        if previous:
            old_rates, old = previous
            # The last round may have had other classes.
            if old_rates.rejects == rejects and old_rates.able_nodes.any() >= nodes.any():
                rejection = [old.rejection] * rejects
                start = np.log(np.concatenate([old.nodes[nodes], old.heavy[self.able], rejection]))
        tail_drafted = (tail.mass * self.drafted.tail)[nodes]
        heavy_drafted = self.drafted.heavy[self.able]
        likely = np.concatenate([tail_drafted, heavy_drafted, [self.drafted.total] * rejects])

        def evaluate(log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
            times, _ = choice_plan.quadrature_for_weights(log_weights, self.race.num_drafts)
            self.work += times.size * log_weights.size
            return classes(log_weights)

        log_weights, rates = balance(evaluate, targets, not self.inner, tol, start, likely, self.is_enough)
        chosen = np.zeros(self.heavy.size)
        count = np.count_nonzero(nodes)
        chosen[self.able] = rates[count : count + heavy.size]
        return classes, log_weights, chosen
