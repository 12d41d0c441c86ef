"""Tests of counts in cells that are fixed before any sample is seen, and bets that may be looked at any time.

P-values and bounds are valid for any number of samples; only the power is approximate.

A bet starts with wealth 1 and multiplies it by factors, whose expectation given the past is at most 1 under
the claim. So the wealth ever reaches 1/a with probability at most a (Ville 1939).
"""

from collections.abc import Callable, Sequence
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
_MOST_CELLS = 64
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
CAUTIONS = (30.0, 1_000.0, 30_000.0)
NUMBERS_OF_CELLS = (2, 4, 16, 64)
STAKES = (1 / 256, 1 / 64, 1 / 16, 1 / 4)
_ROWS_AT_ONCE = 4096
_LOST = np.finfo(np.float64).min


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
    ascending = np.argsort(probs, kind="stable")
    label[ascending[np.cumsum(probs[ascending]) <= rare_mass]] = num_cells
    possible = probs > 0
    _, label[possible] = np.unique(label[possible], return_inverse=True)
    label[~possible] = IMPOSSIBLE
    return Cells(label, np.bincount(label[possible], probs[possible]).astype(np.float64))


def token_cells(target: FloatArray, order: IntArray, num_samples: int) -> Cells:
    """The cells in which ``num_samples`` tokens are counted; see :func:`make_cells`."""
    num_cells = max(2, min(_MOST_CELLS, num_samples // _SAMPLES_A_CELL))
    return make_cells(target, order, num_cells, rare_mass=_RARE_COUNT / num_samples)


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
        # K counts that sum to N are the gaps between K − 1 bars among N + K − 1 places.
        bars = np.array([*combinations(range(total + cells - 1), cells - 1)], np.int64)
        possible = np.diff(bars, prepend=-1, append=total + cells - 1) - 1
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
    if used.sum() < 2:
        return 1.0
    observed = observed[used]
    pooled = observed + reference[used]
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
    quarter = half // 2
    if half < 2:
        return 0.0
    expected = np.broadcast_to(probs, (labels.size, probs.shape[-1]))

    def excess(chosen: BoolArray, held_out: slice) -> float:
        is_hit = (labels == IMPOSSIBLE) | chosen[labels]
        hits = int(is_hit[held_out].sum())
        trials = is_hit[held_out].size
        if independent:
            bound = lower_bound(hits, trials, level)
        else:
            bound = lower_bound_of_mean(hits, trials, level, float(is_hit[:half].mean()))
        return bound - float(expected[held_out].mean(axis=0)[chosen].sum())

    def too_often(stop: int, deviations: float) -> BoolArray:
        mean = expected[:stop].sum(axis=0)
        observed = Cells(labels, mean).counts(labels[:stop])
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


class CellBets:
    """A bet that cells occur as often as they did so far, not as often as the claim expects.

    The factor for a sample in cell k is r(k)/π(k). The claim expects π; the bet predicts
    r(k) ∝ π(k)·(O_k + cπ(k))/(E_k + cπ(k)), with O_k samples so far in k, and E_k expected. A large caution c
    suits small deviations. Several cautions (C,) are as many bets, and logarithms of their wealth (C,).
    """

    def __init__(self, num_cells: int, caution: float | Sequence[float]) -> None:
        self.caution = np.array(caution)
        self.log_wealth = np.zeros(self.caution.shape)
        self._observed = np.zeros(num_cells)
        self._expected = np.zeros(num_cells)

    def update(self, labels: IntArray, probs: FloatArray) -> FloatArray:
        """Bet on samples in cells (M,), with π (K,) or (M, K); the log-wealth after each of them (…, M)."""
        claimed = np.broadcast_to(probs, (labels.size, self._observed.size))
        paths = [np.empty((*self.caution.shape, 0))]
        for start in range(0, labels.size, _ROWS_AT_ONCE):
            label = labels[start : start + _ROWS_AT_ONCE]
            prob = claimed[start : start + _ROWS_AT_ONCE]
            happened = np.eye(self._observed.size)[label]
            observed = np.vstack([self._observed, happened]).cumsum(axis=0)
            expected = np.vstack([self._expected, prob]).cumsum(axis=0)
            trust = self.caution[..., None, None] * prob
            factor = (observed[:-1] + trust) / np.where(prob > 0, expected[:-1] + trust, 1.0)
            with np.errstate(divide="ignore"):
                gain = np.log(factor[..., np.arange(label.size), label])
                gain -= np.log((prob * factor).sum(axis=-1))
            paths.append(self.log_wealth[..., None] + np.cumsum(gain, axis=-1))
            self.log_wealth = paths[-1][..., -1]
            self._observed = observed[-1]
            self._expected = expected[-1]
        return np.concatenate(paths, axis=-1)


class EventBets:
    """A bet that events are more likely than the claim allows, with a stake s in (0, 1), or one for each.

    The claim allows a probability of at most a. The factor is 1 + s(X/a − 1), where X is 1 if the event
    happens and 0 if not.
    """

    def __init__(self, stake: float | FloatArray) -> None:
        self.stake = stake
        self.log_wealth = 0.0

    def update(self, happened: BoolArray, largest: FloatArray | float) -> FloatArray:
        """Bet on events (M,) in turn, with the ``largest`` probability a of each; the log-wealth (M,)."""
        with np.errstate(divide="ignore"):
            paid = np.where(happened, 1.0 / np.asarray(largest), 0.0)
        path = self.log_wealth + np.cumsum(np.log1p(self.stake * (paid - 1.0)))
        self.log_wealth = float(path[-1]) if path.size else self.log_wealth
        return path


def mean_wealth(paths: Sequence[FloatArray] | FloatArray) -> FloatArray:
    """Logarithm of the mean wealth of several bets. It is itself a bet, which splits its stake among them."""
    stacked = np.array(paths)
    # A bet that lost all it had has −∞, and so may all of them.
    largest = np.maximum(stacked.max(axis=0), _LOST)
    with np.errstate(divide="ignore"):
        return largest + np.log(np.exp(stacked - largest).mean(axis=0))


def anytime_p_value(path: FloatArray) -> float:
    """1/(the largest wealth), from log-wealths (M,): under the claim, at most x with probability ≤ x."""
    return float(np.exp(-path.max(initial=0.0)))
