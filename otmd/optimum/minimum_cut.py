"""The optimal cut of a law whose cuts follow no order of tokens: a minimum cut between tokens and draft sets.

Set t supplies ``supply[t]``, token y takes up to ``demand[y]``, and a set may only send to its own tokens.
Dinic's algorithm (1970) finds the largest flow. Each augmentation leaves exactly 0 on the arc with the
smallest residual, since that residual is subtracted from itself. So the algorithm ends in floating point as
it does in exact arithmetic.
"""

import numpy as np

from otmd.kernel import kernel
from otmd.laws import DraftLaw
from otmd.probabilities import BoolArray, FloatArray, IntArray

CLOSED = 1e-15
"""An arc with less residual capacity counts as closed, since what is left of it is rounding."""


def minimum_cut(target: FloatArray, law: DraftLaw) -> tuple[BoolArray, float]:
    """The smallest H that minimises p(H) − g(H) at a single position, and α*, which is the largest flow.

    The law is enumerated, and tuples with the same set of tokens are merged. Raises ValueError for too many
    tuples.
    """
    starts, tokens, supply = draft_sets(*law.enumerate())
    left, demand = supply.copy(), target.copy()
    flow = max_flow(starts, tokens, left, demand)
    subset = tokens_short_of_demand(starts, tokens, left, demand, flow, CLOSED)
    return subset, float(flow.sum())


def draft_sets(
    tuples: IntArray, probs: FloatArray, merge: bool = True
) -> tuple[IntArray, IntArray, FloatArray]:
    """The token sets of draft tuples (T, n), each token of a tuple once.

    Returns where each set begins, (S + 1,), the tokens of one set after another, ascending within each, and
    the sets' probabilities (S,). With ``merge``, tuples with the same set become one; without it, each tuple
    keeps its place.
    """
    beyond = tuples.max() + 1
    sets = np.sort(tuples, axis=-1)
    sets[:, 1:][sets[:, 1:] == sets[:, :-1]] = beyond
    sets.sort(axis=-1)
    supply = probs
    if merge:
        sets, row = _distinct_rows(sets)
        supply = np.bincount(row, probs, minlength=len(sets)).astype(np.float64)
    sizes = (sets < beyond).sum(axis=-1)
    return np.concatenate([[0], sizes.cumsum()]), sets[sets < beyond], supply


def _distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct rows in lexicographic order, and the index of each row among them.

    Each row is read as one number, whose digits are the ranks of its entries: numbers have the same order as
    the rows, and are sorted many times faster.
    """
    present = np.zeros(rows.max() + 1, dtype=np.int64)
    present[rows] = 1
    digits, base, length = (present.cumsum() - 1)[rows], int(present.sum()), rows.shape[1]
    if base**length > np.iinfo(np.int64).max:
        distinct, place = np.unique(rows, axis=0, return_inverse=True)
        return distinct, place.ravel()
    numbers = digits @ base ** np.arange(length - 1, -1, -1)
    _, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    return rows[first], place


@kernel()
def max_flow(starts, tokens, supply, demand):
    """Route as much as possible; ``supply`` and ``demand`` are reduced to what is left.

    Set t holds tokens[starts[t]:starts[t + 1]], each once. Returns the flow of each (set, token) pair, in the
    order of ``tokens``.
    """
    graph = _graph(starts, tokens, demand.size)
    flow = np.zeros(tokens.size)
    level = np.empty(supply.size + demand.size, np.int64)
    while _label(graph, flow, supply, demand, level, 0.0):
        _block(graph, flow, supply, demand, level)
    return flow


@kernel()
def tokens_short_of_demand(starts, tokens, supply, demand, flow, threshold):
    """Whether each token can be reached from a set with supply left: the smallest minimum cut, (V,)."""
    level = np.empty(supply.size + demand.size, np.int64)
    _label(_graph(starts, tokens, demand.size), flow, supply, demand, level, threshold)
    return level[supply.size :] >= 0


@kernel()
def _graph(starts, tokens, num_tokens):
    """Nodes are sets, then tokens. Returns where the arcs of each begin, the arcs by node, and their ends."""
    num_sets = starts.size - 1
    begins = np.zeros(num_sets + num_tokens + 1, np.int64)
    arcs = np.empty(2 * tokens.size, np.int64)
    sets, heads = np.empty(tokens.size, np.int64), num_sets + tokens
    for t in range(starts.size):
        begins[t] = starts[t]
    for node in heads:
        begins[node + 1] += 1
    for node in range(num_sets, begins.size - 1):
        begins[node + 1] += begins[node]
    place = begins[num_sets:].copy()
    for t in range(num_sets):
        for arc in range(starts[t], starts[t + 1]):
            sets[arc], arcs[arc] = t, arc
            arcs[place[tokens[arc]]] = arc
            place[tokens[arc]] += 1
    return begins, arcs, sets, heads


@kernel()
def _label(graph, flow, supply, demand, level, threshold):
    """Fill the breadth-first levels of the residual graph; return whether a token with demand is reached."""
    begins, arcs, sets, heads = graph
    num_sets = supply.size
    level[:] = -1
    queue = np.empty(level.size, np.int64)
    head, tail, reached = 0, 0, False
    for t in range(num_sets):
        if supply[t] > threshold:
            level[t], queue[tail] = 0, t
            tail += 1
    while head < tail:
        node = queue[head]
        head += 1
        for arc in arcs[begins[node] : begins[node + 1]]:
            end = heads[arc] if node < num_sets else sets[arc]
            if level[end] < 0 and (node < num_sets or flow[arc] > threshold):
                level[end], queue[tail] = level[node] + 1, end
                tail += 1
                reached = reached or (node < num_sets and demand[end - num_sets] > threshold)
    return reached


@kernel()
def _block(graph, flow, supply, demand, level):
    """Add a blocking flow along the levels, by depth-first search with current arcs."""
    begins, arcs, sets, heads = graph
    num_sets = supply.size
    current = begins[:-1].copy()
    path = np.empty(level.size, np.int64)
    for source in range(num_sets):
        node, length = source, 0
        while level[source] == 0 and supply[source] > 0.0:
            if node >= num_sets and demand[node - num_sets] > 0.0:
                _augment(path[:length], flow, supply, demand, source, node - num_sets)
                node, length = source, 0
                continue
            end = _advance(graph, flow, level, current, node, num_sets)
            if end >= 0:
                path[length] = arcs[current[node]]
                node, length = end, length + 1
            elif length == 0:
                break
            else:
                # A dead end: step back over the last arc, and go on to the next one.
                level[node] = -1
                length -= 1
                node = heads[path[length]] if node < num_sets else sets[path[length]]
                current[node] += 1


@kernel()
def _advance(graph, flow, level, current, node, num_sets):
    """Move a node's current arc on to one that leads a level further; return its other end, or −1."""
    begins, arcs, sets, heads = graph
    while current[node] < begins[node + 1]:
        arc = arcs[current[node]]
        end = heads[arc] if node < num_sets else sets[arc]
        if level[end] == level[node] + 1 and (node < num_sets or flow[arc] > 0.0):
            return end
        current[node] += 1
    return -1


@kernel()
def _augment(path, flow, supply, demand, source, sink):
    """Send as much as possible along the path, whose even arcs lead to a token, and whose odd arcs back."""
    amount = min(supply[source], demand[sink])
    for arc in path[1::2]:
        amount = min(amount, flow[arc])
    supply[source] -= amount
    demand[sink] -= amount
    for i in range(path.size):
        flow[path[i]] += amount if i % 2 == 0 else -amount
