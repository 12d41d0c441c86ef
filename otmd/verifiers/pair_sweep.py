"""The pair sweep: accept the most preferred draft, thinned so that no token exceeds its p.

Drafts are drawn independently, slot j from q_j. The pairs (j, y) of a slot and a token are taken in an order
that depends on p and the q_j alone. Let s_j be the probability that slot j was not accepted with one of the
tokens taken so far, a(y) the probability that y was accepted; s_j is 1 at first, a(y) is 0. At a pair, slot j
is accepted, if it holds y and nothing was accepted before, with probability

    c = min(1, (p(y) − a(y)) / (A_j q_j(y))),    A_j = Π_{i≠j} s_i.

Then a(y) grows by A_j c q_j(y), and s_j falls by c q_j(y). Slots are independent, so "slot i was not accepted
so far" has probability s_i, independently over i, and the pair is accepted with probability A_j c q_j(y). So
a ≤ p, the rate is 1 − Π_j s_j, and the residual is p − a: the rule is lossless for every order.

*In cells.* A cell is one slot and a class of tokens with similar p/Σ_j q_j. A_j does not change within it, so
its pairs may be taken in any order, all at once, and nothing is sorted but the classes. Copies of one
distribution in turn take min(p − a, T q) of each token, T being the sum of their A_j.

*Short ones first.* A token is short if all of its pairs were accepted whole (c = 1) and a < p. A sweep in
which every short token comes before every thinned one is optimal: with H the thinned tokens, Π_j s_j is
g(H) before them, and the rate is 1 − g(H) + p(H), which no lossless rule exceeds. So the cells are swept
again, as long as this helps: tokens that were thinned in fewer sweeps have an earlier turn. For any H, every
lossless verifier accepts no draft with probability at least g(H) − p(H), so Π_j s_j − [g(H) − p(H)] is an
upper bound of what the rate lacks to α*.

Slot by slot, without classes, the sweep is recursive rejection (:mod:`otmd.verifiers.recursive_rejection`);
with one slot it is maximal coupling, with one random slot and deterministic ones, greedy coupling.
"""

from abc import abstractmethod
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from otmd.curve._kernels import AT_A_TIME, fill_ratios
from otmd.kernel import REASSOCIATE, kernel
from otmd.laws import Slots
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers.prepared import Choice, accept_prob

# Half octaves of p/Σ q below 1, the last one open, and one class above.
_NUM_CLASSES = 24
# The two ways to begin: each class by itself, or all tokens below 1 together.
_STARTS = (np.arange(_NUM_CLASSES + 1), np.array([0, 1, _NUM_CLASSES]))
# The most improvements of a start. A sweep whose rate is this near to an upper bound of α* is not improved.
_MOST_IMPROVEMENTS = 5
_NEAR_ENOUGH = 1e-6


def sweep_pairs(target: FloatArray, slots: Slots) -> "Sweep":
    """Take the pairs of one position with p (V,) in the best order found.

    The sum of p may be below 1: the rest is never drafted.
    """
    cells = _Cells(target, slots)
    best = None
    for levels in _STARTS:
        sweep = _CellSweep(cells, levels, np.zeros(cells.tokens.size, np.int8))
        for _ in range(_MOST_IMPROVEMENTS):
            if sweep.gap() <= _NEAR_ENOUGH:
                return sweep
            better = sweep.improved()
            if better.missed >= sweep.missed:
                break
            sweep = better
        if best is None or sweep.missed < best.missed:
            best = sweep
    assert best is not None
    return best


