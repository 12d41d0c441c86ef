"""Tests of counts in cells that are fixed before any sample is seen.

P-values and bounds are valid for any number of samples; only the power is approximate.
"""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, chdtri, chndtrinc, gammaln, xlogy

from otmd.laws.base import RngLike, validate_rng
from otmd.probabilities import BoolArray, FloatArray, IntArray, wrong

# The label of an outcome that has probability zero.
IMPOSSIBLE = -1
MOST_CELLS = 64
_SAMPLES_A_CELL = 50
# The rarest tokens share a cell in which this many samples are expected at most: two are suspicious.
_RARE_COUNT = 0.01
_MOST_ENUMERATED = 20_000
_SMALLEST_LEVEL = 1e-6
_MISS_PROBABILITY = 0.1
_ENOUGH_EXTREME = 20
_NUMBERS_AT_ONCE = 2_000_000
# Statistics that differ by less than this, relatively, are ties, and ties count as extreme.
_TIE = 1e-9
_DEVIATIONS = (0.0, 1.0, 2.0, 4.0, 8.0)


class Cells(NamedTuple):
    """A partition of V outcomes: the cell of each (V,), or :data:`IMPOSSIBLE`, and the cells' masses (K,)."""

    labels: IntArray
    probs: FloatArray

    def counts(self, labels: IntArray, weights: FloatArray | None = None) -> NDArray:
        """Counts (K,) of the cells among labels (M,), or sums of their weights (M,)."""
        # Impossible outcomes are counted in an extra first cell, which is dropped.
        return np.bincount(labels - IMPOSSIBLE, weights, minlength=self.probs.size + 1)[1:]


def ratio_order(target: FloatArray, drafted: FloatArray) -> IntArray:
    """Tokens by p/q ascending, ties by id, p = 0 first. ``drafted`` (V,) is q, or P(the token is drafted)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.where(target > 0, np.log(target) - np.log(drafted), -np.inf)
    return np.argsort(log_ratio, kind="stable")


def masses_before(probs: FloatArray, order: IntArray) -> FloatArray:
    """The total probability of the outcomes that come before each one in ``order``; shape (V,)."""
    masses = np.empty(probs.size)
    masses[order] = np.concatenate([[0.0], np.cumsum(probs[order])[:-1]])
    return masses


def ratios(target: FloatArray, drafted: FloatArray) -> FloatArray:
    """p/q of each token (V,); infinite where q is 0, or so small that the quotient overflows."""
    with np.errstate(over="ignore"):
        return np.divide(target, drafted, out=np.full(target.size, np.inf), where=drafted > 0)


def mass_before(probs: FloatArray, key: FloatArray, token: int) -> float:
    """The probability before one token by ``key`` ascending, ties by id, without a sort."""
    before = key < key[token]
    before[:token] |= key[:token] == key[token]
    return float(probs[before].sum())


def make_cells(probs: FloatArray, order: IntArray, num_cells: int, rare_mass: float = 0.0) -> Cells:
    """Cut outcomes, in an order, into cells of about equal mass; the rarest, of ``rare_mass``, share one."""
    middle = masses_before(probs, order) + 0.5 * probs
    label = np.minimum((num_cells * middle).astype(np.int64), num_cells - 1)
    label[rare(probs, rare_mass)] = num_cells
    possible = probs > 0
    _, label[possible] = np.unique(label[possible], return_inverse=True)
    label[~possible] = IMPOSSIBLE
    return Cells(label, np.bincount(label[possible], probs[possible]).astype(np.float64))


def token_cells(target: FloatArray, order: IntArray, num_samples: int) -> Cells:
    """The cells in which ``num_samples`` tokens are counted; see :func:`make_cells`."""
    num_cells = max(2, min(MOST_CELLS, num_samples // _SAMPLES_A_CELL))
    return make_cells(target, order, num_cells, rare_mass=_RARE_COUNT / num_samples)


def rare(probs: FloatArray, mass: float) -> IntArray:
    """The least likely possible outcomes: as many as sum to a probability of at most ``mass``."""
    ascending = np.argsort(probs, kind="stable")
    within = (np.cumsum(probs[ascending]) <= mass) & (probs[ascending] > 0)
    return ascending[within]


def g_statistic(counts: IntArray, probs: FloatArray) -> FloatArray:
    """G = 2 Σ O log(O/E) for counts O (…, K) and the cells' probabilities (K,), all positive."""
    total = counts.sum(axis=-1, keepdims=True)
    return 2.0 * xlogy(counts, counts / np.maximum(total, 1) / probs).sum(axis=-1)


