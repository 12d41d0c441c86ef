"""The ceiling: how much any law that sees only q could still accept.

A law drafts token y with probability π_y, Σ π_y = n, and no rule accepts more than Σ min(p_y, π_y). Of all π
that are functions of q, the best is that of a newsvendor: P(p_y > π_y | q) is the same λ for all tokens of
a position. Here π_y is a function of q_y and λ: the quantile of p given q_y, ascending in q_y; λ is found at
each position. Evaluated on the prompts that it was not fitted on, the bound is somewhat too low; on those
that it was fitted on, too high. Beside it stands the bound for π ∝ q, capped at 1, with nothing fitted.

With a dynamic budget, π ∝ q and n depends on the draft's entropy: more drafts where the bound gains most by
them on the other half of the prompts, with the same mean.
"""

import numpy as np
import polars as pl
from draft_laws import COUNTS, DRAFTS, chosen_prompts, text_file

import otmd
from otmd.probabilities import FloatArray, IntArray

# Twelve ranges of likely tokens, and as many of others; an overconfident draft goes down that far.
EDGES = 10.0 ** np.concatenate([np.linspace(-30, -6, 12, endpoint=False), np.linspace(-6, 0, 12)])
EDGES = np.append(EDGES, np.inf)
LEVELS = np.exp(np.linspace(np.log(2e-6), np.log(0.999), 120))
LIKELY = 1e-3
CEILING_AT = (0.6, 1.0, 1.5)
NAMES = ("ceiling, π ∝ q", "ceiling, fitted", "ceiling, fitted on itself", "ceiling, dynamic n")
BUDGETS = np.arange(1, 17)
ENTROPIES = 6


def ceilings(about: pl.DataFrame) -> dict[int, dict[str, FloatArray]]:
    """Bounds for each row of a table of positions, by number of drafts and name.

    NaN at temperatures other than CEILING_AT.
    """
    found = {n: {name: np.full(about.height, np.nan) for name in NAMES} for n in COUNTS}
    for draft in DRAFTS:
        stored = _stored(draft)
        for temperature in CEILING_AT:
            step = otmd.Processing(temperature)
            rows = about.filter(draft=draft, temperature=temperature)
            pairs = [
                (step(stored[prompt][0][at]), step(stored[prompt][1][at]))
                for prompt, at in rows.select("prompt_id", "position").iter_rows()
            ]
            half, places = rows["half"].to_numpy(), rows["row"].to_numpy()
            plain = np.array([proportional(p, q, BUDGETS) for p, q in pairs])
            entropy = rows["entropy"].to_numpy()
            for side in (0, 1):
                own, fit = half == side, half != side
                one, other = ([pairs[i] for i in np.flatnonzero(rows)] for rows in (own, fit))
                ratios = quantiles(other)
                for n in COUNTS:
                    found[n][NAMES[0]][places[own]] = plain[own, n - 1]
                    found[n][NAMES[1]][places[own]] = newsvendor(one, ratios, n)
                    found[n][NAMES[2]][places[fit]] = newsvendor(other, ratios, n)
                    budget = budgets(entropy[fit], plain[fit], n)[levels(entropy[own])]
                    found[n][NAMES[3]][places[own]] = plain[own, budget - 1]
    return found


def _stored(draft: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Logits of target and draft at the positions of each prompt."""
    found = {}
    for prompt in chosen_prompts():
        if text_file(prompt).exists():
            with np.load(text_file(prompt)) as arrays:
                found[prompt.id] = (arrays["target"], arrays[draft])
    return found


def proportional(target: FloatArray, draft: FloatArray, counts: IntArray) -> FloatArray:
    """Σ min(p, π) for π = min(1, c q) with Σ π = n, for each n."""
    order = np.argsort(-draft)
    p, q = target[order], draft[order]
    left, bounds = np.append(q[::-1].cumsum()[::-1], 0.0), np.empty(len(counts))
    for i, n in enumerate(counts):
        sure = 0
        while sure < n and q[sure] * (n - sure) >= left[sure]:
            sure += 1
        rest = np.minimum(p[sure:], q[sure:] * ((n - sure) / left[sure])) if n > sure else 0.0
        bounds[i] = p[:sure].sum() + np.sum(rest)
    return bounds


def levels(entropy: FloatArray) -> IntArray:
    """Which of six equal parts of the positions each one belongs to, by the draft's entropy."""
    return np.argsort(np.argsort(entropy)) * ENTROPIES // entropy.size


def budgets(entropy: FloatArray, bounds: FloatArray, num_drafts: int) -> IntArray:
    """How many drafts to make in each part, n in the mean, from bounds (positions, budgets)."""
    level = levels(entropy)
    means = np.array([bounds[level == b].mean(axis=0) for b in range(ENTROPIES)])
    gains, chosen = np.diff(means, axis=1), np.zeros(ENTROPIES, np.int64)
    for _ in range(ENTROPIES * (num_drafts - 1)):
        able = np.flatnonzero(chosen < gains.shape[1])
        chosen[able[np.argmax(gains[able, chosen[able]])]] += 1
    return BUDGETS[chosen]


def quantiles(pairs: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """π/q by range of q (edges − 1,) and level (levels,): quantiles of p/q, with π ascending in q."""
    target, draft = (np.concatenate(side) for side in zip(*pairs, strict=True))
    number = np.digitize(draft, EDGES)
    order = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[order], np.arange(EDGES.size + 1))
    inclusion = np.zeros((EDGES.size, LEVELS.size))
    for b in range(EDGES.size):
        own = order[ends[b] : ends[b + 1]]
        if own.size:
            inclusion[b] = np.quantile(target[own] / np.maximum(draft[own], 1e-300), 1.0 - LEVELS)
    middle = _middles()[:, None]
    return np.maximum.accumulate(inclusion * middle, axis=0) / middle


def _middles() -> FloatArray:
    low = np.append(EDGES[0] / 2, EDGES[:-1])
    return np.sqrt(low * np.append(EDGES[:-1], 1.0))


def newsvendor(
    pairs: list[tuple[FloatArray, FloatArray]], ratios: FloatArray, num_drafts: int
) -> FloatArray:
    """Bounds (positions,) by the quantiles, each position with its own level."""
    bounds = np.empty(len(pairs))
    for i, (p, q) in enumerate(pairs):
        number = np.digitize(q, EDGES)
        ratio = _between(ratios, _crossing(_totals(q, number, ratios), num_drafts))
        bounds[i] = np.minimum(p, np.minimum(1.0, ratio[number] * q)).sum()
    return bounds


def _totals(draft: FloatArray, number: IntArray, ratios: FloatArray) -> FloatArray:
    """Σ π at each level, (levels,); only likely tokens can reach π = 1."""
    likely = draft > LIKELY
    capped = np.minimum(1.0, ratios[number[likely]] * draft[likely, None])
    others = np.bincount(number[~likely], draft[~likely], ratios.shape[0])
    return capped.sum(axis=0) + others @ ratios


def _crossing(totals: FloatArray, num_drafts: int) -> float:
    """The level, as a place between two of those that are known, at which Σ π is n."""
    # Totals fall as the level rises; the lowest level is taken where all of them are too small.
    return float(np.interp(-num_drafts, -totals, np.arange(totals.size)))


def _between(ratios: FloatArray, level: float) -> FloatArray:
    low = int(level)
    high = min(low + 1, ratios.shape[1] - 1)
    return ratios[:, low] + (level - low) * (ratios[:, high] - ratios[:, low])
