"""The search for weights and places that give every token of a race its p.

Within a class of the tail the rates are all but proportional to q. What is missing of a token's p moves it
a little between its nodes, after which the weights are solved for again.
"""

from dataclasses import dataclass

import numpy as np

from otmd.choice.balance import balance
from otmd.choice.race_balance import RaceBalance
from otmd.choice.race_model import TimedRace
from otmd.choice.race_tail import Tail
from otmd.probabilities import BoolArray, FloatArray

# Rounds end after so many, or where one gains less than a tenth.
_ROUNDS, _STALLED = 16, 0.9


@dataclass(frozen=True, eq=False)
class Found:
    """A round's end.

    Attributes
    ----------
    balance : RaceBalance
        The side, its tokens at their places.
    log_weights : ndarray of float64
        See :class:`~otmd.choice.race_balance.RaceBalance`.
    of_nodes : tuple of ndarray
        What tokens of the tail are chosen with at the nodes, see :meth:`Tail.polynomials`.
    heavy, tail : ndarray of float64, shape (M,) and (T,)
        How often the heavy tokens are chosen, and those of the tail.
    lost : float
        Mass that the tokens want and do not get; beside H* what they get too much.
    """

    balance: RaceBalance
    log_weights: FloatArray
    of_nodes: tuple[FloatArray, FloatArray]
    heavy: FloatArray
    tail: FloatArray
    lost: float


@dataclass(frozen=True, eq=False)
class RaceSearch:
    """One side of the cut, whatever stands for its tail.

    Attributes
    ----------
    race : TimedRace
        The race.
    able_heavy : ndarray of bool, shape (M,)
        The heavy tokens that may be chosen.
    heavy : ndarray of float64, shape (M,)
        p of the heavy tokens.
    total : float
        Probability that all drafts are of the side.
    inner : bool
        Whether the side is H*.
    tol : float
        How much mass may be misplaced.
    """

    race: TimedRace
    able_heavy: BoolArray
    heavy: FloatArray
    total: float
    inner: bool
    tol: float

    def __call__(self, tail: Tail, wanted: FloatArray, start: Found | None = None) -> Found:
        """Take turns between weights and places until no round helps.

        Parameters
        ----------
        tail : Tail
            The tail's tokens where they are placed first.
        wanted : ndarray of float64, shape (T,)
            Their p.
        start : Found, optional
            What was found for a tail like this one, of the same nodes.

        Returns
        -------
        Found
            The best of the rounds.
        """
        rounds: list[Found] = []
        found = start
        low, high = tail.nodes[tail.lower], tail.nodes[tail.lower + 1]
        for _ in range(_ROUNDS):
            if found is not None:
                # For tokens that were rehearsed, those of the rehearsal.
                tail, low, high = tail.moved(wanted, *found.of_nodes, self.inner)
            found = self._balanced(tail, wanted, tail.by_node(wanted, low, high), found)
            rounds.append(found)
            if found.lost <= 2.0 * self.tol or _stalls([each.lost for each in rounds]):
                break
        return min(rounds, key=lambda each: each.lost)

    def _balanced(
        self, tail: Tail, wanted: FloatArray, by_node: FloatArray, start: Found | None
    ) -> Found:
        """Solve for the weights of tokens at their places."""
        able_nodes = by_node > 0
        heavy = self.heavy[self.able_heavy]
        targets = np.concatenate([by_node[able_nodes], heavy])
        rejected = self.total - float(targets.sum()) if self.inner else 0.0
        if rejected > 0:
            targets = np.append(targets, rejected)
        side = RaceBalance(self.race, tail, able_nodes, self.able_heavy, rejected > 0)
        first = None if start is None else _carried(start, side)
        log_weights, rates = balance(side, targets, not self.inner, self.tol, first)
        of_nodes = side.tail_polynomials(log_weights)
        of_tail = tail.values(*of_nodes)
        chosen = np.zeros(self.heavy.size)
        count = np.count_nonzero(able_nodes)
        chosen[self.able_heavy] = rates[count : count + heavy.size]
        sign = 1.0 if self.inner else -1.0
        short = np.maximum(sign * (wanted - of_tail), 0.0)
        of_heavy = np.maximum(sign * (self.heavy - chosen)[self.able_heavy], 0.0)
        lost = float(of_heavy.sum() + tail.count @ short)
        return Found(side, log_weights, of_nodes, chosen, of_tail, lost)


def _carried(start: Found, side: RaceBalance) -> FloatArray | None:
    """The log weights of what was found before, for classes that may be others."""
    before = start.balance
    if before.rejects != side.rejects or before.able_nodes.any() < side.able_nodes.any():
        return None
    weights = before.weights(start.log_weights)
    carried = [weights.nodes[side.able_nodes], weights.heavy[side.able_heavy]]
    return np.log(np.concatenate([*carried, [weights.rejection] * side.rejects]))


def _stalls(lost: list[float]) -> bool:
    return len(lost) > 3 and min(lost[-2:]) > _STALLED * min(lost[:-2])