def exact_p_value(counts: IntArray, probs: FloatArray, level: float, *, rng: RngLike) -> float:
    """Exact p-value of G for multinomial counts (K,): under ``probs``, at most x with probability ≤ x.

    All counts are listed if few, else up to 10/``level`` are drawn; ValueError for a level below 1e-6.
    """
    generator = validate_rng(rng)
    total = int(counts.sum())
    cells = probs.size
    if level >= _SMALLEST_LEVEL and comb(total + cells - 1, cells - 1) <= _MOST_ENUMERATED:
        possible = possible_counts(total, cells)
        observed = float(g_statistic(counts, probs))
        extreme = possible[g_statistic(possible, probs) >= observed * (1.0 - _TIE) - _TIE]
        ways = gammaln(total + 1.0) - gammaln(extreme + 1.0).sum(axis=-1)
        return min(1.0, float(np.exp(ways + xlogy(extreme, probs).sum(axis=-1)).sum()))
    draw = partial(generator.multinomial, total, probs / probs.sum())
    return _p_value_by_draws(counts, lambda drawn: g_statistic(drawn, probs), draw, level)


def p_value_of_exchangeable(
    observed: IntArray, reference: IntArray, level: float, *, rng: np.random.Generator
) -> float:
    """P-value of the null hypothesis that two samples, counted in cells (K,), have the same distribution.

    If so, all splits of the pooled samples are equally likely: counts are multivariate hypergeometric.
    """
    used = (observed + reference) > 0
    observed = observed[used]
    pooled = observed + reference[used]
    if pooled.size < 2:
        return 1.0
    probs = pooled / pooled.sum()

    def statistic(drawn: IntArray) -> FloatArray:
        return g_statistic(drawn, probs) + g_statistic(pooled - drawn, probs)

    draw = partial(rng.multivariate_hypergeometric, pooled, observed.sum(), method="marginals")
    return _p_value_by_draws(observed, statistic, draw, level)


