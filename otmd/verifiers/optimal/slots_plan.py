"""The optimal plan for independent drafts: with replacement, from strata, or from several drafters.

Let c be the gradient of g at H*, and σ_r(y) = c_r q_r(y). H* holds the tokens whose p is below σ = Σ_r σ_r
(Theorem 13 of docs/theory.md). The vector (σ_1, …, σ_R, p) of a token is divided into parts, each of a class.
All parts of a class have the same direction: the same shares σ_r/σ, which are a ray, and the same p/σ, which
is a node. So whichever slot a chosen draft of a class came from, it is each token with the same probability.
A verifier that chooses each class with its p chooses each token with its p (docs/optimal_verifier.md).

Few tokens are classes of their own, and so are the largest of many. The others are spread over rays and
nodes, once over many fine nodes: spreading these over fewer nodes is exact.

Classes of tokens are in :mod:`otmd.verifiers.optimal.slots_grid`, their weights in
:mod:`otmd.verifiers.optimal.slots_tiers`.
"""

from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import largest_entries
from otmd.laws import Slots
from otmd.optimum.acceptance import random_cut
from otmd.optimum.independent_cut import distinct_slots, half_space_cut, slopes
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.optimal.choice_plan import ChoicePlan, Side, quadrature_for_weights
from otmd.verifiers.optimal.slots_grid import Entries, Grid, SpreadTokens, grid_of, locate
from otmd.verifiers.optimal.slots_tiers import (
    TIGHT,
    excess_of,
    find_weights,
    tight_prefixes,
    weights_in_tiers,
)

MOST_DISTRIBUTIONS = 16
"""The rays between more distributions would be too many."""

# The tokens of a side are classes of their own up to so many; of more tokens, so many of the largest are.
_FEW = 256
_LARGEST = 16
# The edges of the simplex of shares are divided into at most so many; and so many rays × fine nodes at most.
_MOST_DIVISIONS = 8
_MOST_POINTS = 1 << 20
# No interval of p/σ narrower than this, relative to its end, is divided; no grid of more classes is refined.
_NARROW = 1e-9
_MOST_ROUNDS = 60
_MOST_CLASSES = 500
# Nodes lie at 1 ± 2^{−k} up to this k: what spreading costs near the cut is of the order of the square. Fine
# nodes lie so many to an octave as well, down to 2^{−40}.
_HALVINGS = 20
_OF_OCTAVE = 32
_OCTAVES = 40
# If more than so many cuts are tight, the tokens near them are classes of their own.
_MANY_CUTS = 32
# The parts of the tolerance for spreading the tokens of a side, and for the weights of its classes.
_OF_CLASSES = 0.25
_OF_WEIGHTS = 0.0625


def plan_slots(target: FloatArray, slots: Slots, tol: float) -> ChoicePlan:
    """The optimal plan for independent drafts, from at most 16 distributions that overlap, at a position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. The rate may be ``tol`` below
    the optimum, or more where the search for classes or weights ends early; the plan is lossless at every
    ``tol``.
    """
    cut = random_cut(target, slots)
    assert cut is not None
    subset, value = cut
    if slots.disjoint:
        copies, row_of_slot = slots.copies, slots.row_of_slot
        # The law's arrays are the caller's.
        draft = slots.token_probs[:, None].copy()
        first_row = slots.number.astype(np.int64)
        within = np.zeros(copies.size)
        np.add.at(within, first_row[subset], draft[subset, 0])
    else:
        draft, row_of_slot = distinct_slots(slots)
        copies = np.bincount(row_of_slot)
        first_row = np.zeros(target.size, np.int64)
        within = draft[subset].sum(axis=0)
    scale = slopes(within, copies) if subset.any() else copies.astype(np.float64)
    sigma = scale[first_row] * draft[:, 0] if slots.disjoint else draft @ scale
    entries = Entries(target.copy(), draft, first_row)
    sides = []
    for inside in (True, False):
        never = np.zeros(copies.size) if inside else within
        tokens = np.flatnonzero((subset == inside) & (sigma > 0.0))
        least = value if inside else -float((within**copies).prod())
        side = _Side(entries, tokens, sigma[tokens], copies, scale, never, inside, least)
        sides.append(side.solve(tol) if target[tokens].any() else None)
    return ChoicePlan(entries.target, row_of_slot, subset, 1.0 + value, *sides)


