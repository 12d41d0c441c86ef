"""The search for weights and places that give every token of two drafts without replacement its p.

The first G classes are those of the nodes, between which the light tokens are placed, and the others single
heavy tokens. Places and weights take turns.
"""

import numpy as np
from numba import njit

from otmd.choice.pair_classes import masses_at_nodes, meetings, node_terms
from otmd.choice.pair_places import (
    BOTH,
    DOWN,
    FIRST,
    OWN,
    SUMS,
    TERMS,
    UP,
    place_beyond,
    sum_places,
)
from otmd.choice.pair_runs import sum_runs
from otmd.choice.weight_search import begin_search, move_weights
from otmd.choice.weighted_choice import pair_rates

# Rounds end after so many, or where one gains less than a tenth; if they need only be good enough, where one
# does not gain twentyfold.
_ROUNDS, _STALLED, _SLOW = 16, 0.9, 0.05
_LEAST = float(np.finfo(float).tiny)


@njit(cache=True, nogil=True)
def search_pairs(
    light, heavy, nodes, lowest, inert, inner, tol, enough, before, weights, rejection
):
    """Take turns between places and weights until no round helps, or not much once ``enough`` is lost.

    ``light`` are p, q and once more q of tokens, or Σ p, Σ q and q of cells of them, and which of these stand
    alone; further tokens, in runs, and where these begin (G,); Σ q, Σ p and Σ q²/(1 − q) of those whose p/q
    no node gives. None is placed below node ``lowest``. ``heavy`` are q, q/(1 − q) and p of the heavy tokens,
    and which may be chosen; ``inert`` Σ q and Σ q²/(1 − q) of what is never chosen. Begins from the terms
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
        if lost <= enough and lost > _SLOW * previous:
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
    target, mass, draft, alone, runs, starts, beyond = light
    short, excess = sum_places(target, mass, draft, alone, nodes, before, lowest, sums)
    missing, spare = sum_runs(target, mass, runs, starts, before, sums)
    short += missing + place_beyond(beyond, before, sums)
    excess += spare
    first, second, own, shared, targets = masses_of_classes(sums, before, heavy, inert)
    able, count, wanted = _able(targets)
    among, alone = np.empty((count, count)), np.empty(count)
    idle = meetings(first, second, own, shared, able, among, alone)
    if inner:
        # How often there are two drafts, less what is wanted of them.
        wanted[count] = idle
        for a in range(count):
            wanted[count] += alone[a] + 0.5 * among[a].sum() - wanted[a]
    rejects = inner and wanted[count] > 0.0
    wanted = wanted[: count + rejects]
    log_weights, found = np.empty(wanted.size), np.empty(wanted.size)
    started = _fill_carried(weights, rejection, able, rejects, log_weights)
    coupling = np.empty((wanted.size, wanted.size))
    search = begin_search(wanted, not inner, tol, started, log_weights)
    moved = True
    while moved:
        pair_rates(np.exp(log_weights), among, alone, idle, rejects, found, coupling)
        moved = move_weights(search, log_weights, found, coupling)
    weights, rejection = clocks_of_classes(log_weights, nodes, able, rejects)
    terms = np.zeros((size, TERMS))
    node_terms(weights, rejection, first, second, terms)
    rates, a = np.zeros(able.size), 0
    lost = short if inner else excess
    for c in range(able.size):
        rates[c] = found[a] if able[c] else 0.0
        a += able[c]
        missing = targets[c] - rates[c]
        if c >= size:
            lost += max(missing if inner else -missing, 0.0)
    lost += _drift(first, second, own, shared, before, terms)
    return terms, weights, rejection, rates, lost


@njit(cache=True, nogil=True)
def masses_of_classes(sums, terms, heavy, inert):
    """Σ q, Σ q/(1 − q), what classes share with themselves, each with the next one, and the p of each."""
    size, (of_heavy, odds, target, able) = len(sums) + 1, heavy
    count = size + target.size
    first, second, own, targets = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    shared = np.empty(size - 1)
    masses_at_nodes(sums, terms, first, second, own, shared, targets)
    for g in range(size):
        # Whatever has a clock that rings is a class with a weight.
        targets[g] = max(targets[g], _LEAST) if first[g] > 0.0 and g > 0 else 0.0
    first[0] += inert[0]
    second[0] += inert[1]
    own[0] += inert[1]
    for g in range(size):
        # The squares Σ q²/(1 − q) so far.
        second[g] += first[g]
    for i in range(target.size):
        c = size + i
        first[c], second[c], own[c] = of_heavy[i], odds[i], of_heavy[i] * odds[i]
        targets[c] = target[i] if able[i] else 0.0
    return first, second, own, shared, targets


@njit(cache=True, nogil=True)
def _able(targets):
    """Which classes may be chosen, how many these are, and their targets, with a place for one more."""
    able, wanted, count = np.empty(targets.size, np.bool_), np.zeros(targets.size + 1), 0
    for c in range(targets.size):
        able[c] = targets[c] > 0.0
        wanted[count] = targets[c] if able[c] else 0.0
        count += able[c]
    return able, count, wanted


@njit(cache=True, nogil=True)
def _fill_carried(weights, rejection, able, rejects, log_weights):
    """Fill the log weights of what was found before, for classes that may be others; whether that can be."""
    a, usable = 0, rejects == (rejection > 0.0)
    for c in range(able.size):
        if able[c]:
            usable &= weights[c] > 0.0
            log_weights[a] = np.log(weights[c]) if usable else 0.0
            a += 1
    if rejects:
        log_weights[a] = np.log(rejection) if usable else 0.0
    if not usable:
        log_weights[:] = 0.0
    return usable


@njit(cache=True, nogil=True)
def clocks_of_classes(log_weights, nodes, able, rejects):
    """The weights of all classes (C,), and that of the rejection.

    A node without tokens has the weight that lies between its neighbours', where tokens may move to.
    """
    weights, a = np.zeros(able.size), 0
    below, log_below = -1, 0.0
    for c in range(able.size):
        if not able[c]:
            continue
        weights[c] = np.exp(log_weights[a])
        if c < nodes.size:
            for g in range(max(below + 1, 1), c):
                share = 0.0
                if below >= 0:
                    share = (nodes[c] - nodes[g]) / (nodes[c] - nodes[below])
                weights[g] = np.exp(share * log_below + (1.0 - share) * log_weights[a])
            below, log_below = c, log_weights[a]
        a += 1
    if below >= 0:
        for g in range(below + 1, nodes.size):
            weights[g] = weights[below]
    return weights, np.exp(log_weights[a]) if rejects else 0.0


@njit(cache=True, nogil=True)
def _drift(first, second, own, shared, before, terms):
    """A bound of what placed tokens get too much, where the terms were others when they were placed.

    Half of all changes: what some get more others get less.
    """
    drift = 0.0
    for g in range(len(terms)):
        drift += first[g] * abs(terms[g, BOTH] - before[g, BOTH])
        drift += (second[g] - first[g]) * abs(terms[g, FIRST] - before[g, FIRST])
        drift += 2.0 * own[g] * abs(terms[g, OWN] - before[g, OWN])
    for g in range(shared.size):
        # A token between two nodes does not meet itself there, whichever of both is chosen.
        moved = terms[g, UP] - before[g, UP] + terms[g, DOWN] - before[g, DOWN]
        drift += 2.0 * shared[g] * abs(moved)
    return 0.5 * drift
