"""The ceiling: the most that is accepted with any law of drafts that sees the draft's distribution alone.

A law drafts token y with probability π_y, Σ π_y = n, and no verifier accepts more than Σ min(p_y, π_y). For
the best π that is a function of q, the level P(p_y > π_y | q) is the same for all tokens of a position, as in
the newsvendor problem.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otmd.probabilities import FloatArray

# Ranges of q: twelve of likely tokens, and twelve of others. An overconfident draft goes down to 1e-30.
EDGES = 10.0 ** np.concatenate([np.linspace(-30, -6, 12, endpoint=False), np.linspace(-6, 0, 12)])
EDGES = np.append(EDGES, np.inf)
# A q below this counts as this: there, p is no longer a multiple of q.
LEAST = EDGES[0] / 2
# A probability in the middle of each range.
MIDDLES = np.sqrt(np.append(LEAST, EDGES[:-1]) * np.append(EDGES[:-1], 1.0))
LEVELS = np.exp(np.linspace(np.log(2e-6), np.log(0.999), 120))
LIKELY = 1e-3


def proportional(target: FloatArray, draft: FloatArray, counts: Sequence[int]) -> FloatArray:
    """Σ min(p, π) for π = min(1, c q) with Σ π = n, for each n."""
    order = np.argsort(-draft)
    p, q = target[order], draft[order]
    left = np.append(q[::-1].cumsum()[::-1], 0.0)
    bounds = np.empty(len(counts))
    support = np.count_nonzero(q)
    for i, count in enumerate(counts):
        n = min(count, support)
        sure = 0
        while sure < n and q[sure] * (n - sure) >= left[sure]:
            sure += 1
        rest = np.minimum(p[sure:], q[sure:] * ((n - sure) / left[sure])) if n > sure else 0.0
        bounds[i] = p[:sure].sum() + np.sum(rest)
    return bounds


def quantiles(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """π/q by range of q (edges,) and level (levels,): quantiles of p/q, with π ascending in q."""
    ratio = np.concatenate([p[q > 0] / np.maximum(q[q > 0], LEAST) for p, q in pairs])
    number = np.concatenate([np.digitize(q[q > 0], EDGES) for _, q in pairs])
    inclusion = np.zeros((EDGES.size, LEVELS.size))
    for b in np.unique(number):
        inclusion[b] = np.quantile(ratio[number == b], 1.0 - LEVELS)
    middle = MIDDLES[:, None]
    return np.maximum.accumulate(inclusion * middle, axis=0) / middle


def newsvendor(
    target: FloatArray, draft: FloatArray, ratios: FloatArray, counts: Sequence[int]
) -> FloatArray:
    """Σ min(p, π) for each n, where π follows these quantiles at the level with Σ π = n."""
    number = np.digitize(draft, EDGES)
    q = np.where(draft > 0, np.maximum(draft, LEAST), 0.0)
    # Only likely tokens can reach π = 1.
    likely = q > LIKELY
    totals = np.bincount(number[~likely], q[~likely], EDGES.size) @ ratios
    totals += np.minimum(1.0, ratios[number[likely]] * q[likely, None]).sum(axis=0)
    bounds = np.empty(len(counts))
    for i, n in enumerate(counts):
        # Totals fall as the level rises; the lowest level is taken where all of them are too small.
        level = float(np.interp(-n, -totals, np.arange(totals.size)))
        low = min(int(level), totals.size - 2)
        between = ratios[:, low : low + 2] @ (low + 1 - level, level - low)
        inclusion = np.minimum(1.0, between[number] * q)
        # Between two levels the sum may be a little above n.
        inclusion *= min(1.0, n / inclusion.sum())
        bounds[i] = np.minimum(target, inclusion).sum()
    return bounds
