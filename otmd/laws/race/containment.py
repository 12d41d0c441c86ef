"""The containment g(H) of drafts without replacement, as an exponential race, and the best H.

With λ = q(V∖H) and N(t) the number of arrivals in H by time t, g(H) = 1 − λ ∫ e^{−λt} P(N(t) < n) dt.
Counts of none and one are integrated in closed form, from sums over H alone; larger counts by the
trapezoidal rule in log t, whose error is below 1e-14.

A row of sums (S,) is for one block of tokens. It holds Σ p, Σ q and Σ q/(1 − q), and for three drafts and
more also Σ (q·t)^r for r = 1, 2, …, over the light tokens of the block, t being the end of the race.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, copy_numbers, ratios_of, sum_where
from otmd.curve.blocks import DRAFT, TARGET, BlockedCurve, Blocks, fill_groups
from otmd.kernel import REASSOCIATE, kernel
from otmd.laws.race.quadrature import HEAVY, POWERS, RATE_UNIT, growth_series, latest_win, win_times
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Columns after p and q: the expected time during which one token alone has arrived, and the powers.
ALONE = 2
POWER = 3

# Smaller terms are left out: those of all tokens together are below rounding.
_INVISIBLE = 1e-20
# A smaller probability does not occur.
_NEVER = 1e-30
# Of a smaller q·t, powers from the fifth on are below rounding; and powers from the seventh on.
_FAINT = 1e-4
_SMALL = 1e-3


class RaceScale(NamedTuple):
    """The scales of a race for kernels; its rates are ``unit`` times q.

    ``minority`` is the mass of all tokens but the one of more than half, see :func:`minority_mass`. ``end``
    is the end of the race in the unit of time, 0 for two drafts, which need no powers; ``heaviest`` is the
    largest q of a light token.
    """

    minority: float
    unit: float
    end: float
    heaviest: float


class ExponentialRace:
    """The race of a draft distribution (V,), for g of any subset and n ≥ 2 drafts.

    At least n tokens have mass. ``scale`` is for the kernels, and ``width`` the number of sums of a block.
    For three drafts and more, light tokens enter by power sums, the ``heavy`` ones (M,) one by one.
    """

    def __init__(self, draft: FloatArray, num_drafts: int) -> None:
        self.draft = draft
        self.num_drafts = num_drafts
        self.width = POWER
        self.heavy = np.empty(0, np.int64)
        self.scale = RaceScale(minority_mass(draft), RATE_UNIT, end=0.0, heaviest=0.0)
        if num_drafts == 2:
            return
        self.width = ALONE + POWERS
        end = latest_win(draft, num_drafts, RATE_UNIT)
        self.scale = self.scale._replace(end=end, heaviest=HEAVY / end / RATE_UNIT)
        self.heavy = np.flatnonzero(draft > self.scale.heaviest)
        # The integrand counts two or more arrivals and one from outside: three in all.
        times, self._steps = win_times(end, RATE_UNIT * float(draft.sum()), num_drafts, 3)
        self._times, self._powers = times, (times / end) ** np.arange(POWERS)[:, None]
        # Those of more than POWERS arrivals are 0.
        self._series = np.stack([growth_series(m, POWERS) for m in range(min(num_drafts, POWERS))])
        with np.errstate(over="ignore"):
            growth = np.outer(RATE_UNIT * draft[self.heavy], times)
        self._absent, self._present = np.exp(-growth), -np.expm1(-growth)
        self._first = first_nodes(self._present.sum(axis=0), num_drafts)

    def containment(self, subset: BoolArray) -> float:
        """The containment g of a subset (V,)."""
        tokens = np.flatnonzero(subset).astype(np.int32)
        if np.count_nonzero(self.draft[tokens]) < self.num_drafts:
            return 0.0
        # In parts, since a long chain of additions loses digits.
        part = (np.arange(tokens.size) // AT_A_TIME).astype(np.int32)
        parts = np.zeros((part[-1] + 1, self.width))
        _sum_tokens(self.draft, self.draft, tokens, part, self.scale, parts)
        # The blocks are the subset, and all other tokens, of which only q is needed.
        sums = np.zeros((2, self.width))
        sums[0] = parts.sum(axis=0)
        sums[1, DRAFT] = sum_where(self.draft, ~subset)
        block = np.where(subset[self.heavy], 0, 1)
        return float(self.contained(block, sums)[1])

    def contained(self, block: IntArray, sums: FloatArray) -> FloatArray:
        """The containment g of the first 0, 1, … K blocks, shape (K + 1,).

        ``sums`` are (K, S), and ``block`` (M,) is the block of each heavy token.
        """
        outside, wait, more = np.zeros((3, len(sums) + 1))
        _fill_waits(sums, outside, wait)
        if self.num_drafts > 2:
            order = np.argsort(block, kind="stable")
            _prefix_arrivals(
                np.ascontiguousarray(sums[:, ALONE:]), self._series, self._powers, block[order],
                self._absent[order], self._present[order], self._first, outside, self._times, self._steps,
                self.num_drafts, more,
            )  # fmt: skip
        return (1.0 - outside * (wait + more)).clip(0.0, 1.0)


def first_nodes(mean: FloatArray, num_drafts: int) -> IntArray:
    """For m < n, the first time (T,) by which m tokens may have arrived, shape (n,).

    ``mean`` (T,) is the mean number of arrivals N. By Chernoff's bound, P(N ≥ m) ≤ e^{m − μ}(μ/m)^m.
    """
    m = np.arange(1, num_drafts)[:, None]
    with np.errstate(divide="ignore"):
        bound = np.where(mean < m, m - mean + m * np.log(mean / m), 0.0)
    first = (bound > np.log(_NEVER)).argmax(axis=1)
    first[bound[:, -1] <= np.log(_NEVER)] = mean.size
    return np.append(0, first)


class RaceCurve(BlockedCurve):
    """The ratio curve of one position, for drafts without replacement: p (V,) need not sum to 1."""

    def __init__(self, target: FloatArray, race: ExponentialRace) -> None:
        self.race = race
        self.width = race.width
        if race.num_drafts > 2:
            # Each block costs an integral.
            self.most_sorted = 64
            self.num_parts = 16
        self._heavy_ratio = ratios_of(target, race.draft, race.heavy.astype(np.int32))
        super().__init__(target, race.draft, [race.num_drafts], coarse=True)

    def sum_groups(self, group: NDArray[np.int16], sums: FloatArray) -> None:
        """See :class:`~otmd.curve.blocks.BlockedCurve`."""
        _sum_groups(self.target, self.draft, self.race.scale, group, sums)

    def sum_tokens(self, tokens: NDArray[np.int32], block: NDArray[np.int32], sums: FloatArray) -> None:
        """See :class:`~otmd.curve.blocks.BlockedCurve`."""
        _sum_tokens(self.target, self.draft, tokens, block, self.race.scale, sums)

    def containment(self, blocks: Blocks) -> FloatArray:
        """See :class:`~otmd.curve.blocks.BlockedCurve`."""
        block = np.searchsorted(blocks.low, self._heavy_ratio, side="right") - 1
        return self.race.contained(block, blocks.sums)[None]


def minority_mass(draft: FloatArray) -> float:
    """The mass of all tokens but the one of more than half; inf without such a token, or if it has it all."""
    largest = int(draft.argmax())
    if draft[largest] <= 0.5:
        return np.inf
    return float(draft[:largest].sum() + draft[largest + 1 :].sum()) or np.inf


@kernel(error_model="numpy")
def _fill_alone(q, scale, alone):
    """q/(1 − q) of some tokens, in the unit of time: ∫ P(by t the token has arrived, and no other) dt."""
    for y in range(q.size):
        # 1 − q; for the token of more than half, the difference would cancel : left
        left = scale.minority if q[y] > 0.5 else 1.0 - q[y]
        alone[y] = q[y] / (scale.unit * left)


@kernel()
def _fill_waits(sums, outside, wait):
    """Fill λ and ∫ e^{−λt} P(N(t) < 2) dt for the first 0, 1, … K blocks, shape (K + 1,) each."""
    # λ = q(V∖H) : outside; ∫ e^{−λt} P(N(t) < 2) dt = (1 + Σ_H q/(1 − q))/unit : wait
    outside[-1] = 0.0
    wait[0] = 1.0 / RATE_UNIT
    for k in range(len(sums)):
        wait[k + 1] = wait[k] + sums[k, ALONE]
    for k in range(len(sums) - 1, -1, -1):
        outside[k] = outside[k + 1] + RATE_UNIT * sums[k, DRAFT]


@kernel()
def add_tokens(p, q, block, scale, sums):
    """Add tokens to the sums (K, S) of their blocks."""
    alone = np.empty(q.size)
    powers = sums.shape[1] > POWER
    _fill_alone(q, scale, alone)
    # Tokens that need more powers. Each is written, and the size grows past those only: a branch would often
    # be mispredicted.
    visible = np.empty(q.size + 1, np.int64)
    size = np.uint64(0)
    for y in range(q.size):
        # Unsigned, or every index would be checked for counting from the end.
        k = np.uint64(block[y])
        sums[k, TARGET] += p[y]
        sums[k, DRAFT] += q[y]
        sums[k, ALONE] += alone[y]
        if powers:
            # In this order: the product of unit and end may be infinite.
            rate = (scale.unit * q[y]) * scale.end if q[y] <= scale.heaviest else 0.0
            square = rate * rate
            sums[k, POWER] += rate
            sums[k, POWER + 1] += square
            sums[k, POWER + 2] += rate * square
            sums[k, POWER + 3] += square * square
            visible[size] = y
            size += np.uint64(rate > _FAINT)
    for i in range(size):
        y = np.uint64(visible[i])
        k = np.uint64(block[y])
        rate = (scale.unit * q[y]) * scale.end
        power = rate * rate * rate * rate * rate
        sums[k, POWER + 4] += power
        sums[k, POWER + 5] += power * rate
        if rate > _SMALL:
            for r in range(POWER + 6, sums.shape[1]):
                power *= rate
                sums[k, r] += power * rate


@kernel()
def _sum_groups(target, draft, scale, group, sums):
    """Fill the group of each token by p/q, and add the tokens to the groups' sums."""
    ratio = np.empty(AT_A_TIME)
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], draft[start : start + AT_A_TIME]
        group_part = group[start : start + AT_A_TIME]
        fill_groups(p, q, ratio, group_part)
        add_tokens(p, q, group_part, scale, sums)


