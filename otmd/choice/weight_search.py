"""Newton's method in the logarithms of the weights, for whoever can say what rates some weights give.

The caller works these out, in compiled code or not: for the weights that :func:`begin_search` allows, and
then again as long as :func:`move_weights` moves them.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from otmd.choice.weight_steps import allow_weights, copy_numbers, newton_step

_MOST_ROUNDS = 100
# So little misplaced mass must halve in so many rounds, or the search ends: weights that travel on and on
# make each round dearer.
_LITTLE, _PATIENCE = 1e-8, 8
_SCALINGS = 3
_LONGEST_STEP = 3.0
_ROUNDING = 1e-13
# Steps shorter than this are the same, straight or bent.
_SHORT = 0.1
_SHORTEST = 1e-12
# How steep the objective may rise at the end of a step, beside how it fell at its beginning.
_OVERSHOOT = 0.3
# What is counted: rounds, those since the search last stalled, and scalings still to come. Whether a step is
# being tried, and a bent one.
_ROUNDS, _SINCE, _LEFT, _TRYING, _BENT = range(5)


class WeightSearch(NamedTuple):
    """A search under way.

    Attributes
    ----------
    targets : ndarray of float64, shape (G,)
        The rates that are wanted.
    capped : bool
        Whether the largest log weight is 0 by convention, and classes that have it may fall short.
    tol : float
        How much mass may be misplaced.
    counts : ndarray of bool, shape (G,)
        The classes with mass enough to set the scale of the others.
    largest : int
        The class that wants most.
    faint : ndarray of float64, shape (G,)
        Where a rate answers to the weights by less there is nothing to be had.
    before, rates, wrong, step : ndarray of float64, shape (G,)
        Log weights before the step that is being tried, their rates, these less the targets, and the step.
    excess : ndarray of float64
        By how much classes were chosen too often, round by round.
    state : ndarray of int64
        What is counted.
    scale : ndarray of float64, shape (1,)
        How much of the step is being tried.
    """

    targets: np.ndarray
    capped: bool
    tol: float
    counts: np.ndarray
    largest: int
    faint: np.ndarray
    before: np.ndarray
    rates: np.ndarray
    wrong: np.ndarray
    step: np.ndarray
    excess: np.ndarray
    state: np.ndarray
    scale: np.ndarray


@njit(cache=True, nogil=True)
def begin_search(targets, capped, tol, started, log_weights):
    """Begin at these log weights, which are brought within bounds; ``started`` if they are worth it."""
    size, largest = targets.size, 0
    for g in range(size):
        largest = g if targets[g] > targets[largest] else largest
    # Classes of hardly any mass would leave the scale of the others undecided.
    counts, faint = np.empty(size, np.bool_), np.empty(size)
    for g in range(size):
        counts[g] = g == largest or targets[g] * size > min(0.01 * tol, targets[largest])
        faint[g] = max(_ROUNDING * targets[g], 1e-4 * min(tol, 1e-6))
    allow_weights(log_weights, counts, largest, capped)
    state = np.zeros(5, np.int64)
    state[_LEFT] = 0 if started else _SCALINGS
    steps = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size), np.empty(_MOST_ROUNDS)
    return WeightSearch(targets, capped, tol, counts, largest, faint, *steps, state, np.ones(1))


@njit(cache=True, nogil=True)
def move_weights(search, log_weights, rates, coupling):
    """Move the log weights (G,), given their rates and −∂rates/∂log weights off the diagonal.

    False at the end of the search: the log weights are the best that were found, and the rates are theirs.
    """
    state, targets = search.state, search.targets
    if state[_TRYING]:
        ended = _judge(search, log_weights, rates)
        if ended:
            copy_numbers(search.before, log_weights)
            copy_numbers(search.rates, rates)
            return False
        if state[_TRYING]:
            return True
    if state[_LEFT] == 0 and not _begin_round(search, log_weights, rates, coupling):
        return False
    if state[_LEFT] > 0:
        # w ← w P/r converges from everywhere, slowly.
        state[_LEFT] -= 1
        for g in range(targets.size):
            log_weights[g] += np.log(targets[g] / max(rates[g], 1e-300))
        allow_weights(log_weights, search.counts, search.largest, search.capped)
    return True


@njit(cache=True, nogil=True)
def _begin_round(search, log_weights, rates, coupling):
    """Try a step, or ask for scalings where the search has stalled; False where it is over."""
    state, targets, wrong = search.state, search.targets, search.wrong
    excess = 0.0
    for g in range(targets.size):
        wrong[g] = rates[g] - targets[g]
        excess += max(wrong[g], 0.0)
    since = state[_SINCE]
    search.excess[since] = excess
    stalled = since >= _PATIENCE and excess > 0.5 * search.excess[since + 1 - _PATIENCE]
    state[_ROUNDS] += 1
    state[_SINCE] += 1
    if excess <= search.tol or (stalled and excess < _LITTLE) or state[_ROUNDS] == _MOST_ROUNDS:
        return False
    if stalled:
        # Where weights lie far apart a step may be too long for all of them but one.
        state[_LEFT], state[_SINCE] = _SCALINGS, 0
        return True
    known = search.counts, search.largest, search.capped, search.faint
    longest = newton_step(log_weights, wrong, coupling, targets, *known, excess, search.step)
    if longest <= _SHORTEST:
        return False
    copy_numbers(log_weights, search.before)
    copy_numbers(rates, search.rates)
    search.scale[0] = min(1.0, _LONGEST_STEP / longest)
    # First a far step, then a straight one, and then shorter ones.
    state[_TRYING], state[_BENT] = True, longest > _SHORT
    _take_step(search, log_weights)
    return True


@njit(cache=True, nogil=True)
def _judge(search, log_weights, rates):
    """Keep a step that does not go past the minimum, else try another; whether there is none left to try."""
    state, scale = search.state, search.scale
    before = after = longest = 0.0
    for g in range(rates.size):
        longest = max(longest, abs(search.step[g]))
        chord = log_weights[g] - search.before[g]
        before += search.wrong[g] * chord
        after += (rates[g] - search.targets[g]) * chord
    if before < 0.0 and after <= -_OVERSHOOT * before:
        state[_TRYING] = False
        return False
    if not state[_BENT]:
        if scale[0] * longest <= _SHORTEST:
            return True
        # Where the slope along the chord would vanish, were it linear.
        secant = before / (before - after) if before < after else 0.5
        scale[0] *= min(max(secant, 0.1), 0.7)
    state[_BENT] = False
    _take_step(search, log_weights)
    return False


@njit(cache=True, nogil=True)
def _take_step(search, log_weights):
    """A small weight's rate is nearly linear in it: a bent step, taken in the weight itself, goes far."""
    for g in range(log_weights.size):
        step = search.scale[0] * search.step[g]
        if search.state[_BENT]:
            whole = search.step[g]
            step = np.log1p(max(whole, -0.9999)) if whole < 0.0 else min(whole, _LONGEST_STEP)
        log_weights[g] = search.before[g] + step
    allow_weights(log_weights, search.counts, search.largest, search.capped)
