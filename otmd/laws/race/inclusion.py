"""The probability of each token to be among the first n arrivals of an exponential race.

Let N₋(t) be the number of other tokens that have arrived by t. A token is drafted with probability
q ∫ e^{−qt} P(N₋(t) < n) dt. For a slow token, the generating function of N₋ is that of the count of all
tokens, divided by the token's own factor e^{−qt}(1 + z(e^{qt} − 1)). An expansion in q gives one polynomial
that serves all slow tokens. Heavy tokens, those with a larger q, are treated one by one.
"""

from collections.abc import Sequence

import numpy as np

from otmd.curve._kernels import copy_numbers
from otmd.kernel import REASSOCIATE, kernel
from otmd.laws.race import quadrature
from otmd.laws.race.containment import count_one_more, power_sums
from otmd.probabilities import FloatArray

# The integral starts at the time by which this many arrivals are expected: the rest is below rounding.
_EARLIEST = 1e-18
# Rates are cut off at this multiple of 1/(end of the race): a faster token is drafted almost surely.
_FASTEST = 1e100


class RaceInclusion:
    """An exponential race, prepared for the first m arrivals, for every m up to n ≥ 2.

    More than n tokens of the draft distribution (V,) have mass; rates are ``unit`` times q.
    """

    def __init__(self, draft: FloatArray, num_drafts: int, unit: float = 1.0) -> None:
        latest = quadrature.latest_win(draft, num_drafts, unit)
        step = quadrature.quadrature_step(num_drafts)
        self._small = unit * draft
        np.minimum(self._small, _FASTEST / latest, out=self._small)
        first = np.log(_EARLIEST) - np.log(latest) - np.log(self._small.sum())
        self._parts = np.exp(np.arange(int(-first / step) + 2)[::-1] * -step)
        self._weights = step * self._parts
        self._heavy = np.flatnonzero(self._small > quadrature.HEAVY / latest)
        self._small *= latest
        fast = self._small[self._heavy]
        self._small[self._heavy] = 0.0
        # P(k of the slow tokens have arrived), k < n, by Newton's identities, shape (n, T).
        moments = power_sums(self._small, None, quadrature.POWERS)
        powers = self._parts ** np.arange(quadrature.POWERS)[:, None]
        logs = [
            (quadrature.growth_series(m, quadrature.POWERS) * moments) @ powers
            for m in range(num_drafts)
        ]
        slow = quadrature.exponential_series(np.stack(logs), np.exp(-moments[1] * self._parts))
        growth = np.outer(fast, self._parts)
        absent = np.exp(-growth)
        present = -np.expm1(-growth)
        missed = np.empty((num_drafts, fast.size))
        at_most = slow.cumsum(axis=0)
        counts = heavy_inclusion(absent, present, at_most, self._weights, missed)
        self._at_most = quadrature.product_of_series(counts, slow).cumsum(axis=0)
        self._heavy_drafted = np.clip(fast * missed, 0.0, 1.0)

    def probs(self, num_drafts: int) -> FloatArray:
        """Probability that each token is among the first ``num_drafts`` arrivals, shape (V,)."""
        included = np.empty(self._small.size)
        _fill_polynomials(self._small, self._coefficients(num_drafts), included)
        included[self._heavy] = self._heavy_drafted[num_drafts - 1]
        return np.clip(included, 0.0, 1.0, out=included)

    def hit_rates(self, target: FloatArray, counts: Sequence[int]) -> list[float]:
        """P(a token of the target (V,) is among the first arrivals), for these numbers of arrivals."""
        sums = power_sums(self._small, target, quadrature.POWERS)
        heavy = target[self._heavy]
        return [
            float(self._coefficients(n) @ sums + self._heavy_drafted[n - 1] @ heavy) for n in counts
        ]

    def _coefficients(self, num_drafts: int) -> FloatArray:
        """Coefficients of q^r, r < R, in the probability that a slow token is drafted."""
        powers = self._parts ** np.arange(quadrature.POWERS - 1)[:, None]
        coefficients = np.zeros(quadrature.POWERS)
        for m in range(num_drafts):
            integrals = (powers * self._at_most[num_drafts - 1 - m]) @ self._weights
            coefficients[1:] += (
                (-1) ** m * quadrature.growth_series(m, quadrature.POWERS)[:-1] * integrals
            )
        return coefficients


@kernel(fastmath=REASSOCIATE)
def heavy_inclusion(absent, present, slow, weights, missed):
    """Fill missed[k, i] = Σ_t w·a_i·P(at most k other tokens have arrived), k < n, for each heavy token i.

    ``absent`` and ``present`` (M, T) are the probability a_i that heavy token i has not arrived, and 1 − a_i.
    slow[m] (T,) is the probability that at most m slow tokens have arrived, and ``weights`` (T,) are the w.
    Returns P(k heavy tokens have arrived), shape (n, T).
    """
    size = slow.shape[0]
    num_heavy = absent.shape[0]
    num_nodes = weights.size
    after = np.zeros((num_heavy + 1, size, num_nodes))
    before = np.zeros((size, num_nodes))
    others = np.empty((size, num_nodes))
    for t in range(num_nodes):
        after[num_heavy, 0, t] = before[0, t] = 1.0
    for i in range(num_heavy - 1, -1, -1):
        copy_numbers(after[i + 1].ravel(), after[i].ravel())
        count_one_more(after[i], absent[i], present[i])
    for i in range(num_heavy):
        _product(before, after[i + 1], others)
        for k in range(size):
            # Σ_t w a_i Σ_{j ≤ k} P(j other heavy tokens) P(at most k − j slow tokens) : total
            total = 0.0
            for j in range(k + 1):
                heavy_part = others[j]
                slow_part = slow[k - j]
                a = absent[i]
                for t in range(num_nodes):
                    total += weights[t] * a[t] * heavy_part[t] * slow_part[t]
            missed[k, i] = total
        count_one_more(before, absent[i], present[i])
    return before


@kernel(fastmath=REASSOCIATE)
def _product(first, second, out):
    """Fill the product of two power series (n, T), cut off after n terms."""
    # Σ_m first_m second_{k−m} : product
    for k in range(out.shape[0]):
        product = out[k]
        product[:] = 0.0
        for m in range(k + 1):
            left = first[m]
            right = second[k - m]
            for t in range(product.size):
                product[t] += left[t] * right[t]


@kernel()
def _fill_polynomials(rates, coefficients, out):
    """out[y] = Σ_r c_r q^r for tokens with q ≤ 0.1; powers below 1e-17 of the first are left out."""
    for y in range(rates.size):
        rate = rates[y]
        needed = coefficients.size
        if rate < 1e-8:
            needed = min(needed, 4)
        elif rate < 1e-4:
            needed = min(needed, 6)
        elif rate < 3e-3:
            needed = min(needed, 9)
        # Σ_r c_r q^r by Horner's rule : value
        value = coefficients[needed - 1]
        for r in range(needed - 2, -1, -1):
            value = value * rate + coefficients[r]
        out[y] = value