@kernel()
def _sum_tokens(target, draft, tokens, block, scale, sums):
    """Add tokens to the sums of their blocks."""
    p, q = np.empty(AT_A_TIME), np.empty(AT_A_TIME)
    for start in range(0, tokens.size, AT_A_TIME):
        token_part = tokens[start : start + AT_A_TIME]
        for i in range(token_part.size):
            p[i], q[i] = target[token_part[i]], draft[token_part[i]]
        block_part = block[start : start + AT_A_TIME]
        add_tokens(p[: token_part.size], q[: token_part.size], block_part, scale, sums)


@kernel(fastmath=REASSOCIATE, error_model="numpy")
def _prefix_arrivals(
    moments, series, powers, heavy_block, absent, present, first, outside, times, steps, order, out
):
    """out[b] = Σ_t step·e^{−λ_b t} P(2 ≤ N < n), N the arrivals by t among the first b blocks, n the order.

    ``moments`` (K, R) are power sums of q·t at the end, over each block's light tokens, from column 1 on.
    λ_b = outside[b] is in the unit of ``times``. ``series`` (n, R) are the coefficients of (e^x − 1)^m,
    ``powers`` (R, T) those of the times in units of the end, ``absent`` and ``present`` (M, T) the
    probabilities e^{−q t} and 1 − e^{−q t} of heavy tokens, which lie in the blocks ``heavy_block`` (M,),
    ascending. ``first`` (n,) is :func:`first_nodes`.
    """
    most = series.shape[1]
    num_nodes = times.size
    heavy = np.zeros((order, num_nodes))
    heavy[0] = 1.0
    light = 0.0
    logs = np.zeros((min(order, series.shape[0]), num_nodes))
    tail = np.zeros((order, num_nodes))
    below = np.zeros((order, num_nodes))
    used = 0
    for b in range(moments.shape[0]):
        light += moments[b, 1]
        # The rate of all tokens but the heavy ones so far: no light token changes it.
        stale = b == 0 or (used < heavy_block.size and heavy_block[used] == b)
        while used < heavy_block.size and heavy_block[used] == b:
            # At most used + 1 of them have arrived.
            count_one_more(heavy[: used + 2], absent[used], present[used], first)
            used += 1
        for m in range(1, logs.shape[0]):
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
        _count_light(logs, tail, below)
        # Σ_t P(2 ≤ N < n), the steps in ``tail``, which ``below`` sums up from m = 0 : out[b + 1]
        total = 0.0
        for m in range(2, order):
            for k in range(num_nodes):
                # With no heavy token at least two light ones, with one heavy token at least one.
                total += heavy[0, k] * tail[m, k] + heavy[1, k] * tail[m - 1, k]
                total += heavy[m, k] * below[order - 1 - m, k]
        out[b + 1] = total


