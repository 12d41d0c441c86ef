"""Plain twin of the pair sweep, exact in fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

import otmd
from otmd.laws import Slots
from otmd.verifiers import pair_sweep

Pair = tuple[int, int]


def swept(
    p: Sequence, table: Sequence[Sequence], order: Sequence[Pair], thinned: bool = True
) -> Callable[[tuple[int, ...]], list]:
    """Outcomes (token, draft, probability) of drafts, slot j drawn from ``table[j]``, pairs in this order.

    Without thinning every pair is accepted whole, which is a fault.
    """
    unaccepted = [1 * sum(table[0])] * len(table)
    accepted = [0 * mass for mass in p]
    accept = {}
    for slot, token in order:
        others = math.prod(s for j, s in enumerate(unaccepted) if j != slot)
        drawn = others * table[slot][token]
        c = 1 if not thinned or drawn <= p[token] - accepted[token] else None
        accept[slot, token] = (p[token] - accepted[token]) / drawn if c is None else 1
        accepted[token] += accept[slot, token] * drawn
        unaccepted[slot] -= accept[slot, token] * table[slot][token]
    residual = [max(mass - a, 0) for mass, a in zip(p, accepted, strict=True)]
    rank = {pair: i for i, pair in enumerate(order)}

    def outcomes_of(tokens: tuple[int, ...]) -> list:
        outcomes, undecided = [], 1
        drafted = [(j, token) for j, token in enumerate(tokens) if (j, token) in rank]
        for j, token in sorted(drafted, key=rank.__getitem__):
            outcomes.append((token, j, undecided * accept[j, token]))
            undecided *= 1 - accept[j, token]
        total = sum(residual)
        if undecided > 0 and total > 0:
            outcomes += [
                (y, tokens.index(y) if y in tokens else -1, undecided * mass / total)
                for y, mass in enumerate(residual)
                if mass > 0
            ]
        return outcomes

    return outcomes_of


def swept_masses(p: np.ndarray, law: otmd.DraftLaw, order: Sequence[Pair]) -> dict[Pair, float]:
    """The probability that each pair is accepted, pair by pair in this order."""
    slots = law.position_structure.random
    left, unaccepted, taken = p.copy(), np.ones(slots.num_drafts), {}
    for slot, token in order:
        drawn = slots.prob(slots.row_of_slot[[slot]], np.array([token]))[0]
        others = np.delete(unaccepted, slot).prod()
        taken[slot, token] = mass = min(left[token], others * drawn)
        left[token] -= mass
        if mass:
            unaccepted[slot] -= mass / others
    return taken


class OrderedSweep(pair_sweep.Sweep):
    """The sweep of slots over pairs (M, 2) in this order, pair by pair; the sum of p may be below 1."""

    def __init__(self, target: np.ndarray, slots: Slots, order: np.ndarray) -> None:
        self._target, self.slots = target, slots
        self.left, unaccepted = target.copy(), np.ones(slots.num_drafts)
        self._rank = np.full((slots.num_drafts, target.size), len(order))
        self._accept, self._taken = np.ones(len(order) + 1), np.zeros(len(order) + 1)
        probs = slots.prob(slots.row_of_slot[order[:, 0]], order[:, 1])
        for i, ((slot, token), prob) in enumerate(zip(order.tolist(), probs, strict=True)):
            drawn = np.delete(unaccepted, slot).prod() * prob
            self._accept[i] = min(1.0, self.left[token] / drawn) if drawn > 0 else 1.0
            self._taken[i] = min(self.left[token], drawn)
            self.left[token] -= self._taken[i]
            unaccepted[slot] = max(unaccepted[slot] - self._accept[i] * prob, 0.0)
            self._rank[slot, token] = i
        self.missed = float(unaccepted.prod())

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
