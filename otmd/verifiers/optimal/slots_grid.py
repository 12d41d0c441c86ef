"""Classes of tokens for independent drafts: each token is divided into parts, and a class has one direction.

The vector (σ_1, …, σ_R, p) of a token, see :mod:`otmd.verifiers.optimal.slots_plan`, is spread over rays and
nodes. All parts of a class have the same shares σ_r/σ, which are a ray, and the same p/σ, which is a node.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb
from typing import NamedTuple

import numpy as np

from otmd.kernel import kernel
from otmd.probabilities import FloatArray, IntArray

TINY = np.finfo(np.float64).smallest_normal


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


def grid_of(singles: IntArray, scale: FloatArray, divisions: int, nodes: FloatArray) -> Grid:
    """The grid of these nodes, and of rays whose shares are multiples of 1/``divisions``."""
    most = range(divisions + scale.size)
    ranks = np.array([[comb(k, j) for j in range(scale.size)] for k in most])
    return Grid(singles, int(singles.max()) + 1, scale, divisions, ranks, nodes)


@kernel(error_model="numpy")
def locate(tokens, entries, grid):
    """The classes (T, 2K) of tokens (T,), and σ of the part of each."""
    target, draft, first_row = entries
    singles, num_singles, scale, divisions, ranks, nodes = grid
    dimensions = scale.size - 1
    corner = np.empty(scale.size, np.int64)
    order = np.empty(scale.size, np.int64)
    fraction = np.zeros(scale.size)
    classes = np.zeros((tokens.size, 2 * draft.shape[1]), np.int64)
    parts = np.zeros(classes.shape)
    for i in range(tokens.size):
        y = tokens[i]
        first = first_row[y]
        sigma = 0.0
        for k in range(draft.shape[1]):
            sigma += scale[first + k] * draft[y, k]
        if singles[y] >= 0:
            classes[i, 0], parts[i, 0] = singles[y], sigma
            continue
        ratio = min(target[y] / max(sigma, TINY), nodes[nodes.size - 1])
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
                shares += scale[j] * draft[y, j - first] / max(sigma, TINY)
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
        classes, parts = locate(tokens, self.entries, self.grid)
        return np.einsum("tk,tk->t", parts, self.rates[classes])

    def classes_of(self, tokens: IntArray, rows: IntArray) -> tuple[IntArray, FloatArray]:
        """See :class:`otmd.verifiers.optimal.choice_plan.Side`."""
        draft, first_row = self.entries.draft, self.entries.first_row[tokens]
        if draft.shape[1] == 1:
            # The drafts may come in another order.
            rows = first_row
        classes, parts = locate(tokens, self.entries, self.grid)
        drawn = draft[tokens, rows - first_row]
        probs = parts * self.shares[rows[:, None], classes]
        # Where a row has next to none of σ, rounding may leave more or less than its q.
        in_all = np.maximum(probs.sum(axis=1), np.maximum(drawn, TINY))
        return classes, probs / in_all[:, None]
