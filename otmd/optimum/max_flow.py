"""Maximum flow from weighted sets to the tokens they contain, by Dinic's algorithm (1970).

Set t supplies ``supply[t]``, token y takes up to ``demand[y]``, and a set may send to its own tokens.
An augmentation subtracts its bottleneck from itself, so the saturated arc is exactly empty and the
algorithm ends in floating point as it does in the reals.
"""

import numpy as np

from otmd.kernel import kernel


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
    """The tokens that sets with supply left can still reach: the cut nearest the sets."""
    levels = np.empty(supply.size, np.int64), np.empty(demand.size, np.int64)
    _label(_graph(starts, tokens, demand.size), flow, supply, demand, levels, threshold)
    return levels[1] >= 0


@kernel()
def _graph(starts, tokens, num_tokens):
    """The arcs set → token by set, and by token: starts, tokens, owners, token starts, token arcs."""
    owners = np.empty(tokens.size, np.int64)
    for t in range(starts.size - 1):
        owners[starts[t] : starts[t + 1]] = t
    token_starts = np.zeros(num_tokens + 1, np.int64)
    for y in tokens:
        token_starts[y + 1] += 1
    return starts, tokens, owners, np.cumsum(token_starts), np.argsort(tokens, kind="mergesort")


@kernel()
def _label(graph, flow, supply, demand, levels, threshold):
    """Breadth-first levels of the residual graph; True where a token with demand is reached."""
    starts, tokens, owners, token_starts, token_arcs = graph
    set_level, token_level = levels
    num_sets = supply.size
    set_level[:] = np.where(supply > threshold, 0, -1)
    token_level[:] = -1
    queue = np.empty(num_sets + demand.size, np.int64)
    tail = np.count_nonzero(set_level == 0)
    queue[:tail] = np.flatnonzero(set_level == 0)
    head = 0
    reached = False
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
