"""The search for weights and places that give every token of two drafts without replacement its p.

The first G classes are those of the nodes, between which the light tokens are placed, and the others single
heavy tokens. Places and weights take turns.
"""

import numpy as np
from numba import njit

from otmd.kernels.pair_classes import masses_at_nodes, meetings, node_terms
from otmd.kernels.pair_places import BOTH, DOWN, FIRST, OWN, SUMS, TERMS, UP, sum_places
from otmd.kernels.weight_search import begin_search, move_weights
from otmd.kernels.weighted_choice import pair_rates

# Rounds end after so many, or where one gains less than a tenth.
_ROUNDS, _STALLED = 16, 0.9
_LEAST = float(np.finfo(float).tiny)


@njit(cache=True, nogil=True)
def search_pairs(light, heavy, nodes, lowest, inert, inner, tol, before, weights, rejection):
    """Take turns between places and weights until no round helps.

    ``light`` are p, q and once more q of tokens, or Σ p, Σ q and q of cells of them, and which of these take
    part; none is placed below node ``lowest``. ``heavy`` are q, q/(1 − q) and p of the heavy tokens, and
    which of them may be chosen; ``inert`` Σ q and Σ q²/(1 − q) of what is never chosen. Begins from the terms
    ``before`` (G, TERMS), and from the ``weights`` (C,) and that of the rejection, where those are not 0.

    Returns the best round: the terms tokens were placed by, the terms then, the weights, that of the
    rejection, and how often each class is chosen (C,).
    """
    best, least, previous = (before, before, weights, rejection, weights), np.inf, np.inf
    for number in range(_ROUNDS):
        terms, weights, rejection, rates, lost = _take_turn(
            light, heavy, nodes, lowest, inert, inner, tol, before, weights, rejection
        )
        if lost < least:
            best, least = (before, terms, weights, rejection, rates), lost
        if lost <= 2.0 * tol or (number > 2 and lost > _STALLED * previous):
            break
        before, previous = terms, lost
    return best


@njit(cache=True, nogil=True)
def _take_turn(light, heavy, nodes, lowest, inert, inner, tol, before, weights, rejection):
    """Place the light tokens, and solve for the weights.

    Returns what is found, and last a bound of the mass that tokens want and do not get; beside H* of what
    they get too much.
    """
    size = nodes.size
    sums = np.zeros((size - 1, SUMS))
    target, mass, draft, tokens = light
    short, excess = sum_places(target, mass, draft, tokens, nodes, before, lowest, sums)
    first, second, own, shared, targets = masses_of_classes(sums, before, heavy, inert)
    able = targets > 0.0
    wanted = targets[able]
    among, alone = np.empty((wanted.size, wanted.size)), np.empty(wanted.size)
    idle = meetings(first, second, own, shared, able, among, alone)
    rejected = 0.5 * among.sum() + alone.sum() + idle - wanted.sum() if inner else 0.0
    rejects = rejected > 0.0
    if rejects:
        wanted = np.append(wanted, rejected)
    log_weights, started = _carried(weights, rejection, able, rejects)
    found, coupling = np.empty(wanted.size), np.empty((wanted.size, wanted.size))
    search = begin_search(wanted, not inner, tol, started, log_weights)
    moved = True
    while moved:
        pair_rates(np.exp(log_weights), among, alone, idle, rejects, found, coupling)
        moved = move_weights(search, log_weights, found, coupling)
    weights, rejection = clocks_of_classes(log_weights, nodes, able, rejects)
    terms = np.zeros((size, TERMS))
    node_terms(weights, rejection, first, second, terms)
    rates = np.zeros(able.size)
    rates[able] = found[: alone.size]
    lost = short if inner else excess
    for c in range(size, able.size):
        missing = targets[c] - rates[c]
        lost += max(missing if inner else -missing, 0.0)
    return (
        terms,
        weights,
        rejection,
        rates,
        lost + _drift(first, second, own, shared, before, terms),
    )


@njit(cache=True, nogil=True)
def masses_of_classes(sums, terms, heavy, inert):
    """Σ q, Σ q/(1 − q), what classes share with themselves, each with the next one, and the p of each."""
    size, (of_heavy, odds, target, able) = len(sums) + 1, heavy
    first, square, own, targets = np.zeros((4, size + target.size))
    shared = np.empty(size - 1)
    masses_at_nodes(sums, terms, first[:size], square[:size], own[:size], shared, targets[:size])
    for g in range(size):
        # Whatever has a clock that rings is a class with a weight.
        targets[g] = max(targets[g], _LEAST) if first[g] > 0.0 and g > 0 else 0.0
    first[0] += inert[0]
    square[0] += inert[1]
    own[0] += inert[1]
    second = first + square
    for i in range(target.size):
        c = size + i
        first[c], second[c], own[c] = of_heavy[i], odds[i], of_heavy[i] * odds[i]
        targets[c] = target[i] if able[i] else 0.0
    return first, second, own, shared, targets


@njit(cache=True, nogil=True)
def _carried(weights, rejection, able, rejects):
    """The log weights of what was found before, for classes that may be others; whether there are any."""
    carried = np.zeros(np.count_nonzero(able) + rejects)
    carried[: carried.size - rejects] = weights[able]
    if rejects:
        carried[-1] = rejection
    started = carried.min() > 0.0 and (rejects or rejection == 0.0)
    return (np.log(carried) if started else np.zeros(carried.size)), started


@njit(cache=True, nogil=True)
def clocks_of_classes(log_weights, nodes, able, rejects):
    """The weights of all classes (C,), and that of the rejection.

    A node without tokens has the weight that lies between its neighbours', where tokens may move to.
    """
    size, weights = nodes.size, np.zeros(able.size)
    weights[able] = np.exp(log_weights[: log_weights.size - rejects])
    inside = np.flatnonzero(able[:size])
    if inside.size:
        known = log_weights[: inside.size]
        weights[1:size] = np.exp(np.interp(nodes[1:], nodes[inside], known))
    return weights, np.exp(log_weights[-1]) if rejects else 0.0


@njit(cache=True, nogil=True)
def _drift(first, second, own, shared, before, terms):
    """A bound of how much the rates of placed tokens differ, where the terms differ so."""
    drift, change = 0.0, np.abs(terms - before)
    for g in range(len(terms)):
        drift += first[g] * change[g, BOTH] + (second[g] - first[g]) * change[g, FIRST]
        drift += 2.0 * own[g] * change[g, OWN]
    for g in range(shared.size):
        drift += 2.0 * shared[g] * (change[g, UP] + change[g, DOWN])
    return drift
