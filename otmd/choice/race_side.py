"""One side of the cut of a race: weights by token for the heavy ones, by class for the tail."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from otmd.choice.plan import Side
from otmd.choice.race_model import TimedRace
from otmd.choice.race_places import nodes_of_tail, rehearsal
from otmd.choice.race_search import Found, RaceSearch
from otmd.choice.race_tail import Tail, power_sums
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.cut import RaceCut
from otmd.race.quadrature import HEAVY, win_times

# Longer tails are rehearsed before they are played.
_LONG = 4096
# How far tokens may move beyond the farthest ratio, in units of it.
_HEADROOM = 0.1


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
    heavy, tail : ndarray of int64, shape (M,) and (T,)
        The heavy tokens that race, and those of the tail that may be chosen.
    able : ndarray of bool, shape (M,)
        The heavy tokens that may be chosen.
    inert : ndarray of float64, shape (R,)
        Power sums of the tail's other tokens.
    blocked : float
        The rate of those that must not win.
    """

    inner: bool
    heavy: IntArray
    tail: IntArray
    able: BoolArray
    inert: FloatArray
    blocked: float

    @classmethod
    def of(cls, position: RacePosition, inner: bool) -> Self:
        """Sort the tokens of a position."""
        rates, subset = position.rates, position.cut.subset
        racing = rates > 0
        if inner:
            racing &= subset
        able = racing & (position.target > 0) & (subset == inner)
        light = racing & (rates <= HEAVY)
        heavy = np.flatnonzero(racing & ~light)
        inert = power_sums(rates[light & ~able])
        blocked = float(rates[~racing].sum())
        return cls(inner, heavy, np.flatnonzero(light & able), able[heavy], inert, blocked)

    @property
    def empty(self) -> bool:
        """Whether nothing may be chosen."""
        return self.tail.size == 0 and not self.able.any()


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

    @classmethod
    def of(cls, size: int, tokens: SideTokens, found: Found) -> Self:
        """Lay what was found for the heavy tokens and the tail out over the vocabulary."""
        tail = found.balance.tail
        lower, share, rates = np.zeros(size, np.int64), np.ones(size), np.zeros(size)
        lower[tokens.tail], share[tokens.tail] = tail.lower, tail.share
        rates[tokens.tail] = found.tail
        lower[tokens.heavy] = tail.nodes.size + np.arange(tokens.heavy.size)
        rates[tokens.heavy] = found.heavy
        weights = found.balance.weights(found.log_weights)
        clocks = np.concatenate([weights.nodes, weights.heavy])
        times = found.balance.clock(found.log_weights)
        return cls(clocks, weights.rejection, *times, lower, share, rates)

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
    """
    n = position.num_drafts
    rates, heavy_rates = position.rates[tokens.tail], position.rates[tokens.heavy]
    race = TimedRace(heavy_rates, tokens.blocked, *win_times(1.0, position.latest, n, n))
    moments = np.tile(tokens.inert + power_sums(rates), (1, n + 1, 1))
    everyone = race.choice(np.ones((1, heavy_rates.size)), np.ones((1, 2)), moments)
    # A token of the tail is drafted with probability q times this, to first order in q.
    drafted = float(everyone.tail[:, 1, 0].sum()) * position.latest
    ratio = np.minimum(position.cut.histogram.ratio[tokens.tail], max(drafted, 1.0))
    nodes = np.array([0.0, 1.0])
    if ratio.size:
        ends = float(ratio.min()), float(ratio.max())
        room = _HEADROOM * ends[1]
        nodes = nodes_of_tail(position.cut, ends, room, tokens.inner, drafted, 0.1 * tol)
    place = np.clip(ratio, 0.0 if tokens.inner else nodes[1], nodes[-1])
    tail = Tail.at(place, rates, np.ones(rates.size), nodes, tokens.inert, n)
    wanted, heavy = position.target[tokens.tail], position.target[tokens.heavy]
    total = float(everyone.expected[0])
    search = RaceSearch(race, tokens.able, heavy, total, tokens.inner, tol)
    rehearsed = search(*rehearsal(tail, wanted)) if rates.size > _LONG else None
    found = search(tail, wanted, rehearsed)
    return RaceSide.of(position.rates.size, tokens, found)