@kernel(fastmath=REASSOCIATE)
def _count_light(logs, tail, below):
    """Fill P(m light tokens have arrived) for m ≥ 1, times the steps, by Newton's identities from m = 0.

    ``below`` is the sum up to m. Logs from their number on are 0.
    """
    # P_m = Σ_{i ≤ m} (−1)^{i+1} logs_i P_{m−i} / m : tail[m]; Σ_{i ≤ m} P_i : below[m]
    # Row by row would compile the message about unequal shapes too, which takes seconds.
    for k in range(tail.shape[1]):
        below[0, k] = tail[0, k]
    for m in range(1, tail.shape[0]):
        tail[m] = 0.0
        for i in range(1, min(m + 1, logs.shape[0])):
            sign = 1.0 if i % 2 == 1 else -1.0
            for k in range(tail.shape[1]):
                tail[m, k] += sign * logs[i, k] * tail[m - i, k]
        for k in range(tail.shape[1]):
            tail[m, k] /= m
            below[m, k] = below[m - 1, k] + tail[m, k]


@kernel(fastmath=REASSOCIATE)
def count_one_more(counts, absent, present, first=None):
    """Add one event to P(m events occur) (n, T), in place; from the node ``first[m]`` on, where given."""
    # P(m) ← P(m)·absent + P(m − 1)·present : counts[m]
    for m in range(counts.shape[0] - 1, 0, -1):
        exact = counts[m]
        fewer = counts[m - 1]
        start = 0 if first is None else first[m]
        for k in range(start, exact.size):
            exact[k] = exact[k] * absent[k] + fewer[k] * present[k]
    exact = counts[0]
    for k in range(exact.size):
        exact[k] *= absent[k]


@kernel()
def power_sums(rates, most):
    """Σ q^r for r = 1 … most − 1, and 0 for r = 0."""
    sums = np.zeros(most)
    power = np.empty(AT_A_TIME)
    for start in range(0, rates.size, AT_A_TIME):
        rate_part = rates[start : start + AT_A_TIME]
        copy_numbers(rate_part, power)
        _add_powers(rate_part, power, sums)
    return sums


@kernel(fastmath=REASSOCIATE)
def _add_powers(rates, power, sums):
    """sums[r] += Σ q^r from r = 1; powers of q below 1e-20 are left out. Overwrites ``power``, which is q."""
    largest = 0.0
    for y in range(rates.size):
        largest = rates[y] if rates[y] > largest else largest
    reach = largest
    for r in range(1, sums.size):
        total = 0.0
        for y in range(rates.size):
            total += power[y]
            power[y] *= rates[y]
        sums[r] += total
        reach *= largest
        if reach < _INVISIBLE:
            break
