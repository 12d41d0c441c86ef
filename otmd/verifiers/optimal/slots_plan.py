"""The optimal plan for independent drafts: with replacement, from strata, or from several drafters.

Let c be the gradient of g at H*, and σ_r(y) = c_r q_r(y). H* holds the tokens whose p is below σ = Σ_r σ_r
(Theorem 13 of docs/theory.md). The vector (σ_1, …, σ_R, p) of a token is divided into parts, each of a class.
All parts of a class have the same direction: the same shares σ_r/σ, which are a ray, and the same p/σ, which
is a node. So whichever slot a chosen draft of a class came from, it is each token with the same probability.
A verifier that chooses each class with its p chooses each token with its p (docs/optimal_verifier.md).

Few tokens are classes of their own, and so are the largest of many. The others are spread over rays and
nodes, once over many fine nodes: spreading these over fewer nodes is exact.

Where cuts are equally good, weights would have to be infinitely far apart. There the classes fall into tiers
instead, and the choice is among the drafts of the highest tier.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb
from typing import NamedTuple

import numpy as np

from otmd.curve._kernels import largest_entries, power
from otmd.kernel import kernel
from otmd.laws import Slots
from otmd.optimum.acceptance import random_cut
from otmd.optimum.independent_cut import distinct_slots, half_space_cut, slopes
from otmd.probabilities import FloatArray, IntArray, accumulated
from otmd.verifiers.optimal.choice_plan import ChoicePlan, Side, quadrature_for_weights
from otmd.verifiers.optimal.weights import balance

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
# Cuts that are worse than the best by no more than this, the rounding of p − g, are tight.
_TIGHT = 2e-13
_TINY = np.finfo(np.float64).smallest_normal


class Entries(NamedTuple):
    """Tokens and where they are drafted: p (V,), and q (V, K) in the K rows from ``first_row`` (V,) on."""

    target: FloatArray
    draft: FloatArray
    first_row: IntArray


class Grid(NamedTuple):
    """Classes: those of one token, then for each ray those at the ``nodes`` (M,) of p/σ, ascending.

    ``singles`` (V,) is the class of a token that has one of its own, else −1, and ``num_singles`` counts
    these. On rays, shares σ_r/σ are multiples of 1/``divisions``. The ray whose first j + 1 shares sum to
    a_j/``divisions`` has the number Σ_j ``ranks[a_j + j, j + 1]``. ``scale`` (R,) is c.
    """

    singles: IntArray
    num_singles: int
    scale: FloatArray
    divisions: int
    ranks: IntArray
    nodes: FloatArray

    @property
    def rays(self) -> FloatArray:
        """The shares σ_r/σ of each ray, shape (R, number of rays)."""
        steps = range(self.divisions + 1)
        inner = np.array(list(combinations_with_replacement(steps, self.scale.size - 1)), int)
        j = np.arange(self.scale.size - 1)
        rank = self.ranks[inner + j, j + 1].sum(axis=1)
        ends = np.pad(inner, [(0, 0), (1, 0)]), np.pad(inner, [(0, 0), (0, 1)])
        ends[1][:, -1] = self.divisions
        return ((ends[1] - ends[0]) / self.divisions)[np.argsort(rank)].T

    @property
    def size(self) -> int:
        """The number of classes."""
        rows = self.scale.size - 1
        return self.num_singles + comb(rows + self.divisions, rows) * self.nodes.size

    def with_divisions(self, divisions: int) -> "Grid":
        """The grid of rays whose shares are multiples of 1/``divisions``."""
        most = range(divisions + self.scale.size)
        ranks = np.array([[comb(k, j) for j in range(self.scale.size)] for k in most])
        return self._replace(divisions=divisions, ranks=ranks)


@kernel(error_model="numpy")
def _locate(tokens, entries, grid, classes, parts):
    """Fill the classes (T, 2K) of tokens, and σ of the part of each, from zeros."""
    target, draft, first_row = entries
    singles, num_singles, scale, divisions, ranks, nodes = grid
    dimensions = scale.size - 1
    corner = np.empty(scale.size, np.int64)
    order = np.empty(scale.size, np.int64)
    fraction = np.zeros(scale.size)
    for i in range(tokens.size):
        y = tokens[i]
        first = first_row[y]
        sigma = 0.0
        for k in range(draft.shape[1]):
            sigma += scale[first + k] * draft[y, k]
        if singles[y] >= 0:
            classes[i, 0], parts[i, 0] = singles[y], sigma
            continue
        ratio = min(target[y] / max(sigma, _TINY), nodes[nodes.size - 1])
        lower = np.int64(0)
        size = nodes.size - 1
        while size > 1:
            half = size // 2
            # A factor, since a branch could be mispredicted.
            lower += half * (nodes[lower + half] <= ratio)
            size -= half
        below = (nodes[lower + 1] - ratio) / (nodes[lower + 1] - nodes[lower])
        below = min(max(below, 0.0), 1.0)
        # Kuhn's triangulation: the corners around a point are reached in the order of its fractional parts.
        shares = 0.0
        for j in range(dimensions):
            if 0 <= j - first < draft.shape[1]:
                shares += scale[j] * draft[y, j - first] / max(sigma, _TINY)
            along = divisions * min(shares, 1.0)
            corner[j] = min(np.int64(along), divisions - 1)
            fraction[j] = along - corner[j]
            at = j
            while at > 0 and fraction[order[at - 1]] < fraction[j]:
                order[at] = order[at - 1]
                at -= 1
            order[at] = j
        order[dimensions] = dimensions
        before = 1.0
        column = 0
        for k in range(scale.size):
            after = fraction[order[k]]
            if before > after:
                ray = 0
                for j in range(dimensions):
                    ray += ranks[corner[j] + j, j + 1]
                part = sigma * (before - after)
                for side in range(2):
                    classes[i, column] = num_singles + ray * nodes.size + lower + side
                    parts[i, column] = part * (1.0 - below if side else below)
                    column += 1
            corner[order[k]] += 1
            before = after


def _located(tokens: IntArray, entries: Entries, grid: Grid) -> tuple[IntArray, FloatArray]:
    """The classes (T, 2K) of tokens, and σ of the part of each."""
    shape = tokens.size, 2 * entries.draft.shape[1]
    classes, parts = np.zeros(shape, np.int64), np.zeros(shape)
    _locate(tokens, entries, grid, classes, parts)
    return classes, parts


@dataclass(frozen=True, eq=False)
class SpreadTokens:
    """The tokens of a side, spread over the classes (G,) of a grid.

    Of each class, ``shares`` (R, G) is q/σ by row, and ``rates`` (G,) is P(chosen)/σ.
    """

    entries: Entries
    grid: Grid
    shares: FloatArray
    rates: FloatArray

    def offered(self, tokens: IntArray) -> FloatArray:
        """See :class:`otmd.verifiers.optimal.choice_plan.Side`."""
        classes, parts = _located(tokens, self.entries, self.grid)
        return np.einsum("tk,tk->t", parts, self.rates[classes])

    def classes_of(self, tokens: IntArray, rows: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`otmd.verifiers.optimal.choice_plan.Side`."""
        draft, first_row = self.entries.draft, self.entries.first_row[tokens]
        if draft.shape[1] == 1:
            # The drafts may come in another order.
            rows = first_row
        classes, parts = _located(tokens, self.entries, self.grid)
        drawn = draft[tokens, rows - first_row]
        probs = parts * self.shares[rows[:, None], classes]
        # Where a row has next to none of σ, rounding may leave more or less than its q.
        in_all = np.maximum(probs.sum(axis=1), np.maximum(drawn, _TINY))
        return classes, probs / in_all[:, None]


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
        search = _Search(self.copies, -self.least if self.inside else None)
        order = np.arange(classes.target.size)
        log_weights, by_row, of_tier = search(
            classes.target, classes.draft, classes.never, order, _OF_WEIGHTS * tol
        )
        weights, rates = np.zeros((2, grid.size))
        tiers = np.zeros(grid.size, np.int64)
        shares = np.zeros((self.copies.size, grid.size))
        weights[classes.number] = np.exp(log_weights[: order.size])
        tiers[classes.number] = of_tier
        shares[:, classes.number] = classes.shares
        rates[classes.number] = by_row.sum(axis=0) / (self.scale @ classes.draft)
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
            finer, parted = self._fit(singles, _TIGHT)
            able = parted.able()
            ends = _tight_prefixes(able.target, able.draft, able.never, self.copies)
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
            if wide.size:
                grid = grid._replace(nodes=np.union1d(nodes, _between(nodes, wide, fine)))
            elif divided and more <= _MOST_DIVISIONS and self._fits(more, fine.size):
                grid = grid.with_divisions(more)
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

    def _fits(self, divisions: int, num_nodes: int) -> bool:
        rows = self.copies.size - 1
        return comb(rows + divisions, rows) * num_nodes <= _MOST_POINTS

    def _grid(self, singles: IntArray, nodes: FloatArray, divisions: int) -> Grid:
        """A grid with classes of their own for the tokens with these indices."""
        of_token = np.full(self.entries.target.size, -1)
        of_token[self.tokens[singles]] = np.arange(singles.size)
        ranks = np.empty((0, 0), np.int64)
        return Grid(of_token, singles.size, self.scale, 1, ranks, nodes).with_divisions(divisions)

    def _masses(self, grid: Grid) -> FloatArray:
        """σ of each class of a grid."""
        classes, parts = _located(self.tokens, self.entries, grid)
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
        excess = _excess(classes.target[order], classes.draft[:, order], self.never, self.copies)
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


