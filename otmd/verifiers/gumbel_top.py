"""The Gumbel top n: drafts without replacement by the clocks that the target reads."""

from __future__ import annotations

import numpy as np
from scipy.special import binom

from otmd.kernel import kernel
from otmd.laws import DraftLaw, Structure
from otmd.laws.race import quadrature as race
from otmd.laws.race.containment import count_one_more
from otmd.probabilities import FloatArray, IntArray, wrong
from otmd.verifiers.invariant import (
    InvariantCoupling,
    arrival_times,
    one_distribution,
    sorted_masses,
)
from otmd.verifiers.optimal.choice_plan import clock_quadrature

# About so many values of the function are computed at most. The bounds hold after any number of them.
_MOST_VALUES = 20_000
# Tokens with q·t above _HEAVY at the end t of the integral enter one by one. For the others, powers of q·t
# below the eighth are exact to 1e-13, and where q·t is below _FAINT, powers below the fifth.
_HEAVY = 0.5
_POWERS = 8
_FAINT = 1e-3
_FEW = 5
# The number of tokens in a block of sums, and of numbers that are computed at once.
_BLOCK = 256
_AT_ONCE = 2**16


class GumbelTop(InvariantCoupling):
    """Draft the n smallest E_y/q_y, emit the smallest E_y/p_y: n drafts without replacement.

    Suppose the target emits y, and let C = p_y/q_y. The other tokens z race at rates (C q_z − p_z)₊ against y
    at rate 1, and y is drafted unless n of them come first. The probability of this is a concave function of
    w = 1/T(C), that with one draft (Theorem 3 of docs/theory_couplings.md). So between two values of w the
    function lies above its chord, and its mean over some tokens is at most its value at their mean w.
    Cells of w are split until these bounds of α are ``tol`` apart. With one draft this is Daliri et al.
    (2024, arXiv:2408.07978).

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithoutReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> low, high = otmd.GumbelTop().acceptance_bounds([0.5, 0.25, 0.25], law)
    >>> round(low, 6), high - low < 1e-6
    (0.935714, True)
    """

    def serves(self, structure: Structure) -> bool:
        single = structure.single
        return structure.race is not None or (single is not None and single.num_drafts == 1)

    def position_drafts(self, draft: FloatArray, clocks: FloatArray) -> IntArray:
        support = np.count_nonzero(draft)
        if support < len(clocks):
            raise wrong("draft_probs", f"{support} tokens with mass", f"{len(clocks)} or more")
        return np.argsort(arrival_times(clocks[0], draft))[: len(clocks)]

    def clocks_given(
        self, draft: FloatArray, draft_tokens: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        mass = draft[draft_tokens]
        others = draft.copy()
        others[draft_tokens] = 0.0
        left = others.sum() + mass[::-1].cumsum()[::-1]
        times = (rng.exponential(size=mass.size) / left).cumsum()
        clocks = rng.exponential(size=draft.size) + others * times[-1]
        clocks[draft_tokens] = mass * times
        return clocks

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        p, q, ratio, excess = sorted_masses(target, one_distribution(law))
        # In ascending order of w, so that sums over small w have small errors.
        p = p[::-1]
        alone = 1.0 / (1.0 + excess[::-1])
        masses, weights = (np.append(0.0, x.cumsum()) for x in (p, p * alone))
        if law.num_drafts == 1 or masses[-1] == 0.0:
            return float(weights[-1]), float(weights[-1])
        drafted_given = _DraftedGiven(q, ratio, excess, law.num_drafts)
        # The ends of the cells, and between two ends the mean w of the cell's tokens.
        w = np.clip([0.0, weights[-1] / masses[-1], 1.0], alone[0], alone[-1])
        drafted = drafted_given(w)
        while True:
            ends = np.append(np.searchsorted(alone, w[:-1]), p.size)
            mass = np.diff(masses[ends])
            weighted = np.diff(weights[ends])
            means = np.divide(weighted, mass, out=w[:-1].copy(), where=mass > 0).clip(w[:-1], w[1:])
            low = (mass * np.interp(means, w, drafted)).reshape(-1, 2).sum(axis=1)
            gap = np.maximum(mass.reshape(-1, 2).sum(axis=1) * drafted[1::2] - low, 0.0)
            if gap.sum() <= tol or w.size > _MOST_VALUES:
                return float(low.sum()), float(low.sum() + gap.sum())
            parts = np.flatnonzero(np.repeat(gap > 0.5 * tol / gap.size, 2))
            w = np.insert(w, parts + 1, means[parts])
            drafted = np.insert(drafted, parts + 1, drafted_given(means[parts]))


class _DraftedGiven:
    """P(a token is drafted | the target emits it) as a function of w: w ∫ e^{−u} Σ_{m<n} e_m du.

    The e_m are the elementary symmetric polynomials of e^{ur} − 1 over the rates r = w (C q − p)₊.
    """

    def __init__(self, q: FloatArray, ratio: FloatArray, excess: FloatArray, n: int) -> None:
        self._n = n
        self._scales = excess, ratio
        # Times are in units of twice the end of the drafter's own race.
        self._end = min(2.0 * race.RATE_UNIT * race.latest_win(q, n, race.RATE_UNIT), 1e300)
        mass = q * self._end
        heavy = mass > _HEAVY
        self._heavy, self._light = (mass[heavy], ratio[heavy]), (mass[~heavy], ratio[~heavy])
        self._blocks = _block_sums(*self._light) * binom(*np.ogrid[:_POWERS, :_POWERS])
        self._times, self._steps = clock_quadrature(45.0, self._end, race.quadrature_step(n))
        self._powers = self._times ** np.arange(_POWERS)[:, None]

    def __call__(self, w: FloatArray) -> FloatArray:
        if w.size > 1 and w.size * self._times.size * self._n > _AT_ONCE:
            return np.concatenate([self(part) for part in np.array_split(w, 2)])
        scale = np.interp(1.0 / w - 1.0, *self._scales)
        sums = _light_sums(*self._light, self._blocks, scale)
        sums *= (scale * w)[:, None] ** np.arange(_POWERS)
        logs = [(sums * race.growth_series(m, _POWERS)) @ self._powers for m in range(self._n)]
        silent = np.exp(-np.outer(w * self._end + sums[:, 1], self._times))
        counts = race.exponential_series(np.stack(logs), silent).reshape(self._n, -1)
        for mass, ratio in zip(*self._heavy, strict=True):
            absent = np.exp(np.outer(-mass * w * np.maximum(scale - ratio, 0), self._times)).ravel()
            count_one_more(counts, absent, 1.0 - absent)
        probs = w * self._end * (counts.sum(axis=0).reshape(silent.shape) @ self._steps)
        return np.where(np.searchsorted(self._scales[1], scale) < self._n, 1.0, probs)


@kernel()
def _block_sums(mass, ratio):
    """Σ mass^r (ratio/end)^k, k ≤ r, over all tokens before each block, whose last ratio is ``end``."""
    sums = np.zeros((1 + mass.size // _BLOCK, _POWERS, _POWERS))
    for b in range(1, sums.shape[0]):
        start = _BLOCK * (b - 1)
        end = max(ratio[_BLOCK * b - 1], 1e-300)
        before = ratio[start - 1] / end if start > 0 else 0.0
        for r in range(1, _POWERS):
            for k in range(r + 1):
                sums[b, r, k] = sums[b - 1, r, k] * before**k
        for y in range(start, start + _BLOCK):
            part = ratio[y] / end
            power = 1.0
            for r in range(1, _FEW if mass[y] < _FAINT else _POWERS):
                power *= mass[y]
                term = power
                for k in range(r + 1):
                    sums[b, r, k] += term
                    term *= part
    return sums


@kernel()
def _light_sums(mass, ratio, blocks, scales):
    """Σ (mass (1 − ratio/scale)₊)^r over all tokens, for r > 0 and each of the scales, shape (K, R)."""
    sums = np.zeros((scales.size, _POWERS))
    for i in range(scales.size):
        stop = np.searchsorted(ratio, scales[i])
        start = stop - stop % _BLOCK
        before = ratio[start - 1] / scales[i] if start > 0 else 0.0
        for r in range(1, _POWERS):
            for k in range(r + 1):
                sums[i, r] += (-before) ** k * blocks[start // _BLOCK, r, k]
        for y in range(start, stop):
            rate = mass[y] * (1.0 - ratio[y] / scales[i])
            power = 1.0
            for r in range(1, _FEW if rate < _FAINT else _POWERS):
                power *= rate
                sums[i, r] += power
    return sums
