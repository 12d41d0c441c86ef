"""Tests of counts: cells of known probability, an exact G-test, confidence bounds, and the power of both.

A cell is a class of outcomes that is fixed before any sample is seen. All p-values and bounds hold for any
number of samples; only the power (:func:`detectable_total_variation`) is an approximation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb

import numpy as np
from scipy.special import betaincinv, chdtri, chndtrinc, gammaln, xlogy

from otmd.drafts.base import validate_rng
from otmd.probabilities import BoolArray, FloatArray, IntArray

IMPOSSIBLE = -1
"""The label of an outcome that has probability zero."""
MOST_CELLS = 64
_SAMPLES_A_CELL = 50
# Tokens that together are expected less often than this have a cell of their own: two of them are suspicious.
_RARE_COUNT = 0.01
_MOST_ENUMERATED = 20_000
_SMALLEST_LEVEL = 1e-6
_ENOUGH_EXTREME = 20
# Statistics that differ by less than this, relatively, are ties, and ties count as extreme.
_TIE = 1e-9
_DEVIATIONS = (0.0, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, eq=False)
class Cells:
    """A partition of the possible outcomes.

    Attributes
    ----------
    labels : ndarray of int64, shape (V,)
        The cell of each outcome; :data:`IMPOSSIBLE` where its probability is zero.
    probs : ndarray of float64, shape (K,)
        Probability of each cell, none of them zero.
    """

    labels: IntArray
    probs: FloatArray

    def counts(self, labels: IntArray) -> IntArray:
        """How often each cell occurs among labels (M,), shape (K,)."""
        return np.bincount(labels[labels != IMPOSSIBLE], minlength=self.probs.size)

    def pooled(self, law: FloatArray) -> FloatArray:
        """Mass that another law (V,) of the outcomes gives to each cell, shape (K,)."""
        possible = self.labels != IMPOSSIBLE
        return _masses(self.labels[possible], law[possible], self.probs.size)


def ratio_order(target: FloatArray, drafted: FloatArray) -> IntArray:
    """The tokens by p/q ascending, ties by their ids, those without target mass first.

    Faults of verifiers move mass along this order, so cells of neighbours show them at any vocabulary.
    ``drafted`` (V,) is q, or P(the token is among the drafts).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.where(target > 0, np.log(target) - np.log(drafted), -np.inf)
    return np.argsort(log_ratio, kind="stable")


def places_in_order(probs: FloatArray, order: IntArray) -> FloatArray:
    """Mass before each outcome in an order, shape (V,).

    ``places[y] + probs[y] * rng.random()`` is uniform on [0, 1) if y is drawn from the probabilities,
    whatever they are: the randomised probability integral transform. So positions with different targets
    have one expected law, even where a position depends on the tokens before it.
    """
    places = np.empty(probs.size)
    places[order] = np.concatenate([[0.0], np.cumsum(probs[order])[:-1]])
    return places


def make_cells(probs: FloatArray, order: IntArray, num_cells: int, rare_mass: float = 0.0) -> Cells:
    """Cut the outcomes, in an order, into cells of about equal probability.

    Parameters
    ----------
    probs : ndarray of float64, shape (V,)
        Probability of each outcome.
    order : ndarray of int64, shape (V,)
        A permutation of the outcomes.
    num_cells : int
        The outcome belongs to the cell that holds the middle of its interval of [0, 1), so an outcome as
        likely as a few cells has a cell of its own.
    rare_mass : float
        The least likely outcomes, together at most this likely, are a cell of their own.

    Returns
    -------
    Cells
    """
    middle = places_in_order(probs, order) + 0.5 * probs
    label = np.minimum((num_cells * middle).astype(np.int64), num_cells - 1)
    label[rare(probs, rare_mass)] = num_cells
    possible = probs > 0
    used, label[possible] = np.unique(label[possible], return_inverse=True)
    label[~possible] = IMPOSSIBLE
    return Cells(label, _masses(label[possible], probs[possible], used.size))


def _masses(labels: IntArray, masses: FloatArray, num_cells: int) -> FloatArray:
    return np.bincount(labels, masses, minlength=num_cells).astype(np.float64)


