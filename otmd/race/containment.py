"""g(H) without replacement: the probability that the first n arrivals of an exponential race are all in H.

With λ = q(V∖H) and N(t) the number of arrivals in H by time t, g(H) = 1 − λ ∫ e^{−λt} P(N(t) < n) dt.
Counts of none and one are integrated in closed form, from sums over H alone; larger counts by the
trapezoidal rule in log t, whose error is below 1e-14.
"""

from collections.abc import Sequence

import numpy as np

from otmd.curve._kernels import ratios_of, sum_where
from otmd.curve.blocks import DRAFT
from otmd.kernel import REASSOCIATE, kernel
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.race.block_sums import ALONE, POWER, RaceScale, sums_of_subset
from otmd.race.quadrature import HEAVY, POWERS, RATE_UNIT, growth_series, latest_win, win_times

# Smaller terms are left out: those of all blocks together are below rounding.
_INVISIBLE = 1e-20


class ExponentialRace:
    """The race of a draft distribution (V,), for g of any subset and every number of drafts up to n.

    At least n tokens have mass. ``scale`` is what the kernels of :mod:`otmd.race.block_sums` need, and
    ``width`` the number of sums of a block of tokens.
    """

    def __init__(self, draft: FloatArray, num_drafts: int) -> None:
        self.draft, self.num_drafts = draft, num_drafts
        self._arrivals, self.width, pace = None, POWER, (0.0, 0.0)
        if num_drafts > 2:
            self._arrivals, self.width = (
                PrefixArrivals(draft, num_drafts, RATE_UNIT),
                ALONE + POWERS,
            )
            pace = self._arrivals.end, self._arrivals.heaviest
        self.scale = RaceScale(mass_beside_most(draft), RATE_UNIT, *pace)

    def containment(self, subset: BoolArray, num_drafts: int) -> float:
        """The containment g of a subset (V,) for this number of drafts."""
        if num_drafts == 1:
            return float(sum_where(self.draft, subset))
        sums = np.empty(self.width if num_drafts > 2 else POWER)
        drafted, outside = sums_of_subset(self.draft, subset, self.scale, sums)
        if drafted < num_drafts:
            return 0.0
        outside *= RATE_UNIT
        waits = 1.0 / RATE_UNIT + sums[ALONE]
        if num_drafts > 2:
            assert self._arrivals is not None
            heavy = np.flatnonzero(subset[self._arrivals.heavy])
            rates = sums[None, ALONE:], heavy, np.zeros(heavy.size, np.int64)
            waits += self._arrivals.times(*rates, np.full(2, outside))[num_drafts - 3, 1]
        return float(min(max(1.0 - outside * waits, 0.0), 1.0))

    def contained(
        self, target: FloatArray, low: FloatArray, sums: FloatArray, counts: Sequence[int]
    ) -> FloatArray:
        """The containment g of the first 0, 1, … K blocks, for N numbers of drafts, shape (N, K + 1).

        Blocks are of p/q, p being ``target`` (V,); ``low`` (K,) is the smallest ratio of each, ascending.
        For ``sums`` (K, S) see :mod:`otmd.race.block_sums`; powers are read where a count is above 2.
        """
        outside, several = np.empty(low.size + 1), np.zeros((len(counts), low.size + 1))
        _fill_outside(sums, RATE_UNIT, outside)
        if max(counts) > 2:
            assert self._arrivals is not None
            ratio = ratios_of(target, self.draft, self._arrivals.heavy.astype(np.int32))
            heavy = np.argsort(ratio, kind="stable")
            block = np.searchsorted(low, ratio[heavy], side="right") - 1
            moments = np.ascontiguousarray(sums[:, ALONE:])
            times = self._arrivals.times(moments, heavy, block, outside)
            for own, count in zip(several, counts, strict=True):
                own[:] = times[count - 3] if count > 2 else 0.0
        contained = np.empty(several.shape)
        _fill_contained(sums, RATE_UNIT, outside, several, contained)
        if 1 in counts:
            contained[counts.index(1), 1:] = np.minimum(sums[:, DRAFT].cumsum(), 1.0)
        return contained


