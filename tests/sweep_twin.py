"""Plain twin of the pair sweep, exact in fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import otmd
from otmd.laws import Slots
from otmd.verifiers import pair_sweep

Pair = tuple[int, int]


def pair_by_pair(
    p: Sequence, num_slots: int, prob: Callable, order: Sequence[Pair], thinned: bool = True
) -> tuple[dict[Pair, tuple], list, list]:
    """(acceptance probability, mass) of each pair in turn, what is left of p, and P(none of a slot)."""
    left, unaccepted, accepted = list(p), [1] * num_slots, {}
    for slot, token in order:
        drawn = math.prod(s for j, s in enumerate(unaccepted) if j != slot) * prob(slot, token)
        accept = 1 if not thinned or drawn <= left[token] else left[token] / drawn
        accepted[slot, token] = accept, accept * drawn
        left[token] -= accept * drawn
        unaccepted[slot] = max(unaccepted[slot] - accept * prob(slot, token), 0)
    return accepted, left, unaccepted


def swept(
    p: Sequence, table: Sequence[Sequence], order: Sequence[Pair], thinned: bool = True
) -> Callable[[tuple[int, ...]], list]:
    """Outcomes (token, draft, probability) of drafts, slot j drawn from ``table[j]``, pairs in this order.

    Without thinning every pair is accepted whole, which is a fault.
    """
    accepted, left, _ = pair_by_pair(p, len(table), lambda j, y: table[j][y], order, thinned)
    residual = [max(mass, 0) for mass in left]
    rank = {pair: i for i, pair in enumerate(order)}

    def outcomes_of(tokens: tuple[int, ...]) -> list:
        outcomes, undecided = [], 1
        drafted = [(j, token) for j, token in enumerate(tokens) if (j, token) in rank]
        for j, token in sorted(drafted, key=rank.__getitem__):
            outcomes.append((token, j, undecided * accepted[j, token][0]))
            undecided *= 1 - accepted[j, token][0]
        total = sum(residual)
        if undecided > 0 and total > 0:
            outcomes += [
                (y, tokens.index(y) if y in tokens else -1, undecided * mass / total)
                for y, mass in enumerate(residual)
                if mass > 0
            ]
        return outcomes

    return outcomes_of


def prob_of(slots: Slots) -> Callable[[int, int], float]:
    """The probability that a slot drafts a token."""
    return lambda slot, token: float(slots.prob(slots.row_of_slot[[slot]], np.array([token]))[0])


def swept_masses(p: np.ndarray, law: otmd.DraftLaw, order: Sequence[Pair]) -> dict[Pair, float]:
    """The probability that each pair is accepted, pair by pair in this order."""
    slots = law.position_structure.random
    accepted, _, _ = pair_by_pair(p, slots.num_drafts, prob_of(slots), order)
    return {pair: mass for pair, (_, mass) in accepted.items()}


class OrderedSweep(pair_sweep.Sweep):
    """The sweep of slots over pairs (M, 2) in this order, pair by pair; the sum of p may be below 1."""

    def __init__(self, target: np.ndarray, slots: Slots, order: np.ndarray) -> None:
        self._target, self.slots = target, slots
        pairs = list(map(tuple, order.tolist()))
        accepted, left, missed = pair_by_pair(target, slots.num_drafts, prob_of(slots), pairs)
        self.left, self.missed = np.array(left), float(math.prod(missed))
        self._accept, self._taken = np.array([*accepted.values(), (1.0, 0.0)]).T
        self._rank = np.full((slots.num_drafts, target.size), len(order))
        self._rank[tuple(order.T)] = np.arange(len(order))

    def pairs(self, slots: np.ndarray, tokens: np.ndarray) -> tuple:
        rank = self._rank[slots, tokens]
        return rank, self._accept[rank], self._taken[rank]


def order_of(p: np.ndarray, law: otmd.DraftLaw) -> list[Pair]:
    """The default order of the pairs with mass, without deterministic tokens."""
    sweep = otmd.Preference().prepare(p, law).choice
    slots: Slots = sweep.slots
    slot, token = (part.ravel() for part in np.mgrid[: slots.num_drafts, : slots.vocab_size])
    drawn = slots.prob(slots.row_of_slot[slot], token) > 0
    slot, token = slot[drawn], token[drawn]
    rank, _, _ = sweep.pairs(slot, token)
    order = np.argsort(rank, kind="stable")
    return list(zip(slot[order].tolist(), token[order].tolist(), strict=True))
