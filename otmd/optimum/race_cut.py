"""The optimal cut of drafts without replacement, without a walk through every token.

Along the tokens by p/q both p(H) and g(H) are convex as functions of q(H) (Hu et al. 2025, Theorem 6). So
for the prefixes that end inside a block of tokens p lies above the line with the block's smallest
ratio and g below its chord: p − g is at least the smaller of its bounds at the two ends. Blocks that can
hold the minimum are split, down to single ratios.
"""

from dataclasses import dataclass

import numpy as np

from otmd.drafts.exponential_race import HEAVY, POWERS, growth_series, latest_win, win_times
from otmd.drafts.without_replacement import WithoutReplacement
from otmd.kernels.race_prefixes import block_moments, prefix_arrivals
from otmd.kernels.ratio_groups import NUM_GROUPS, group_by_ratio, group_edges, tokens_of_groups
from otmd.optimum.ratio_cut import SLACK, at_issue
from otmd.probabilities import BoolArray, FloatArray, IntArray

# Into how many parts the tokens at issue are split, before they are taken one by one.
_PARTS = 256


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Consecutive tokens by p/q: the smallest ratio (K,), whether there is no other, and sums.

    The sums (K, 2 + R) are of p, of q/(1 − q), and of the powers 0 … R − 1 of q in units of the race's end; the
    powers leave out the heavy tokens, and q itself stands where the power 0 would.
    """

    low: FloatArray
    single: BoolArray
    sums: FloatArray


class _Race:
    """A position and its race."""

    def __init__(self, target: FloatArray, law: WithoutReplacement) -> None:
        self.target, self.draft, self.num_drafts = target, law.draft_probs, law.num_drafts
        self.alone = self.draft / law.mass_of_others()
        self.latest = latest_win(self.draft, self.num_drafts)
        self.rates = self.draft * self.latest
        self.ratio, self.group = np.empty(target.size), np.empty(target.size, np.int16)
        self.heavy = np.flatnonzero(self.rates > HEAVY)
        self.times, self.steps = win_times(self.latest, 2)
        self.powers = self.times ** np.arange(POWERS)[:, None]

    def groups(self) -> _Blocks:
        """Group the tokens by the leading bits of p/q."""
        sums = np.zeros((NUM_GROUPS, 2 + POWERS))
        p, q, moments = np.zeros(NUM_GROUPS), np.zeros(NUM_GROUPS), np.zeros((NUM_GROUPS, POWERS))
        group_by_ratio(self.target, self.draft, self.ratio, self.group, p, q)
        self.heavy = self.heavy[np.argsort(self.ratio[self.heavy], kind="stable")]
        block_moments(self._small(np.arange(self.draft.size)), self.group, moments)
        sums[:, 0], sums[:, 2:], sums[:, 2] = p, moments, q
        sums[:, 1] = np.bincount(self.group, self.alone, NUM_GROUPS)
        return _Blocks(group_edges()[:-1], np.zeros(NUM_GROUPS, dtype=bool), sums)

    def split(self, blocks: _Blocks, chosen: BoolArray, tokens: IntArray, parts: int) -> _Blocks:
        """Split the chosen blocks, which hold these tokens in the order of p/q, between ratios."""
        ratio = self.ratio[tokens]
        runs = np.flatnonzero(np.concatenate([ratio[:1] >= 0, ratio[1:] != ratio[:-1]]))
        every = max(1, runs.size // parts)
        starts = np.union1d(runs[::every], np.searchsorted(ratio, blocks.low[chosen]))
        starts = starts[starts < tokens.size]
        rows = np.empty((tokens.size, 2 + POWERS))
        rows[:, 0], rows[:, 1] = self.target[tokens], self.alone[tokens]
        rows[:, 2:] = self._small(tokens)[:, None] ** np.arange(POWERS)
        rows[:, 2] = self.draft[tokens]
        low = np.concatenate([blocks.low[~chosen], ratio[starts]])
        alone = np.concatenate([blocks.single[~chosen], np.full(starts.size, every == 1)])
        sums = np.concatenate([blocks.sums[~chosen], np.add.reduceat(rows, starts)])
        order = np.argsort(low, kind="stable")
        return _Blocks(low[order], alone[order], sums[order])

    def containment(self, blocks: _Blocks) -> FloatArray:
        """G of the tokens before each block and of all, shape (K + 1,)."""
        draft, moments = blocks.sums[:, 2], blocks.sums[:, 2:].copy()
        moments[:, 0] = 0.0
        outside = np.append(draft[::-1].cumsum()[::-1], 0.0)
        waits = 1.0 + np.append(0.0, blocks.sums[:, 1].cumsum())
        if self.num_drafts > 2:
            heavy = self.rates[self.heavy]
            block = np.searchsorted(blocks.low, self.ratio[self.heavy], side="right") - 1
            growth = np.outer(heavy, self.times)
            arrivals = np.empty(draft.size + 1)
            series = np.stack([growth_series(m, POWERS) for m in range(self.num_drafts)])
            absent, present = np.exp(-growth), -np.expm1(-growth)
            scaled = outside * self.latest, self.times, self.steps
            prefix_arrivals(
                moments, series, self.powers, heavy, block, absent, present, *scaled, arrivals
            )
            waits += self.latest * arrivals
        return np.clip(1.0 - outside * waits, 0.0, 1.0)

    def _small(self, tokens: IntArray) -> FloatArray:
        rates = self.rates[tokens]
        return np.where(rates > HEAVY, 0.0, rates)


def race_cut(target: FloatArray, law: WithoutReplacement) -> tuple[BoolArray, float]:
    """The smallest prefix H of the ratio order that minimises p(H) − g(H).

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p; it need not sum to 1.
    law : WithoutReplacement
        A law without leading axes, of n ≥ 2 drafts.

    Returns
    -------
    subset : ndarray of bool, shape (V,)
    rate : float
        1 + p(H) − g(H).
    """
    race = _Race(target, law)
    blocks = race.groups()
    values, open_blocks = _bound(blocks, race.containment(blocks))
    tokens = tokens_of_groups(race.group, open_blocks, target.size)
    tokens = tokens[np.argsort(race.ratio[tokens])]
    for parts in (_PARTS, target.size):
        blocks = race.split(blocks, open_blocks, tokens, parts)
        values, open_blocks = _bound(blocks, race.containment(blocks))
        if not open_blocks.any():
            break
        place = np.searchsorted(blocks.low, race.ratio[tokens], side="right") - 1
        tokens = tokens[open_blocks[place]]
    size = int(np.argmax(values <= values.min() + SLACK))
    edge = blocks.low[size] if size < blocks.low.size else np.inf
    return race.ratio < edge, 1.0 + float(values[size])


def _bound(blocks: _Blocks, contained: FloatArray) -> tuple[FloatArray, BoolArray]:
    """P − g before each block, and which blocks may hold less than the least of these."""
    target = np.append(0.0, blocks.sums[:, 0].cumsum())
    draft = blocks.sums[:, 2]
    values = target - contained
    lowest = np.minimum(values[:-1], target[:-1] + blocks.low * draft - contained[1:])
    return values, at_issue(values, lowest) & ~blocks.single & (draft > 0)