class _Classes(NamedTuple):
    """Classes: their number in the grid (G,), p (G,), p/σ (G,), and by row q (R, G) and q/σ (R, G).

    ``never`` (R,) is the draft mass of each row that is of no class, or of one without p.
    """

    number: IntArray
    target: FloatArray
    ratio: FloatArray
    draft: FloatArray
    shares: FloatArray
    never: FloatArray

    def able(self) -> "_Classes":
        """Those that can be chosen, by p/σ ascending."""
        able = np.flatnonzero((self.target > 0.0) & self.draft.any(axis=0))
        order = able[np.argsort(self.ratio[able], kind="stable")]
        unable = self.draft.sum(axis=1) - self.draft[:, able].sum(axis=1)
        never = self.never + np.maximum(unable, 0.0)
        return _Classes(
            self.number[order], self.target[order], self.ratio[order], self.draft[:, order],
            self.shares[:, order], never,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Side:
    """The problem of one side: ``tokens`` (T,) and their ``sigma`` (T,). The best cut has p − g ``least``.

    ``copies`` (R,) drafts are drawn from each row; ``scale`` (R,) is c. ``never`` (R,) is the draft mass of
    each row that is never chosen on this side.
    """

    entries: Entries
    tokens: IntArray
    sigma: FloatArray
    copies: IntArray
    scale: FloatArray
    never: FloatArray
    inside: bool
    least: float

    def solve(self, tol: float) -> Side | None:
        """Find classes and their weights; None if none can be chosen."""
        grid, classes = self._classes(_OF_CLASSES * tol)
        if classes.target.size == 0:
            return None
        target, drafts, never = classes.target, classes.draft, classes.never
        tol *= _OF_WEIGHTS
        if self.inside:
            log_weights, by_row, _ = find_weights(target, drafts, never, self.copies, -self.least, tol)
            of_tier = 0
        else:
            log_weights, by_row, of_tier = weights_in_tiers(target, drafts, never, self.copies, tol)
        weights, rates = np.zeros((2, grid.size))
        tiers = np.zeros(grid.size, np.int64)
        shares = np.zeros((self.copies.size, grid.size))
        weights[classes.number] = np.exp(log_weights[: target.size])
        tiers[classes.number] = of_tier
        shares[:, classes.number] = classes.shares
        rates[classes.number] = by_row.sum(axis=0) / (self.scale @ drafts)
        rejection = float(np.exp(log_weights[-1])) if self.inside else 0.0
        quadrature = quadrature_for_weights(log_weights, int(self.copies.sum()))
        spread = SpreadTokens(self.entries, grid, shares, rates)
        return Side(weights, tiers, rejection, quadrature, spread.offered, spread.classes_of)

    def _classes(self, tol: float) -> tuple[Grid, _Classes]:
        """A grid over whose classes no cut is more than ``tol`` better, if there is one; and its classes."""
        if self.tokens.size <= _FEW:
            grid = self._grid(np.arange(self.tokens.size), np.array([0.0, 1.0]), 1)
            return grid, self._coarse(grid, grid.nodes, self._masses(grid)).able()
        large = np.maximum(self.entries.target[self.tokens], self.sigma)
        grid, classes = self._fit(largest_entries(large, _LARGEST), tol)
        tight = self._low(grid, classes, tol)
        if self.copies.size == 1 and tight.size > _MANY_CUTS:
            # An output of the lossy frontier, say: no grid is fine enough, but tokens fall into tiers.
            ratio = self.entries.target[self.tokens] / self.sigma
            interval = np.searchsorted(grid.nodes, ratio, side="right") - 1
            near = np.isin(interval, np.append(tight, tight + 1))
            singles = np.flatnonzero(near | (grid.singles[self.tokens] >= 0))
            finer, parted = self._fit(singles, TIGHT)
            able = parted.able()
            ends = tight_prefixes(able.target, able.draft, able.never, self.copies)
            if np.diff(ends, prepend=0, append=able.target.size).max() <= 2 * _MOST_CLASSES:
                return finer, able
        return grid, classes.able()

    def _fit(self, singles: IntArray, tol: float) -> tuple[Grid, _Classes]:
        """A grid over whose classes no cut has p − g below ``least`` − ``tol``, and its classes.

        The tokens with indices ``singles`` are classes of their own. Weights of the classes lose no more.
        Where a cut is lower, the intervals of p/σ that its plane crosses are divided. The search may end
        before.
        """
        nodes, fine = _nodes(1.0 if self.inside else self._most)
        divided = self.entries.draft.shape[1] > 1
        rays = comb(self.copies.size + 1, 2)
        grid = self._grid(singles, nodes, 2 if divided and rays * nodes.size <= 2 * _MOST_CLASSES else 1)
        masses = self._masses(grid._replace(nodes=fine))
        for _ in range(_MOST_ROUNDS):
            classes = self._coarse(grid, fine, masses)
            crossed = self._crossed(grid, classes, tol)
            if crossed.size == 0 or classes.number.size - singles.size > _MOST_CLASSES:
                break
            nodes = grid.nodes
            wide = crossed[nodes[crossed + 1] - nodes[crossed] > _NARROW * nodes[crossed + 1]]
            more = 2 * grid.divisions
            num_rays = comb(self.copies.size - 1 + more, more)
            if wide.size:
                grid = grid._replace(nodes=np.union1d(nodes, _between(nodes, wide, fine)))
            elif divided and more <= _MOST_DIVISIONS and num_rays * fine.size <= _MOST_POINTS:
                grid = self._grid(singles, nodes, more)
            else:
                break
            finer = np.union1d(fine, grid.nodes)
            if finer.size > fine.size or not wide.size:
                fine = finer
                masses = self._masses(grid._replace(nodes=fine))
        return grid, self._coarse(grid, fine, masses)

    @property
    def _most(self) -> float:
        """No token whose p/σ is larger can be chosen with its p."""
        return float((self.copies / self.scale).max())

    def _grid(self, singles: IntArray, nodes: FloatArray, divisions: int) -> Grid:
        """A grid with classes of their own for the tokens with these indices."""
        of_token = np.full(self.entries.target.size, -1)
        of_token[self.tokens[singles]] = np.arange(singles.size)
        return grid_of(of_token, self.scale, divisions, nodes)

    def _masses(self, grid: Grid) -> FloatArray:
        """σ of each class of a grid."""
        classes, parts = locate(self.tokens, self.entries, grid)
        return _sums(classes, parts, grid.size)

    def _coarse(self, grid: Grid, fine: FloatArray, masses: FloatArray) -> _Classes:
        """The classes of a grid that are not empty, from σ of those at fine nodes."""
        entries, size = self.entries, grid.nodes.size
        singles = np.flatnonzero(grid.singles >= 0)
        singles = singles[np.argsort(grid.singles[singles])]
        single_shares = np.zeros((self.copies.size, singles.size))
        for k in range(entries.draft.shape[1]):
            single_shares[entries.first_row[singles] + k, np.arange(singles.size)] = entries.draft[singles, k]
        single_shares /= masses[: singles.size]
        # p/σ of the others is cut off at a value which cannot be attained.
        single_ratio = np.minimum(entries.target[singles], 2.0 * self._most * masses[: singles.size])
        single_ratio /= masses[: singles.size]
        by_ray = masses[singles.size :].reshape(-1, fine.size)
        lower = np.clip(np.searchsorted(grid.nodes, fine, side="right") - 1, 0, size - 2)
        above = grid.nodes[lower + 1]
        share = (above - fine) / (above - grid.nodes[lower])
        at = lower + size * np.arange(len(by_ray))[:, None]
        mass = _sums(at, by_ray * share, len(by_ray) * size)
        mass += _sums(at + 1, by_ray * (1.0 - share), mass.size)
        ray, node = np.divmod(np.flatnonzero(mass), size)
        mass = np.append(masses[: singles.size], mass[mass > 0.0])
        ratio = np.append(single_ratio, grid.nodes[node])
        shares = np.hstack([single_shares, grid.rays[:, ray] / self.scale[:, None]])
        number = np.append(np.arange(singles.size), singles.size + ray * size + node)
        return _Classes(number, mass * ratio, ratio, mass * shares, shares, self.never)

    def _crossed(self, grid: Grid, classes: _Classes, tol: float) -> IntArray:
        """The intervals between nodes that are crossed by planes below which p − g is too low."""
        crossed = self._low(grid, classes, -tol)
        if crossed.size or self.copies.size == 1:
            return crossed
        # What is never chosen counts as a token with p = 0.
        draft = np.column_stack([classes.draft, self.never]).T.copy()
        target = np.append(classes.target, 0.0)
        cut, _ = half_space_cut(target, draft, self.copies, self.least - tol)
        if not cut.any():
            return crossed
        plane = slopes(draft[cut].sum(axis=0), self.copies) / self.scale @ grid.rays
        return _intervals(grid, classes, plane)

    def _low(self, grid: Grid, classes: _Classes, slack: float) -> IntArray:
        """The intervals crossed by planes proportional to c with p − g below ``least`` + ``slack``."""
        order = np.argsort(classes.ratio, kind="stable")
        excess = excess_of(classes.target[order], classes.draft[:, order], self.never, self.copies)
        low = excess[1:] < self.least + (self.never**self.copies).prod() + slack
        ratio = classes.ratio[order]
        # All classes of one ratio are below a plane, or none is.
        low[:-1] &= ratio[:-1] < ratio[1:]
        return _intervals(grid, classes, ratio[low])


def _intervals(grid: Grid, classes: _Classes, ratio: FloatArray) -> IntArray:
    """The intervals between nodes that hold these p/σ, without those that hold no tokens."""
    spread = classes.number[classes.number >= grid.num_singles] - grid.num_singles
    used = np.zeros(grid.nodes.size, np.bool_)
    used[spread % grid.nodes.size] = True
    at = np.unique(np.searchsorted(grid.nodes, ratio, side="right") - 1)
    at = at[(at >= 0) & (at < grid.nodes.size - 1)]
    return at[used[at] & used[at + 1]]


def _sums(classes: IntArray, masses: FloatArray, size: int) -> FloatArray:
    """The sums of the masses of each class, shape (``size``,)."""
    return np.bincount(classes.ravel(), masses.ravel(), size).astype(np.float64, copy=False)


def _nodes(most: float) -> tuple[FloatArray, FloatArray]:
    """The first nodes of p/σ, and the fine ones: from 0 to 1, or from 1 to more than ``most``."""
    nodes = 1.0 - 2.0 ** -np.arange(_HALVINGS + 1.0)
    octaves = np.arange(-_OCTAVES, 0.0, 1.0 / _OF_OCTAVE)
    if most > 1.0:
        last = max(np.ceil(np.log2(most)), 1.0)
        nodes = np.append(1.0 / nodes[:0:-1], 2.0 ** np.arange(2.0, last + 1.0))
        octaves = np.arange(0.0, last, 1.0 / _OF_OCTAVE)
    nodes = np.union1d(nodes, 1.0)
    return nodes, np.union1d(nodes, 2.0**octaves)


def _between(nodes: FloatArray, intervals: IntArray, fine: FloatArray) -> FloatArray:
    """A value between the ends of each interval, near the middle: a fine node if there is one."""
    low, high = nodes[intervals], nodes[intervals + 1]
    middle = 0.5 * (low + high)
    first = np.searchsorted(fine, low, side="right")
    last = np.searchsorted(fine, high) - 1
    nearest = np.clip(np.searchsorted(fine, middle), first, np.maximum(first, last))
    return np.where(first <= last, fine[nearest], middle)