def _excess(targets: FloatArray, drafts: FloatArray, never: FloatArray, copies: IntArray) -> FloatArray:
    """By how much p of the first 0, 1, … G classes exceeds what they get if all others take precedence."""
    drawn = never + accumulated(drafts).T
    contained = (drawn**copies).prod(axis=1)
    return accumulated(targets) - (contained - contained[0])


def _tight_prefixes(targets: FloatArray, drafts: FloatArray, never: FloatArray, copies: IntArray) -> IntArray:
    """The lengths, less than G, of the prefixes of the classes that are tight cuts, or lower than all before.

    To part the classes there loses as much p as the lowest cut does, and no more.
    """
    excess = _excess(targets, drafts, never, copies)[1:-1]
    lowest = np.minimum.accumulate(np.minimum(excess, 0.0))
    return np.flatnonzero(excess <= lowest + _TIGHT) + 1


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for weights; ``rejected`` is the probability to reject all drafts, None outside H*."""

    copies: IntArray
    rejected: float | None

    def __call__(
        self,
        targets: FloatArray,
        drafts: FloatArray,
        never: FloatArray,
        order: IntArray,
        tol: float,
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Log weights (G,), with that of the rejection last; P(chosen) by row (R, G); and tiers (G,).

        ``targets`` (G,) are p, ``drafts`` (R, G) q of the classes. They are split into tiers at tight
        prefixes of the ``order`` (G,), or, where no weights are found, of the order of the weights.
        """
        ends = self._ends(targets, drafts, never, order)
        if ends is None:
            log_weights, by_row, excess = find_weights(
                targets, drafts, never, self.copies, self.rejected, tol
            )
            if excess > tol:
                order = np.argsort(log_weights, kind="stable")
                ends = self._ends(targets, drafts, never, order)
            if ends is None:
                return log_weights, by_row, np.zeros(targets.size, int)
        return self._tiers(targets, drafts, never, order, ends, tol)

    def _ends(
        self, targets: FloatArray, drafts: FloatArray, never: FloatArray, order: IntArray
    ) -> IntArray | None:
        """The ends of the tiers within the order, or None if weights of one tier are to be found."""
        if self.rejected is not None:
            return None
        ends = _tight_prefixes(targets[order], drafts[:, order], never, self.copies)
        return ends if ends.size or order.size == 1 else None

    def _tiers(
        self,
        targets: FloatArray,
        drafts: FloatArray,
        never: FloatArray,
        order: IntArray,
        ends: IntArray,
        tol: float,
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """The weights of the parts of an order between these ends, and of parts within them."""
        starts = np.append(0, ends)
        sizes = np.diff(starts, append=order.size)
        below = never[:, None] + accumulated(drafts[:, order])[:, starts]
        log_weights, by_row = np.zeros(targets.size), np.zeros_like(drafts)
        tiers, spans = np.zeros(targets.size, int), np.ones(sizes.size, int)
        # A class that is a tier alone needs no weight.
        alone = order[starts[sizes == 1]]
        by_row[:, alone] = rates_alone(drafts[:, alone], below[:, sizes == 1], self.copies)
        for i in np.flatnonzero(sizes > 1):
            part = order[starts[i] : starts[i] + sizes[i]]
            within = np.arange(part.size)
            log_weights[part], by_row[:, part], tiers[part] = self(
                targets[part],
                drafts[:, part],
                below[:, i],
                within,
                tol / np.count_nonzero(sizes > 1),
            )
            spans[i] = tiers[part].max() + 1
        tiers[order] += np.repeat(spans.cumsum() - spans, sizes)
        return log_weights, by_row, tiers


def rates_alone(drafts: FloatArray, below: FloatArray, copies: IntArray) -> FloatArray:
    """P(chosen) by row (R, T) of classes (T,), each alone in its tier above draft masses ``below`` (R, T).

    All drafts of a class are alike: one of row r is chosen with ∫₀¹ d_r ∂_r g(below + u d) du, where g is a
    polynomial of degree n.
    """
    points, steps = np.polynomial.legendre.leggauss(int(copies.sum() + 1) // 2)
    drawn = below[..., None] + drafts[..., None] * (0.5 + 0.5 * points)
    return drafts * (slopes(drawn.T, copies).T @ (0.5 * steps))


def find_weights(
    targets: FloatArray,
    drafts: FloatArray,
    never: FloatArray,
    copies: IntArray,
    rejected: float | None,
    tol: float,
) -> tuple[FloatArray, FloatArray, float]:
    """Log weights with which classes are chosen with their ``targets`` (G,), see :func:`balance`.

    ``drafts`` (R, G) are the draft masses of the classes, and ``never`` (R,) those that are never chosen. All
    drafts are rejected with probability ``rejected``, if this is not None, and the last log weight is that of
    the rejection. Returns also P(chosen) by row (R, G), and the excess over the targets.
    """
    rejects = [] if rejected is None else [rejected]
    goal = np.append(targets, rejects)
    likely = np.append(copies @ drafts, np.ones(len(rejects)))
    # Tolerances of the search are for rates that sum to about 1.
    in_all = goal.sum()
    # For other layouts in memory the kernel would be compiled anew.
    masses = np.ascontiguousarray(drafts), np.ascontiguousarray(never)

    def rates_at(log_weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        quadrature = quadrature_for_weights(log_weights, int(copies.sum()))
        return choice_rates(np.exp(log_weights), *masses, copies, *quadrature)

    def evaluate(log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        _, rates, coupling = rates_at(log_weights)
        return rates / in_all, coupling / in_all

    scaled = goal / in_all
    log_weights, rates = balance(evaluate, scaled, rejected is None, tol / in_all, likely=likely / in_all)
    excess = in_all * float(np.maximum(rates - scaled, 0.0).sum())
    return log_weights, rates_at(log_weights)[0], excess


@kernel(error_model="numpy")
def choice_rates(weights, drafts, never, copies, times, steps):
    """P(chosen) by row and class (R, G) and by class, and −∂rates/∂log weights off the diagonal.

    A weight beyond G is that of the rejection. A draft of row r is silent until s with probability mix[r],
    all are with probability density/ds, and one of row r and class g then rings at the rate rings[r, g]. So
    rates[g] = ∫ Σ_r rings[r, g] density.
    """
    rows, size = drafts.shape
    by_row, rates = np.zeros(drafts.shape), np.zeros(weights.size)
    coupling = np.zeros((weights.size, weights.size))
    silent, every = np.empty(weights.size), np.empty(weights.size)
    rings = np.empty((rows, size))
    for j in range(times.size):
        s = times[j]
        for g in range(weights.size):
            # Beyond 745 the exponential is 0; the library takes longer to find that out.
            silent[g] = np.exp(-s * weights[g]) if s * weights[g] < 745.0 else 0.0
            every[g] = weights[g] if g >= size else 0.0
        density = steps[j]
        for g in range(size, weights.size):
            density *= silent[g]
        for r in range(rows):
            mix = never[r]
            for g in range(size):
                rings[r, g] = drafts[r, g] * silent[g]
                mix += rings[r, g]
            density *= power(mix, copies[r])
            for g in range(size):
                # The quotient comes first: any other factor over a mix near zero would overflow.
                rings[r, g] = rings[r, g] / max(mix, _TINY) * weights[g] * copies[r]
                every[g] += rings[r, g]
        if density <= 0.0:
            continue
        for g in range(weights.size):
            rates[g] += density * every[g]
            part = density * s * every[g]
            for h in range(g):
                coupling[g, h] += part * every[h]
        for r in range(rows):
            for g in range(size):
                by_row[r, g] += density * rings[r, g]
                # Of m drafts from one row there are m (m − 1) ordered pairs, not m².
                part = density * s * rings[r, g] / copies[r]
                if part > 0.0:
                    for h in range(g):
                        coupling[g, h] -= part * rings[r, h]
    for g in range(weights.size):
        for h in range(g):
            coupling[g, h] = max(coupling[g, h], 0.0)
            coupling[h, g] = coupling[g, h]
    return by_row, rates, coupling
