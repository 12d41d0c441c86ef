"""The optimal plan for drafts drawn one after another without replacement.

Each heavy token, one with a large q, is a class of its own. The other tokens are the tail, and share few
classes, each with a node of p/q. A token's place is a pair of neighbouring nodes and a ``share``: the token
is of the lower node's class with probability ``share``, and otherwise of the upper one's. Within a class the
probability to be chosen is nearly proportional to q. Places and weights are found in turn. Given the weights,
each token moves to the place where it is chosen with probability p; given the places, the weights are solved
for again. The race needs only the moments Σ share^a q^r of the tail.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from otmd.choice import choice_plan
from otmd.choice.race import ClassRates, NodeValues, RaceWeights, TailSums, TimedRace, TimedRates
from otmd.choice.race_pair import HEAVY_PAIR, PairRace, PairRates
from otmd.choice.weights import balance
from otmd.kernel import kernel
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
# The most moves of a token, each across a node or between two, and the most Newton steps of a light token.
_MOST_MOVES, _MOST_STEPS = 20, 4
# Two nodes whose values differ by less than this, relative to their distance, count as equal.
_FLAT = 1e-3
# Between two nodes of equal values a token stays if it is chosen with its p up to this part of it.
_ALIKE = 1e-12
# Tokens with a smaller q may be light, which means that four powers of q are exact to rounding.
_LIGHT = 1e-3
_CONTRACT = {"contract", "nsz"}


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


def plan_without_replacement(
    target: FloatArray, draft: FloatArray, num_drafts: int, tol: float
) -> choice_plan.ChoicePlan:
    """The optimal plan for n ≥ 2 drafts without replacement, at a single position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. At least n tokens of the
    draft distribution (V,) have mass. The rate may be ``tol`` below the optimum; the plan is lossless at
    every ``tol``.
    """
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
        if lost <= _LOOSE * tol or nodes.size == 2 or grids == _GRIDS:
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
    return choice_plan.Side(clocks, weights.rejection, quadrature, position.locate)


@dataclass(frozen=True, eq=False)
class Tail(TailSums):
    """T tokens of the tail and their places among G nodes, which ascend from 0, the class never chosen.

    ``rates`` (T,) are q in the unit of the race, ``wanted`` (T,) is p. No token is placed below the node
    ``lowest``. ``inert`` (R,) is Σ q^r of further tokens, which are never chosen. A token is of the class of
    the node ``lower`` with probability ``share``, and otherwise of the next one's. ``mass`` (G,) is q by
    class. ``by_node`` (G,) is p by class: a token's p is divided between its two classes in proportion to how
    often it is chosen in each.
    """

    rates: FloatArray
    wanted: FloatArray
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
        wanted: FloatArray,
        ratio: FloatArray,
        nodes: FloatArray,
        lowest: int,
        inert: FloatArray,
    ) -> Self:
        """Place each token at its p/q, the ``ratio`` (T,); the sums are empty until :meth:`placed`."""
        lower = np.searchsorted(nodes[lowest + 1 : -1], ratio, "right") + lowest
        share = nodes[1:][lower]
        share -= ratio
        share /= np.diff(nodes)[lower]
        np.clip(share, 0.0, 1.0, out=share)
        lower = lower.astype(np.int16)
        none = np.empty(0)
        return cls(nodes, none, rates, wanted, lowest, inert, lower, share, none, none)

    def placed(self, values: NodeValues) -> tuple[Self, FloatArray, tuple[float, float]]:
        """Move each token to the place where it is chosen with its p, and add up the moments there.

        Returns the moved tail, how often each token is chosen at its old place (T,), and by how much these
        are below p in all, and above.
        """
        lower, share = self.lower.copy(), self.share.copy()
        chosen, by_node = np.empty(share.size), np.zeros(self.nodes.size)
        moments = np.zeros((self.nodes.size - 1, values.below.shape[1] + 1, POWERS))
        known = self.rates, self.wanted, *values, self.nodes, self.lowest
        wrong = place_tokens(*known, lower, share, chosen, moments, by_node)
        mass, every = np.append(moments[:, 1, 1], 0.0), moments[:, 0, 1]
        mass[1:] += np.maximum(every - moments[:, 1, 1], 0.0)
        # A node that holds tokens may be chosen, even where their p is almost 0.
        held = mass > 1e-14 * np.append(every, every[-1])
        by_node[held] = np.maximum(by_node[held], 1e-300)
        by_node[0] = 0.0
        moments[0] += self.inert
        sums = {"moments": moments, "mass": mass, "by_node": by_node}
        return replace(self, lower=lower, share=share, **sums), chosen, wrong


def ratio_values(nodes: FloatArray, num_drafts: int, unit: float) -> NodeValues:
    """The values with which a token is chosen with its p at the place of its p/q; rates are ``unit`` q."""
    values = np.zeros((nodes.size, num_drafts, POWERS))
    values[:, 0, 1] = nodes / unit
    return NodeValues(values[:-1], values[1:])


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
    low, high = 0.0, 0.0
    for a in range(below.shape[1] - 1, -1, -1):
        of_low, of_high = 0.0, 0.0
        for r in range(below.shape[2] - 1, -1, -1):
            of_low = of_low * rate + below[g, a, r]
            of_high = of_high * rate + above[g, a, r]
        low, high = low * share + of_low, high * share + of_high
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
    """The mass below which a token is light, and between which nodes its place decides how it is chosen.

    For light tokens, the terms from q^5 on are below the rounding of the first.
    """
    first, fifth, steep = 0.0, 1e-300, np.empty(nodes.size - 1, np.bool_)
    # A loop compiles several times faster than expressions of arrays.
    for g in range(steep.size):
        low, high, gap = lows[g, 0], highs[g, 0], nodes[g + 1] - nodes[g]
        first, steep[g] = max(first, high), (high - low) * nodes[g + 1] > _FLAT * high * gap
        for a in range(above.shape[1]):
            fifth = max(fifth, abs(above[g, a, 5]))
    return min(_LIGHT, (1e-15 * first / fifth) ** 0.25), steep


@kernel(fastmath=_CONTRACT)
def _light_value(q, s, g, t):
    """The polynomial of a light token at one node, from a row of :func:`_light_terms`."""
    fourth = t[g, 6] + s * (t[g, 7] + s * (t[g, 8] + s * t[g, 9]))
    third = t[g, 3] + s * (t[g, 4] + s * t[g, 5]) + q * fourth
    return q * (t[g, 0] + q * (t[g, 1] + s * t[g, 2] + q * third))


@kernel(error_model="numpy", fastmath=_CONTRACT)
def _walk(rate, want, g, s, below, above, nodes, lowest):
    """Walk from place (g, s) to the one where a token is chosen with probability ``want``.

    Returns the place and the values of its two nodes. Between two nodes with equal values the place does not
    matter: the token stays, unless its p lies beyond them. A token whose p is above the value of the last
    node is placed at that node; anywhere else, the class below would have to give the rest.
    """
    last = nodes.size - 2
    low, high = _values(rate, s, g, below, above)
    for _ in range(_MOST_MOVES):
        if g == last and want > high and high > 0.0:
            moved = 0.0
        elif (high - low) * nodes[g + 1] > _FLAT * high * (nodes[g + 1] - nodes[g]):
            moved = s - (want - (s * low + (1.0 - s) * high)) / (high - low)
        elif want < (1.0 - _ALIKE) * min(low, high):
            moved = 2.0
        elif want > (1.0 + _ALIKE) * max(low, high):
            moved = -1.0
        else:
            break
        crosses = 1 if moved < 0.0 and g < last else -1 if moved > 1.0 and g > lowest else 0
        step = abs(moved - s)
        if crosses != 0:
            g, s = g + crosses, 1.0 if crosses > 0 else 0.0
        else:
            s = min(max(moved, 0.0), 1.0)
        low, high = _values(rate, s, g, below, above)
        if crosses == 0 and (step < 1e-9 or moved != s):
            break
    return g, s, low, high


@kernel(error_model="numpy", fastmath=_CONTRACT)
def place_tokens(rates, wanted, below, above, nodes, lowest, lower, share, chosen, sums, by_node):
    """Fill how often each token is chosen, move it to where this is its p, add up its moments and its p.

    Returns by how much the tokens were chosen less than p in all, and by how much more.
    """
    short, excess, last = 0.0, 0.0, nodes.size - 2
    lows, highs = _light_terms(below), _light_terms(above)
    lightest, steep = _of_light_tokens(lows, highs, above, nodes)
    for y in range(wanted.size):
        rate, want, g, s = rates[y], wanted[y], lower[y], share[y]
        if rate < lightest:
            low, high = _light_value(rate, s, g, lows), _light_value(rate, s, g, highs)
            chosen[y] = s * low + (1.0 - s) * high
            if not steep[g] and abs(want - chosen[y]) > _ALIKE * want:
                s = -1.0
            for _ in range(_MOST_STEPS if steep[g] else 0):
                step = (want - (s * low + (1.0 - s) * high)) / (high - low)
                s -= step
                low, high = _light_value(rate, s, g, lows), _light_value(rate, s, g, highs)
                if abs(step) * rate < 1e-12:
                    break
            if steep[g]:
                s = min(s, 1.0) if g == lowest else max(s, 0.0) if g == last else s
        else:
            low, high = _values(rate, s, g, below, above)
            chosen[y], s = s * low + (1.0 - s) * high, -1.0
        if 0.0 <= s <= 1.0:
            _add_powers(rate, s, g, 5, sums)
        else:
            g, s, low, high = _walk(rate, want, g, share[y], below, above, nodes, lowest)
            _add_powers(rate, s, g, POWERS, sums)
        short, excess = short + max(want - chosen[y], 0.0), excess + max(chosen[y] - want, 0.0)
        lower[y], share[y] = g, s
        part_low, part_high = s * low, (1.0 - s) * high
        part = want / (part_low + part_high) if part_low + part_high > 0.0 else 0.0
        by_node[g] += part_low * part
        by_node[g + 1] += part_high * part
    return short, excess