class PrefixArrivals:
    """The probability of two and more arrivals among the first blocks of tokens, integrated over time.

    For n ≥ 3 drafts; rates are ``unit`` times q. Light tokens, of q up to ``heaviest``, enter by power
    sums, the ``heavy`` ones (M,) one by one. ``end`` is the end of the race in the unit of time; ``nodes``
    and ``steps`` (T,) are those of the integral.
    """

    def __init__(self, draft: FloatArray, num_drafts: int, unit: float = 1.0) -> None:
        self.end = latest_win(draft, num_drafts, unit)
        self.heaviest = HEAVY / self.end / unit
        self.heavy = np.flatnonzero(draft > self.heaviest)
        # The integrand counts two or more arrivals beside one from outside: three in all.
        self.nodes, self.steps = win_times(self.end, unit * float(draft.sum()), num_drafts, 3)
        self._powers = (self.nodes / self.end) ** np.arange(POWERS)[:, None]
        self._series = np.stack([growth_series(m, POWERS) for m in range(num_drafts)])
        with np.errstate(over="ignore"):
            growth = np.outer(unit * draft[self.heavy], self.nodes)
        self._absent, self._present = np.exp(-growth), -np.expm1(-growth)

    def times(
        self, moments: FloatArray, heavy: IntArray, block: IntArray, outside: FloatArray
    ) -> FloatArray:
        """∫ e^{−λt} P(2 ≤ N(t) < k) dt for k = 3 … n and the first 0, 1, … K blocks, shape (n − 2, K + 1).

        ``moments`` (K, R) are power sums of q·t at the end, over each block's light tokens, from column 1
        on. ``heavy`` (M,) indexes some of the heavy tokens, in the order of their blocks, which are
        ``block`` (M,). ``outside`` (K + 1,) is λ, the rate of all other tokens, in the unit of the rates.
        """
        found = np.empty((len(self._series) - 2, outside.size))
        heavy_chances = block, self._absent[heavy], self._present[heavy]
        nodes = outside, self.nodes, self.steps
        _prefix_arrivals(moments, self._series, self._powers, *heavy_chances, *nodes, found)
        return found


def mass_beside_most(draft: FloatArray) -> float:
    """The mass of all tokens but the one of more than half; inf where there is none, or no other."""
    top = int(draft.argmax())
    if draft[top] <= 0.5:
        return np.inf
    return float(draft[:top].sum() + draft[top + 1 :].sum()) or np.inf


@kernel()
def _fill_outside(sums, unit, outside):
    """The rate of all tokens from each block on, shape (K + 1,)."""
    total = 0.0
    outside[-1] = 0.0
    for k in range(len(sums) - 1, -1, -1):
        total += sums[k, DRAFT]
        outside[k] = unit * total


@kernel()
def _fill_contained(sums, unit, outside, several, contained):
    """Fill g before each block (N, K + 1).

    ``several`` holds ∫ e^{−λt} P(2 ≤ N(t) < n) dt, which is 0 for two drafts.
    """
    waits = 1.0 / unit
    for k in range(outside.size):
        if k > 0:
            waits += sums[k - 1, ALONE]
        for i in range(len(several)):
            contained[i, k] = min(max(1.0 - outside[k] * (waits + several[i, k]), 0.0), 1.0)


@kernel(fastmath=REASSOCIATE, error_model="numpy")
def _prefix_arrivals(
    moments, series, powers, heavy_block, absent, present, outside, times, steps, out
):
    """out[k, b] = Σ_t step·e^{−λ_b t} P(2 ≤ N < 3 + k), N the arrivals by t among the first b blocks.

    See :meth:`PrefixArrivals.times`. λ_b = outside[b] is in the unit of ``times``. ``series`` (n, R) are the
    coefficients of (e^x − 1)^m, ``powers`` (R, T) those of the times in units of the end, ``absent`` and
    ``present`` (M, T) the probabilities e^{−q t} and 1 − e^{−q t} of heavy tokens.
    """
    order, most = series.shape
    num_nodes = times.size
    heavy = np.zeros((order, num_nodes))
    heavy[0] = 1.0
    light = 0.0
    logs = np.zeros((order, num_nodes))
    tail = np.zeros((order, num_nodes))
    used = 0
    out[:, 0] = 0.0
    for b in range(moments.shape[0]):
        light += moments[b, 1]
        # The rate of all tokens but the heavy ones so far: no light token changes it.
        stale = b == 0 or (used < heavy_block.size and heavy_block[used] == b)
        while used < heavy_block.size and heavy_block[used] == b:
            count_one_more(heavy, absent[used], present[used])
            used += 1
        for m in range(1, order):
            for r in range(m, most):
                weight = series[m, r] * moments[b, r]
                if weight < _INVISIBLE:
                    continue
                for k in range(num_nodes):
                    logs[m, k] += weight * powers[r, k]
        if stale:
            for k in range(num_nodes):
                exponent = outside[b + 1] * times[k] + light * powers[1, k]
                tail[0, k] = steps[k] * np.exp(-exponent)
        for m in range(1, order):
            tail[m] = 0.0
            for i in range(1, m + 1):
                sign = 1.0 if i % 2 == 1 else -1.0
                for k in range(num_nodes):
                    tail[m, k] += sign * logs[i, k] * tail[m - i, k]
            for k in range(num_nodes):
                tail[m, k] /= m
        total = 0.0
        for m in range(2, order):
            for i in range(m + 1):
                for k in range(num_nodes):
                    total += heavy[i, k] * tail[m - i, k]
            out[m - 2, b + 1] = total


@kernel(fastmath=REASSOCIATE)
def count_one_more(counts, absent, present):
    """Add one event to P(m events occur) (n, T), in place."""
    for m in range(counts.shape[0] - 1, -1, -1):
        here = counts[m]
        for k in range(here.size):
            here[k] *= absent[k]
        if m > 0:
            fewer = counts[m - 1]
            for k in range(here.size):
                here[k] += fewer[k] * present[k]
