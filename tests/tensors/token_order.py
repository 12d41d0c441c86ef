"""Plain twin of the preference rule on tensors: tokens in an order, one probability c for all slots."""

from __future__ import annotations

import math

import numpy as np

import otmd

# The lower ends of the classes of p/q_j, for the two orders of strata.
_EDGES = ([1.0], [1.0, *(2.0 ** (-k / 4) for k in range(1, 18, 2))])


def rates(p: np.ndarray, law: otmd.DraftLaw) -> np.ndarray:
    """The rates (…) of positions (…, V)."""
    shape = np.broadcast_shapes(p.shape[:-1], law.batch_shape)
    p = np.broadcast_to(p, (*shape, p.shape[-1]))
    number = np.broadcast_to(np.arange(math.prod(law.batch_shape)).reshape(law.batch_shape), shape)
    laws = [law[i] for i in np.ndindex(*law.batch_shape)]
    with np.errstate(over="ignore"):
        listed = [_rate(p[i], laws[number[i]]) for i in np.ndindex(*shape)]
    return np.reshape(listed, shape)


def _rate(p: np.ndarray, law: otmd.DraftLaw) -> float:
    slots = law.position_structure.random
    drafted = np.flatnonzero(slots.expected_copies)
    if slots.is_single:
        ratio = p[drafted] / slots.probs[drafted]
        order = drafted[np.argsort(-ratio, kind="stable")]
        return 1.0 - _left_of_one(p[order], slots.probs[order], slots.num_drafts)
    return 1.0 - min(_left_of_strata(p, slots, order) for order in strata_orders(p, slots))


def strata_orders(p: np.ndarray, slots: otmd.laws.Slots) -> list[np.ndarray]:
    """The two orders of the tokens that may be drafted."""
    drafted = np.flatnonzero(slots.expected_copies)
    levels = [
        sum(p < edge * slots.token_probs for edge in edges).astype(np.int64) for edges in _EDGES
    ]
    return [drafted[np.lexsort((-slots.number[drafted], level[drafted]))] for level in levels]


def _left_of_one(p: np.ndarray, q: np.ndarray, n: int) -> float:
    left, s = 1.0, 1.0
    for target, draft in zip(p.tolist(), q.tolist(), strict=True):
        after = max(s - draft, 0.0)
        if left - after**n > target:
            left = max(left - target, 0.0)
            s = left ** (1.0 / n)
        else:
            left, s = after**n, after
    return left


def _left_of_strata(p: np.ndarray, slots: otmd.laws.Slots, order: np.ndarray) -> float:
    s = np.ones(slots.num_drafts)
    for y in order:
        j = slots.number[y]
        others = np.delete(s, j).prod()
        drawn = others * slots.token_probs[y]
        c = 1.0 if drawn <= p[y] else p[y] / drawn
        s[j] = max(s[j] - c * slots.token_probs[y], 0.0)
    return float(s.prod())
