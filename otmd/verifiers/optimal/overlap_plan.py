"""The optimal plan for independent drafts from several distributions that share tokens.

Let c be the gradient of g at H*, and σ_r(y) = c_r q_r(y). H* holds the tokens whose p is below σ = Σ_r σ_r
(Theorem 13 of docs/theory.md). The vector (σ_1, …, σ_R, p) of a token is divided into parts, each of a class.
All parts of a class have the same direction: the same shares σ_r/σ, which are a ray, and the same p/σ, which
is a node. So whichever slot a chosen draft of a class came from, it is each token with the same probability.
A verifier that chooses each class with its p chooses each token with its p (docs/optimal_verifier.md).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from otmd.laws import Slots
from otmd.optimum.independent_cut import distinct_slots, half_space_cut, slopes
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.verifiers.optimal.choice_plan import Quadrature, quadrature_for_weights
from otmd.verifiers.optimal.weights import balance

MOST_DISTRIBUTIONS = 16
"""The numbers of rays fit into 64 bits up to so many distributions."""

# The edges of the simplex of shares are divided into so many at first, and at most.
_DIVISIONS = 2
_MOST_DIVISIONS = 8
# No interval of p/σ narrower than this, relative to its end, is halved; no grid of more classes is refined.
_NARROW = 1e-6
_MOST_CLASSES = 1_000
# The nearest nodes to the cut are at 1 ± 2^{−20}: what spreading costs is of the order of its square.
_HALVINGS = 20
# The part of the tolerance for each side of the cut.
_OF_SIDE = 0.25
_TINY = np.finfo(np.float64).smallest_normal


class Grid(NamedTuple):
    """Classes: shares σ_r/σ that are multiples of 1/``divisions``, and ``nodes`` (M,) of p/σ, ascending.

    ``scale`` (R,) is c. The key of a class numbers its ray and its node.
    """

    scale: FloatArray
    divisions: int
    nodes: FloatArray

    def spread(
        self, target: FloatArray, draft: FloatArray
    ) -> tuple[FloatArray, IntArray, FloatArray]:
        """σ (T,) of tokens with p (T,) and q (R, T), the keys (T, 2R) of their classes, and parts of 1."""
        by_row = self.scale[:, None] * draft
        total = np.maximum(by_row.sum(axis=0), _TINY)
        # Kuhn's triangulation: the corners around a point are reached in the order of its fractional parts.
        along = np.minimum(self.divisions * (by_row / total).cumsum(axis=0)[:-1], self.divisions)
        corner = np.minimum(np.floor(along), self.divisions - 1.0)
        order = np.argsort(corner - along, axis=0, kind="stable")
        fraction = np.take_along_axis(along - corner, order, axis=0)
        edges = np.concatenate([np.ones_like(total)[None], fraction, np.zeros_like(total)[None]])
        steps = self._places()
        keys = np.concatenate([(steps @ corner.astype(int))[None], steps[order]]).cumsum(axis=0)
        ratio = np.minimum(target / total, self.nodes[-1])
        lower = np.searchsorted(self.nodes, ratio, side="right") - 1
        lower = np.clip(lower, 0, self.nodes.size - 2)
        share = (self.nodes[lower + 1] - ratio) / (self.nodes[lower + 1] - self.nodes[lower])
        share = np.clip(share, 0.0, 1.0)
        keys = keys * self.nodes.size + lower
        weight = edges[:-1] - edges[1:]
        parts = np.concatenate([weight * share, weight * (1.0 - share)])
        return total, np.concatenate([keys, keys + 1]).T, parts.T

    def points(self, keys: IntArray) -> tuple[FloatArray, FloatArray]:
        """q/σ (R, G) and p/σ (G,) of the classes with these keys."""
        ray, node = np.divmod(keys, self.nodes.size)
        ends = ray // self._places()[:, None] % (self.divisions + 1)
        ends = np.concatenate(
            [np.zeros_like(ray)[None], ends, np.full_like(ray, self.divisions)[None]]
        )
        return np.diff(ends, axis=0) / self.divisions / self.scale[:, None], self.nodes[node]

    def _places(self) -> IntArray:
        return (self.divisions + 1) ** np.arange(self.scale.size - 1)


def _draft_parts(
    parts: FloatArray, shares: FloatArray, total: FloatArray, draft: FloatArray
) -> FloatArray:
    """The q (T,) of one row divided among the classes of each token (T, 2R), whose q/σ are ``shares``.

    The parts do not exceed q. Where the row has next to none of σ, rounding may leave less.
    """
    weights = parts * shares
    in_all = weights.sum(axis=1)
    scale = np.divide(draft, in_all, out=total.copy(), where=in_all * total > draft)
    return weights * scale[:, None]


@dataclass(frozen=True, eq=False)
class OverlapSide:
    """Classes and clocks that choose among the drafts on one side of the cut.

    ``keys`` (G,) ascend. Of each class, ``shares`` (R, G) is q/σ, ``rates`` (R, G) is P(chosen)/q for the
    drafts of each row, and ``weights`` (G,) is the rate of its clock. ``rejection`` is the rate of the clock
    that rejects all drafts, 0 without one.
    """

    grid: Grid
    keys: IntArray
    shares: FloatArray
    rates: FloatArray
    weights: FloatArray
    rejection: float
    quadrature: Quadrature

    def offered(self, target: FloatArray, draft: FloatArray) -> FloatArray:
        """P(chosen) of tokens with p (T,) and q (R, T), before thinning."""
        total, keys, parts = self.grid.spread(target, draft)
        classes = self._classes(keys)
        offered = np.zeros_like(target)
        for shares, rates, row in zip(self.shares, self.rates, draft, strict=True):
            drawn = _draft_parts(parts, shares[classes], total, row)
            offered += (drawn * rates[classes]).sum(axis=1)
        return offered

    def choice_probs(self, target: FloatArray, draft: FloatArray, rows: IntArray) -> FloatArray:
        """P(chosen) of drafts with p (m,) and q (R, m), of which draft i was drawn from ``rows[i]``."""
        total, keys, parts = self.grid.spread(target, draft)
        classes = self._classes(keys)
        drawn = draft[rows, np.arange(rows.size)]
        probs = _draft_parts(parts, self.shares[rows[:, None], classes], total, drawn)
        probs /= drawn[:, None]
        times, steps = self.quadrature
        weights = self.weights[classes][:, :, None]
        ringing = probs[:, :, None] * np.exp(-weights * times)
        silent = ringing.sum(axis=1) + np.maximum(1.0 - probs.sum(axis=1), 0.0)[:, None]
        others = [np.delete(silent, i, axis=0).prod(axis=0) for i in range(rows.size)]
        waiting = steps * np.exp(-times * self.rejection)
        return ((weights * ringing).sum(axis=1) * others) @ waiting

    def _classes(self, keys: IntArray) -> IntArray:
        # A key that is not there has a part of 0.
        return np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)


@dataclass(frozen=True, eq=False)
class OverlapPlan:
    """A lossless verifier at one position, for drafts from distributions that share tokens.

    ``target`` (V,) is p, ``draft`` (R, V) holds the different distributions, ``row_of_slot`` (n,) is that of
    each draft. ``subset`` (V,) is H*, and ``offered`` (V,) the probability that a token is chosen, before
    thinning. No lossless verifier exceeds ``bound``. A side is None if it accepts nothing.
    """

    target: FloatArray
    draft: FloatArray
    row_of_slot: IntArray
    subset: BoolArray
    bound: float
    offered: FloatArray
    inner: OverlapSide | None
    outer: OverlapSide | None

    @cached_property
    def accepted(self) -> FloatArray:
        """The probability that each token is accepted, at most p, shape (V,)."""
        return np.minimum(self.offered, self.target)

    @cached_property
    def rate(self) -> float:
        """The probability that a draft is accepted."""
        return float(self.accepted.sum())

    @property
    def residual_hit_bound(self) -> float:
        """An upper bound of P(no draft is accepted, and the token drawn from the residual is a draft)."""
        return max(self.bound - self.rate, 0.0)

    def choice_probs(self, tokens: IntArray) -> FloatArray:
        """Probability that each of the drafts (n,) is accepted, given these drafts, shape (n,)."""
        inside = self.subset[tokens]
        side = self.inner if inside.all() else self.outer
        probs = np.zeros(tokens.size)
        if side is None:
            return probs
        drafts = np.flatnonzero(inside == inside.all())
        y = tokens[drafts]
        chosen = side.choice_probs(self.target[y], self.draft[:, y], self.row_of_slot[drafts])
        kept = np.divide(
            self.accepted[y], self.offered[y], out=np.zeros(y.size), where=self.offered[y] > 0.0
        )
        probs[drafts] = kept * chosen
        return probs


def plan_overlapping(target: FloatArray, slots: Slots, tol: float) -> OverlapPlan:
    """The optimal plan for independent drafts from at most 16 different distributions, at a position.

    The target (V,) may sum to less than 1; no draft is accepted for the rest. The rate may be ``tol`` below
    the optimum, or more where the search for classes or weights ends early; the plan is lossless at every
    ``tol``.
    """
    draft, row_of_slot = distinct_slots(slots)
    copies = np.bincount(row_of_slot)
    subset, value = half_space_cut(target, draft, copies)
    within = draft[:, subset].sum(axis=1)
    scale = slopes(within, copies) if subset.any() else copies.astype(np.float64)
    sides = []
    offered = np.zeros(target.size)
    for inside in (True, False):
        tokens = np.flatnonzero((subset == inside) & draft.any(axis=0))
        never = np.zeros(copies.size) if inside else within
        rejected = -value if inside else None
        side = None
        if target[tokens].any():
            of_side = _Tokens(target[tokens], draft[:, tokens], copies, scale, never)
            least = value if inside else -float((within**copies).prod())
            side = _solve(of_side, _fine_grid(of_side, inside, least, tol), rejected, tol)
            offered[tokens] = side.offered(target[tokens], draft[:, tokens])
        sides.append(side)
    return OverlapPlan(target, draft, row_of_slot, subset, 1.0 + value, offered, *sides)


class _Tokens(NamedTuple):
    """The tokens of one side: p (T,) and q (R, T), the number of drafts from each row (R,), and c (R,).

    ``never`` (R,) is the draft mass of each row that is never chosen on this side.
    """

    target: FloatArray
    draft: FloatArray
    copies: IntArray
    scale: FloatArray
    never: FloatArray


class _Classes(NamedTuple):
    """The classes (G,) of one side: keys, p, and in each row q and q/σ (R, G).

    ``never`` (R,) is the draft mass of each row that is of no class.
    """

    keys: IntArray
    target: FloatArray
    draft: FloatArray
    shares: FloatArray
    never: FloatArray


def _spread(tokens: _Tokens, grid: Grid) -> _Classes:
    """Spread the tokens over the classes of a grid."""
    total, keys, parts = grid.spread(tokens.target, tokens.draft)
    used, classes = np.unique(np.where(parts > 0.0, keys, keys[:, :1]), return_inverse=True)
    mass = np.bincount(classes.ravel(), (total[:, None] * parts).ravel(), used.size)
    shares, ratio = grid.points(used)
    draft = np.empty_like(shares)
    never = tokens.never.copy()
    for r, row in enumerate(tokens.draft):
        drawn = _draft_parts(parts, shares[r][classes], total, row)
        draft[r] = np.bincount(classes.ravel(), drawn.ravel(), used.size)
        never[r] += np.maximum(row - drawn.sum(axis=1), 0.0).sum()
    return _Classes(used, mass * ratio, draft, shares, never)


def _fine_grid(tokens: _Tokens, inside: bool, least: float, tol: float) -> Grid:
    """A grid over whose classes no cut has p − g below ``least`` − ``tol``.

    The weights of its classes lose no more. Where a cut is lower, the intervals of p/σ that its plane crosses
    are halved.
    """
    below = 1.0 - 2.0 ** -np.arange(_HALVINGS + 1.0)
    # No token whose p/σ is larger can be chosen with its p.
    highest = float((tokens.copies / tokens.scale).max())
    above = np.append(1.0 / below[:0:-1], 2.0 ** np.arange(2.0, np.log2(highest) + 1.0))
    nodes = np.append(below, 1.0) if inside or highest <= 1.0 else np.append(1.0, above)
    grid = Grid(tokens.scale, _DIVISIONS, nodes)
    while True:
        classes = _spread(tokens, grid)
        # What is never chosen counts as a token with p = 0.
        draft = np.column_stack([classes.draft, classes.never])
        cut, value = half_space_cut(np.append(classes.target, 0.0), draft, tokens.copies)
        if value >= least - _OF_SIDE * tol or classes.keys.size > _MOST_CLASSES:
            return grid
        rays = np.unique(classes.keys // grid.nodes.size) * grid.nodes.size
        plane = slopes(draft[:, cut].sum(axis=1), tokens.copies) @ grid.points(rays)[0]
        nodes = grid.nodes
        crossed = np.searchsorted(nodes, plane, side="right") - 1
        crossed = np.unique(np.clip(crossed, 0, nodes.size - 2))
        middle = 0.5 * (nodes[crossed] + nodes[crossed + 1])
        middle = middle[nodes[crossed + 1] - nodes[crossed] > _NARROW * nodes[crossed + 1]]
        if middle.size:
            grid = grid._replace(nodes=np.sort(np.append(nodes, middle)))
        elif grid.divisions < _MOST_DIVISIONS:
            grid = grid._replace(divisions=2 * grid.divisions)
        else:
            return grid


def _solve(tokens: _Tokens, grid: Grid, rejected: float | None, tol: float) -> OverlapSide:
    """Find the weights of the classes of a grid.

    ``rejected`` is the probability to reject all drafts; it is None outside H*.
    """
    classes = _spread(tokens, grid)
    able = (classes.target > 0.0) & classes.draft.any(axis=0)
    drafts = classes.draft[:, able]
    targets = classes.target[able]
    likely = tokens.copies @ drafts
    if rejected is not None:
        targets = np.append(targets, rejected)
        likely = np.append(likely, 1.0)
    never = classes.never + classes.draft[:, ~able].sum(axis=1)
    in_all = targets.sum()
    tol *= _OF_SIDE

    def evaluate(log_weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        # Tolerances of the search are for rates that sum to about 1.
        _, rates, coupling = _choice_rates(log_weights, drafts, never, tokens.copies)
        return rates / in_all, coupling / in_all

    log_weights, _ = balance(
        evaluate,
        targets / in_all,
        rejected is None,
        _OF_SIDE * tol / in_all,
        likely=likely / in_all,
    )
    by_row, _, _ = _choice_rates(log_weights, drafts, never, tokens.copies)
    weights = np.zeros(able.size)
    weights[able] = np.exp(log_weights[: drafts.shape[1]])
    rates = np.zeros(classes.draft.shape)
    rates[:, able] = np.divide(by_row, drafts, out=np.zeros_like(drafts), where=drafts > 0.0)
    rejection = 0.0 if rejected is None else float(np.exp(log_weights[-1]))
    quadrature = quadrature_for_weights(log_weights, int(tokens.copies.sum()))
    return OverlapSide(grid, classes.keys, classes.shares, rates, weights, rejection, quadrature)


def _choice_rates(
    log_weights: FloatArray, drafts: FloatArray, never: FloatArray, copies: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """P(chosen) by row and class (R, G) and by class, and −∂/∂log weights of the latter off the diagonal.

    ``drafts`` (R, G) are the draft masses of the classes. A log weight beyond G is that of the rejection.
    """
    size = drafts.shape[1]
    weights = np.exp(log_weights)
    times, steps = quadrature_for_weights(log_weights, int(copies.sum()))
    silent = np.exp(-np.outer(times, weights))
    # A draft of a row is silent until s with probability mix, and one of class g then rings at the rate
    # rings[r, s, g]; all drafts and the rejection are silent with probability density/ds.
    mix = silent[:, :size] @ drafts.T + never
    density = steps * (mix**copies).prod(axis=1) * silent[:, size:].prod(axis=1)
    rings = (
        drafts[:, None] * silent[:, :size] / np.maximum(mix, _TINY).T[..., None] * weights[:size]
    )
    every = np.tensordot(copies.astype(np.float64), rings, 1)
    every = np.column_stack([every, np.tile(weights[size:], (times.size, 1))])
    slope = (density * times)[:, None]
    coupling = every.T @ (slope * every)
    # Of m drafts from one row there are m (m − 1) ordered pairs, not m².
    for row, count in zip(rings, copies, strict=True):
        coupling[:size, :size] -= count * (row.T @ (slope * row))
    np.fill_diagonal(coupling, 0.0)
    by_row = copies[:, None] * (density @ rings)
    return by_row, density @ every, np.maximum(coupling, 0.0)
