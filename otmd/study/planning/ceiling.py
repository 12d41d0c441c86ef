"""The ceiling: the most that is accepted with any law of drafts that sees the draft's distribution alone.

A law drafts token y with probability π_y, Σ π_y = n, and no verifier accepts more than Σ min(p_y, π_y). For
the best π that is a function of q, the level P(p_y > π_y | q) is the same for all tokens of a position, as in
the newsvendor problem (docs/plan.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from otmd.models.dataset import Dataset
from otmd.probabilities import FloatArray, Processing
from otmd.study.planning.texts import Text, halves
from otmd.study.planning.token_table import RATES_EVERY, Settings
from otmd.study.rows import process
from otmd.study.runner import frame

# Ranges of q: twelve of likely tokens, and twelve of others. An overconfident draft goes down to 1e-30.
EDGES = 10.0 ** np.concatenate([np.linspace(-30, -6, 12, endpoint=False), np.linspace(-6, 0, 12)])
EDGES = np.append(EDGES, np.inf)
# A q below this counts as this: there, p is no longer a multiple of q.
LEAST = EDGES[0] / 2
# A probability in the middle of each range.
MIDDLES = np.sqrt(np.append(LEAST, EDGES[:-1]) * np.append(EDGES[:-1], 1.0))
LEVELS = np.exp(np.linspace(np.log(2e-6), np.log(0.999), 120))
LIKELY = 1e-3
# At most this many probabilities of each model are fitted, which takes 400 MB.
MOST_FITTED = 2**23
SCHEMA: dict[str, type] = {
    **{"text": int, "index": int, "draft_temperature": float, "num_drafts": int},
    **{"proportional": float, "fitted": float},
}


def ceilings(dataset: Dataset, texts: Sequence[Text], settings: Settings) -> pl.DataFrame:
    """Bound what any verifier accepts at a token, whatever the law of the drafts that it is given.

    Parameters
    ----------
    dataset, texts, settings
        As for :func:`otmd.study.planning.probs_table`.

    Returns
    -------
    polars.DataFrame
        A row for every eighth token of the held-out half, draft temperature and number of drafts:
        ``proportional`` is Σ min(p, π) for π ∝ q, and ``fitted`` for the π fitted on the fitting half.
        ValueError for fewer than four texts, or rows that are no distributions.
    """
    fit, report = halves(texts)
    fitting = [row for i in fit for row in texts[i].rows]
    fitting = fitting[:: -(-len(fitting) * dataset.vocab_size // MOST_FITTED)]
    counts = range(1, max(settings.num_drafts) + 1)
    rows = []
    for step in settings.drafts:
        ratios = quantiles([_pair(dataset, row, settings.target, step) for row in fitting])
        for i in report.tolist():
            for index in range(0, len(texts[i].rows), RATES_EVERY):
                p, q = _pair(dataset, texts[i].rows[index], settings.target, step)
                bounds = proportional(p, q, counts), newsvendor(p, q, ratios, counts)
                key = i, index, step.temperature
                rows += [(*key, *values) for values in zip(counts, *bounds, strict=True)]
    return frame(rows, schema=SCHEMA, orient="row")


def _pair(
    dataset: Dataset, row: int, target: Processing, draft: Processing
) -> tuple[FloatArray, FloatArray]:
    p, q = (side[0] for side in dataset.arrays([row]))
    kind = dataset.kind
    return process("target_probs", p, kind, target), process("draft_probs", q, kind, draft)


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