class Sweep(Choice):
    """A finished sweep.

    Attributes
    ----------
    left : ndarray of float64, shape (V,)
        p − a, the mass that the residual has to emit.
    missed : float
        Π_j s_j, the probability that no draft is accepted.
    slots : Slots
        The distributions of the drafts.
    """

    left: FloatArray
    missed: float
    _target: FloatArray
    slots: Slots

    @cached_property
    def rate(self) -> float:
        return 1.0 - self.missed

    @cached_property
    def accepted(self) -> FloatArray:
        return self._target - self.left

    @abstractmethod
    def pairs(self, slots: IntArray, tokens: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """For pairs (m,): numbers that ascend in the order of preference, c, and A_j c q_j(y)."""
        ...

    def choice_probs(self, tokens: IntArray, /) -> FloatArray:
        return self.chosen(self.slots.slots_of(tokens)[None], tokens)[0]

    def chosen(self, assigned: IntArray, tokens: IntArray) -> FloatArray:
        """P(each of the drafts (m,) is accepted | all of them), for each assignment to slots (A, m)."""
        rank, accept, _ = self.pairs(assigned.ravel(), np.tile(tokens, len(assigned)))
        order = np.argsort(rank.reshape(assigned.shape), axis=1, kind="stable")
        accept = np.take_along_axis(accept.reshape(assigned.shape), order, axis=1)
        # The probability that none of the more preferred drafts was accepted.
        undecided = np.ones(assigned.shape)
        undecided[:, 1:] = np.cumprod(1.0 - accept[:, :-1], axis=1)
        chosen = np.empty(assigned.shape)
        np.put_along_axis(chosen, order, accept * undecided, axis=1)
        return chosen


class _Cells:
    """The pairs by row and class of p/Σ q; rows are the distributions of the slots.

    ``tokens`` (E,) and ``target`` (E,), their p, are grouped by row and class, or by class alone where a
    token may be drawn from several rows. Class c of row r begins at ``edges[r, c]`` in them, and
    ``offset[r]`` later in ``probs``. Both are unsigned: Numba then knows that no index is negative, and loops
    become vectors.
    """

    def __init__(self, target: FloatArray, slots: Slots) -> None:
        self.position_target, self.slots = target, slots
        num_rows = slots.copies.size
        if slots.disjoint:
            tokens, probs, rows, copies = slots.tokens, slots.probs, slots.starts, slots.copies
        else:
            tokens, probs = np.arange(target.size), slots.expected_copies
            rows, copies = np.array([0, target.size]), np.ones(1, np.int64)
        self.tokens = np.empty_like(tokens)
        self.probs, self.target = np.empty((2, tokens.size))
        self.edges = np.empty((copies.size, _NUM_CLASSES + 1), np.uint64)
        _group_entries(
            target, tokens, probs, rows, copies,
            self.tokens, self.probs, self.target, self.edges,
        )  # fmt: skip
        self.offset = np.zeros(num_rows, np.uint64)
        if not slots.disjoint:
            self.probs = slots.dense[:, self.tokens].ravel()
            self.offset = target.size * np.arange(num_rows, dtype=np.uint64)
            self.edges = np.repeat(self.edges, num_rows, axis=0)


class _CellSweep(Sweep):
    """A sweep in cells, by ``turn`` (E,) first: the cells of all tokens of turn 0, then of turn 1, and so on.

    Classes ``levels[i]`` to ``levels[i + 1]`` are taken as one.
    """

    def __init__(self, cells: _Cells, levels: IntArray, turn: NDArray[np.int8]) -> None:
        slots = cells.slots
        self._target, self.slots, self._cells = cells.position_target, slots, cells
        self._levels, self._turn_by_cell = levels, turn
        self.left_by_cell = cells.target.copy()
        # By turn, class and slot; see the kernel.
        shape = (int(turn.max()) + 1, levels.size - 1, slots.num_drafts)
        self._others, self._earlier = np.zeros((2, *shape))
        self.missed = _sweep_cells(
            cells.probs, cells.edges, cells.offset, levels, slots.copies, turn,
            self.left_by_cell, self._others, self._earlier,
        )  # fmt: skip

    def improved(self) -> "_CellSweep":
        """The sweep after a turn more for the tokens that were thinned."""
        return _CellSweep(self._cells, self._levels, self._turn_by_cell + (self.left_by_cell == 0.0))

    def gap(self) -> float:
        """Π_j s_j − [g(H) − p(H)], H the thinned tokens: an upper bound of α* less the rate."""
        cells = self._cells
        masses = np.zeros(self.slots.copies.size)
        target = _thinned_masses(
            cells.target, cells.probs, cells.edges, cells.offset, self.slots.disjoint,
            self.left_by_cell, masses,
        )  # fmt: skip
        return self.missed - float((masses**self.slots.copies).prod()) + target

    @cached_property
    def left(self) -> FloatArray:  # pyright: ignore[reportIncompatibleVariableOverride]
        left = self._target.copy()
        left[self._cells.tokens] = self.left_by_cell
        return left

    @cached_property
    def _turn(self) -> IntArray:
        """The turn of each token, shape (V,)."""
        turn = np.zeros(self._target.size, np.int64)
        turn[self._cells.tokens] = self._turn_by_cell
        return turn

    def _group(self, tokens: IntArray) -> tuple[IntArray, IntArray]:
        """The turn and the class of tokens (m,)."""
        classes = np.empty(tokens.size, np.uint8)
        _fill_classes(self._target[tokens], self.slots.expected_copies_of(tokens), classes)
        level = np.searchsorted(self._levels, classes, side="right") - 1
        return self._turn[tokens], level

    def pairs(self, slots: IntArray, tokens: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        turn, level = self._group(tokens)
        rows = self.slots.row_of_slot[slots]
        others = self._others[turn, level, slots]
        probs = self.slots.prob(rows, tokens)
        left = self._left_before(rows, turn, level, tokens)
        left -= np.minimum(left, self._earlier[turn, level, slots] * probs)
        accept = accept_prob(left, others * probs)
        num_rows = self.slots.copies.size
        cell = (turn * self._others.shape[1] + level) * num_rows + num_rows - 1 - rows
        return cell * self.slots.num_drafts + slots, accept, np.minimum(left, others * probs)

    def _left_before(self, rows: IntArray, turn: IntArray, level: IntArray, tokens: IntArray) -> FloatArray:
        """Mass p − a of tokens (m,) before the cells of their rows; those of later rows come before."""
        left = self._target[tokens].copy()
        if self.slots.disjoint:
            return left
        total = self._earlier + self._others
        for row in reversed(range(self.slots.copies.size)):
            last = self.slots.row_of_slot.searchsorted(row, side="right") - 1
            mass_taken = np.minimum(left, total[turn, level, last] * self.slots.dense[row, tokens])
            left -= np.where(row > rows, mass_taken, 0.0)
        return left


@kernel(error_model="numpy")
def _group_entries(
    target, tokens, probs, row_starts, copies, grouped_tokens, grouped_probs, grouped_target, edges
):
    """Group the entries (E,) of each row by class.

    ``edges`` (R, classes + 1) is filled with where each class of a row begins, and where the last one ends.
    """
    # Numba's np.diff takes seconds to compile.
    most = (row_starts[1:] - row_starts[:-1]).max()
    p, q, classes = np.empty(most), np.empty(most), np.empty(most, np.uint8)
    following = np.empty(_NUM_CLASSES, np.uint64)
    for r in range(copies.size):
        row = slice(row_starts[r], row_starts[r + 1])
        row_tokens, row_probs = tokens[row], probs[row]
        for i in range(row_tokens.size):
            p[i], q[i] = target[np.uint64(row_tokens[i])], copies[r] * row_probs[i]
        _fill_classes(p[: row_tokens.size], q[: row_tokens.size], classes)
        following[:] = 0
        for i in range(row_tokens.size):
            following[classes[i]] += np.uint64(1)
        edges[r, 0] = row_starts[r]
        for c in range(_NUM_CLASSES):
            edges[r, c + 1] = edges[r, c] + following[c]
            following[c] = edges[r, c]
        for i in range(row_tokens.size):
            k = following[classes[i]]
            following[classes[i]] = k + np.uint64(1)
            grouped_tokens[k], grouped_probs[k], grouped_target[k] = (
                row_tokens[i],
                row_probs[i],
                p[i],
            )


@kernel(error_model="numpy")
def _fill_classes(target, drafted, level):
    """Fill the class of each entry: 0 for p ≥ Σ q, then half octaves of p/Σ q, the last one open."""
    ratio = np.empty(AT_A_TIME)
    bits = ratio.view(np.int64)
    for start in range(0, target.size, AT_A_TIME):
        p, q = target[start : start + AT_A_TIME], drafted[start : start + AT_A_TIME]
        fill_ratios(p, q, ratio)
        for y in range(p.size):
            # The exponent of √2 (p/q)² numbers the half octave, so that no edge is a ratio of round numbers.
            ratio[y] = np.sqrt(2.0) * ratio[y] * ratio[y] if ratio[y] < 1.0 else np.inf
        for y in range(p.size):
            level[start + y] = min(max(1024 - (bits[y] >> 52), 0), _NUM_CLASSES - 1)


@kernel(error_model="numpy")
def _sweep_cells(probs, edges, offset, levels, copies, turns, left, others, earlier):
    """Sweep the cells turn by turn; return Π_j s_j at the end.

    ``left`` (E,) is p on entry and p − a at the end. Filled by turn, class and slot: A_j before the cell in
    ``others``, and the sum of A over the same row's slots before j in ``earlier``.
    """
    s = np.ones(copies.sum())
    product = 1.0
    for turn in range(others.shape[0]):
        for level in range(levels.size - 1):
            first = s.size
            for row in range(copies.size - 1, -1, -1):
                first -= copies[row]
                begin, end = edges[row, levels[level]], edges[row, levels[level + 1]]
                steps = 0.0
                accepted = np.inf if end > begin else 0.0
                for j in range(first, first + copies[row]):
                    a = product / s[j] if s[j] > 0.0 else 0.0
                    others[turn, level, j], earlier[turn, level, j] = a, steps
                    # Of tokens that a slot could not accept, the copies after it accept none.
                    if a > 0.0 and accepted > 0.0:
                        accepted = _take_mass(left, probs, turns, begin, end, offset[row], turn, a)
                        s[j] = max(s[j] - accepted / a, 0.0)
                        product = a * s[j]
                    steps += a
    return s.prod()


@kernel(error_model="numpy", fastmath=REASSOCIATE)
def _take_mass(left, probs, turns, begin, end, offset, turn, a):
    """Take min(p − a, A q) from ``left`` for the tokens of a cell in turn; return the sum."""
    mass = 0.0
    for i in range(begin, end):
        q = probs[offset + i] if turns[i] == turn else 0.0
        accepted = min(left[i], a * q)
        left[i] -= accepted
        mass += accepted
    return mass


@kernel(error_model="numpy", fastmath=REASSOCIATE)
def _thinned_masses(target, probs, edges, offset, disjoint, left, masses):
    """Fill q_r of the tokens without mass left, in ``masses`` (R,), and return their p."""
    thinned = 0.0
    for row in range(masses.size):
        drawn_mass, target_mass = 0.0, 0.0
        for i in range(edges[row, 0], edges[row, _NUM_CLASSES]):
            thin = left[i] == 0.0
            drawn_mass += probs[offset[row] + i] if thin else 0.0
            target_mass += target[i] if thin else 0.0
        masses[row] = drawn_mass
        # Where a token is in the cells of all rows, its p counts once.
        thinned += target_mass if disjoint or row == 0 else 0.0
    return thinned
