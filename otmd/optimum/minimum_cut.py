"""The optimal cut of a law without a ratio order: a minimum cut between tokens and draft sets.

Set t supplies ``supply[t]``, token y takes up to ``demand[y]``, and a set may send to its own tokens. The
largest flow is found by Dinic's algorithm (1970). Each augmentation empties the arc with the smallest
residual exactly, since that residual is subtracted from itself. So the algorithm ends in floating point as it
does in the reals.
"""

import numpy as np

from otmd.drafts import DraftLaw
from otmd.kernel import kernel
from otmd.probabilities import BoolArray, FloatArray, IntArray

CLOSED = 1e-15
"""An arc with less residual capacity counts as closed: the rest is rounding."""


def minimum_cut(target: FloatArray, law: DraftLaw) -> tuple[BoolArray, float]:
    """The smallest H that minimises p(H) − g(H) at a single position, and the value of the flow, α*.

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

    Returns where each set begins, (S + 1,), the sets one after another, ascending within each, and their
    probabilities (S,). Tuples with the same set become one with ``merge``; without it every tuple keeps its
    place.
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
    """The distinct rows in lexicographic order, and which of them each row is.

    Each row is turned into one number, whose digits are the row's entries; the base is the number of distinct
    entries. Numbers are sorted many times faster than rows, and into the same order.
    """
    present = np.zeros(rows.max() + 1, dtype=bool)
    present[rows] = True
    digits = present.cumsum() - 1
    base = int(digits[-1]) + 1
    if base ** rows.shape[1] > np.iinfo(np.int64).max:
        distinct, place = np.unique(rows, axis=0, return_inverse=True)
        return distinct, place.ravel()
    numbers = np.zeros(len(rows), np.int64)
    for column in rows.T:
        numbers = numbers * base + digits[column]
    _, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    return rows[first], place


@kernel()
def max_flow(starts, tokens, supply, demand):
    """Route as much as possible; ``supply`` and ``demand`` keep what was left.

    Parameters: set t holds tokens[starts[t]:starts[t + 1]], each once. Returns the flow of each
    (set, token) pair, in the order of ``tokens``.
    """
    graph = _graph(starts, tokens, demand.size)
    flow = np.zeros(tokens.size)
    levels = np.empty(supply.size, np.int64), np.empty(demand.size, np.int64)
    while _label(graph, flow, supply, demand, levels, 0.0):
        _block(graph, flow, supply, demand, levels)
    return flow


@kernel()
def tokens_short_of_demand(starts, tokens, supply, demand, flow, threshold):
    """The tokens that are reachable from sets with supply left: the smallest minimum cut."""
    levels = np.empty(supply.size, np.int64), np.empty(demand.size, np.int64)
    _label(_graph(starts, tokens, demand.size), flow, supply, demand, levels, threshold)
    return levels[1] >= 0


@kernel()
def _graph(starts, tokens, num_tokens):
    """The arcs set → token by set, and by token: starts, tokens, owners, token starts, token arcs."""
    owners, token_arcs = np.empty(tokens.size, np.int64), np.empty(tokens.size, np.int64)
    token_starts = np.zeros(num_tokens + 1, np.int64)
    for y in tokens:
        token_starts[y + 1] += 1
    for y in range(num_tokens):
        token_starts[y + 1] += token_starts[y]
    place = token_starts.copy()
    for t in range(starts.size - 1):
        for arc in range(starts[t], starts[t + 1]):
            owners[arc] = t
            token_arcs[place[tokens[arc]]] = arc
            place[tokens[arc]] += 1
    return starts, tokens, owners, token_starts, token_arcs


@kernel()
def _label(graph, flow, supply, demand, levels, threshold):
    """Breadth-first levels of the residual graph; True where a token with demand is reached."""
    starts, tokens, owners, token_starts, token_arcs = graph
    set_level, token_level = levels
    num_sets = supply.size
    token_level[:] = -1
    queue = np.empty(num_sets + demand.size, np.int64)
    head, tail, reached = 0, 0, False
    for t in range(num_sets):
        set_level[t] = 0 if supply[t] > threshold else -1
        if set_level[t] == 0:
            queue[tail] = t
            tail += 1
    while head < tail:
        node = queue[head]
        head += 1
        if node < num_sets:
            for arc in range(starts[node], starts[node + 1]):
                y = tokens[arc]
                if token_level[y] < 0:
                    token_level[y] = set_level[node] + 1
                    reached = reached or demand[y] > threshold
                    queue[tail] = num_sets + y
                    tail += 1
        else:
            y = node - num_sets
            for place in range(token_starts[y], token_starts[y + 1]):
                t = owners[token_arcs[place]]
                if set_level[t] < 0 and flow[token_arcs[place]] > threshold:
                    set_level[t] = token_level[y] + 1
                    queue[tail] = t
                    tail += 1
    return reached


@kernel()
def _block(graph, flow, supply, demand, levels):
    """A blocking flow along the levels, by depth-first search with current arcs."""
    starts, tokens, owners, token_starts, _ = graph
    set_level, token_level = levels
    next_of_set = starts[:-1].copy()
    next_of_token = token_starts[:-1].copy()
    path = np.empty(2 * (supply.size + demand.size), np.int64)
    for source in range(supply.size):
        if set_level[source] != 0:
            continue
        length = 0
        t = source
        while supply[source] > 0.0:
            arc = _advance(graph, levels, next_of_set, t)
            if arc < 0:
                if length == 0:
                    break
                # A dead end: step back over the arc token → t, and look at the token's next one.
                set_level[t] = -1
                length -= 1
                y = tokens[path[length]]
                next_of_token[y] += 1
            else:
                path[length] = arc
                length += 1
                y = tokens[arc]
            if demand[y] > 0.0:
                _augment(path, length, flow, supply, demand, source, y)
                length = 0
                t = source
                continue
            back = _retreat(graph, levels, next_of_token, flow, y)
            if back >= 0:
                path[length] = back
                length += 1
                t = owners[back]
            else:
                token_level[y] = -1
                length -= 1
                t = owners[path[length]]
                next_of_set[t] += 1


@kernel()
def _advance(graph, levels, next_of_set, t):
    starts, tokens = graph[0], graph[1]
    set_level, token_level = levels
    while next_of_set[t] < starts[t + 1]:
        arc = next_of_set[t]
        if token_level[tokens[arc]] == set_level[t] + 1:
            return arc
        next_of_set[t] += 1
    return -1


@kernel()
def _retreat(graph, levels, next_of_token, flow, y):
    _, _, owners, token_starts, token_arcs = graph
    set_level, token_level = levels
    while next_of_token[y] < token_starts[y + 1]:
        arc = token_arcs[next_of_token[y]]
        if flow[arc] > 0.0 and set_level[owners[arc]] == token_level[y] + 1:
            return arc
        next_of_token[y] += 1
    return -1


@kernel()
def _augment(path, length, flow, supply, demand, source, y):
    """Send the bottleneck along the path; its even arcs go set → token, its odd ones back."""
    amount = min(supply[source], demand[y])
    for i in range(1, length, 2):
        amount = min(amount, flow[path[i]])
    supply[source] -= amount
    demand[y] -= amount
    for i in range(length):
        if i % 2 == 0:
            flow[path[i]] += amount
        else:
            flow[path[i]] -= amount