def token_cells(target: FloatArray, order: IntArray, num_samples: int) -> Cells:
    """The cells in which so many samples of a position's tokens are counted; see :func:`make_cells`."""
    num_cells = max(2, min(MOST_CELLS, num_samples // _SAMPLES_A_CELL))
    return make_cells(target, order, num_cells, rare_mass=_RARE_COUNT / num_samples)


def rare(probs: FloatArray, mass: float) -> IntArray:
    """The least likely of the possible outcomes that together have at most this probability."""
    ascending = np.argsort(probs, kind="stable")
    within = (np.cumsum(probs[ascending]) <= mass) & (probs[ascending] > 0)
    return ascending[within]


def g_statistic(counts: IntArray, probs: FloatArray) -> FloatArray:
    """G = 2 Σ O log(O/E), twice the log-likelihood ratio of the frequencies against the law.

    ``counts`` (…, K) are how often each cell occurred, ``probs`` (K,) the cells' probabilities, positive.
    """
    total = counts.sum(axis=-1, keepdims=True)
    return 2.0 * xlogy(counts, counts / np.maximum(total, 1) / probs).sum(axis=-1)


def exact_p_value(
    counts: IntArray, probs: FloatArray, level: float, *, rng: np.random.Generator
) -> float:
    """P-value of G under the multinomial law of the counts, at most x with probability at most x.

    All outcomes are listed where there are few. Otherwise it is :func:`p_value_by_draws`.

    Parameters
    ----------
    counts : ndarray of int64, shape (K,)
        How often each cell occurred.
    probs : ndarray of float64, shape (K,)
        The cells' probabilities, positive, with sum 1.
    level : float
        The smallest p-value that must be told apart: at most 10/level outcomes are drawn.
    rng : numpy.random.Generator
        Equal seeds give equal p-values.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For a level below 1e-6, which would take too many draws.
    """
    validate_rng(rng)
    total, cells = int(counts.sum()), probs.size
    observed = float(g_statistic(counts, probs))
    _check_level(level)
    if comb(total + cells - 1, cells - 1) <= _MOST_ENUMERATED:
        every = np.array(list(every_count(total, cells)))
        extreme = every[g_statistic(every, probs) >= observed * (1.0 - _TIE) - _TIE]
        return min(1.0, float(np.exp(_log_multinomial(extreme, probs)).sum()))
    fair = probs / probs.sum()

    def draw(size: int) -> FloatArray:
        return g_statistic(rng.multinomial(total, fair, size=size), probs)

    return p_value_by_draws(observed, draw, level, 2_000_000 // cells)


def p_value_of_exchangeable(
    seen: IntArray, reference: IntArray, level: float, *, rng: np.random.Generator
) -> float:
    """P-value of the claim that two sets of samples come from one law, which need not be known.

    Under the claim all ways to split the pooled samples are equally likely, so the counts of the first set
    are multivariate hypergeometric. The statistic is G of both sets against the pooled frequencies.

    Parameters
    ----------
    seen, reference : ndarray of int64, shape (K,)
        How often each cell occurred in the one and in the other.
    level : float
        As in :func:`exact_p_value`.
    rng : numpy.random.Generator

    Returns
    -------
    float
        At most x with probability at most x.
    """
    used = (seen + reference) > 0
    seen, pooled = seen[used], (seen + reference)[used]
    _check_level(level)
    if pooled.size < 2:
        return 1.0
    probs = pooled / pooled.sum()

    def statistic(counts: IntArray) -> FloatArray:
        return g_statistic(counts, probs) + g_statistic(pooled - counts, probs)

    def draw(size: int) -> FloatArray:
        return statistic(
            rng.multivariate_hypergeometric(pooled, seen.sum(), size, method="marginals")
        )

    return p_value_by_draws(float(statistic(seen)), draw, level, 2_000_000 // pooled.size)


def p_value_by_draws(
    observed: float, draw: Callable[[int], FloatArray], level: float, at_once: int
) -> float:
    """(1 + draws at least as extreme)/(1 + draws): exact, as the observed value is exchangeable with them.

    Drawing stops at the 20th draw as extreme; the p-value is then 20 over the number drawn (Besag & Clifford
    1991). ``draw`` returns that many statistics under the claim.
    """
    most, extreme_at = int(np.ceil(10 / level)), observed * (1.0 - _TIE) - _TIE
    drawn, found, size = 0, 0, _ENOUGH_EXTREME
    while drawn < most:
        size = min(2 * size, most - drawn, at_once)
        extreme = np.cumsum(draw(size) >= extreme_at) + found
        if extreme[-1] >= _ENOUGH_EXTREME:
            return _ENOUGH_EXTREME / (drawn + int(np.argmax(extreme >= _ENOUGH_EXTREME)) + 1)
        drawn, found = drawn + size, int(extreme[-1])
    return (1 + found) / (1 + drawn)


def _check_level(level: float) -> None:
    if level < _SMALLEST_LEVEL:
        raise ValueError(
            f"level: got {level:.1e}, wanted at least {_SMALLEST_LEVEL:.0e}: a p-value from draws cannot be "
            "smaller; SequentialAudit has no such limit"
        )


def every_count(total: int, cells: int) -> Iterator[list[int]]:
    """All counts of so many samples in so many cells."""
    for bars in combinations(range(total + cells - 1), cells - 1):
        edges = [-1, *bars, total + cells - 1]
        yield [right - left - 1 for left, right in pairwise(edges)]


def _log_multinomial(counts: IntArray, probs: FloatArray) -> FloatArray:
    total = counts.sum(axis=-1)
    chances = xlogy(counts, probs).sum(axis=-1)
    return gammaln(total + 1.0) - gammaln(counts + 1.0).sum(axis=-1) + chances


def chance_at_least(hits: int, trials: int, level: float) -> float:
    """Lower bound of a chance, too high with probability at most ``level`` (Clopper & Pearson 1934).

    Parameters
    ----------
    hits, trials : int
        How often it happened, in so many trials.
    level : float
        In (0, 1/4].

    Returns
    -------
    float

    Notes
    -----
    It also bounds the mean chance of independent trials with different chances: beyond one hit above the
    mean, their number of hits has no heavier tail than the binomial (Hoeffding 1956). For a single hit the
    bound is Markov's.
    """
    if hits == 0:
        return 0.0
    if hits == 1:
        return level / trials
    return float(betaincinv(hits, trials - hits + 1, level))


def chance_at_most(hits: int, trials: int, level: float) -> float:
    """Upper bound of a chance, too low with probability at most ``level``; see :func:`chance_at_least`."""
    return 1.0 - chance_at_least(trials - hits, trials, level)


def mean_chance_at_least(hits: int, trials: int, level: float, guess: float) -> float:
    """Lower bound of the mean chance of events that may depend on those before them.

    Parameters
    ----------
    hits, trials : int
        How often it happened, in so many trials.
    level : float
        The bound is too high with at most this probability.
    guess : float
        What the mean chance may be, by other samples. The bound is sharpest where it is right.

    Returns
    -------
    float

    Notes
    -----
    For events X with chances m given the past, exp(λ ΣX − Σ log(1 + m(e^λ − 1))) is a martingale. By
    concavity the sum of logarithms is at most that of the mean chance, and Markov's inequality gives the
    bound.
    """
    rate = min(max(guess, 1e-6), 1.0 - 1e-6)
    spread = np.sqrt(2.0 * rate * (1.0 - rate) * np.log(1.0 / level) / trials)
    low = max(rate - spread, 1e-3 * rate)
    tilt = max(1e-6, float(np.log(rate / (1.0 - rate)) - np.log(low / (1.0 - low))))
    return float(np.expm1((tilt * hits - np.log(1.0 / level)) / trials) / np.expm1(tilt))


def total_variation_bound(
    labels: IntArray, probs: FloatArray, level: float, *, independent: bool = True
) -> float:
    """Lower bound of the total variation from the expected law, too high with probability ≤ ``level``.

    The first half of the samples picks a set A of cells that occur too often. The second half bounds P(A)
    from below: P(A) − expected(A) is at most the total variation, whatever A is.

    Parameters
    ----------
    labels : ndarray of int64, shape (M,)
        The cell of each sample; :data:`IMPOSSIBLE` counts as too often.
    probs : ndarray of float64, shape (K,) or (M, K)
        Expected law of the cells, of all samples or of each one.
    level : float
        In (0, 1/4].
    independent : bool
        Whether the samples are independent. If not, each law is that of a sample given those before.

    Returns
    -------
    float
        Of the mean over the second half's laws where they differ; 0 if nothing shows.
    """
    half, cells = labels.size // 2, probs.shape[-1]
    if half < 2:
        return 0.0
    expected = np.broadcast_to(probs, (labels.size, cells))
    part = half // 2

    def excess(chosen: BoolArray, own: slice) -> float:
        hits = int(np.count_nonzero((labels[own] == IMPOSSIBLE) | chosen[labels[own]]))
        trials = labels[own].size
        wanted = float(expected[own].mean(axis=0)[chosen].sum())
        if independent:
            return chance_at_least(hits, trials, level) - wanted
        before = labels[:half]
        guess = float(np.mean((before == IMPOSSIBLE) | chosen[before]))
        return mean_chance_at_least(hits, trials, level, guess) - wanted

    def too_often(stop: int, deviations: float) -> BoolArray:
        wanted = expected[:stop].sum(axis=0)
        seen = np.bincount(labels[:stop][labels[:stop] != IMPOSSIBLE], minlength=cells)
        return seen > wanted + deviations * np.sqrt(wanted)

    # Cells that are off by chance alone would widen the bound, so the threshold is tried on a part of the
    # half.
    best = max(_DEVIATIONS, key=lambda own: excess(too_often(part, own), slice(part, half)))
    return max(0.0, excess(too_often(half, best), slice(half, labels.size)))


def detectable_total_variation(
    num_samples: int, num_cells: int, level: float, power: float = 0.9
) -> float:
    """Total variation between laws of the cells that a G-test finds with this probability.

    G is taken as noncentral χ² with noncentrality 2N·KL (Wald 1943), and KL ≥ 2·(total variation)² (Pinsker).
    """
    if num_cells < 2:
        return 1.0
    threshold = chdtri(num_cells - 1, level)
    noncentrality = chndtrinc(threshold, num_cells - 1, 1.0 - power)
    return min(1.0, float(np.sqrt(noncentrality / (4.0 * num_samples))))


def fewest(found: Callable[[int], float], wanted: float, most: int = 10**12) -> int | None:
    """The smallest number with ``found(number) ≥ wanted``, by doubling and halving; None beyond ``most``."""
    high = 1
    while found(high) < wanted:
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) >= wanted else (middle, high)
    return high