def _p_value_by_draws(
    counts: IntArray,
    statistic: Callable[[IntArray], FloatArray],
    draw: Callable[[int], IntArray],
    level: float,
) -> float:
    """(1 + extreme draws)/(1 + draws), or 20/draws as soon as 20 are extreme (Besag & Clifford 1991)."""
    if level < _SMALLEST_LEVEL:
        reason = "a p-value from draws cannot be smaller; SequentialAudit has no such limit"
        raise wrong("level", f"{level:.1e}", f"at least {_SMALLEST_LEVEL:.0e}: {reason}")
    threshold = float(statistic(counts)) * (1.0 - _TIE) - _TIE
    most_draws = int(np.ceil(10 / level))
    num_draws = 0
    num_extreme = 0
    size = _ENOUGH_EXTREME
    while num_draws < most_draws:
        size = min(2 * size, most_draws - num_draws, _NUMBERS_AT_ONCE // counts.size)
        extreme = np.cumsum(statistic(draw(size)) >= threshold) + num_extreme
        if extreme[-1] >= _ENOUGH_EXTREME:
            return _ENOUGH_EXTREME / (num_draws + int(np.argmax(extreme >= _ENOUGH_EXTREME)) + 1)
        num_draws += size
        num_extreme = int(extreme[-1])
    return (1 + num_extreme) / (1 + num_draws)


def possible_counts(total: int, cells: int) -> IntArray:
    """All counts in this many cells that sum to ``total``, shape (…, K)."""
    bars = np.array([*combinations(range(total + cells - 1), cells - 1)], np.int64)
    return np.diff(bars, prepend=-1, append=total + cells - 1) - 1


def lower_bound(hits: int, trials: int, level: float) -> float:
    """Lower bound of a probability (Clopper & Pearson 1934), too high with probability ≤ ``level`` ≤ 1/4.

    It also bounds the mean probability of unequal, independent trials (Hoeffding 1956; Markov for one hit).
    """
    if hits <= 1:
        return hits * level / trials
    return float(betaincinv(hits, trials - hits + 1, level))


def upper_bound(hits: int, trials: int, level: float) -> float:
    """Upper bound of a probability, too low with probability ≤ ``level``; see :func:`lower_bound`."""
    return 1.0 - lower_bound(trials - hits, trials, level)


def lower_bound_of_mean(hits: int, trials: int, level: float, guess: float) -> float:
    """Lower bound of the mean probability of events, each given the past, sharpest if it is ``guess``."""
    # For an event X of probability m given the past, exp(λ ΣX − Σ log(1 + m(e^λ − 1))) is a martingale. The
    # logarithm is concave, so the mean may stand for each m. Markov's inequality gives the bound.
    rate = min(max(guess, 1e-6), 1.0 - 1e-6)
    spread = np.sqrt(2.0 * rate * (1.0 - rate) * np.log(1.0 / level) / trials)
    low = max(rate - spread, 1e-3 * rate)
    tilt = max(1e-6, float(np.log(rate / (1.0 - rate)) - np.log(low / (1.0 - low))))
    return float(np.expm1((tilt * hits - np.log(1.0 / level)) / trials) / np.expm1(tilt))


def total_variation_bound(
    labels: IntArray, probs: FloatArray, level: float, *, independent: bool = True
) -> float:
    """Lower bound of the total variation from what is expected, too high with probability ≤ ``level``.

    ``labels`` (M,) has the cell of each sample, and ``probs``, (K,) or (M, K), its expected distribution. If
    samples are not ``independent``, this is the distribution given the samples before it, and the bound is of
    the mean total variation over the second half of the samples.
    """
    # The first half picks a set A of cells that occur too often, the held-out half bounds P(A) from below.
    # For any A, P(A) − expected(A) is at most the total variation. Impossible outcomes always belong to A.
    half = labels.size // 2
    cells = probs.shape[-1]
    if half < 2:
        return 0.0
    expected = np.broadcast_to(probs, (labels.size, cells))
    quarter = half // 2
    impossible = labels == IMPOSSIBLE

    def excess(chosen: BoolArray, held_out: slice) -> float:
        is_hit = impossible | chosen[labels]
        trials = is_hit[held_out].size
        hits = int(np.count_nonzero(is_hit[held_out]))
        if independent:
            bound = lower_bound(hits, trials, level)
        else:
            bound = lower_bound_of_mean(hits, trials, level, float(is_hit[:half].mean()))
        return bound - float(expected[held_out].mean(axis=0)[chosen].sum())

    def too_often(stop: int, deviations: float) -> BoolArray:
        mean = expected[:stop].sum(axis=0)
        observed = np.bincount(labels[:stop] - IMPOSSIBLE, minlength=cells + 1)[1:]
        return observed > mean + deviations * np.sqrt(mean)

    # Cells that are in A by noise alone weaken the bound. So the first quarter of the samples picks an A for
    # each threshold, and the second quarter picks the threshold.
    best = max(_DEVIATIONS, key=lambda x: excess(too_often(quarter, x), slice(quarter, half)))
    return max(0.0, excess(too_often(half, best), slice(half, labels.size)))


def detectable_total_variation(num_samples: int, num_cells: int, level: float) -> float:
    """The total variation on the cells that a G-test finds with probability 0.9.

    G is taken as noncentral χ² with noncentrality 2N·KL (Wald 1943), and KL ≥ 2·(total variation)² (Pinsker).
    """
    if num_cells < 2:
        return 1.0
    threshold = chdtri(num_cells - 1, level)
    noncentrality = chndtrinc(threshold, num_cells - 1, _MISS_PROBABILITY)
    return min(1.0, float(np.sqrt(noncentrality / (4.0 * num_samples))))
