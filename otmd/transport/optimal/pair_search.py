"""The search for weights and places that give every token of two drafts its p.

Heavy tokens are classes of their own. The others lie between nodes, where p/q is hardly more than a start: a
token competes with all others but not with itself, which moves its place by a little.
"""

from dataclasses import dataclass

import numpy as np

from otmd.kernels.pair_classes import masses_at_nodes
from otmd.kernels.pair_places import (
    BOTH,
    DOWN,
    FIRST,
    OWN,
    SUMS,
    TERMS,
    UP,
    sum_places,
)
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.transport.optimal.balance import balance
from otmd.transport.optimal.pair_balance import PairBalance, PairMasses

# Rounds end after so many, or where one gains less than a tenth.
_ROUNDS, _STALLED = 16, 0.9
_LEAST = float(np.finfo(float).tiny)


@dataclass(frozen=True, eq=False)
class LightTokens:
    """Tokens of small q, or cells of such tokens, that may be chosen.

    Attributes
    ----------
    mass : ndarray of float64, shape (T,)
        The draft mass that each stands for.
    draft, ratio : ndarray of float64, shape (T,)
        q of a single token, and its p/q.
    """

    mass: FloatArray
    draft: FloatArray
    ratio: FloatArray


@dataclass(frozen=True, eq=False)
class PairTokens:
    """Who takes part on one side, beside the light tokens that may be chosen.

    Attributes
    ----------
    inner : bool
        Whether the side is H*.
    nodes : ndarray of float64, shape (G,)
        Ascending places of the light tokens, beginning with 0.
    inert : tuple of float
        Σ q and Σ q²/(1 − q) of the light tokens that are never chosen.
    heavy : ndarray of int64, shape (M,)
        The heavy tokens that are drafted, ascending.
    first, second, target : ndarray of float64, shape (M,)
        Their q, q/(1 − q) and p.
    able : ndarray of bool, shape (M,)
        Which of them may be chosen.
    """

    inner: bool
    nodes: FloatArray
    inert: tuple[float, float]
    heavy: IntArray
    first: FloatArray
    second: FloatArray
    target: FloatArray
    able: BoolArray

    @property
    def lowest(self) -> int:
        """The lowest node below a token: beside H* whatever may be chosen has a clock that rings."""
        return 0 if self.inner else 1

    def sums(self, light: LightTokens, terms: FloatArray) -> tuple[FloatArray, float]:
        """Place light tokens; their sums between nodes (G − 1, SUMS), and what is lost at their places."""
        sums = np.zeros((self.nodes.size - 1, SUMS))
        tokens = light.mass, light.draft, light.ratio
        short, excess = sum_places(*tokens, self.nodes, terms, self.lowest, sums)
        return sums, short if self.inner else excess

    def classes(self, sums: FloatArray, terms: FloatArray) -> tuple[PairMasses, FloatArray]:
        """The masses of all classes, and the p of each (C,), of tokens that were placed by these terms."""
        size = self.nodes.size
        first, square, own, targets = np.zeros((4, size))
        shared = np.empty(size - 1)
        masses_at_nodes(sums, terms, first, square, own, shared, targets)
        # Whatever has a clock that rings is a class with a weight.
        targets = np.where(first > 0, np.maximum(targets, _LEAST), 0.0)
        first[0] += self.inert[0]
        square[0] += self.inert[1]
        own[0] += self.inert[1]
        targets[0] = 0.0
        masses = PairMasses(
            np.concatenate([first, self.first]),
            np.concatenate([first + square, self.second]),
            np.concatenate([own, self.first * self.second]),
            shared,
        )
        return masses, np.concatenate([targets, np.where(self.able, self.target, 0.0)])


@dataclass(frozen=True, eq=False)
class Found:
    """The end of a round: tokens were placed by ``before``, and then the weights were solved for.

    Attributes
    ----------
    balance : PairBalance
        The side, its tokens at their places.
    log_weights : ndarray of float64
        See :class:`~otmd.transport.optimal.pair_balance.PairBalance`.
    rates : ndarray of float64, shape (C,)
        How often each class is chosen.
    before, terms : ndarray of float64, shape (G, TERMS)
        What tokens are chosen with at the nodes, before and after.
    lost : float
        A bound of the mass that tokens want and do not get; beside H* of what they get too much.
    """

    balance: PairBalance
    log_weights: FloatArray
    rates: FloatArray
    before: FloatArray
    terms: FloatArray
    lost: float


def search(tokens: PairTokens, light: LightTokens, tol: float, start: Found | None = None) -> Found:
    """Take turns between places and weights until no round helps.

    Parameters
    ----------
    tokens : PairTokens
        Who takes part.
    light : LightTokens
        The light tokens, or what stands for them.
    tol : float
        How much mass may be misplaced.
    start : Found, optional
        What was found for others like these.

    Returns
    -------
    Found
        The best of the rounds.
    """
    rounds: list[Found] = []
    found = start
    for _ in range(_ROUNDS):
        found = _balanced(tokens, light, found, tol)
        rounds.append(found)
        stalled = len(rounds) > 3 and found.lost > _STALLED * rounds[-2].lost
        if found.lost <= 2.0 * tol or stalled:
            break
    return min(rounds, key=lambda each: each.lost)


def _balanced(tokens: PairTokens, light: LightTokens, start: Found | None, tol: float) -> Found:
    """Place the tokens, and solve for the weights."""
    nodes = tokens.nodes
    before = _terms_of_ratio(nodes) if start is None else start.terms
    sums, lost = tokens.sums(light, before)
    masses, targets = tokens.classes(sums, before)
    able = targets > 0
    wanted = targets[able]
    met = masses.meetings(able)
    rejected = met.total - float(wanted.sum()) if tokens.inner else 0.0
    if rejected > 0:
        wanted = np.append(wanted, rejected)
    side = PairBalance(masses, met, nodes, able, rejected > 0)
    first = None if start is None else _carried(start, side)
    log_weights, choice = balance(side, wanted, not tokens.inner, tol, first)
    rates = np.zeros(able.size)
    rates[able] = choice.rates[: np.count_nonzero(able)]
    terms = side.terms(log_weights)
    sign = 1.0 if tokens.inner else -1.0
    missing = np.maximum(sign * (targets - rates)[nodes.size :], 0.0)
    lost += float(missing.sum()) + _drift(masses, np.abs(terms - before))
    return Found(side, log_weights, rates, before, terms, lost)


def _terms_of_ratio(nodes: FloatArray) -> FloatArray:
    """Let places be ratios, for want of anything better."""
    terms = np.zeros((nodes.size, TERMS))
    terms[:, BOTH] = nodes
    return terms


def _drift(masses: PairMasses, change: FloatArray) -> float:
    """A bound of how much the rates of placed tokens differ, where the terms differ by so much."""
    size = len(change)
    first, second, own = (each[:size] for each in (masses.first, masses.second, masses.own))
    drift = first @ change[:, BOTH] + (second - first) @ change[:, FIRST]
    drift += 2.0 * (own @ change[:, OWN] + masses.shared @ (change[:-1, UP] + change[:-1, DOWN]))
    return float(drift)


def _carried(start: Found, side: PairBalance) -> FloatArray | None:
    """The log weights of what was found before, for classes that may be others."""
    if start.balance.rejects != side.rejects:
        return None
    weights, rejection = start.balance.clocks(start.log_weights)
    carried = np.append(weights[side.able], [rejection] * side.rejects)
    return np.log(carried) if (carried > 0).all() else None
