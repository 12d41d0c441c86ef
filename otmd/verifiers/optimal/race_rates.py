"""Probabilities that each class is chosen among the winners of an exponential race of n drafts.

The first n tokens to arrive, the winners, are the drafts without replacement. ℓ_i(s) = E[e^{−s w_i}] is the
probability that token i's clock has not rung by time s. Given s and the time t of the n-th arrival, the other
tokens are independent, so the number of winners has a generating function in z with one factor for each
token. The factors of heavy tokens, the few with a large q, are multiplied one by one. The other tokens are
the tail. There y = e^{q t} − 1 is small, and the logarithm of the factor 1 + z y ℓ is a series in y^m ℓ^m,
whose sum over the tail needs only the moments Σ share^a q^r (docs/optimal_verifier.md).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from math import comb
from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import copy_numbers
from otmd.kernel import REASSOCIATE, input_size, kernel
from otmd.laws.race.quadrature import POWERS, exponential_series, growth_series, product_of_series
from otmd.probabilities import BoolArray, FloatArray
from otmd.verifiers.optimal.choice_plan import Quadrature, quadrature_for_weights
from otmd.verifiers.optimal.race_tail import NodeValues, Tail

# If it is less likely than this that no winner's clock has rung, the couplings at that time are left out.
_INAUDIBLE = 1e-200
# So many steps of the series cost plain Python what a token of a position does in other kernels.
_STEPS_A_NUMBER = 2048


class RaceWeights(NamedTuple):
    """The rates of the clocks of the tail's classes (G,), of the heavy tokens (M,), and of the rejection."""

    nodes: FloatArray
    heavy: FloatArray
    rejection: float


@dataclass(frozen=True, eq=False)
class ClassRates(ABC):
    """The rates of the classes on one side of the cut, as a function of the log weights.

    A rate is the probability that a token of the class is chosen.

    The log weights are, in this order, those of the nodes and of the heavy tokens that can be chosen, marked
    by ``able_nodes`` (G,) and ``able_heavy`` (M,), and if ``rejects`` that of the rejection.
    """

    tail: Tail
    able_nodes: BoolArray
    able_heavy: BoolArray
    rejects: bool

    def weights(self, log_weights: FloatArray) -> RaceWeights:
        """The weights of all classes, from the log weights; the first node is never chosen.

        A node without tokens gets an interpolated weight, since tokens may move there.
        """
        weights = np.exp(log_weights)
        count = np.count_nonzero(self.able_nodes)
        nodes = np.zeros(self.able_nodes.size)
        heavy = np.zeros(self.able_heavy.size)
        if count:
            node_ratios = self.tail.nodes
            nodes[1:] = np.exp(np.interp(node_ratios[1:], node_ratios[self.able_nodes], log_weights[:count]))
        heavy[self.able_heavy] = weights[count : count + np.count_nonzero(self.able_heavy)]
        return RaceWeights(nodes, heavy, float(weights[-1]) if self.rejects else 0.0)

    def _with_rejection(
        self, rates: FloatArray, coupling: FloatArray, rejected: float, both: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The rates and couplings of the classes, with those of the rejection appended if there is one."""
        if self.rejects:
            coupling = np.block([[coupling, both[:, None]], [both[None, :], np.zeros((1, 1))]])
            rates = np.append(rates, rejected)
        np.fill_diagonal(coupling, 0.0)
        return rates, coupling

    @abstractmethod
    def __call__(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The rates, and −∂rates/∂log weights off the diagonal, for ``weights.balance``."""

    @abstractmethod
    def node_values(self, log_weights: FloatArray) -> NodeValues:
        """The probability that a tail token is chosen if its class is the node below it, or above it."""


class DraftedProbs(NamedTuple):
    """Probabilities of the drafts on one side of the cut, where some tokens are blocked.

    ``total`` is P(no blocked token is drafted). ``heavy`` (M,) is P(none is, and the heavy token is drafted);
    ``tail`` is that of a tail token, divided by its q and to first order in q.
    """

    total: float
    tail: float
    heavy: FloatArray


class RaceChoice(NamedTuple):
    """E[Π ℓ] over the winners at each time s of the clocks (J,), and its derivatives.

    ``heavy`` (J, M) is the derivative by ℓ of each heavy token. The derivative by ℓ of a tail token is
    Σ tail[m, r] ℓ^m q^r, with ``tail`` (n, R, J).
    """

    expected: FloatArray
    heavy: FloatArray
    tail: FloatArray


@dataclass(frozen=True, eq=False)
class TimedRace:
    """A race of n drafts, integrated over the time t of the n-th arrival.

    ``heavy_rates`` (M,) are q of the heavy tokens. ``blocked`` is the total rate of the tokens that must not
    arrive before t.
    """

    num_drafts: int
    heavy_rates: FloatArray
    blocked: float
    quadrature: Quadrature

    def class_rates(
        self, tail: Tail, able_nodes: BoolArray, able_heavy: BoolArray, rejects: bool
    ) -> "TimedRates":
        """The rates of the classes, as a function of the weights."""
        return TimedRates(tail, able_nodes, able_heavy, rejects, self)

    def drafted_probs(self, sums: FloatArray) -> DraftedProbs:
        """Probabilities of the drafts, where the tail has the power sums Σ q^r (R,)."""
        moments = np.tile(sums, (1, self.num_drafts + 1, 1))
        # At s = 0 no clock has rung.
        silent = self.choice(np.ones((1, self.heavy_rates.size)), np.ones((1, 2)), moments)
        tail = float(silent.tail[:, 1, 0].sum())
        return DraftedProbs(float(silent.expected[0]), tail, silent.heavy[0])

    @cached_property
    def arrival_probs(self) -> tuple[FloatArray, FloatArray]:
        """P(a heavy token has not arrived by t) = e^{−q t} and 1 − e^{−q t}, each of shape (M, T)."""
        growth = np.outer(self.heavy_rates, self.quadrature.times)
        return np.exp(-growth), -np.expm1(-growth)

    def choice(self, heavy_silent: FloatArray, node_silent: FloatArray, moments: FloatArray) -> RaceChoice:
        """E[Π ℓ] and its derivatives, for ℓ of the heavy tokens (J, M) and of the classes (J, G).

        ``moments`` (G − 1, n + 1, R) are those of :class:`Tail`.
        """
        order = self.num_drafts
        times = self.quadrature.times
        powers = times ** np.arange(POWERS)[:, None]
        # Σ ℓ^m q^r over the tail, each of shape (J, R).
        mixed = [mixture_powers(m, node_silent) for m in range(order + 1)]
        sums = [np.tensordot(powers_m, moments[:, : powers_m.shape[2]]) for powers_m in mixed]
        logs = np.zeros((order, node_silent.shape[0], times.size))
        last = np.empty_like(logs)
        for m in range(order):
            series = growth_series(m, POWERS)
            if m:
                logs[m] = (sums[m] * series) @ powers
            last[m] = (-1) ** m * ((sums[m + 1][:, 1:] * series[:-1]) @ powers[:-1])
        none = np.exp(-(self.blocked + float(moments[:, 0, 1].sum())) * times)
        count = exponential_series(logs, none)
        start_count = np.moveaxis(count, 0, 1).copy()
        start_last = np.moveaxis(product_of_series(last, count), 0, 1).copy()
        silent = np.ascontiguousarray(heavy_silent)
        absent, present = self.arrival_probs
        # Every token is multiplied onto every series.
        with input_size(silent.size * start_count[0].size // _STEPS_A_NUMBER):
            expected, slopes, by_count, by_last = silent_winners(
                self.heavy_rates, silent, absent, present,
                self.quadrature.steps, start_count, start_last,
            )  # fmt: skip
        tail = _tail_slopes(start_count, start_last, by_count, by_last, powers)
        return RaceChoice(expected, slopes, tail)


def mixture_powers(power: int, node_silent: FloatArray) -> FloatArray:
    """Coefficients of share^a in (share ℓ_g + (1 − share) ℓ_{g+1})^power, shape (J, G − 1, power + 1)."""
    above = node_silent[:, 1:]
    change = node_silent[:, :-1] - above
    return np.stack([comb(power, a) * change**a * above ** (power - a) for a in range(power + 1)], axis=-1)


def _tail_slopes(
    count: FloatArray,
    last: FloatArray,
    by_count: FloatArray,
    by_last: FloatArray,
    powers: FloatArray,
) -> FloatArray:
    """The coefficients (n, R, J) of ℓ^m q^r in the derivative of E[Π ℓ] by a tail token's ℓ."""
    order = count.shape[1]
    most = len(powers)
    slopes = np.zeros((order, most, count.shape[0]))
    for m in range(order):
        sign = (-1) ** m
        arrives_last = (by_last[:, m:] * count[:, : order - m]).sum(axis=1)
        by_q = (sign * (m + 1) * arrives_last @ powers.T) * growth_series(m, most)
        slopes[m, 1:] += by_q.T[:-1]
        if m + 1 < order:
            kept = slice(None, order - m - 1)
            earlier = (by_last[:, m + 1 :] * last[:, kept]).sum(axis=1)
            earlier += (by_count[:, m + 1 :] * count[:, kept]).sum(axis=1)
            slopes[m] += ((sign * earlier @ powers.T) * growth_series(m + 1, most)).T
    return slopes


@dataclass(frozen=True, eq=False)
class TimedRates(ClassRates):
    """The rates of the classes of a :class:`TimedRace`; ``last`` holds the latest log weights and slopes."""

    race: TimedRace
    last: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)

    def node_values(self, log_weights: FloatArray) -> NodeValues:
        """See :class:`ClassRates`. The race is run again only if it was last run at other log weights."""
        if not self.last or (self.last[0][0] != log_weights).any():
            self(log_weights)
        weights = self.weights(log_weights)
        slopes = self.last[0][1]
        times, steps = quadrature_for_weights(log_weights, self.race.num_drafts)
        silent = np.exp(-np.outer(times, weights.nodes))
        rings = weights.nodes * silent * (steps * np.exp(-weights.rejection * times))[:, None]
        shape = (self.tail.nodes.size - 1, self.race.num_drafts, POWERS)
        values = NodeValues(np.zeros(shape), np.zeros(shape))
        for m in range(self.race.num_drafts):
            mixed = mixture_powers(m, silent)
            for into, ring in zip(values, (rings[:, :-1], rings[:, 1:]), strict=True):
                into[:, : m + 1] += np.moveaxis(mixed * ring[:, :, None], 0, -1) @ slopes[m].T
        return values

    def _node_slopes(self, tail: FloatArray, silent: FloatArray) -> FloatArray:
        """The derivative of E[Π ℓ] by ℓ of each class, shape (J, G)."""
        slopes = np.zeros(silent.shape)
        moments = self.tail.moments
        for m in range(self.race.num_drafts):
            mixed = mixture_powers(m, silent)
            of_low = moments[:, 1 : m + 2] @ tail[m]
            of_all = moments[:, : m + 1] @ tail[m]
            slopes[:, :-1] += np.einsum("jga,gaj->jg", mixed, of_low)
            slopes[:, 1:] += np.einsum("jga,gaj->jg", mixed, of_all - of_low)
        return slopes

    def __call__(self, log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See :class:`ClassRates`."""
        weights = self.weights(log_weights)
        times, steps = quadrature_for_weights(log_weights, self.race.num_drafts)
        heavy = np.exp(-np.outer(times, weights.heavy))
        nodes = np.exp(-np.outer(times, weights.nodes))
        choice = self.race.choice(heavy, nodes, self.tail.moments)
        self.last[:] = [(log_weights.copy(), choice.tail)]
        of_nodes = nodes * self._node_slopes(choice.tail, nodes)
        of_heavy = heavy * choice.heavy
        waiting = steps * np.exp(-weights.rejection * times)
        drafted = np.hstack([of_nodes[:, self.able_nodes], of_heavy[:, self.able_heavy]])
        drafted *= np.append(weights.nodes[self.able_nodes], weights.heavy[self.able_heavy])
        rates = waiting @ drafted
        coupling = self._coupling(drafted, of_heavy, choice.expected, waiting * times)
        rejected = weights.rejection * waiting
        both = (rejected * times) @ drafted
        return self._with_rejection(rates, coupling, float(rejected @ choice.expected), both)

    def _coupling(
        self, drafted: FloatArray, of_heavy: FloatArray, expected: FloatArray, strength: FloatArray
    ) -> FloatArray:
        """−∂rates/∂log weights off the diagonal, with Hájek's approximation of P(both are drafted).

        For samples of a fixed size, π_gh ≈ π_g π_h (1 − (1 − π_g)(1 − π_h)/Σ π(1 − π)) (Hájek 1964). The
        approximation only directs the steps of the search: the rates are exact.
        """
        audible = (expected > _INAUDIBLE)[:, None]
        share = np.zeros_like(drafted)
        heavy_share = np.zeros_like(of_heavy)
        np.divide(drafted, expected[:, None], out=share, where=audible)
        np.divide(of_heavy, expected[:, None], out=heavy_share, where=audible)
        varied = share.copy()
        varied[:, np.count_nonzero(self.able_nodes) :] *= 1.0 - heavy_share[:, self.able_heavy]
        spread = np.maximum(self.race.num_drafts - (heavy_share**2).sum(axis=1), 1e-3)
        pair = strength * expected
        independent = (share * pair[:, None]).T @ share
        repelled = (varied * (pair / spread)[:, None]).T @ varied
        return np.maximum(independent - repelled, 1e-6 * independent)


@kernel(fastmath=REASSOCIATE, error_model="numpy")
def silent_winners(rates, silent, absent, present, steps, start_count, start_last):
    """E[Π ℓ over the winners] at each s, and its derivatives.

    At one (s, t) a set of tokens has two series. count[m] is the probability that m of them have arrived by t
    and that none of the clocks of these m has rung. last[m] is the density that one arrives at t after m
    others, and that none of the clocks of these m + 1 has rung. Every term is positive, so nothing cancels.
    Tokens with ``rates`` (M,) are multiplied one by one onto the series of all others, start_count and
    start_last (J, n, T). ``silent`` (J, M) is ℓ. ``absent`` and ``present`` (M, T) are e^{−q t} and
    1 − e^{−q t}. ``steps`` (T,) are those of ∫dt.

    Returns the expectation (J,), and its derivatives by each ℓ (J, M) and by both starting series.
    """
    num_times, order, num_nodes = start_count.shape
    size = rates.size
    expected = np.empty(num_times)
    slopes = np.empty((num_times, size))
    grad_count = np.empty(start_count.shape)
    grad_last = np.empty(start_last.shape)
    count = np.empty((size + 1, order, num_nodes))
    last = np.empty((size + 1, order, num_nodes))
    by_count = np.empty((order, num_nodes))
    by_last = np.empty((order, num_nodes))
    for j in range(num_times):
        copy_numbers(start_count[j].ravel(), count[0].ravel())
        copy_numbers(start_last[j].ravel(), last[0].ravel())
        for i in range(size):
            _multiply(
                silent[j, i], rates[i], absent[i], present[i],
                count[i], last[i], count[i + 1], last[i + 1],
            )  # fmt: skip
        # E[Π ℓ] = ∫ last[n − 1](t) dt : total
        total = 0.0
        for k in range(num_nodes):
            total += steps[k] * last[size, order - 1, k]
        expected[j] = total
        by_count[:] = 0.0
        by_last[:] = 0.0
        for k in range(num_nodes):
            by_last[order - 1, k] = steps[k]
        for i in range(size - 1, -1, -1):
            slopes[j, i] = _multiply_adjoint(
                silent[j, i], rates[i], absent[i], present[i], count[i], last[i], by_count, by_last
            )
        copy_numbers(by_count.ravel(), grad_count[j].ravel())
        copy_numbers(by_last.ravel(), grad_last[j].ravel())
    return expected, slopes, grad_count, grad_last


@kernel(fastmath=REASSOCIATE, error_model="numpy")
def _multiply(ell, rate, absent, present, count, last, next_count, next_last):
    """Multiply one token onto the two series (n, T)."""
    # With a = absent, b = present and the rate λ: c_m ← c_m a + c_{m−1} b ℓ,
    # d_m ← (d_m + λ ℓ c_m) a + d_{m−1} b ℓ, where c = count and d = last
    order, num_nodes = count.shape
    for m in range(order):
        c = count[m]
        d = last[m]
        c_next = next_count[m]
        d_next = next_last[m]
        for k in range(num_nodes):
            c_next[k] = c[k] * absent[k]
            d_next[k] = (d[k] + rate * ell * c[k]) * absent[k]
        if m > 0:
            c, d = count[m - 1], last[m - 1]
            for k in range(num_nodes):
                c_next[k] += c[k] * present[k] * ell
                d_next[k] += d[k] * present[k] * ell


@kernel(fastmath=REASSOCIATE, error_model="numpy")
def _multiply_adjoint(ell, rate, absent, present, count, last, by_count, by_last):
    """Return the derivative by one token's ℓ; ``by_…`` become those by the series without the token.

    The adjoint of :func:`_multiply`, line by line.
    """
    order, num_nodes = count.shape
    slope = 0.0
    for m in range(order):
        c = count[m]
        d = last[m]
        of_c = by_count[m]
        of_d = by_last[m]
        for k in range(num_nodes):
            slope += of_d[k] * rate * absent[k] * c[k]
            of_c[k] = (of_c[k] + of_d[k] * rate * ell) * absent[k]
        if m + 1 < order:
            next_c, next_d = by_count[m + 1], by_last[m + 1]
            for k in range(num_nodes):
                slope += present[k] * (next_c[k] * c[k] + next_d[k] * d[k])
                of_c[k] += next_c[k] * present[k] * ell
                of_d[k] = of_d[k] * absent[k] + next_d[k] * present[k] * ell
        else:
            for k in range(num_nodes):
                of_d[k] *= absent[k]
    return slope
